use std::collections::BTreeMap;

use drowse_shared::id::SpaceId;

use super::{
    super::{Found, Result, Vitality},
    disk::{self, failed},
    host::Host,
    paths::{DiskName, names_in},
    renew,
};

/// Everything under this executor's roots: disks, half-made and half-removed ones, and bodies that lost theirs.
pub(super) fn list(host: &Host) -> Result<Vec<Found>> {
    let spaces = host.paths.spaces();
    let mut found: BTreeMap<SpaceId, (Option<_>, bool)> = BTreeMap::new();
    for name in names_in(&spaces).map_err(failed("list", &spaces))? {
        match DiskName::read(&name) {
            Some(DiskName::Disk(id)) => {
                let disk = host.paths.disk(id);
                found.insert(id, (disk::read_card(&disk), disk.image().is_file()));
            }
            // Names sort with '.' first, so a disk made anew under this id would replace this.
            Some(DiskName::Trash(id)) => {
                found.insert(id, (None, false));
            }
            None => {}
        }
    }
    for id in bodies(host)? {
        found.entry(id).or_insert((None, false));
    }
    let look = |(id, (card, disk))| {
        let vitality = host.vitality(id)?;
        let old_agent = vitality != Vitality::Stopped && renew::is_old(host, id);
        Ok(Found { id, card, disk, vitality, old_agent })
    };
    found.into_iter().map(look).collect()
}

/// Spaces that have anything beside a disk.
pub(super) fn bodies(host: &Host) -> Result<Vec<SpaceId>> {
    let mut ids = host.cgroups.ids().map_err(failed("list the cgroups of", &host.paths.run))?;
    for dir in [host.paths.run.clone(), host.paths.runtime()] {
        let names = names_in(&dir).map_err(failed("list", &dir))?;
        ids.extend(names.iter().filter_map(|name| name.parse::<SpaceId>().ok()));
    }
    ids.sort();
    ids.dedup();
    Ok(ids)
}
