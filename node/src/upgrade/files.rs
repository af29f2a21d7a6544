//! What lies on disk of an upgrade: `tell.json`, what a gateway said; `release.tar.gz`; `status.json`, which the
//! installer writes; and `lock`, which is held for as long as it is at work.

use std::{
    fs::File,
    io::{self, Write as _},
};

use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::api::upgrade::{Progress, Tell};
use fs_err as fs;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// What an installer says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    /// How far it is.
    pub(super) state: Progress,
    /// Why it came to nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

/// Where it lies. Everything blocks.
#[derive(Debug, Clone)]
pub(super) struct Files(Utf8PathBuf);

impl Files {
    pub(super) fn within(state: &Utf8Path) -> Self {
        Self(state.join("upgrade"))
    }

    pub(super) fn directory(&self) -> &Utf8Path {
        &self.0
    }

    pub(super) fn release(&self) -> Utf8PathBuf {
        self.0.join("release.tar.gz")
    }

    fn part(&self) -> Utf8PathBuf {
        self.0.join("release.part")
    }

    /// What this node was told last.
    pub(super) fn told(&self) -> Option<Tell> {
        self.read("tell.json")
    }

    /// What the installer said last.
    pub(super) fn status(&self) -> Option<Status> {
        self.read("status.json")
    }

    /// What is not there, or was written by halves, says nothing.
    fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&fs::read(self.0.join(name)).ok()?).ok()
    }

    fn write(&self, name: &str, value: &impl Serialize) -> io::Result<()> {
        let beside = self.0.join(format!("{name}.part"));
        fs::write(&beside, serde_json::to_vec(value)?)?;
        fs::rename(beside, self.0.join(name))
    }

    /// Room for a release, and a note of what was told. What came of an earlier one is gone.
    pub(super) fn begin(&self, tell: &Tell) -> io::Result<()> {
        fs::create_dir_all(&self.0)?;
        if self.is_locked() {
            return Err(io::Error::other("the installer of another build is at work"));
        }
        for left in [self.0.join("status.json"), self.release(), self.part()] {
            match fs::remove_file(left) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.write("tell.json", tell)
    }

    /// Nothing of the release yet.
    pub(super) fn anew(&self) -> io::Result<()> {
        fs::File::create(self.part()).map(drop)
    }

    /// More of the release.
    pub(super) fn append(&self, bytes: &[u8]) -> io::Result<()> {
        fs::OpenOptions::new().create(true).append(true).open(self.part())?.write_all(bytes)
    }

    /// All of it is there.
    pub(super) fn whole(&self) -> io::Result<()> {
        fs::File::open(self.part())?.sync_all()?;
        fs::rename(self.part(), self.release())
    }

    pub(super) fn set_status(&self, status: &Status) -> io::Result<()> {
        self.write("status.json", status)
    }

    /// Whether an installer is at work. Several may ask at a time.
    pub(super) fn is_locked(&self) -> bool {
        let Ok(file) = File::open(self.0.join("lock")) else { return false };
        flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
    }

    #[cfg(test)]
    pub(super) fn lock_for_tests(&self) -> File {
        let file = File::create(self.0.join("lock")).expect("a file");
        flock(&file, FlockOperation::LockExclusive).expect("free");
        file
    }
}
