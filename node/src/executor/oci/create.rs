use std::{io, sync::Arc};

use drowse_shared::id::SpaceId;

use super::{
    super::{Card, Error, Result},
    disk::{self, failed},
    files,
    host::Host,
    paths::Disk,
    step::Step,
    stop, templates,
};

/// Makes the disk, or leaves none.
pub(super) async fn create(host: &Arc<Host>, card: Card) -> Result<()> {
    let id = card.id;
    let made = make(host, card).await;
    if made.is_err() {
        let clear = move |host: &Host| {
            let disk = host.paths.disk(id);
            remove(host, &disk).map_err(failed("remove the disk", &disk.dir))
        };
        if let Err(error) = host.kernel(id, "remove the disk", host.deadlines.command, clear).await {
            tracing::warn!(%id, %error, "what a failed create left could not be removed yet");
        }
    }
    made
}

/// Image, file system with its seed, card last. A directory without a card is half made.
async fn make(host: &Arc<Host>, card: Card) -> Result<()> {
    let (id, size_bytes) = (card.id, card.spec.disk_bytes);
    // A create that was cut may have got further than its record.
    stop::stop(host, id, None).await?;
    let within = host.deadlines.start;
    let (disk, body) = (host.paths.disk(id), host.paths.body(id));
    let seed = body.dir.join("seed");
    let (seeded, seeding, laid) = (seed.clone(), card.clone(), disk.clone());
    let prepare = move |host: &Host| {
        let digest = &seeding.template.digest;
        let rootfs = templates::rootfs(&host.paths.templates, digest)
            .ok_or_else(|| Error::TemplateMissing { digest: digest.clone() })?;
        host.take(Step::LaySeed, |leave| disk::seed(leave, &seeded, &seeding, &rootfs))
            .map_err(failed("lay out the seed", &seeded))?;
        host.take(Step::MakeImage, |leave| disk::allocate(leave, &laid, size_bytes))
            .map_err(failed("make the image", &laid.dir))
    };
    host.kernel(id, "make the image", within, prepare).await?;
    let made = disk::format(&host.steps, &disk, &seed, size_bytes, &body.dir.join("mkfs.log"), within).await;
    let finish = move |host: &Host| {
        // Best effort: what is left in the run directory is cleaned up by the next start too.
        let _ = host.take(Step::RemoveBody, |leave| files::remove_all(leave, &host.paths.body(id).dir));
        made?;
        host.take(Step::SyncImage, |_| disk::sync_image(&disk))
            .map_err(failed("sync the image", &disk.dir))?;
        host.take(Step::WriteCard, |leave| disk::write_card(leave, &disk, &card))
            .map_err(failed("write the card", &disk.dir))?;
        host.take(Step::SyncNames, |_| disk::sync_dir(&host.paths.spaces()))
            .map_err(failed("sync the directory", &disk.dir))
    };
    host.kernel(id, "finish the disk", within, finish).await
}

/// Removes everything of a space.
pub(super) async fn destroy(host: &Arc<Host>, id: SpaceId) -> Result<()> {
    stop::stop(host, id, None).await?;
    host.kernel(id, "remove the disk", host.deadlines.start, move |host| {
        let (disk, trash) = (host.paths.disk(id), Disk { dir: host.paths.trash(id) });
        let destroy = || -> io::Result<()> {
            // What an earlier removal left would be in the way of the name.
            remove(host, &trash)?;
            let aside = host.take(Step::TrashDisk, |leave| {
                let aside = files::rename(leave, &disk.dir, &trash.dir)?;
                if aside {
                    // From here on it is no space any more, wherever this is cut.
                    disk::sync_dir(&host.paths.spaces())?;
                }
                Ok::<_, io::Error>(aside)
            })?;
            if aside { remove(host, &trash) } else { Ok(()) }
        };
        destroy().map_err(failed("remove the disk", &disk.dir))
    })
    .await
}

/// The card first: a directory that is half removed must never pass for a whole one.
fn remove(host: &Host, disk: &Disk) -> io::Result<()> {
    if !disk.dir.exists() {
        return Ok(());
    }
    host.take(Step::RemoveCard, |leave| files::remove_file(leave, &disk.card()))?;
    host.take(Step::RemoveDisk, |leave| files::remove_all(leave, &disk.dir))
}
