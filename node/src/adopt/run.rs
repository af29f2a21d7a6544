use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
};

use camino::Utf8Path;
use drowse_shared::{
    id::{LedgerId, SpaceId},
    name::SpaceName,
    seams::Env,
};

use super::{
    Error, Moment, Options, Outcome, Row, Watch,
    decide::{Decision, Here, Seen, decide},
    note,
    source::Source,
};
use crate::{
    executor::oci::carry::{self, Lying, Way},
    ledger::{Ledger, adoptions::Adoption},
    space::Space,
};

/// Room that must be left after a copy.
const ROOM_LEFT_BYTES: u64 = 64 << 20;

/// Names and templates of this machine.
struct Machine<'a> {
    names: BTreeMap<SpaceName, SpaceId>,
    ids: BTreeSet<SpaceId>,
    templates: &'a Utf8Path,
}

impl Here for Machine<'_> {
    fn holder(&self, name: &SpaceName) -> Option<SpaceId> {
        self.names.get(name).copied()
    }
    fn has(&self, id: SpaceId) -> bool {
        self.ids.contains(&id)
    }
    fn has_template(&self, digest: &str) -> bool {
        carry::has_template(self.templates, digest)
    }
}

/// One run. Both locks are held.
pub(super) struct Run<'a> {
    pub(super) env: &'a Env,
    pub(super) options: &'a Options,
    pub(super) watch: Arc<dyn Watch>,
    pub(super) own: LedgerId,
    pub(super) ledger: Ledger,
    pub(super) source: Source,
    pub(super) way: Way,
}

