//! The ledger: what this node answers for. The only place with SQL.
//!
//! A write that loses nothing when the machine loses power is *hard* (creates, removals, policies); one whose truth is the
//! kernel's (freeze, thaw, activity) is *soft*: it survives `kill -9` and spares the sync. When the disk is full a hard
//! write gives up the ballast and tries again, so that removing things always works; a create does not.

use std::{sync::Arc, time::Duration};

use camino::Utf8PathBuf;
use drowse_shared::{
    db::{self, ballast::Ballast},
    lock,
    seams::Env,
};
use rusqlite::Connection;
use tokio::time::Instant;

/// Spaces that are taken over from another node's disks.
pub mod adoptions;
/// What happened to spaces.
pub mod events;
/// Commands with an idempotency key, and what came of them.
pub mod execs;
/// What a node knows besides its spaces: identity, roster, configuration, standing.
pub mod facts;
/// The ledger of another node, read as it stands.
pub mod foreign;
/// Who this node is: `node.json` beside the disks.
pub mod identity;
/// Names that were given up to another node's spaces.
pub mod kept;
/// One page of a list.
pub mod list;
/// The shape of the file, version by version.
mod migrations;
/// Rows of spaces.
pub mod spaces;

/// The setting that names the directory.
pub const VARIABLE: &str = "DROWSE_STATE";

/// Longest wait of a write for the ones before it.
const TURN: Duration = Duration::from_secs(30);
/// How long the lock may be held by what a killed daemon left.
const LOCK: Duration = Duration::from_secs(1);
/// Between two tries.
const LOCK_AGAIN: Duration = Duration::from_millis(50);

/// The version of the ledgers this program writes.
///
/// # Errors
/// When its steps are wrong.
pub fn schema() -> Result<i64, db::Error> {
    db::version(&migrations::all())
}

/// Why the ledger failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another daemon has it.
    #[error(transparent)]
    Lock(#[from] lock::Error),
    /// The database did.
    #[error(transparent)]
    Db(#[from] db::Error),
    /// The disk under it is full.
    #[error("the node's disk is full")]
    DiskFull,
    /// The state directory cannot be used.
    #[error("{what} failed on {path}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Something that was written cannot be read back.
    #[error("{what} in the ledger cannot be read")]
    Unreadable {
        /// What.
        what: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Two identities in one directory.
    #[error(
        "{path} says this node is ledger {file}, its ledger.db says {ledger}; they come from two nodes. \
         Put back the pair that belongs together, or remove {path} to keep the ledger's"
    )]
    TwoIdentities {
        /// `node.json`.
        path: Utf8PathBuf,
        /// What the file says.
        file: String,
        /// What the ledger says.
        ledger: String,
    },
    /// The identity file is damaged.
    #[error("{path} cannot be read as an identity; remove it to take the one from the disks")]
    BadIdentity {
        /// `node.json`.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// Where the ledger's database comes from.
#[derive(Default)]
pub enum Database {
    /// A file in the state directory, locked for the life of the process.
    #[default]
    File,
    /// A connection that is already open, as a simulation has it: no lock, no ballast.
    Open(Connection),
}

/// How sure a write must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write {
    /// It survives loss of power, and may use the ballast.
    Hard,
    /// It survives loss of power; a full disk refuses it.
    HardIfRoom,
    /// It survives the end of the process, and may use the ballast.
    Soft,
    /// It survives the end of the process; a full disk refuses it.
    SoftIfRoom,
}

impl Write {
    fn syncs(self) -> bool {
        matches!(self, Self::Hard | Self::HardIfRoom)
    }

    fn may_use_ballast(self) -> bool {
        matches!(self, Self::Hard | Self::Soft)
    }
}

/// The ledger.
#[derive(Clone)]
pub struct Ledger {
    db: db::Db,
    ballast: Option<Ballast>,
    /// One write at a time, first come first served: SQLite itself lets writers wait by sleeping, and each that does keeps
    /// a connection from a reader.
    turn: Arc<tokio::sync::Mutex<()>>,
    _lock: Option<Arc<lock::SingleWriter>>,
}

impl Ledger {
    /// Opens or makes the ledger in `state`.
    ///
    /// # Errors
    /// When another daemon has it, it is of a newer version, or the directory cannot be used.
    pub async fn open(env: &Env, state: &camino::Utf8Path, database: Database) -> Result<Self, Error> {
        fs_err::create_dir_all(state).map_err(|source| Error::Io {
            what: "making the state directory",
            path: state.to_owned(),
            source,
        })?;
        match database {
            Database::Open(connection) => {
                let db = db::Db::over(env, connection, &migrations::all())?;
                Ok(Self { db, ballast: None, turn: Arc::default(), _lock: None })
            }
            Database::File => {
                let path = state.join("ledger.db");
                let lock = lock_patiently(&path).await?;
                private(&path).map_err(|source| Error::Io { what: "making", path: path.clone(), source })?;
                let ballast = Ballast::new(env, state.join("ballast"));
                let db = db::Db::open_in_need(env, &path, &migrations::all(), &ballast)?;
                ballast.restore().await;
                Ok(Self { db, ballast: Some(ballast), turn: Arc::default(), _lock: Some(Arc::new(lock)) })
            }
        }
    }

    /// Makes the ballast anew if it was given up and there is room again.
    pub async fn restore_ballast(&self) {
        if let Some(ballast) = &self.ballast {
            ballast.restore().await;
        }
    }

    /// Waits for its turn to write, and writes nothing.
    pub(crate) async fn probe(&self) -> Result<(), db::Error> {
        self.write_once(Write::Soft, |_| Ok(())).await
    }

    /// Reads.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<T, Error> {
        Ok(self.db.run(move |connection| work(connection)).await?)
    }

    /// Writes, in one transaction.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        sure: Write,
        work: impl Fn(&Connection) -> Result<T, rusqlite::Error> + Clone + Send + 'static,
    ) -> Result<T, Error> {
        match self.write_once(sure, work.clone()).await {
            Err(error) if error.may_be_full() => {
                if sure.may_use_ballast() && self.ballast.as_ref().is_some_and(Ballast::release) {
                    return Ok(self.write_once(sure, work).await?);
                }
                if error.is_disk_full() { Err(Error::DiskFull) } else { Err(error.into()) }
            }
            done => Ok(done?),
        }
    }

    async fn write_once<T: Send + 'static>(
        &self,
        sure: Write,
        work: impl Fn(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<T, db::Error> {
        let turn = tokio::time::timeout(TURN, self.turn.lock()).await;
        let _turn = turn.map_err(|_| db::Error::Busy(TURN))?;
        self.db
            .run(move |connection| {
                if !sure.syncs() {
                    connection.pragma_update(None, "synchronous", "normal")?;
                }
                let done = transact(connection, work);
                if !sure.syncs() {
                    connection.pragma_update(None, "synchronous", "full")?;
                }
                done
            })
            .await
    }
}

