use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::{
    api::nodes::Roster,
    id::{LedgerId, SpaceId},
};
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use rusqlite_migration::SchemaVersion;

use super::{
    execs::{self, Came, Exec},
    migrations,
    spaces::{COLUMNS, read},
};
use crate::space::Space;

/// Why another node's ledger cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It was written by a newer version.
    #[error("{path} was written by a newer version of Drowse; use that version to adopt from it")]
    Newer {
        /// Which.
        path: Utf8PathBuf,
    },
    /// It is damaged, or on a file system that cannot be written.
    #[error(
        "{path} cannot be used; the disk must be mounted writable. If the ledger is damaged, move it aside: \
         the cards beside the disks are enough"
    )]
    Unusable {
        /// Which.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
}

/// The ledger of another node, as it stands: its shape is not changed, so that its own version can use it again. The caller
/// holds its lock.
pub struct Foreign {
    path: Utf8PathBuf,
    connection: Connection,
}

impl Foreign {
    /// Opens the ledger in `state`; `None` when there is none.
    ///
    /// # Errors
    /// When it is of a newer version or cannot be written.
    pub fn open(state: &Utf8Path) -> Result<Option<Self>, Error> {
        let path = state.join("ledger.db");
        if !path.is_file() {
            return Ok(None);
        }
        let unusable = |source| Error::Unusable { path: path.clone(), source };
        let connection =
            Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(unusable)?;
        connection.pragma_update(None, "synchronous", "full").map_err(unusable)?;
        match migrations::all().current_version(&connection) {
            Ok(SchemaVersion::Inside(_)) => Ok(Some(Self { path, connection })),
            // An empty file has no tables: such a ledger knows nothing.
            Ok(SchemaVersion::NoneSet) => Ok(None),
            Ok(SchemaVersion::Outside(_)) => Err(Error::Newer { path }),
            Err(rusqlite_migration::Error::RusqliteError { err, .. }) => Err(unusable(err)),
            Err(_) => Err(Error::Newer { path }),
        }
    }

    fn at(&self) -> impl FnOnce(rusqlite::Error) -> Error {
        let path = self.path.clone();
        move |source| Error::Unusable { path, source }
    }

    /// Whose it is.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn ledger_id(&self) -> Result<Option<LedgerId>, Error> {
        self.fact("ledger_id")
    }

    /// The newest roster it was shown.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn roster(&self) -> Result<Option<Roster>, Error> {
        self.fact("roster")
    }

    /// A fact; one that cannot be understood is none.
    fn fact<T: serde::de::DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Error> {
        let text: Option<String> = self
            .connection
            .query_row("select value from facts where key = ?1", params![key], |row| row.get(0))
            .optional()
            .map_err(self.at())?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// Its spaces.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn spaces(&self) -> Result<BTreeMap<SpaceId, Space>, Error> {
        let query = || -> Result<BTreeMap<SpaceId, Space>, rusqlite::Error> {
            let mut statement = self.connection.prepare(&format!("select {COLUMNS} from spaces"))?;
            let rows = statement.query_map([], |row| read(row).map(|space| (space.id, space)))?;
            rows.collect()
        };
        query().map_err(self.at())
    }

    /// Commands with a key that ran in a space. They stay when it is forgotten, for a run that is cut and goes on.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn execs(&self, space: SpaceId) -> Result<Vec<(Exec, Option<Came>)>, Error> {
        execs::all_of(&self.connection, space).map_err(self.at())
    }

    /// Forgets a space that moves away. No row is fine.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn forget(&self, id: SpaceId) -> Result<(), Error> {
        self.connection
            .execute("delete from spaces where id = ?1", params![id.to_string()])
            .map(drop)
            .map_err(self.at())
    }
}
