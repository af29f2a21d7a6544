use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::MetadataExt,
    time::Duration,
};

use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::id::LedgerId;
use rustix::{fs::FlockOperation, io::Errno};
use tokio::time::Instant;

use super::{cgroup::Cgroups, paths::names_in};

/// Nodes that can share one kernel.
pub(super) const INSTANCES: u32 = 16;
/// Others hold the lock of the choice for milliseconds.
const CHOICE_WAIT: Duration = Duration::from_secs(5);

/// Why no instance number could be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The same ledger is already served from this machine.
    #[error("another daemon with this ledger holds instance {0} of this machine; stop it first")]
    Held(u32),
    /// Every number is taken.
    #[error("all {INSTANCES} instance numbers of this machine are taken, see {0}")]
    None(Utf8PathBuf),
    /// A file could not be used.
    #[error("cannot use {path}")]
    Io {
        /// Which.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A number that is ours for the life of this value.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) number: u32,
    slots: Utf8PathBuf,
    _lock: File,
}

impl Instance {
    /// Gives the number up for good, and removes the directory of numbers with the last of them.
    pub(super) fn forget(&self) -> io::Result<()> {
        let choice = self.slots.join("choice");
        let _choosing = lock_choice(&choice)?;
        std::fs::remove_file(self.slots.join(self.number.to_string()))?;
        if (0..INSTANCES).any(|number| self.slots.join(number.to_string()).exists()) {
            return Ok(());
        }
        std::fs::remove_file(&choice)?;
        std::fs::remove_dir(&self.slots)
    }
}

/// Takes the number of a ledger: the one it had, else a free one.
///
/// A number with bodies under it belongs to its ledger for good: they are found again when its daemon returns. A daemon
/// that was killed may hold its number a moment longer through children that are dying: that is waited for.
pub(super) fn take(
    run: &Utf8Path,
    cgroup_parent: &str,
    ledger: LedgerId,
    patience: Duration,
) -> Result<Instance, Error> {
    let deadline = Instant::now() + patience;
    loop {
        match try_take(run, cgroup_parent, ledger) {
            Err(Error::Held(_)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
}

fn try_take(run: &Utf8Path, cgroup_parent: &str, ledger: LedgerId) -> Result<Instance, Error> {
    let slots = run.join("slots");
    let at = |path: &Utf8Path| {
        let path = path.to_owned();
        move |source| Error::Io { path, source }
    };
    fs_err::create_dir_all(&slots).map_err(at(&slots))?;
    let choice = slots.join("choice");
    let _choosing = lock_choice(&choice).map_err(at(&choice))?;
    let mut owners = Vec::new();
    for number in 0..INSTANCES {
        let path = slots.join(number.to_string());
        owners.push(std::fs::read_to_string(&path).or_else(missing_is_empty).map_err(at(&path))?);
    }
    let claim = |number: u32| -> Result<Option<Instance>, Error> {
        let path = slots.join(number.to_string());
        let claim = || -> io::Result<Option<Instance>> {
            let mut file = open(&path)?;
            if !lock(&file)? {
                return Ok(None);
            }
            file.set_len(0)?;
            file.write_all(ledger.to_string().as_bytes())?;
            Ok(Some(Instance { number, slots: slots.clone(), _lock: file }))
        };
        claim().map_err(at(&path))
    };
    let ours = ledger.to_string();
    let numbered = || (0..).zip(&owners);
    if let Some((number, _)) = numbered().find(|(_, owner)| owner.trim() == ours) {
        return claim(number)?.ok_or(Error::Held(number));
    }
    for (number, owner) in numbered() {
        let empty = || -> io::Result<bool> {
            let cgroups = Cgroups::find(format!("{cgroup_parent}/{number}"))?;
            Ok(cgroups.ids()?.is_empty() && names_in(&run.join(number.to_string()).join("runc"))?.is_empty())
        };
        if (owner.is_empty() || empty().map_err(at(&slots))?)
            && let Some(instance) = claim(number)?
        {
            return Ok(instance);
        }
    }
    Err(Error::None(slots))
}

fn open(path: &Utf8Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

fn missing_is_empty(error: io::Error) -> io::Result<String> {
    if error.kind() == io::ErrorKind::NotFound { Ok(String::new()) } else { Err(error) }
}

fn lock(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Locks the choice: whoever opens, takes or removes a number holds it.
fn lock_choice(path: &Utf8Path) -> io::Result<File> {
    let deadline = Instant::now() + CHOICE_WAIT;
    loop {
        let file = open(path)?;
        // The last one out removes the file; a lock on a removed file keeps nobody out.
        if lock(&file)?
            && std::fs::metadata(path).is_ok_and(|now| file.metadata().is_ok_and(|m| m.ino() == now.ino()))
        {
            return Ok(file);
        }
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "another daemon holds it for seconds"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(n: u8) -> LedgerId {
        format!("0190f0c2a4b87c3d9e0f1122334455{n:02x}").parse().expect("an id")
    }

    #[test]
    fn a_ledger_gets_its_number_back_and_only_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let run = Utf8Path::from_path(dir.path()).expect("UTF-8");
        let take = |n| super::take(run, "drowse-unit-test-none", ledger(n), Duration::ZERO);
        let first = take(1).expect("free");
        let second = take(2).expect("free");
        assert_eq!((first.number, second.number), (0, 1));
        assert!(matches!(take(1), Err(Error::Held(0))));
        drop((first, second));
        let (second, first) = (take(2).expect("its own"), take(1).expect("its own"));
        assert_eq!((first.number, second.number), (0, 1));
        drop(first);
        // Nothing of ledger 1 is left under number 0, so another may have it.
        assert_eq!(take(3).expect("free").number, 0);
        fs_err::create_dir_all(run.join("0/runc/body")).expect("made");
        let fourth = take(4).expect("free");
        assert_eq!(fourth.number, 2);
        for instance in [second, fourth] {
            instance.forget().expect("given up");
        }
        assert!(run.join("slots/0").exists(), "ledger 3 may come back");
        take(3).expect("its own").forget().expect("given up");
        assert!(!run.join("slots").exists());
    }
}
