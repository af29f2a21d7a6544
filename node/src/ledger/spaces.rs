use std::collections::BTreeMap;

use drowse_shared::{
    api::spaces::{Metadata, Policy, State as Word},
    id::{Epoch, SpaceId},
    name::{SpaceName, SpaceRef},
};
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params, types::Type};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    Error, Ledger, Write,
    events::{Event, tell, tell_end},
};
use crate::space::{Space, State, state::Effect};

/// The columns of a space, in the order [`read`] takes them.
pub(super) const COLUMNS: &str =
    "id, name, state, broken, epoch, created_at, last_active_at, policy, spec, template, metadata";

/// Most rows that one transaction writes.
const ROWS_AT_ONCE: usize = 500;

impl Ledger {
    /// The space a request points at.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn find(&self, space: &SpaceRef) -> Result<Option<Space>, Error> {
        match space {
            SpaceRef::Name(name) => self.by("name", name.to_string()).await,
            SpaceRef::Id(id) => self.by("id", id.to_string()).await,
        }
    }

    /// The space of a name.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn by_name(&self, name: &SpaceName) -> Result<Option<Space>, Error> {
        self.by("name", name.to_string()).await
    }

    async fn by(&self, column: &'static str, value: String) -> Result<Option<Space>, Error> {
        self.read(move |c| {
            c.prepare_cached(&format!("select {COLUMNS} from spaces where {column} = ?1"))?
                .query_row(params![value], read)
                .optional()
        })
        .await
    }

    /// Every space, in order of name: for reconcile.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn all(&self) -> Result<Vec<Space>, Error> {
        self.read(|c| {
            c.prepare(&format!("select {COLUMNS} from spaces order by name"))?.query_map([], read)?.collect()
        })
        .await
    }

    /// Names of the spaces in one state, in order.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn in_state(&self, state: Word) -> Result<Vec<SpaceName>, Error> {
        self.read(move |c| {
            c.prepare_cached("select name from spaces where state = ?1 order by name")?
                .query_map(params![state.as_str()], |row| parsed(row, 0))?
                .collect()
        })
        .await
    }

    /// Spaces whose last effect was begun and has no outcome.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn intending(&self, effect: Effect) -> Result<Vec<SpaceId>, Error> {
        self.read(move |c| {
            c.prepare("select id from spaces where intent = ?1")?
                .query_map(params![effect.word()], |row| parsed(row, 0))?
                .collect()
        })
        .await
    }

    /// How many spaces are in each state.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn counts(&self) -> Result<BTreeMap<Word, u64>, Error> {
        self.read(|c| {
            c.prepare_cached("select state, count(*) from spaces group by state order by state")?
                .query_map([], |row| Ok((word(row, 0)?, u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0))))?
                .collect()
        })
        .await
    }

    /// Writes a new space down.
    ///
    /// # Errors
    /// When the disk is full or the name is taken.
    pub async fn insert(&self, space: &Space, intent: Option<Effect>) -> Result<(), Error> {
        let space = space.clone();
        self.write(Write::HardIfRoom, move |c| insert(c, &space, intent)).await
    }

    /// Writes a space down that was found on a disk at a start; like [`set_found`](Self::set_found).
    ///
    /// # Errors
    /// When the disk is full or the name is taken.
    pub async fn insert_found(&self, space: &Space, told: Event) -> Result<(), Error> {
        let (id, space) = (space.id, space.clone());
        let told = move |c: &Connection| tell(c, id, &told);
        self.write_told(Write::SoftIfRoom, move |c| insert(c, &space, None), Some(told)).await
    }

    /// Writes many spaces down that are there already, some hundred at a time.
    ///
    /// # Errors
    /// When the disk is full or a name is taken.
    pub async fn insert_all(&self, spaces: Vec<Space>) -> Result<(), Error> {
        for part in spaces.chunks(ROWS_AT_ONCE) {
            let part = part.to_vec();
            let work = move |c: &Connection| part.iter().try_for_each(|space| insert(c, space, None));
            self.write(Write::HardIfRoom, work).await?;
        }
        Ok(())
    }

    /// Writes what a space is doing that was doing `was`, the effect that was begun, if one was, and what happened, if
    /// something is to be told.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn set_state(
        &self,
        id: SpaceId,
        was: &State,
        state: &State,
        intent: Option<Effect>,
        told: Option<Event>,
    ) -> Result<(), Error> {
        self.write_state(sure(was, state), id, state, intent, told).await
    }

    /// Writes what a space was found to be doing at a start. A loss of power may take it back: the next start finds the
    /// same, and whatever a caller is told is synced with all that was written before it.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn set_found(
        &self,
        id: SpaceId,
        state: &State,
        intent: Option<Effect>,
        told: Option<Event>,
    ) -> Result<(), Error> {
        self.write_state(Write::Soft, id, state, intent, told).await
    }

    async fn write_state(
        &self,
        sure: Write,
        id: SpaceId,
        state: &State,
        intent: Option<Effect>,
        told: Option<Event>,
    ) -> Result<(), Error> {
        let state = state.clone();
        let work = move |c: &Connection| {
            c.prepare_cached("update spaces set state = ?2, broken = ?3, intent = ?4 where id = ?1")?
                .execute(params![
                    id.to_string(),
                    state.word().as_str(),
                    broken(&state)?,
                    intent.map(Effect::word)
                ])
                .map(drop)
        };
        let told = told.map(|event| move |c: &Connection| tell(c, id, &event));
        self.write_told(sure, work, told).await
    }

    /// Gives a space another name, and the state it has under it.
    ///
    /// # Errors
    /// When the name is taken, or the ledger cannot be written.
    pub async fn rename(&self, id: SpaceId, name: &SpaceName, state: &State) -> Result<(), Error> {
        let (name, state) = (name.clone(), state.clone());
        self.write(Write::Hard, move |c| {
            c.execute(
                "update spaces set name = ?2, state = ?3, broken = ?4, intent = null where id = ?1",
                params![id.to_string(), name.as_str(), state.word().as_str(), broken(&state)?],
            )
            .map(drop)
        })
        .await
    }

    /// Removes the row of a space. `told` is what is said of its end, to whoever has its name next.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn forget(&self, id: SpaceId, told: Option<(SpaceName, Event)>) -> Result<(), Error> {
        let work = move |c: &Connection| {
            c.execute("delete from execs where space_id = ?1", params![id.to_string()])?;
            c.execute("delete from adoptions where space_id = ?1", params![id.to_string()])?;
            c.execute("delete from spaces where id = ?1", params![id.to_string()]).map(drop)
        };
        let told = told.map(|(name, event)| move |c: &Connection| tell_end(c, id, &name, &event));
        self.write_told(Write::Hard, work, told).await
    }

    /// Writes when a space sleeps.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn set_policy(&self, id: SpaceId, policy: &Policy) -> Result<(), Error> {
        let policy = policy.clone();
        self.write(Write::Hard, move |c| {
            c.execute("update spaces set policy = ?2 where id = ?1", params![id.to_string(), json(&policy)?])
                .map(drop)
        })
        .await
    }

    /// Writes the caller's notes.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn set_metadata(&self, id: SpaceId, metadata: &Metadata) -> Result<(), Error> {
        let metadata = metadata.clone();
        self.write(Write::Hard, move |c| {
            c.execute(
                "update spaces set metadata = ?2 where id = ?1",
                params![id.to_string(), json(&metadata)?],
            )
            .map(drop)
        })
        .await
    }

    /// Writes when spaces were last used. What is written already and later stays.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn set_activity(&self, used: Vec<(SpaceId, Timestamp)>) -> Result<(), Error> {
        // In parts, so that no other write waits for thousands of rows.
        for part in used.chunks(ROWS_AT_ONCE) {
            let part = part.to_vec();
            self.write(Write::SoftIfRoom, move |c| {
                let mut statement = c.prepare_cached(
                    "update spaces set last_active_at = max(last_active_at, ?2) where id = ?1",
                )?;
                for (id, at) in &part {
                    statement.execute(params![id.to_string(), instant(*at)])?;
                }
                Ok(())
            })
            .await?;
        }
        Ok(())
    }
}

