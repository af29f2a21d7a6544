//! SQLite behind the blocking seam.
//!
//! A database has one pool. Queries run off the async threads; the future of a query may be dropped at any time and
//! the query still runs to its end, so a transaction is never half done.

use std::{sync::Arc, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};
use r2d2_sqlite::SqliteConnectionManager;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use rusqlite_migration::Migrations;
use std::sync::{Mutex, PoisonError};

use crate::{seams::Env, shutdown::Shutdown, watchdog::Pulse};
use ballast::Ballast;

/// Room kept for the hour when the disk is full.
pub mod ballast;

/// Connections to one database. One writes at a time; lists read beside it.
const CONNECTIONS: u32 = 4;
/// Longest wait for another connection's write.
const BUSY: Duration = Duration::from_secs(5);
/// Longest turn of a write before a database is said to stand still: what waited longer was refused.
pub const TURN: Duration = BUSY;
/// Between two looks whether it takes writes.
const LOOK: Duration = Duration::from_secs(5);
/// The same while it does not.
const AGAIN: Duration = Duration::from_secs(1);

/// What can go wrong with a database.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be opened.
    #[error("the database {path} cannot be opened")]
    Open {
        /// Which.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
    /// It was written by a newer version.
    #[error(
        "the database {path} was written by a newer version of Drowse; start that version, or restore a backup"
    )]
    Newer {
        /// Which.
        path: Utf8PathBuf,
    },
    /// It cannot be brought to this version's shape.
    #[error("the database {path} cannot be migrated")]
    Migrate {
        /// Which.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: rusqlite_migration::Error,
    },
    /// A statement failed.
    #[error("a statement failed")]
    Statement(#[from] rusqlite::Error),
    /// No connection was free in time.
    #[error("no connection was free in time")]
    Pool(#[from] r2d2::Error),
    /// The writes before it took too long.
    #[error("the writes before it were not done within {0:?}")]
    Busy(Duration),
    /// The work ended without an answer.
    #[error("the work was torn down")]
    Gone,
}

impl Error {
    /// Whether another one had the database for too long, or its disk stood still. Nothing was changed, and it may pass.
    pub fn is_busy(&self) -> bool {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked, FileLockingProtocolFailed};
        match self {
            Self::Pool(_) | Self::Busy(_) => true,
            Self::Statement(rusqlite::Error::SqliteFailure(e, _)) => {
                matches!(e.code, DatabaseBusy | DatabaseLocked | FileLockingProtocolFailed)
            }
            _ => false,
        }
    }

    /// Whether the disk under the database is full.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::Statement(rusqlite::Error::SqliteFailure(e, _)) if e.code == rusqlite::ErrorCode::DiskFull)
    }

    /// Whether it may be: a full disk shows itself as such, or as a failed write to the files beside the database.
    pub fn may_be_full(&self) -> bool {
        let source = match self {
            Self::Statement(source) | Self::Open { source, .. } => source,
            Self::Migrate { source: rusqlite_migration::Error::RusqliteError { err, .. }, .. } => err,
            _ => return false,
        };
        matches!(
            source,
            rusqlite::Error::SqliteFailure(e, _)
                if matches!(e.code, rusqlite::ErrorCode::DiskFull | rusqlite::ErrorCode::SystemIoFailure)
        )
    }
}

