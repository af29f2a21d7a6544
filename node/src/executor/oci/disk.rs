use std::{
    fs::{File, Permissions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    time::Duration,
};

use camino::Utf8Path;

use super::{
    super::{Card, Error, Result},
    bundle::hostname,
    paths::Disk,
    runtime,
    step::{Leave, Program, Steps},
};

/// The owner of the home directory, on disk and inside.
const USER: u32 = 1000;
/// A journal of 16 MiB at most; smaller file systems get a smaller one.
const JOURNAL_MB_MAX: u64 = 16;
const JOURNAL_MB_MIN: u64 = 4;
/// Below this much free space a failure is put down to a full disk.
const FULL_BYTES: u64 = 4 << 20;

/// An error of a system call on a path.
pub(super) fn failed(what: &'static str, path: &Utf8Path) -> impl FnOnce(io::Error) -> Error {
    move |source| match source.kind() {
        io::ErrorKind::StorageFull => Error::DiskFull,
        _ => Error::Io { what, path: path.to_owned(), source },
    }
}

/// Files beside the root and the home, out of reach from inside, that give way when a start finds the disk full: overlayfs
/// makes a few files before it mounts, and without room for them a full space could never start and be emptied again.
const SPARE: &str = "spare";
const SPARE_FILES: u32 = 8;
const SPARE_FILE_BYTES: usize = 4096;

/// Makes the spare files that are missing, as far as there is room.
pub(super) fn keep_spare(_: &Leave, dir: &Utf8Path) {
    let spare = dir.join(SPARE);
    let _ = std::fs::create_dir(&spare);
    for number in 0..SPARE_FILES {
        let made = File::create_new(spare.join(number.to_string()));
        let _ = made.and_then(|mut file| file.write_all(&[0; SPARE_FILE_BYTES]));
    }
}

/// Gives the room of the spare files away.
pub(super) fn use_spare(_: &Leave, dir: &Utf8Path) {
    for number in 0..SPARE_FILES {
        let _ = std::fs::remove_file(dir.join(SPARE).join(number.to_string()));
    }
}

/// Lays out what a new disk begins with: an empty layer with the machine's own names, and the template's home.
pub(super) fn seed(leave: &Leave, dir: &Utf8Path, card: &Card, rootfs: &Utf8Path) -> io::Result<()> {
    let _ = std::fs::remove_dir_all(dir);
    let etc = dir.join("root/upper/etc");
    std::fs::create_dir_all(&etc)?;
    std::fs::create_dir_all(dir.join("root/work"))?;
    for open in ["", "root", "root/upper", "root/upper/etc", "root/work"] {
        std::fs::set_permissions(dir.join(open), Permissions::from_mode(0o755))?;
    }
    let host = hostname(card);
    let hosts = format!("127.0.0.1 localhost\n127.0.1.1 {host}\n::1 localhost ip6-localhost ip6-loopback\n");
    for (name, text) in [("hosts", hosts), ("hostname", format!("{host}\n"))] {
        std::fs::write(etc.join(name), text)?;
        std::fs::set_permissions(etc.join(name), Permissions::from_mode(0o644))?;
    }
    keep_spare(leave, dir);
    let home = dir.join("home");
    copy_home(&rootfs.join("home/user"), &home)?;
    std::fs::set_permissions(&home, Permissions::from_mode(0o755))?;
    chown(&home, Some(USER), Some(USER))
}

/// Copies a small tree of plain files; every copy belongs to the user.
fn copy_home(from: &Utf8Path, to: &Utf8Path) -> io::Result<()> {
    std::fs::create_dir(to)?;
    let entries = match from.read_dir_utf8() {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let (kind, copy) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy_home(entry.path(), &copy)?;
            std::fs::set_permissions(&copy, entry.metadata()?.permissions())?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(entry.path().read_link_utf8()?, &copy)?;
        } else if kind.is_file() {
            std::fs::copy(entry.path(), &copy)?;
        } else {
            continue;
        }
        std::os::unix::fs::lchown(&copy, Some(USER), Some(USER))?;
    }
    Ok(())
}

/// Makes a sparse image of the card's size, empty.
pub(super) fn allocate(_: &Leave, disk: &Disk, size_bytes: u64) -> io::Result<()> {
    match std::fs::remove_dir_all(&disk.dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => std::fs::create_dir_all(&disk.dir)?,
    }
    std::fs::set_permissions(&disk.dir, Permissions::from_mode(0o700))?;
    File::create_new(disk.image())?.set_len(size_bytes)
}

/// Makes the file system with the seed in it, without mounting anything.
pub(super) async fn format(
    steps: &Steps,
    disk: &Disk,
    seed: &Utf8Path,
    size_bytes: u64,
    log: &Utf8Path,
    within: Duration,
) -> Result<()> {
    let journal = ((size_bytes >> 20) / 16).clamp(JOURNAL_MB_MIN, JOURNAL_MB_MAX);
    let (image, journal) = (disk.image(), format!("size={journal}"));
    // The image is all zeros, so neither the inode tables nor the journal are written, now or later.
    let extended =
        "lazy_itable_init=1,lazy_journal_init=1,nodiscard,assume_storage_prezeroed=1,root_owner=0:0";
    let args = [
        "-q",
        "-F",
        "-J",
        &journal,
        "-m",
        "0",
        "-O",
        "^resize_inode",
        "-E",
        extended,
        "-d",
        seed.as_str(),
        image.as_str(),
    ];
    let made =
        runtime::run(steps, Program::MakeFileSystem, "mkfs.ext4", &args, log, Vec::new(), within).await;
    match made {
        Err(Error::Runtime { .. }) if is_full(&disk.dir) => Err(Error::DiskFull),
        other => other,
    }
}

/// Whether the file system under `dir` has no room to speak of.
pub(super) fn is_full(dir: &Utf8Path) -> bool {
    rustix::fs::statvfs(dir.as_str()).is_ok_and(|fs| fs.f_bavail.saturating_mul(fs.f_frsize) < FULL_BYTES)
}

/// Writes a card beside its disk, whole or not at all, and makes it durable.
pub(super) fn write_card(_: &Leave, disk: &Disk, card: &Card) -> io::Result<()> {
    let temporary = disk.dir.join("space.json.new");
    let mut file = File::create(&temporary)?;
    file.write_all(&serde_json::to_vec_pretty(card)?)?;
    file.sync_all()?;
    std::fs::rename(&temporary, disk.card())?;
    sync_dir(&disk.dir)
}

/// The card beside a disk, if it can be read.
pub(super) fn read_card(disk: &Disk) -> Option<Card> {
    let text = std::fs::read(disk.card()).ok()?;
    match serde_json::from_slice::<Card>(&text) {
        Ok(card) if card.min_reader <= Card::FORMAT => Some(card),
        Ok(card) => {
            tracing::warn!(path = %disk.card(), format = card.format, "the card is of a newer version");
            None
        }
        Err(error) => {
            tracing::warn!(path = %disk.card(), %error, "the card cannot be read");
            None
        }
    }
}

/// Makes names in a directory durable.
pub(super) fn sync_dir(dir: &Utf8Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Makes an image durable.
pub(super) fn sync_image(disk: &Disk) -> io::Result<()> {
    File::open(disk.image())?.sync_all()
}

/// What an image takes on the node's disk; 0 when there is none.
pub(super) fn allocated_bytes(disk: &Disk) -> u64 {
    std::fs::metadata(disk.image()).map_or(0, |file| file.blocks() * 512)
}
