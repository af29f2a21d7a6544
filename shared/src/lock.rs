//! One writer per file: an exclusive lock held for the life of a process, given back by the kernel even after
//! `kill -9`.

use std::{fs::File, io};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{FlockOperation, flock};

/// Why the lock was not had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has it.
    #[error("another process is already running on {path}; stop it, or set {variable} to another directory")]
    Held {
        /// The file that is locked.
        path: Utf8PathBuf,
        /// The setting that names it.
        variable: &'static str,
    },
    /// The lock file cannot be made.
    #[error("the lock file {path} cannot be opened")]
    Open {
        /// Which file.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The lock. Held until dropped.
#[derive(Debug)]
pub struct SingleWriter {
    // Never read: the open file is the lock.
    _file: File,
}

impl SingleWriter {
    /// Locks `<path>.lock`. Does not wait.
    ///
    /// # Errors
    /// When another process holds it, or the file cannot be opened.
    pub fn acquire(path: &Utf8Path, variable: &'static str) -> Result<Self, Error> {
        let lock_path = Utf8PathBuf::from(format!("{path}.lock"));
        let open = |source| Error::Open { path: lock_path.clone(), source };
        let file = File::options().create(true).truncate(false).write(true).open(&lock_path).map_err(open)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Held { path: path.to_owned(), variable }),
            Err(errno) => Err(open(errno.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_writer_is_told_which_file_and_setting() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = Utf8Path::from_path(dir.path()).expect("UTF-8").join("ledger.db");
        let first = SingleWriter::acquire(&path, "DROWSE_STATE").expect("free");
        let error = SingleWriter::acquire(&path, "DROWSE_STATE").expect_err("held").to_string();
        assert!(error.contains("ledger.db") && error.contains("DROWSE_STATE"), "{error}");
        drop(first);
        assert!(SingleWriter::acquire(&path, "DROWSE_STATE").is_ok());
    }
}