/// The kernel can always be asked about a body that was there before; everything else must be written to be known. A
/// create above all: what is found to be still `creating` is removed with its data.
fn sure(was: &State, is: &State) -> Write {
    match (was, is) {
        (State::Creating, _) => Write::Hard,
        (_, State::Active | State::Frozen) => Write::Soft,
        _ => Write::Hard,
    }
}

/// Writes the row of a new space.
pub(super) fn insert(c: &Connection, space: &Space, intent: Option<Effect>) -> Result<(), rusqlite::Error> {
    let text = format!(
        "insert into spaces ({COLUMNS}, intent) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)"
    );
    c.prepare_cached(&text)?
        .execute(params![
            space.id.to_string(),
            space.name.as_str(),
            space.state.word().as_str(),
            broken(&space.state)?,
            i64::try_from(space.epoch.0).unwrap_or(i64::MAX),
            instant(space.created_at),
            instant(space.last_active_at),
            json(&space.policy)?,
            json(&space.spec)?,
            json(&space.template)?,
            json(&space.metadata)?,
            intent.map(Effect::word),
        ])
        .map(drop)
}

/// An instant in a width that never varies, so that texts are in the order of instants.
pub(super) fn instant(at: Timestamp) -> String {
    format!("{at:.9}")
}

fn json(value: &impl Serialize) -> Result<String, rusqlite::Error> {
    serde_json::to_string(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))
}

