//! Disks of one state directory on their way into another one.
//!
//! A disk is first *staged*: it lies beside the disks of the node that takes it, under a name that no daemon looks at, by a
//! rename, or as a copy that was verified and made durable. Then it gets its card and its name.

use std::{
    fs::{File, OpenOptions, Permissions},
    io,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
};

use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::id::{LedgerId, SpaceId};
use rustix::{fs::SeekFrom, io::Errno};

use super::{
    super::Card,
    disk::{allocated_bytes, sync_dir},
    mounts,
    paths::{Disk, DiskName, names_in},
    templates,
};

/// Bytes that are read, compared and written at once; a piece of zeros becomes a hole.
const PIECE_BYTES: usize = 1 << 20;
/// Name of a disk that waits for its place.
const STAGED: &str = ".adopt-";
/// Name of a disk that was given away.
const ASIDE: &str = ".adopted-";

/// What lies beside an image.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Beside {
    /// A card this version reads.
    Card(Box<Card>),
    /// A card of a newer version.
    Newer,
    /// None that can be read.
    Nothing,
}

/// A disk in a state directory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lying {
    /// Whose.
    pub(crate) id: SpaceId,
    /// What says so.
    pub(crate) beside: Beside,
    /// What it takes on the disk.
    pub(crate) bytes: u64,
    /// Whether processes still run on it.
    pub(crate) in_use: bool,
}

/// From one state directory to another.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    from: Utf8PathBuf,
    to: Utf8PathBuf,
}

fn spaces(state: &Utf8Path) -> Utf8PathBuf {
    state.join("spaces")
}

fn disk(state: &Utf8Path, name: &str) -> Disk {
    Disk { dir: spaces(state).join(name) }
}

fn beside(disk: &Disk) -> Beside {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Reader {
        min_reader: u32,
    }
    let Ok(text) = std::fs::read(disk.card()) else { return Beside::Nothing };
    match serde_json::from_slice::<Reader>(&text) {
        Ok(card) if card.min_reader > Card::FORMAT => Beside::Newer,
        _ => serde_json::from_slice(&text).map_or(Beside::Nothing, Beside::Card),
    }
}

/// Whether a template is on this machine.
pub(crate) fn has_template(templates: &Utf8Path, digest: &str) -> bool {
    templates::rootfs(templates, digest).is_some()
}

/// Every disk in a state directory.
pub(crate) fn lying(state: &Utf8Path) -> io::Result<Vec<Lying>> {
    let mut found = Vec::new();
    for name in names_in(&spaces(state))? {
        let Some(DiskName::Disk(id)) = DiskName::read(&name) else { continue };
        let disk = disk(state, &name);
        if disk.image().is_file() {
            let in_use = !mounts::is_released(&disk.image())?;
            found.push(Lying { id, beside: beside(&disk), bytes: allocated_bytes(&disk), in_use });
        }
    }
    Ok(found)
}

/// Disks that a state directory gave away and still keeps.
pub(crate) fn set_aside(state: &Utf8Path) -> io::Result<Vec<SpaceId>> {
    let names = names_in(&spaces(state))?;
    Ok(names.iter().filter_map(|name| name.strip_prefix(ASIDE)?.parse().ok()).collect())
}

/// What may still be written in a state directory.
pub(crate) fn room_bytes(state: &Utf8Path) -> io::Result<u64> {
    let fs = rustix::fs::statvfs(state.as_str())?;
    Ok(fs.f_bavail.saturating_mul(fs.f_frsize))
}

impl Way {
    /// Makes the directory of disks where there is none.
    pub(crate) fn new(from: &Utf8Path, to: &Utf8Path) -> io::Result<Self> {
        std::fs::create_dir_all(spaces(to))?;
        std::fs::set_permissions(spaces(to), Permissions::from_mode(0o700))?;
        Ok(Self { from: from.to_owned(), to: to.to_owned() })
    }

    /// Whether a rename is enough.
    pub(crate) fn is_one_file_system(&self) -> bool {
        let device = |state: &Utf8Path| std::fs::metadata(spaces(state)).map(|dir| dir.dev()).ok();
        device(&self.from).is_some_and(|from| Some(from) == device(&self.to))
    }

    fn source(&self, id: SpaceId) -> Disk {
        disk(&self.from, &id.to_string())
    }

    /// Where the source keeps what was copied until it is known to be here.
    fn aside(&self, id: SpaceId) -> Disk {
        disk(&self.from, &format!("{ASIDE}{id}"))
    }

    /// Where it waits for its name.
    pub(crate) fn staged(&self, id: SpaceId) -> Utf8PathBuf {
        self.staging(id).dir
    }

    fn staging(&self, id: SpaceId) -> Disk {
        disk(&self.to, &format!("{STAGED}{id}"))
    }

    fn placed(&self, id: SpaceId) -> Disk {
        disk(&self.to, &id.to_string())
    }

    /// Whether the disk lies at its place.
    pub(crate) fn is_placed(&self, id: SpaceId) -> bool {
        self.placed(id).image().is_file()
    }

    /// Whether what is staged is whole: the source does not have it any more, or it has its new card already.
    pub(crate) fn is_staged(&self, id: SpaceId, own: LedgerId) -> bool {
        let staging = self.staging(id);
        let marked = matches!(beside(&staging), Beside::Card(card) if card.ledger_id == own);
        staging.image().is_file() && (marked || !self.source(id).dir.exists())
    }

