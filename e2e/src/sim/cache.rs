//! What a simulated machine's disk has taken, and what its cache would lose with the power.
//!
//! A daemon's files are real ones; its syncs come here through `interpose` and reach no kernel. A sync of a file makes its
//! bytes durable, a sync of a directory the names in it: POSIX promises no more. At a loss of power each file, and the
//! names as a whole, go back to what was synced, or keep what was not, or come out torn, as the seed says.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::rng::Rng;

/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;
/// What SQLite shares between processes; no boot finds it.
const SHARED_MEMORY: &str = "-shm";

thread_local! {
    /// The directories of this thread's machines.
    static CACHES: RefCell<BTreeMap<PathBuf, Durable>> = const { RefCell::new(BTreeMap::new()) };
    /// Whether syncs do nothing, as on a disk that lies.
    static LIES: Cell<bool> = const { Cell::new(false) };
}

/// What the disk under one directory has taken for good.
#[derive(Debug, Default)]
struct Durable {
    /// The names in it, and which file bears each, by inode.
    names: BTreeMap<String, u64>,
    /// The bytes of every file that was synced once, by inode.
    bytes: BTreeMap<u64, Vec<u8>>,
}

/// From now on syncs under `directory` are kept track of. It holds files only, and is empty.
pub(super) fn watch(directory: &Path) {
    CACHES.with_borrow_mut(|caches| caches.insert(directory.to_owned(), Durable::default()));
}

/// From now on every disk of this thread says that it synced, and did not.
#[cfg(test)]
pub(super) fn lie() {
    LIES.set(true);
}

/// A daemon of this thread syncs what it has open as `fd`. `false` when that is none of a machine's files.
pub(super) fn sync(fd: i32) -> bool {
    let Ok(path) = fs::read_link(format!("/proc/self/fd/{fd}")) else { return false };
    CACHES.with_borrow_mut(|caches| {
        let directory = if caches.contains_key(&path) { &*path } else { path.parent().unwrap_or(&path) };
        let Some(durable) = caches.get_mut(directory) else { return false };
        if LIES.get() {
            return true;
        }
        if directory == path {
            durable.names = names(directory).unwrap_or_default();
        } else if let (Ok(inode), Ok(bytes)) = (fs::metadata(&path).map(|file| file.ino()), fs::read(&path)) {
            durable.bytes.insert(inode, bytes);
        }
        true
    })
}

/// A person removed or replaced files by hand, and had them synced.
///
/// # Errors
/// When the real files cannot be read.
pub(super) fn settle(directory: &Path) -> io::Result<()> {
    let mut durable = Durable { names: names(directory)?, bytes: BTreeMap::new() };
    for (name, inode) in &durable.names {
        durable.bytes.insert(*inode, fs::read(directory.join(name))?);
    }
    CACHES.with_borrow_mut(|caches| caches.insert(directory.to_owned(), durable));
    Ok(())
}

/// The machine loses power: what was not synced goes, or stays, or is torn, as `rng` says. Nothing has a file open.
///
/// # Errors
/// When the real files cannot be read or written.
pub(super) fn power_lost(directory: &Path, rng: &mut Rng) -> io::Result<()> {
    let Some(durable) = CACHES.with_borrow_mut(|caches| caches.remove(directory)) else { return Ok(()) };
    let there = names(directory)?;
    let mut content = BTreeMap::new();
    for (name, inode) in &there {
        content.insert(*inode, fs::read(directory.join(name))?);
    }
    let named = if rng.one_in(2) { &there } else { &durable.names };
    let mut left = Vec::new();
    for (name, inode) in named {
        let synced = durable.bytes.get(inode).map_or(&[][..], Vec::as_slice);
        // A file that lost its name to another has no bytes but the synced ones.
        let cached = content.get(inode).map_or(synced, Vec::as_slice);
        let bytes = match rng.below(4) {
            0 | 1 => synced.to_vec(),
            2 => cached.to_vec(),
            _ => torn(synced, cached, rng),
        };
        left.push((name.clone(), bytes));
    }
    for entry in fs::read_dir(directory)? {
        fs::remove_file(entry?.path())?;
    }
    for (name, bytes) in left {
        fs::write(directory.join(name), bytes)?;
    }
    settle(directory)
}

