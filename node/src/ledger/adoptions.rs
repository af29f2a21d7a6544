use drowse_shared::{
    api::spaces::Happened,
    id::{LedgerId, SpaceId},
};
use jiff::Timestamp;
use rusqlite::{Connection, Row, params, types::Type};

use super::{
    Error, Ledger, Write,
    events::{Event, tell},
    execs::{Came, Exec, bring},
    spaces::insert,
};
use crate::{executor::Card, space::Space, space::State};

/// The table, as a step of the migrations.
pub(super) const TABLE: &str = "
    create table adoptions (
        space_id       text primary key,
        -- What the space is, as its card will say.
        card           text not null,
        last_active_at text not null,
        source         text not null,
        begun_at       text not null,
        ended_at       text
    ) strict;
";

/// A space that is being taken over from another node's disks.
#[derive(Debug, Clone, PartialEq)]
pub struct Adoption {
    /// The space as it will be here.
    pub space: Space,
    /// The ledger it comes from.
    pub source: LedgerId,
}

impl Ledger {
    /// Writes that a space is about to be taken over.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn begin_adoption(
        &self,
        own: LedgerId,
        adoption: &Adoption,
        now: Timestamp,
    ) -> Result<(), Error> {
        let Adoption { space, source } = adoption.clone();
        let card = serde_json::to_string(&space.card(own))
            .map_err(|source| Error::Unreadable { what: "an adoption", source })?;
        self.write(Write::HardIfRoom, move |c| {
            c.execute(
                "insert or replace into adoptions (space_id, card, last_active_at, source, begun_at)
                    values (?1, ?2, ?3, ?4, ?5)",
                params![
                    space.id.to_string(),
                    card,
                    space.last_active_at.to_string(),
                    source.to_string(),
                    now.to_string()
                ],
            )
            .map(drop)
        })
        .await
    }

    /// Spaces whose taking over was begun and not ended.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn adoptions_under_way(&self) -> Result<Vec<Adoption>, Error> {
        self.read(|c| {
            c.prepare(
                "select card, last_active_at, source from adoptions where ended_at is null order by space_id",
            )?
            .query_map([], read)?
            .collect()
        })
        .await
    }

    /// Writes the row of a space that was taken over, with the commands that ran in it under a key, unless it is there,
    /// and that this has ended.
    ///
    /// # Errors
    /// When the ledger cannot be written or the name is taken.
    pub async fn end_adoption(
        &self,
        space: &Space,
        source: LedgerId,
        execs: Vec<(Exec, Came)>,
        now: Timestamp,
    ) -> Result<(), Error> {
        let (id, space) = (space.id, space.clone());
        let work = move |c: &Connection| {
            let id = space.id.to_string();
            if !c.prepare("select 1 from spaces where id = ?1")?.exists(params![id])? {
                insert(c, &space, None)?;
            }
            for (exec, came) in &execs {
                bring(c, exec, came, now)?;
            }
            c.execute("update adoptions set ended_at = ?2 where space_id = ?1", params![id, now.to_string()])
                .map(drop)
        };
        let told = Event {
            at: now,
            what: Happened::Adopted,
            because: format!("from the disks of the node with the ledger {source}"),
            took: None,
        };
        self.write_told(Write::HardIfRoom, work, Some(move |c: &Connection| tell(c, id, &told))).await
    }

    /// Forgets that a space was about to be taken over: nothing of it was moved.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn drop_adoption(&self, id: SpaceId) -> Result<(), Error> {
        self.write(Write::Hard, move |c| {
            c.execute("delete from adoptions where space_id = ?1", params![id.to_string()]).map(drop)
        })
        .await
    }
}

fn read(row: &Row<'_>) -> Result<Adoption, rusqlite::Error> {
    fn unreadable(column: usize) -> impl FnOnce(Box<dyn std::error::Error + Send + Sync>) -> rusqlite::Error {
        move |why| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, why)
    }
    let card: Card =
        serde_json::from_str(&row.get::<_, String>(0)?).map_err(|error| unreadable(0)(error.into()))?;
    let last_active_at: Timestamp =
        row.get::<_, String>(1)?.parse().map_err(|error: jiff::Error| unreadable(1)(error.into()))?;
    let source: LedgerId =
        row.get::<_, String>(2)?.parse().map_err(|error| unreadable(2)(Box::new(error)))?;
    Ok(Adoption { space: Space { last_active_at, ..Space::from_card(card, State::Stopped) }, source })
}
