//! What happened to spaces, for whoever asks later. Written with the change it tells of, in one transaction, and never the
//! reason for which a change fails. Of each space the newest are kept, and the newest of all.

use std::time::Duration;

use drowse_shared::{
    api::spaces::{EVENTS_PAGE_DEFAULT, EVENTS_PAGE_MAX, EventCursor, Happened, SpaceEvent},
    id::SpaceId,
    name::SpaceName,
};
use jiff::Timestamp;
use rusqlite::{Connection, Row, params, types::Type};

use super::{
    Error, Ledger, Write,
    spaces::{instant, parsed},
};

/// The table, as a step of the migrations.
pub(super) const TABLE: &str = "
    create table events (
        seq       integer primary key,
        space_id  text not null,
        -- The name it had, once it is destroyed: the next space of the name is told.
        name      text,
        at        text not null,
        what      text not null,
        because   text not null,
        took_us   integer
    ) strict;
    create index events_by_space on events (space_id, seq);
    create index events_of_destroyed on events (name, seq) where name is not null;
";

/// Of one space.
const KEPT: u32 = 100;
/// Ends of spaces that had one name.
const KEPT_ENDS: u32 = 10;
/// Of all.
const KEPT_IN_ALL: u32 = 50_000;
/// After so many new ones, all are counted.
const COUNTED_EVERY: i64 = 500;
/// Longest reason.
const BECAUSE_CHARACTERS_MAX: usize = 240;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Timestamp,
    /// What.
    pub what: Happened,
    /// Why.
    pub because: String,
    /// How long the runtime took for it.
    pub took: Option<Duration>,
}

impl Ledger {
    /// Writes, and with it what happened. If that is what cannot be written, the rest is.
    pub(super) async fn write_told<T: Send + 'static>(
        &self,
        sure: Write,
        work: impl Fn(&Connection) -> Result<T, rusqlite::Error> + Clone + Send + 'static,
        told: Option<impl Fn(&Connection) -> Result<(), rusqlite::Error> + Send + 'static>,
    ) -> Result<T, Error> {
        let Some(told) = told else { return self.write(sure, work).await };
        let alone = work.clone();
        let both = move |c: &Connection| {
            let done = work(c)?;
            told(c)?;
            Ok(done)
        };
        match self.write_once(sure, both).await {
            Ok(done) => Ok(done),
            Err(error) if error.is_busy() => Err(error.into()),
            Err(_) => self.write(sure, alone).await,
        }
    }

    /// What happened to a space of this name, the newest first, with the ends of those that had the name before it; and
    /// where what is older begins.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn events(
        &self,
        id: SpaceId,
        name: SpaceName,
        before: Option<EventCursor>,
        limit: Option<u32>,
    ) -> Result<(Vec<SpaceEvent>, Option<EventCursor>), Error> {
        let limit = limit.unwrap_or(EVENTS_PAGE_DEFAULT).min(EVENTS_PAGE_MAX) as usize;
        let before = before.map_or(i64::MAX, |cursor| i64::try_from(cursor.0).unwrap_or(i64::MAX));
        let mut found = self
            .read(move |c| {
                let columns = "seq, space_id, at, what, because, took_us";
                let part = |of: &str| {
                    format!(
                        "select * from (select {columns} from events where {of} and seq < ?3 order by seq desc limit ?4)"
                    )
                };
                let text = format!(
                    "{} union all {} order by seq desc limit ?4",
                    part("space_id = ?1"),
                    part("name = ?2 and space_id <> ?1")
                );
                // One more than asked for says whether more follow.
                let most = i64::try_from(limit).map_or(i64::MAX, |limit| limit + 1);
                c.prepare_cached(&text)?
                    .query_map(params![id.to_string(), name.as_str(), before, most], read)?
                    .collect::<Result<Vec<_>, _>>()
            })
            .await?;
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|(seq, _)| EventCursor(seq.unsigned_abs()));
        Ok((found.into_iter().map(|(_, event)| event).collect(), next))
    }
}

fn read(row: &Row<'_>) -> Result<(i64, SpaceEvent), rusqlite::Error> {
    let what: String = row.get(3)?;
    let what = Happened::read(&what).ok_or_else(|| {
        let why = std::io::Error::other(format!("nothing that happens is called {what:?}"));
        rusqlite::Error::FromSqlConversionFailure(3, Type::Text, why.into())
    })?;
    let event = SpaceEvent {
        at: parsed(row, 2)?,
        id: parsed(row, 1)?,
        what,
        because: row.get(4)?,
        took_us: row.get::<_, Option<i64>>(5)?.map(i64::unsigned_abs),
    };
    Ok((row.get(0)?, event))
}

/// Writes what happened to a space, and forgets what is too old.
pub(super) fn tell(c: &Connection, id: SpaceId, event: &Event) -> Result<(), rusqlite::Error> {
    add(c, id, None, event)?;
    c.prepare_cached(
        "delete from events where space_id = ?1
            and seq <= (select seq from events where space_id = ?1 order by seq desc limit 1 offset ?2)",
    )?
    .execute(params![id.to_string(), KEPT])
    .map(drop)
}

/// Writes that a space was destroyed; nothing else of it is kept.
pub(super) fn tell_end(
    c: &Connection,
    id: SpaceId,
    name: &SpaceName,
    event: &Event,
) -> Result<(), rusqlite::Error> {
    let end = add(c, id, Some(name), event)?;
    c.execute("delete from events where space_id = ?1 and seq < ?2", params![id.to_string(), end])?;
    c.execute(
        "delete from events where name = ?1
            and seq <= (select seq from events where name = ?1 order by seq desc limit 1 offset ?2)",
        params![name.as_str(), KEPT_ENDS],
    )
    .map(drop)
}

fn add(c: &Connection, id: SpaceId, name: Option<&SpaceName>, event: &Event) -> Result<i64, rusqlite::Error> {
    let because: String = event.because.chars().take(BECAUSE_CHARACTERS_MAX).collect();
    let took_us = event.took.map(|took| i64::try_from(took.as_micros()).unwrap_or(i64::MAX));
    c.prepare_cached(
        "insert into events (space_id, name, at, what, because, took_us) values (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![
        id.to_string(),
        name.map(SpaceName::as_str),
        instant(event.at),
        event.what.as_str(),
        because,
        took_us
    ])?;
    let seq = c.last_insert_rowid();
    if seq % COUNTED_EVERY == 0 {
        c.execute(
            "delete from events where seq <= (select seq from events order by seq desc limit 1 offset ?1)",
            params![KEPT_IN_ALL],
        )?;
    }
    Ok(seq)
}

#[cfg(test)]
mod tests;