fn broken(state: &State) -> Result<Option<String>, rusqlite::Error> {
    match state {
        State::Broken(broken) => json(broken).map(Some),
        _ => Ok(None),
    }
}

fn unreadable(column: usize, why: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(why))
}

pub(super) fn parsed<T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    row: &Row<'_>,
    column: usize,
) -> Result<T, rusqlite::Error> {
    row.get::<_, String>(column)?.parse().map_err(|e| unreadable(column, e))
}

fn from_json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> Result<T, rusqlite::Error> {
    serde_json::from_str(&row.get::<_, String>(column)?).map_err(|e| unreadable(column, e))
}

fn word(row: &Row<'_>, column: usize) -> Result<Word, rusqlite::Error> {
    let text: String = row.get(column)?;
    Word::read(&text)
        .ok_or_else(|| unreadable(column, std::io::Error::other(format!("no state is called {text:?}"))))
}

fn state(row: &Row<'_>, word_column: usize, broken_column: usize) -> Result<State, rusqlite::Error> {
    Ok(match word(row, word_column)? {
        Word::Creating => State::Creating,
        Word::Active => State::Active,
        Word::Frozen => State::Frozen,
        Word::Stopped => State::Stopped,
        Word::Waking => State::Waking,
        Word::Destroying => State::Destroying,
        Word::Broken => State::Broken(from_json(row, broken_column)?),
        state @ (Word::Hibernating | Word::Hibernated) => {
            let why = format!("{state} is of a newer version");
            return Err(unreadable(word_column, std::io::Error::other(why)));
        }
    })
}

/// One row, with [`COLUMNS`].
pub(super) fn read(row: &Row<'_>) -> Result<Space, rusqlite::Error> {
    Ok(Space {
        id: parsed(row, 0)?,
        name: parsed(row, 1)?,
        state: state(row, 2, 3)?,
        epoch: Epoch(u64::try_from(row.get::<_, i64>(4)?).unwrap_or(0)),
        created_at: parsed(row, 5)?,
        last_active_at: parsed(row, 6)?,
        policy: from_json(row, 7)?,
        spec: from_json(row, 8)?,
        template: from_json(row, 9)?,
        metadata: from_json(row, 10)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_kernel_can_be_asked_about_spares_the_sync() {
        let cases = [
            (State::Creating, State::Creating, Write::Hard),
            (State::Creating, State::Active, Write::Hard),
            (State::Active, State::Frozen, Write::Soft),
            (State::Frozen, State::Active, Write::Soft),
            (State::Waking, State::Active, Write::Soft),
            (State::Frozen, State::Stopped, Write::Hard),
            (State::Active, State::Destroying, Write::Hard),
        ];
        for (was, is, expected) in cases {
            assert_eq!(sure(&was, &is), expected, "{was:?} {is:?}");
        }
    }
}
