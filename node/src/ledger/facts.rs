use drowse_shared::{
    api::nodes::{Bundle, Roster},
    id::LedgerId,
};
use rusqlite::{OptionalExtension, params};
use serde::{Serialize, de::DeserializeOwned};

use super::{Error, Ledger, Write};

const LEDGER_ID: &str = "ledger_id";
const ROSTER: &str = "roster";
const BUNDLE: &str = "bundle";
const REMOVED: &str = "removed";

impl Ledger {
    /// Who this ledger says it is.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn ledger_id(&self) -> Result<Option<LedgerId>, Error> {
        self.fact(LEDGER_ID).await
    }

    /// Writes who this ledger is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn set_ledger_id(&self, id: LedgerId) -> Result<(), Error> {
        self.set_fact(LEDGER_ID, &id).await
    }

    /// The newest roster this node was shown.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn roster(&self) -> Result<Option<Roster>, Error> {
        self.fact(ROSTER).await
    }

    /// Keeps a roster.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn set_roster(&self, roster: &Roster) -> Result<(), Error> {
        self.set_fact(ROSTER, roster).await
    }

    /// The fleet's configuration, as it was last handed out.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn bundle(&self) -> Result<Option<Bundle>, Error> {
        self.fact(BUNDLE).await
    }

    /// Keeps a configuration.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn set_bundle(&self, bundle: &Bundle) -> Result<(), Error> {
        self.set_fact(BUNDLE, bundle).await
    }

    /// Whether the fleet removed this node.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn removed(&self) -> Result<bool, Error> {
        Ok(self.fact(REMOVED).await?.unwrap_or(false))
    }

    /// Keeps whether the fleet removed this node.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn set_removed(&self, removed: bool) -> Result<(), Error> {
        self.set_fact(REMOVED, &removed).await
    }

    async fn fact<T: DeserializeOwned>(&self, key: &'static str) -> Result<Option<T>, Error> {
        let text: Option<String> = self
            .read(move |c| {
                c.query_row("select value from facts where key = ?1", params![key], |row| row.get(0))
                    .optional()
            })
            .await?;
        text.map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|source| Error::Unreadable { what: key, source })
    }

    async fn set_fact(&self, key: &'static str, value: &(impl Serialize + Sync)) -> Result<(), Error> {
        let text = serde_json::to_string(value).map_err(|source| Error::Unreadable { what: key, source })?;
        self.write(Write::Hard, move |c| {
            c.execute(
                "insert into facts (key, value) values (?1, ?2) on conflict (key) do update set value = ?2",
                params![key, text],
            )
            .map(drop)
        })
        .await
    }
}