    /// Moves the disk; `false` when that takes a copy.
    pub(crate) fn stage_by_rename(&self, id: SpaceId) -> io::Result<bool> {
        self.unstage(id)?;
        match std::fs::rename(self.source(id).dir, self.staging(id).dir) {
            Ok(()) => {
                sync_dir(&spaces(&self.from))?;
                sync_dir(&spaces(&self.to))?;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Copies the disk, verifies the copy, and makes it durable. `progress` is told how many bytes were copied.
    pub(crate) fn stage_by_copy(&self, id: SpaceId, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
        self.unstage(id)?;
        let (source, staging) = (self.source(id), self.staging(id));
        std::fs::create_dir(&staging.dir)?;
        std::fs::set_permissions(&staging.dir, Permissions::from_mode(0o700))?;
        copy(&source.image(), &staging.image(), progress)?;
        sync_dir(&staging.dir)
    }

    /// Takes away what an earlier try left half done.
    pub(crate) fn unstage(&self, id: SpaceId) -> io::Result<()> {
        remove(&self.staging(id).dir)
    }

    /// The source has no disk of this name any more; its data is kept until [`Way::clear`].
    pub(crate) fn set_aside(&self, id: SpaceId) -> io::Result<()> {
        match std::fs::rename(self.source(id).dir, self.aside(id).dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => sync_dir(&spaces(&self.from)),
        }
    }

    /// Gives what is staged its card.
    pub(crate) fn mark(&self, card: &Card) -> io::Result<()> {
        let staging = self.staging(card.id);
        replace(&staging.card(), &serde_json::to_vec_pretty(card)?)
    }

    /// Gives what is staged its name.
    pub(crate) fn place(&self, id: SpaceId) -> io::Result<()> {
        std::fs::rename(self.staging(id).dir, self.placed(id).dir)?;
        sync_dir(&spaces(&self.to))
    }

    /// Removes what the source kept.
    pub(crate) fn clear(&self, id: SpaceId) -> io::Result<()> {
        remove(&self.aside(id).dir)
    }
}

fn remove(dir: &Utf8Path) -> io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Replaces a file whole and makes it durable.
pub(crate) fn replace(path: &Utf8Path, content: &[u8]) -> io::Result<()> {
    use io::Write;
    let beside = Utf8PathBuf::from(format!("{path}.new"));
    let mut file = File::create(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Copies an image with its holes. What was written is read back from the disk and compared.
fn copy(from: &Utf8Path, to: &Utf8Path, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
    let source = File::open(from)?;
    let target = OpenOptions::new().read(true).write(true).create_new(true).open(to)?;
    // On some file systems both share their blocks from now on, and there is nothing to copy.
    if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
        return target.sync_all();
    }
    let length = source.metadata()?.len();
    target.set_len(length)?;
    let (mut piece, mut copied) = (vec![0; PIECE_BYTES], 0);
    let mut sums = (blake3::Hasher::new(), blake3::Hasher::new());
    each_piece(&source, length, &mut piece, |at, bytes| {
        if bytes.iter().any(|byte| *byte != 0) {
            target.write_all_at(bytes, at)?;
            sums.0.update(&at.to_le_bytes()).update(bytes);
        }
        copied += bytes.len() as u64;
        progress(copied);
        Ok(())
    })?;
    target.sync_all()?;
    // What is in memory is what was just written; only the disk can be wrong.
    let _ = rustix::fs::fadvise(&target, 0, None, rustix::fs::Advice::DontNeed);
    each_piece(&target, length, &mut piece, |at, bytes| {
        if bytes.iter().any(|byte| *byte != 0) {
            sums.1.update(&at.to_le_bytes()).update(bytes);
        }
        Ok(())
    })?;
    if target.metadata()?.len() != length || sums.0.finalize() != sums.1.finalize() {
        return Err(io::Error::other("the copy differs from what was read; the disk may be failing"));
    }
    Ok(())
}

/// Every piece of a file that may hold something else than zeros, at multiples of the piece's size.
fn each_piece(
    file: &File,
    length: u64,
    piece: &mut [u8],
    mut work: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let size = piece.len() as u64;
    let mut at = 0;
    while at < length {
        at = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data - data % size,
            Err(Errno::NXIO) => break,
            // A file system without holes: everything is read.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(error) => return Err(error.into()),
        };
        let many = usize::try_from(size.min(length - at)).unwrap_or(piece.len());
        file.read_exact_at(&mut piece[..many], at)?;
        work(at, &piece[..many])?;
        at += many as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_every_byte_and_keeps_its_holes() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = Utf8Path::from_path(dir.path()).expect("UTF-8");
        let (from, to) = (dir.join("from"), dir.join("to"));
        let source = File::create_new(&from).expect("made");
        let length = (64 << 20) + 777;
        source.set_len(length).expect("sparse");
        for (at, text) in
            [(5_u64, "begin"), ((1 << 20) - 2, "over the edge"), (40 << 20, "middle"), (length - 3, "end")]
        {
            source.write_all_at(text.as_bytes(), at).expect("written");
        }
        let mut told = 0;
        copy(&from, &to, &mut |bytes| told = bytes).expect("copied");
        assert!(std::fs::read(&from).expect("read") == std::fs::read(&to).expect("read"), "every byte");
        let blocks = std::fs::metadata(&to).expect("there").blocks() * 512;
        assert!(blocks <= 6 << 20, "{blocks} bytes are taken");
        assert!(told == 0 || told >= 3 << 20, "a clone or {told} bytes copied");
    }
}