/// The version a database has when it is in this shape, as its `user_version` says it.
///
/// # Errors
/// When the steps themselves are wrong.
pub fn version(migrations: &Migrations<'_>) -> Result<i64, Error> {
    let mut empty = Connection::open_in_memory()?;
    let path = Utf8Path::new(":memory:");
    migrate(&mut empty, path, migrations)?;
    Ok(empty.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

enum Pool {
    Many(r2d2::Pool<SqliteConnectionManager>),
    One(Arc<Mutex<Connection>>),
}

/// A database.
#[derive(Clone)]
pub struct Db {
    env: Env,
    pool: Arc<Pool>,
}

impl Db {
    /// Opens a file and brings it to this version's shape.
    ///
    /// # Errors
    /// When it cannot be opened, is of a newer version, or cannot be migrated. Nothing is written to a newer one.
    pub fn open(env: &Env, path: &Utf8Path, migrations: &Migrations<'_>) -> Result<Self, Error> {
        let open = |source| Error::Open { path: path.to_owned(), source };
        let mut first = Connection::open(path).map_err(open)?;
        prepare(&mut first).map_err(open)?;
        migrate(&mut first, path, migrations)?;
        let manager = SqliteConnectionManager::file(path)
            .with_flags(OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)
            .with_init(prepare);
        let pool = r2d2::Pool::builder()
            .max_size(CONNECTIONS)
            .min_idle(Some(1))
            .connection_timeout(BUSY)
            .build(manager)?;
        Ok(Self { env: env.clone(), pool: Arc::new(Pool::Many(pool)) })
    }

    /// The same, and on a full disk once more without the ballast.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_in_need(
        env: &Env,
        path: &Utf8Path,
        migrations: &Migrations<'_>,
        ballast: &Ballast,
    ) -> Result<Self, Error> {
        match Self::open(env, path, migrations) {
            Err(error) if error.may_be_full() && ballast.release() => Self::open(env, path, migrations),
            opened => opened,
        }
    }

    /// Uses one connection that is already open: what a simulation does, where threads and pools have no place.
    ///
    /// # Errors
    /// When it cannot be prepared or migrated.
    pub fn over(env: &Env, mut connection: Connection, migrations: &Migrations<'_>) -> Result<Self, Error> {
        let path = Utf8Path::new(":memory:");
        prepare(&mut connection).map_err(|source| Error::Open { path: path.to_owned(), source })?;
        migrate(&mut connection, path, migrations)?;
        Ok(Self { env: env.clone(), pool: Arc::new(Pool::One(Arc::new(Mutex::new(connection)))) })
    }

    /// The same database, its queries run by this `env`.
    #[must_use]
    pub fn through(self, env: &Env) -> Self {
        Self { env: env.clone(), ..self }
    }

    /// Takes a turn to write and gives it back: waits for what a write would wait for, and writes nothing.
    ///
    /// # Errors
    /// As a write would fail.
    pub async fn probe(&self) -> Result<(), Error> {
        self.run(|connection| {
            connection.transaction_with_behavior(TransactionBehavior::Immediate)?.rollback()
        })
        .await
    }

    /// Runs `work` with a connection, off the async threads.
    ///
    /// # Errors
    /// What `work` answers, or no connection in time.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let pool = self.pool.clone();
        self.env
            .blocking("db", move || match &*pool {
                Pool::Many(pool) => Ok(work(&mut *pool.get()?)?),
                Pool::One(connection) => {
                    Ok(work(&mut connection.lock().unwrap_or_else(PoisonError::into_inner))?)
                }
            })
            .await
            .ok_or(Error::Gone)?
    }
}

/// Looks every now and then whether a database takes writes, so that one that stands still is noticed and said.
pub async fn watch<F, E>(probe: impl Fn() -> F, pulse: Pulse, shutdown: Shutdown)
where
    F: Future<Output = Result<(), E>>,
    E: std::error::Error + 'static,
{
    let mut told = false;
    loop {
        if !told {
            pulse.at("waiting for its turn to write");
        }
        let probed = crate::select_biased! {
            () = shutdown.stopping() => return,
            probed = probe() => probed,
        };
        let pause = match probed {
            Ok(()) => {
                told = false;
                pulse.pauses(LOOK);
                LOOK
            }
            Err(error) => {
                if !told {
                    tracing::warn!(error = &error as &dyn std::error::Error, "the database takes no writes");
                }
                told = true;
                AGAIN
            }
        };
        crate::select_biased! {
            () = shutdown.stopping() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// An acknowledged write is on the disk: WAL with a sync at every commit.
fn prepare(connection: &mut Connection) -> Result<(), rusqlite::Error> {
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "foreign_keys", true)
}

fn migrate(connection: &mut Connection, path: &Utf8Path, migrations: &Migrations<'_>) -> Result<(), Error> {
    use rusqlite_migration::{Error as MigrationError, MigrationDefinitionError};
    migrations.to_latest(connection).map_err(|source| match source {
        MigrationError::MigrationDefinition(MigrationDefinitionError::DatabaseTooFarAhead) => {
            Error::Newer { path: path.to_owned() }
        }
        source => Error::Migrate { path: path.to_owned(), source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite_migration::M;

    #[tokio::test]
    async fn a_database_of_a_newer_version_is_refused_untouched() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = Utf8Path::from_path(dir.path()).expect("UTF-8").join("a.db");
        let env = Env::real();
        let two = Migrations::new(vec![M::up("create table a (x)"), M::up("create table b (x)")]);
        let db = Db::open(&env, &path, &two).expect("fresh");
        db.run(|c| c.execute("insert into a values (1)", [])).await.expect("written");
        drop(db);
        let one = Migrations::new(vec![M::up("create table a (x)")]);
        assert!(matches!(Db::open(&env, &path, &one), Err(Error::Newer { .. })));
        let db = Db::open(&env, &path, &two).expect("as before");
        let rows: i64 =
            db.run(|c| c.query_row("select count(*) from a", [], |r| r.get(0))).await.expect("read");
        assert_eq!(rows, 1);
    }
}