/// A daemon that was killed while it started a program leaves a child that holds the lock until it became that program.
async fn lock_patiently(path: &camino::Utf8Path) -> Result<lock::SingleWriter, lock::Error> {
    let until = Instant::now() + LOCK;
    loop {
        match lock::SingleWriter::acquire(path, VARIABLE) {
            Err(lock::Error::Held { .. }) if Instant::now() < until => tokio::time::sleep(LOCK_AGAIN).await,
            locked => return locked,
        }
    }
}

/// Names and notes of spaces are nobody else's business; SQLite gives the files beside it the same mode.
fn private(path: &camino::Utf8Path) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    options.create(true).append(true).mode(0o600).open(path).map(drop)
}

fn transact<T>(
    connection: &mut Connection,
    work: impl Fn(&Connection) -> Result<T, rusqlite::Error>,
) -> Result<T, rusqlite::Error> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let value = work(&transaction)?;
    transaction.commit()?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError, mpsc};

    use super::*;

    #[tokio::test]
    async fn a_read_does_not_wait_for_the_writes_that_wait() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = camino::Utf8Path::from_path(dir.path()).expect("UTF-8");
        let ledger = Ledger::open(&Env::real(), state, Database::File).await.expect("fresh");
        let (closed, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let writes = tokio::task::JoinSet::from_iter((0..8).map(|_| {
            let (ledger, gate) = (ledger.clone(), gate.clone());
            async move {
                let pass = move |_: &Connection| {
                    // Passes once the other end is gone.
                    let _ = gate.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    Ok(())
                };
                ledger.write(Write::Hard, pass).await
            }
        }));
        while ledger.turn.try_lock().is_ok() {
            tokio::task::yield_now().await;
        }
        let read = tokio::time::timeout(Duration::from_secs(3), ledger.counts()).await;
        drop(closed);
        assert!(read.expect("at once").expect("read").is_empty());
        for write in writes.join_all().await {
            write.expect("written");
        }
    }
}