impl Run<'_> {
    /// Takes what can be taken; says what became of each.
    pub(super) async fn spaces(&self) -> Result<Vec<Row>, Error> {
        let from = self.source.state.clone();
        let lying = self.files("looking at the disks", move |_| carry::lying(&from)).await?;
        let here = self.ledger.all().await?;
        let mut machine = Machine {
            ids: here.iter().map(|space| space.id).collect(),
            names: here.into_iter().map(|space| (space.name, space.id)).collect(),
            templates: &self.options.templates,
        };
        let under_way: BTreeMap<SpaceId, Space> = self
            .ledger
            .adoptions_under_way()
            .await?
            .into_iter()
            .filter(|adoption| adoption.source == self.source.id)
            .map(|adoption| (adoption.space.id, adoption.space))
            .collect();
        for space in under_way.values().filter(|space| self.is_on_its_way_here(space.id)) {
            machine.names.entry(space.name.clone()).or_insert(space.id);
        }
        let mut rows = Vec::new();
        let mut taken: Vec<(Space, u64)> = Vec::new();
        for disk in lying.iter().filter(|disk| !self.is_on_its_way(disk.id, &under_way)) {
            // The source may have forgotten it before an earlier run was cut.
            let row = self.source.rows.get(&disk.id).or_else(|| under_way.get(&disk.id));
            match decide(&Seen { lying: disk, source: self.source.id, row }, &machine) {
                Decision::Take(space) => {
                    machine.names.insert(space.name.clone(), space.id);
                    taken.push((*space, disk.bytes));
                }
                Decision::Leave(outcome, detail) => {
                    if under_way.contains_key(&disk.id) && !self.options.dry_run {
                        self.ledger.drop_adoption(disk.id).await?;
                    }
                    let name = row.map(|row| row.name.clone()).or_else(|| name_of(disk));
                    rows.push(Row { name, id: disk.id, size_bytes: disk.bytes, outcome, detail });
                }
            }
        }
        self.without_disk(&lying, &under_way, &machine, &mut rows);
        self.check_room(&taken).await?;
        if !self.options.dry_run {
            self.leave_note(&taken)?;
            self.clear_settled(&machine).await?;
        }
        for space in under_way.into_values().filter(|space| self.is_on_its_way_here(space.id)) {
            let row = self.carry_on(space, &machine).await?;
            rows.push(row);
        }
        for (space, bytes) in taken {
            rows.push(self.take(space, bytes).await?);
        }
        rows.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        Ok(rows)
    }

    /// What the source kept of spaces that are safely here.
    async fn clear_settled(&self, machine: &Machine<'_>) -> Result<(), Error> {
        let from = self.source.state.clone();
        for id in self.files("looking", move |_| carry::set_aside(&from)).await? {
            if machine.has(id) {
                self.files("clearing", move |way| way.clear(id)).await?;
            }
        }
        Ok(())
    }

    fn is_on_its_way_here(&self, id: SpaceId) -> bool {
        self.way.is_placed(id) || self.way.is_staged(id, self.own)
    }

    fn is_on_its_way(&self, id: SpaceId, under_way: &BTreeMap<SpaceId, Space>) -> bool {
        under_way.contains_key(&id) && self.is_on_its_way_here(id)
    }

    /// Spaces that the source's ledger knows and that lie nowhere.
    fn without_disk(
        &self,
        lying: &[Lying],
        under_way: &BTreeMap<SpaceId, Space>,
        machine: &Machine<'_>,
        rows: &mut Vec<Row>,
    ) {
        for row in self.source.rows.values() {
            let there = lying.iter().any(|disk| disk.id == row.id) || under_way.contains_key(&row.id);
            if there || machine.has(row.id) || row.state.is_transitional() {
                continue;
            }
            let detail = "the ledger knows it, and its disk is not here".to_owned();
            rows.push(Row {
                name: Some(row.name.clone()),
                id: row.id,
                size_bytes: 0,
                outcome: Outcome::NoDisk,
                detail,
            });
        }
    }

    async fn check_room(&self, taken: &[(Space, u64)]) -> Result<(), Error> {
        if !self.options.copy && self.way.is_one_file_system() {
            return Ok(());
        }
        let needs_bytes = taken.iter().map(|(_, bytes)| bytes).sum::<u64>() + ROOM_LEFT_BYTES;
        let path = self.options.state.clone();
        let has_bytes = self.files("measuring", move |_| carry::room_bytes(&path)).await?;
        match has_bytes < needs_bytes && !taken.is_empty() {
            true => Err(Error::Room { path: self.options.state.clone(), has_bytes, needs_bytes }),
            false => Ok(()),
        }
    }

    /// Before anything moves: a source whose spaces are copied must not be run from now on.
    fn leave_note(&self, taken: &[(Space, u64)]) -> Result<(), Error> {
        if taken.is_empty() {
            return Ok(());
        }
        let spaces: Vec<_> = taken.iter().map(|(space, _)| (space.id, space.name.clone())).collect();
        let now = self.env.clock.wall();
        Ok(note::write(&self.source.state, self.own, now, self.options.copy, &spaces)?)
    }

    /// From its disk in the source to its row here.
    async fn take(&self, space: Space, size_bytes: u64) -> Result<Row, Error> {
        let (name, id) = (Some(space.name.clone()), space.id);
        let row = move |outcome, detail| Row { name, id, size_bytes, outcome, detail };
        if self.options.dry_run {
            return Ok(row(Outcome::Would, String::new()));
        }
        let begun = Adoption { space: space.clone(), source: self.source.id };
        self.ledger.begin_adoption(self.own, &begun, self.env.clock.wall()).await?;
        self.watch.reached(Moment::Begun);
        let carried = match self.stage(&space, size_bytes).await {
            Ok(()) => self.settle(space).await,
            Err(error) => Err(error),
        };
        let done = if self.options.copy { Outcome::Copied } else { Outcome::Moved };
        match carried {
            Ok(()) => Ok(row(done, String::new())),
            Err(error) => Ok(row(Outcome::Failed, failed(&error))),
        }
    }

    /// Brings the disk over here, under a name that no daemon looks at.
    async fn stage(&self, space: &Space, bytes: u64) -> Result<(), Error> {
        let id = space.id;
        if self.options.copy {
            self.copy(space, bytes).await?;
            self.watch.reached(Moment::Copied);
            return Ok(());
        }
        if self.way.is_one_file_system() {
            self.forget(id).await?;
            if self.files("moving", move |way| way.stage_by_rename(id)).await? {
                self.watch.reached(Moment::Left);
                return Ok(());
            }
        }
        self.copy(space, bytes).await?;
        self.watch.reached(Moment::Copied);
        self.forget(id).await?;
        self.files("setting aside", move |way| way.set_aside(id)).await?;
        self.watch.reached(Moment::Left);
        Ok(())
    }

    async fn copy(&self, space: &Space, bytes: u64) -> Result<(), Error> {
        let (id, name, watch) = (space.id, space.name.clone(), self.watch.clone());
        self.files("copying", move |way| {
            way.stage_by_copy(id, &mut |copied| watch.copied(&name, copied, bytes))
        })
        .await
    }

    async fn forget(&self, id: SpaceId) -> Result<(), Error> {
        let forget = self.source.forget();
        let done = self.env.blocking("adopt", move || forget(id)).await;
        done.unwrap_or_else(|| Err(self.torn("forgetting")))?;
        self.watch.reached(Moment::Forgotten);
        Ok(())
    }

    /// From what is staged to the row; from wherever an earlier run was cut.
    async fn settle(&self, space: Space) -> Result<(), Error> {
        let id = space.id;
        if !self.way.is_placed(id) {
            let card = space.card(self.own);
            self.files("writing the card", move |way| way.mark(&card)).await?;
            self.watch.reached(Moment::Marked);
            self.files("placing the disk", move |way| way.place(id)).await?;
            self.watch.reached(Moment::Placed);
        }
        let execs = self.source.execs(id)?;
        self.ledger.end_adoption(&space, self.source.id, execs, self.env.clock.wall()).await?;
        self.watch.reached(Moment::Settled);
        self.files("clearing", move |way| way.clear(id)).await?;
        self.watch.reached(Moment::Cleared);
        Ok(())
    }

    /// What an earlier run left between the two.
    async fn carry_on(&self, space: Space, machine: &Machine<'_>) -> Result<Row, Error> {
        let (name, id) = (space.name.clone(), space.id);
        let row = |outcome, detail| Row { name: Some(name.clone()), id, size_bytes: 0, outcome, detail };
        if self.options.dry_run {
            return Ok(row(Outcome::Would, "an earlier run was cut; it goes on".to_owned()));
        }
        if let Some(holder) = machine.holder(&name).filter(|holder| *holder != id) {
            let detail = format!(
                "{holder} took its name here after an earlier run was cut; its disk waits in {}: destroy the wrong one and run \
                 this again",
                self.way.staged(id)
            );
            return Ok(row(Outcome::Conflict, detail));
        }
        let done = if self.options.copy { Outcome::Copied } else { Outcome::Moved };
        match self.settle(space).await {
            Ok(()) => Ok(row(done, String::new())),
            Err(error) => Ok(row(Outcome::Failed, failed(&error))),
        }
    }

    /// Work on files, off the async threads.
    async fn files<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&Way) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let way = self.way.clone();
        let done = self.env.blocking("adopt", move || work(&way)).await;
        let done = done.ok_or_else(|| self.torn(what))?;
        done.map_err(|source| Error::Io { what, path: self.source.state.clone(), source })
    }

    fn torn(&self, what: &'static str) -> Error {
        Error::Io { what, path: self.source.state.clone(), source: io::Error::other("its thread ended") }
    }

    /// What is left for a person to do.
    pub(super) fn advise(&self, spaces: &[Row], remains: &mut Vec<String>) {
        let is = |outcome| spaces.iter().any(|row| row.outcome == outcome);
        if is(Outcome::TemplateMissing) {
            let beside = self.source.state.parent().map(|parent| parent.join("templates"));
            let copy = beside.filter(|dir| dir.is_dir()).map_or(String::new(), |dir| {
                format!(", or copy it: cp -a {dir}/<digest> {}/", self.options.templates)
            });
            remains.push(format!(
                "install the missing templates with deploy/base/build{copy}; then run this again"
            ));
        }
        if is(Outcome::Moved) || is(Outcome::Copied) {
            remains.push("start the daemon of this node (systemctl start drowse-node)".to_owned());
        }
        if is(Outcome::Failed) {
            remains.push("run this again once the cause of what failed is gone; nothing is lost".to_owned());
        }
    }
}

fn name_of(disk: &Lying) -> Option<SpaceName> {
    match &disk.beside {
        carry::Beside::Card(card) => Some(card.name.clone()),
        _ => None,
    }
}

fn failed(error: &Error) -> String {
    crate::door::error::chain(error)
}
