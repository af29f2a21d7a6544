use drowse_shared::{
    api::exec::{ExecResult, KEY_KEPT_SECONDS, KEYS_MAX, OutputEncoding},
    id::SpaceId,
};
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params, types::Type};
use serde::{Deserialize, Serialize};

use super::{Error, Ledger, Write};

/// Keys of all spaces of a node; the oldest whose command has ended goes first.
const NODE_KEYS_MAX: i64 = 65_536;
/// They are counted once in so many new keys: a count reads all of them.
const COUNT_EVERY: i64 = 64;

/// The table, as a step of the migrations.
pub(super) const TABLE: &str = "
    create table execs (
        seq        integer primary key autoincrement,
        space_id   text not null,
        key        text not null,
        -- Digest of the request, without the key and the way the space was named.
        body       text not null,
        -- By which the agent finds the command again.
        tag        text not null,
        detached   integer not null,
        base64     integer not null,
        timeout_s  integer not null,
        -- The program, as people are shown it.
        shown      text not null,
        -- Seconds since 1970, by this machine's clock.
        started_at integer not null,
        ended_at   integer,
        outcome    text,
        unique (space_id, key)
    ) strict;
    create index execs_under_way on execs (seq) where outcome is null;
";

/// A command with an idempotency key, as it was begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exec {
    /// Where it runs.
    pub space: SpaceId,
    /// The caller's key.
    pub key: String,
    /// Digest of what was asked.
    pub body: String,
    /// By which the agent finds it again.
    pub tag: String,
    /// Whether it is answered as soon as it runs.
    pub detached: bool,
    /// How its output is written.
    pub encoding: OutputEncoding,
    /// After how many seconds it is killed.
    pub timeout_seconds: u64,
    /// The program, as people are shown it.
    pub shown: String,
    /// When it was begun.
    pub started_at: Timestamp,
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Came {
    /// It ended, or runs on detached.
    Result(Box<ExecResult>),
    /// It may have run. Why that is not known.
    Unknown(String),
}

/// What beginning a command met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// The key is new; the intent is written.
    New,
    /// The key is there already, with what came of it if that is known.
    Before(Exec, Option<Came>),
    /// Every key of the space belongs to a command that still runs.
    Full,
    /// The space is gone.
    Gone,
}

impl Ledger {
    /// Writes that a command is about to run, unless its key was used.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn begin_exec(&self, exec: Exec) -> Result<Begun, Error> {
        self.write(Write::HardIfRoom, move |c| begin(c, &exec)).await
    }

    /// The command of a key, with what came of it if that is known.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn exec(&self, space: SpaceId, key: &str) -> Result<Option<(Exec, Option<Came>)>, Error> {
        let key = key.to_owned();
        self.read(move |c| find(c, space, &key)).await
    }

    /// Writes what came of a command.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn end_exec(&self, exec: &Exec, came: Came, now: Timestamp) -> Result<(), Error> {
        let exec = exec.clone();
        self.write(Write::Hard, move |c| settle(c, &exec, &came, now)).await
    }

    /// Forgets a command that did not run after all.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn forget_exec(&self, exec: &Exec) -> Result<(), Error> {
        let exec = exec.clone();
        self.write(Write::Hard, move |c| {
            c.execute(
                "delete from execs where space_id = ?1 and key = ?2",
                params![exec.space.to_string(), exec.key],
            )
            .map(drop)
        })
        .await
    }

    /// Commands of which it is not known what came of them, oldest first.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn execs_under_way(&self) -> Result<Vec<Exec>, Error> {
        self.read(|c| {
            c.prepare(&format!("select {COLUMNS} from execs where outcome is null order by seq"))?
                .query_map([], |row| read(row).map(|(exec, _)| exec))?
                .collect()
        })
        .await
    }

    /// Forgets commands that ended long ago.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn expire_execs(&self, now: Timestamp) -> Result<(), Error> {
        self.write(Write::Soft, move |c| {
            c.execute("delete from execs where ended_at < ?1", params![oldest(now)])?;
            // Of a space that moved to another node.
            let gone = "delete from execs where outcome is null and space_id not in (select id from spaces)";
            c.execute(gone, []).map(drop)
        })
        .await
    }
}

/// Every command of a space that has a key, for another node that takes the space over. What still ran has no outcome.
pub(super) fn all_of(c: &Connection, space: SpaceId) -> Result<Vec<(Exec, Option<Came>)>, rusqlite::Error> {
    // A ledger of an earlier version has none.
    let has = "select 1 from sqlite_schema where type = 'table' and name = 'execs'";
    if !c.prepare(has)?.exists([])? {
        return Ok(Vec::new());
    }
    c.prepare(&format!("select {COLUMNS} from execs where space_id = ?1 order by seq"))?
        .query_map(params![space.to_string()], read)?
        .collect()
}

/// Writes down a command that another node began: it counts as ended now.
pub(super) fn bring(c: &Connection, exec: &Exec, came: &Came, now: Timestamp) -> Result<(), rusqlite::Error> {
    write(c, exec)?;
    settle(c, exec, came, now)
}