/// Each sector old or new.
fn torn(old: &[u8], new: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut out = new.to_vec();
    // How long it is was written with the names' own journal: as long as one of them.
    out.resize(if rng.one_in(2) { old.len() } else { new.len() }, 0);
    for (at, sector) in out.chunks_mut(SECTOR_BYTES).enumerate() {
        let from = at * SECTOR_BYTES;
        if rng.one_in(2) {
            let kept = old.get(from..).unwrap_or_default();
            let kept = &kept[..kept.len().min(sector.len())];
            sector[..kept.len()].copy_from_slice(kept);
            sector[kept.len()..].fill(0);
        }
    }
    out
}

fn names(directory: &Path) -> io::Result<BTreeMap<String, u64>> {
    let mut names = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.ends_with(SHARED_MEMORY) {
            names.insert(name, entry.metadata()?.ino());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, io::Write as _, thread};

    use rusqlite::Connection;

    use super::*;
    use crate::sim::interpose;

    /// On a simulation's thread, with a directory of its own.
    fn simulated<T: Send + 'static>(work: impl FnOnce(&Path) -> T + Send + 'static) -> T {
        #[expect(clippy::disallowed_methods, reason = "a simulation is a thread of its own")]
        let ran = thread::spawn(move || {
            let home = tempfile::tempdir().expect("a directory");
            interpose::enter(1);
            watch(home.path());
            work(home.path())
        });
        ran.join().expect("the work does not panic")
    }

    fn put(path: &Path, text: &str, sync: bool) {
        let mut file = fs::File::create(path).expect("made");
        file.write_all(text.as_bytes()).expect("written");
        if sync {
            file.sync_all().expect("synced");
        }
    }

    fn sync_names(directory: &Path) {
        fs::File::open(directory).and_then(|directory| directory.sync_all()).expect("synced");
    }

    /// What 64 losses of power leave of a file.
    fn outcomes(write: fn(&Path)) -> BTreeSet<Option<String>> {
        let left = |seed| {
            simulated(move |home| {
                write(home);
                power_lost(home, &mut Rng::new(seed)).expect("files of our own");
                fs::read_to_string(home.join("a")).ok()
            })
        };
        (0..64).map(left).collect()
    }

    fn set(texts: &[Option<&str>]) -> BTreeSet<Option<String>> {
        texts.iter().map(|text| text.map(str::to_owned)).collect()
    }

    #[test]
    fn only_what_was_synced_with_its_name_is_sure_to_stay() {
        let nothing = outcomes(|home| put(&home.join("a"), "new", false));
        assert!(nothing.is_superset(&set(&[None, Some(""), Some("new")])), "{nothing:?}");
        assert_eq!(outcomes(|home| put(&home.join("a"), "new", true)), set(&[None, Some("new")]));
        let all = outcomes(|home| {
            put(&home.join("a"), "new", true);
            sync_names(home);
        });
        assert_eq!(all, set(&[Some("new")]));
    }

    #[test]
    fn a_file_replaced_with_care_is_the_old_or_the_new_one() {
        let replaced = outcomes(|home| {
            put(&home.join("a"), "old", true);
            sync_names(home);
            put(&home.join("b"), "new", true);
            fs::rename(home.join("b"), home.join("a")).expect("renamed");
        });
        assert_eq!(replaced, set(&[Some("old"), Some("new")]));
    }

    /// How many of ten committed rows are there after a loss of power, at worst.
    fn rows_left(synchronous: &'static str, lies: bool) -> i64 {
        let left = |seed| {
            simulated(move |home| {
                if lies {
                    lie();
                }
                let path = home.join("a.db");
                let open = || {
                    let connection = Connection::open(&path).expect("opened");
                    let kept = rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
                    connection.set_db_config(kept, true).expect("SQLite knows it");
                    connection.pragma_update(None, "journal_mode", "wal").expect("WAL");
                    connection.pragma_update(None, "wal_autocheckpoint", 7).expect("SQLite knows it");
                    connection.pragma_update(None, "synchronous", synchronous).expect("SQLite knows it");
                    connection.execute_batch("create table if not exists a (x)").expect("made");
                    connection
                };
                let database = open();
                for row in 0..10 {
                    database.execute("insert into a values (?1)", [row]).expect("committed");
                }
                drop(database);
                power_lost(home, &mut Rng::new(seed)).expect("files of our own");
                let database = open();
                database.query_row("select count(*) from a", [], |row| row.get(0)).expect("readable")
            })
        };
        (0..32).map(left).min().unwrap_or(0)
    }

    #[test]
    fn what_sqlite_committed_with_a_sync_is_there_after_a_loss_of_power() {
        assert_eq!(rows_left("full", false), 10);
        assert!(rows_left("normal", false) < 10, "without a sync at each commit some are lost");
        assert!(rows_left("full", true) < 10, "and on a disk that lies too");
    }
}
