use drowse_shared::{
    id::{LedgerId, SpaceId},
    name::SpaceName,
};
use rusqlite::params;

use super::{Error, Ledger, Write, spaces::parsed};

/// The table, as a step of the migrations.
pub(super) const TABLE: &str = "
    create table kept_names (
        name   text primary key,
        -- Whose space has the name now.
        keeper text not null
    ) strict;
";

impl Ledger {
    /// Gives a space another name, and keeps the one it had for the space of another node. Its state stays.
    ///
    /// # Errors
    /// When the name is taken, or the ledger cannot be written.
    pub async fn set_aside(
        &self,
        id: SpaceId,
        was: &SpaceName,
        name: &SpaceName,
        keeper: LedgerId,
    ) -> Result<(), Error> {
        let (was, name) = (was.clone(), name.clone());
        self.write(Write::Hard, move |c| {
            c.execute("update spaces set name = ?2 where id = ?1", params![id.to_string(), name.as_str()])?;
            c.execute(
                "insert or replace into kept_names (name, keeper) values (?1, ?2)",
                params![was.as_str(), keeper.to_string()],
            )
            .map(drop)
        })
        .await
    }

    /// Names that are kept, and for whom.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn kept_names(&self) -> Result<Vec<(SpaceName, LedgerId)>, Error> {
        self.read(|c| {
            c.prepare("select name, keeper from kept_names")?
                .query_map([], |row| Ok((parsed(row, 0)?, parsed(row, 1)?)))?
                .collect()
        })
        .await
    }

    /// A name is kept no longer.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn release_name(&self, name: &SpaceName) -> Result<(), Error> {
        let name = name.clone();
        self.write(Write::Soft, move |c| {
            c.execute("delete from kept_names where name = ?1", params![name.as_str()]).map(drop)
        })
        .await
    }
}