const COLUMNS: &str = "space_id, key, body, tag, detached, base64, timeout_s, shown, started_at, outcome";

/// The oldest end that is still remembered.
fn oldest(now: Timestamp) -> i64 {
    now.as_second().saturating_sub(i64::try_from(KEY_KEPT_SECONDS).unwrap_or(i64::MAX))
}

fn begin(c: &Connection, exec: &Exec) -> Result<Begun, rusqlite::Error> {
    let id = exec.space.to_string();
    let exists = c.prepare_cached("select 1 from spaces where id = ?1")?.exists(params![id])?;
    if !exists {
        return Ok(Begun::Gone);
    }
    c.prepare_cached("delete from execs where space_id = ?1 and ended_at < ?2")?
        .execute(params![id, oldest(exec.started_at)])?;
    if let Some((before, came)) = find(c, exec.space, &exec.key)? {
        return Ok(Begun::Before(before, came));
    }
    let count = |c: &Connection| -> Result<usize, rusqlite::Error> {
        let many: i64 = c
            .prepare_cached("select count(*) from execs where space_id = ?1")?
            .query_row(params![id], |row| row.get(0))?;
        Ok(usize::try_from(many).unwrap_or(usize::MAX))
    };
    let many = count(c)?;
    if many >= KEYS_MAX {
        let over = i64::try_from(many - KEYS_MAX).unwrap_or(i64::MAX).saturating_add(1);
        c.prepare_cached(
            "delete from execs where seq in
                (select seq from execs where space_id = ?1 and outcome is not null order by seq limit ?2)",
        )?
        .execute(params![id, over])?;
        if count(c)? >= KEYS_MAX {
            return Ok(Begun::Full);
        }
    }
    write(c, exec)?;
    if c.last_insert_rowid() % COUNT_EVERY == 0 {
        bound(c)?;
    }
    Ok(Begun::New)
}

/// Forgets the oldest keys of the node beyond what it keeps. How far `seq` has come says nothing about how many there are.
fn bound(c: &Connection) -> Result<(), rusqlite::Error> {
    let many: i64 = c.prepare_cached("select count(*) from execs")?.query_row([], |row| row.get(0))?;
    if many > NODE_KEYS_MAX {
        c.prepare_cached(
            "delete from execs where seq in
                (select seq from execs where outcome is not null order by seq limit ?1)",
        )?
        .execute(params![many - NODE_KEYS_MAX])?;
    }
    Ok(())
}

fn write(c: &Connection, exec: &Exec) -> Result<(), rusqlite::Error> {
    c.prepare_cached(
        "insert or ignore into execs (space_id, key, body, tag, detached, base64, timeout_s, shown, started_at)
            values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute(params![
        exec.space.to_string(),
        exec.key,
        exec.body,
        exec.tag,
        exec.detached,
        exec.encoding == OutputEncoding::Base64,
        i64::try_from(exec.timeout_seconds).unwrap_or(i64::MAX),
        exec.shown,
        exec.started_at.as_second()
    ])
    .map(drop)
}

fn settle(c: &Connection, exec: &Exec, came: &Came, now: Timestamp) -> Result<(), rusqlite::Error> {
    let came =
        serde_json::to_string(came).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    c.prepare_cached("update execs set outcome = ?3, ended_at = ?4 where space_id = ?1 and key = ?2")?
        .execute(params![exec.space.to_string(), exec.key, came, now.as_second()])
        .map(drop)
}

fn find(c: &Connection, space: SpaceId, key: &str) -> Result<Option<(Exec, Option<Came>)>, rusqlite::Error> {
    c.prepare_cached(&format!("select {COLUMNS} from execs where space_id = ?1 and key = ?2"))?
        .query_row(params![space.to_string(), key], read)
        .optional()
}

fn read(row: &Row<'_>) -> Result<(Exec, Option<Came>), rusqlite::Error> {
    let unreadable = |column, why: Box<dyn std::error::Error + Send + Sync>| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, why)
    };
    let exec = Exec {
        space: row.get::<_, String>(0)?.parse().map_err(|error| unreadable(0, Box::new(error)))?,
        key: row.get(1)?,
        body: row.get(2)?,
        tag: row.get(3)?,
        detached: row.get(4)?,
        encoding: if row.get(5)? { OutputEncoding::Base64 } else { OutputEncoding::Utf8 },
        timeout_seconds: u64::try_from(row.get::<_, i64>(6)?).unwrap_or(0),
        shown: row.get(7)?,
        started_at: Timestamp::from_second(row.get(8)?).map_err(|error| unreadable(8, Box::new(error)))?,
    };
    let came = row.get::<_, Option<String>>(9)?;
    let came = came.map(|text| serde_json::from_str(&text)).transpose();
    Ok((exec, came.map_err(|error| unreadable(9, Box::new(error)))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> Connection {
        let mut connection = Connection::open_in_memory().expect("memory");
        super::super::migrations::all().to_latest(&mut connection).expect("migrated");
        connection
            .execute(
                "insert into spaces values (?1, 'a', 'active', null, null, 1, '', '', '', '', '', '')",
                params![SPACE],
            )
            .expect("inserted");
        connection
    }

    const SPACE: &str = "0190f0c2a4b87c3d9e0f112233445566";
    const BUSY: &str = "0190f0c2a4b87c3d9e0f112233445577";

    fn exec(key: &str, at: i64) -> Exec {
        Exec {
            space: SPACE.parse().expect("an id"),
            key: key.to_owned(),
            body: "b".to_owned(),
            tag: "t".to_owned(),
            detached: false,
            encoding: OutputEncoding::Base64,
            timeout_seconds: 300,
            shown: "make".to_owned(),
            started_at: Timestamp::from_second(at).expect("in range"),
        }
    }

    fn end(c: &Connection, key: &str, at: i64) {
        let unknown = serde_json::to_string(&Came::Unknown("x".to_owned())).expect("plain data");
        c.execute("update execs set outcome = ?2, ended_at = ?3 where key = ?1", params![key, unknown, at])
            .expect("written");
    }

    #[test]
    fn keys_are_bounded_and_the_oldest_that_ended_goes_first() {
        let c = connection();
        for n in 0..KEYS_MAX {
            assert_eq!(begin(&c, &exec(&format!("k{n}"), 0)).expect("begun"), Begun::New);
        }
        assert_eq!(begin(&c, &exec("one more", 0)).expect("refused"), Begun::Full, "all of them run");
        end(&c, "k7", 0);
        end(&c, "k3", 0);
        assert_eq!(begin(&c, &exec("one more", 0)).expect("begun"), Begun::New);
        let there = |key: &str| find(&c, exec("", 0).space, key).expect("read").is_some();
        assert!(!there("k3") && there("k7") && there("k0"), "the oldest that ended went");
    }

    #[test]
    fn a_busy_space_does_not_push_out_the_key_of_another_one() {
        let c = connection();
        c.execute(
            "insert into spaces values (?1, 'busy', 'active', null, null, 1, '', '', '', '', '', '')",
            params![BUSY],
        )
        .expect("inserted");
        assert_eq!(begin(&c, &exec("quiet", 0)).expect("begun"), Begun::New);
        end(&c, "quiet", 0);
        let busy = |key: &str| Exec { space: BUSY.parse().expect("an id"), ..exec(key, 0) };
        // So many commands of the busy space have been: all but a few of their keys are gone.
        c.execute("update sqlite_sequence set seq = seq + ?1", params![NODE_KEYS_MAX]).expect("written");
        for n in 0..COUNT_EVERY {
            assert_eq!(begin(&c, &busy(&format!("k{n}"))).expect("begun"), Begun::New);
        }
        assert!(find(&c, exec("", 0).space, "quiet").expect("read").is_some());
    }

    #[test]
    fn the_keys_of_a_node_are_bounded_and_the_oldest_that_ended_goes_first() {
        let c = connection();
        c.execute(
            "with recursive n (n) as (select 1 union all select n + 1 from n where n < ?1)
                insert into execs (space_id, key, body, tag, detached, base64, timeout_s, shown, started_at, outcome)
                select 'other', n, '', '', 0, 0, 1, '', 0, iif(n = 1, null, 'x') from n",
            params![NODE_KEYS_MAX],
        )
        .expect("inserted");
        for n in 0..COUNT_EVERY {
            assert_eq!(begin(&c, &exec(&format!("k{n}"), 0)).expect("begun"), Begun::New);
        }
        let one = |query: &str| c.query_row(query, [], |row| row.get::<_, i64>(0)).expect("read");
        assert_eq!(one("select count(*) from execs"), NODE_KEYS_MAX);
        assert_eq!(one("select count(*) from execs where space_id != 'other'"), COUNT_EVERY);
        assert_eq!(one("select min(seq) from execs"), 1, "it may still run");
        assert_eq!(one("select min(seq) from execs where outcome is not null"), COUNT_EVERY + 2);
    }

    #[test]
    fn a_key_is_forgotten_a_day_after_its_command_ended_and_never_before() {
        let c = connection();
        assert_eq!(begin(&c, &exec("a", 0)).expect("begun"), Begun::New);
        let day = i64::try_from(KEY_KEPT_SECONDS).expect("small");
        let again = |at| begin(&c, &exec("a", at)).expect("asked");
        assert_eq!(again(9 * day), Begun::Before(exec("a", 0), None), "it may still run");
        end(&c, "a", 9 * day);
        let came = Some(Came::Unknown("x".to_owned()));
        assert_eq!(again(10 * day), Begun::Before(exec("a", 0), came));
        assert_eq!(again(10 * day + 1), Begun::New);
    }

    #[test]
    fn a_space_that_is_gone_begins_nothing() {
        let c = connection();
        c.execute("delete from spaces", []).expect("deleted");
        assert_eq!(begin(&c, &exec("a", 0)).expect("asked"), Begun::Gone);
    }
}
