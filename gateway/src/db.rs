//! What survives a restart: the roster, what each node said of itself, and the configuration. No space is in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use camino::Utf8Path;
use drowse_shared::{
    api::nodes::{Bundle, Roster, RosterNode},
    db::{self, Db, ballast::Ballast},
    id::{FleetId, LedgerId, NodeId},
    seams::Env,
};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params, types::Type};
use rusqlite_migration::{M, Migrations};

use crate::fleet::{
    Roll,
    roster::{Member, Members},
};

/// The database inside the state directory.
pub(crate) const FILE: &str = "gateway.db";

const SCHEMA: &str = "
    create table fleet (
        one            integer primary key check (one = 1),
        fleet_id       text not null,
        roster_version integer not null,
        bundle         text
    ) strict;
    create table nodes (
        ledger_id     text primary key,
        id            text not null unique,
        endpoint      text not null,
        since_version integer not null
    ) strict;
    create table removed (ledger_id text primary key) strict;
    create table said (
        ledger_id   text primary key,
        id          text not null,
        endpoint    text not null,
        region      text,
        interval_ms integer not null
    ) strict;
";

/// What is kept of a roll to another build.
const ROLL: &str = "alter table fleet add column roll text;";

/// The shape of the database, oldest first.
pub(crate) fn migrations() -> Migrations<'static> {
    Migrations::new(vec![M::up(SCHEMA), M::up(ROLL)])
}

/// The version of the databases this program writes.
///
/// # Errors
/// When its steps are wrong.
pub(crate) fn version() -> Result<i64, db::Error> {
    db::version(&migrations())
}

/// What a node, member or removed, last said of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    /// What an operator calls it.
    pub(crate) id: NodeId,
    /// Where it is reached.
    pub(crate) endpoint: String,
    /// A label.
    pub(crate) region: Option<String>,
    /// Between its check-ins.
    pub(crate) interval_ms: u64,
}

/// Everything a gateway keeps.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Kept {
    /// The newest roster; none in a gateway that has not found or founded its fleet.
    pub(crate) roster: Option<Members>,
    /// The newest configuration.
    pub(crate) bundle: Option<Bundle>,
    /// By ledger.
    pub(crate) said: BTreeMap<LedgerId, Arc<Said>>,
    /// Who was told to take another build.
    pub(crate) roll: Roll,
}

/// What of it is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Changes {
    /// Everything.
    Whole,
    /// The version, the configuration, the roll, and what is known of these ledgers.
    Of(BTreeSet<LedgerId>),
}

/// A gateway's database. A full disk does not keep it from being opened, nor what makes room from being written.
#[derive(Clone)]
pub struct Store {
    db: Db,
    ballast: Option<Ballast>,
}

impl Store {
    /// Opens the file.
    pub(crate) fn open(env: &Env, path: &Utf8Path) -> Result<Self, db::Error> {
        let ballast = Ballast::new(env, path.with_extension("ballast"));
        let db = Db::open_in_need(env, path, &migrations(), &ballast)?;
        Ok(Self { db, ballast: Some(ballast) })
    }

    /// Uses a connection that is already open, as a simulation does.
    pub(crate) fn over(env: &Env, connection: Connection) -> Result<Self, db::Error> {
        Ok(Self { db: Db::over(env, connection, &migrations())?, ballast: None })
    }

    /// The same, its queries run by this `env`.
    pub(crate) fn through(self, env: &Env) -> Self {
        Self { db: self.db.through(env), ..self }
    }

    /// Reads everything.
    pub(crate) async fn load(&self) -> Result<Kept, db::Error> {
        self.restore().await;
        self.db.run(read).await
    }

    /// Writes what changed, in one transaction.
    pub(crate) async fn save(&self, kept: Arc<Kept>, changes: Changes) -> Result<(), db::Error> {
        self.db.run(move |connection| write(connection, &kept, &changes)).await?;
        self.restore().await;
        Ok(())
    }

    /// The same, and on a full disk once more without the ballast.
    pub(crate) async fn save_in_need(&self, kept: Arc<Kept>, changes: Changes) -> Result<(), db::Error> {
        match self.save(kept.clone(), changes.clone()).await {
            Err(error) if error.may_be_full() && self.ballast.as_ref().is_some_and(Ballast::release) => {
                self.save(kept, changes).await
            }
            saved => saved,
        }
    }

    /// Takes a turn to write and gives it back.
    pub(crate) async fn probe(&self) -> Result<(), db::Error> {
        self.db.probe().await
    }

    /// Makes the ballast anew if it was given up and there is room again.
    async fn restore(&self) {
        if let Some(ballast) = &self.ballast {
            ballast.restore().await;
        }
    }
}

fn read(connection: &mut Connection) -> Result<Kept, rusqlite::Error> {
    let transaction = connection.transaction()?;
    let fleet = transaction
        .query_row("select fleet_id, roster_version, bundle, roll from fleet", [], |row| {
            let text = |column| row.get::<_, Option<String>>(column);
            Ok((parsed::<FleetId>(row, 0)?, number(row, 1)?, text(2)?, text(3)?))
        })
        .optional()?;
    let Some((fleet_id, version, bundle, roll)) = fleet else { return Ok(Kept::default()) };
    let bundle = bundle.map(|text| serde_json::from_str(&text)).transpose().map_err(|e| damaged(2, e))?;
    let roll = roll.map(|text| serde_json::from_str(&text)).transpose().map_err(|e| damaged(3, e))?;
    let nodes = transaction
        .prepare("select ledger_id, id, endpoint, since_version from nodes order by id")?
        .query_map([], |row| {
            Ok(RosterNode {
                ledger_id: parsed(row, 0)?,
                id: parsed(row, 1)?,
                endpoint: row.get(2)?,
                since_version: number(row, 3)?,
            })
        })?
        .collect::<Result<_, _>>()?;
    let removed = transaction
        .prepare("select ledger_id from removed order by ledger_id")?
        .query_map([], |row| parsed(row, 0))?
        .collect::<Result<_, _>>()?;
    let said = transaction
        .prepare("select ledger_id, id, endpoint, region, interval_ms from said order by ledger_id")?
        .query_map([], |row| {
            let said = Said {
                id: parsed(row, 1)?,
                endpoint: row.get(2)?,
                region: row.get(3)?,
                interval_ms: number(row, 4)?,
            };
            Ok((parsed(row, 0)?, Arc::new(said)))
        })?
        .collect::<Result<_, _>>()?;
    let roster = Members::of(&Roster { fleet_id, version, nodes, removed });
    Ok(Kept { roster: Some(roster), bundle, said, roll: roll.unwrap_or_default() })
}

fn write(connection: &mut Connection, kept: &Kept, changes: &Changes) -> Result<(), rusqlite::Error> {
    let Some(roster) = &kept.roster else { return Ok(()) };
    let unwritable = |e| rusqlite::Error::ToSqlConversionFailure(Box::new(e));
    let bundle = kept.bundle.as_ref().map(serde_json::to_string).transpose().map_err(unwritable)?;
    let roll = serde_json::to_string(&kept.roll).map_err(unwritable)?;
    let transaction = connection.transaction()?;
    transaction.execute(
        "insert or replace into fleet (one, fleet_id, roster_version, bundle, roll) values (1, ?1, ?2, ?3, ?4)",
        params![roster.fleet_id.to_string(), signed(roster.version), bundle, roll],
    )?;
    match changes {
        Changes::Whole => {
            transaction.execute_batch("delete from nodes; delete from removed; delete from said;")?;
            for node in roster.iter() {
                write_node(&transaction, node)?;
            }
            for ledger in roster.removed() {
                write_removed(&transaction, ledger)?;
            }
            for (ledger, said) in &kept.said {
                write_said(&transaction, ledger, said)?;
            }
        }
        Changes::Of(ledgers) => {
            // Ids are unique: all that were given up are free before the first one is taken.
            for table in ["nodes", "removed", "said"] {
                let mut delete =
                    transaction.prepare_cached(&format!("delete from {table} where ledger_id = ?1"))?;
                for ledger in ledgers {
                    delete.execute([ledger.to_string()])?;
                }
            }
            for ledger in ledgers {
                if let Some(node) = roster.get(ledger) {
                    write_node(&transaction, node)?;
                }
                if roster.is_removed(ledger) {
                    write_removed(&transaction, ledger)?;
                }
                if let Some(said) = kept.said.get(ledger) {
                    write_said(&transaction, ledger, said)?;
                }
            }
        }
    }
    transaction.commit()
}

fn write_node(transaction: &Transaction<'_>, node: &Member) -> Result<(), rusqlite::Error> {
    let row = params![node.ledger.to_string(), node.id.as_str(), &*node.endpoint, signed(node.since_version)];
    transaction
        .prepare_cached("insert into nodes (ledger_id, id, endpoint, since_version) values (?1, ?2, ?3, ?4)")?
        .execute(row)
        .map(drop)
}

fn write_removed(transaction: &Transaction<'_>, ledger: &LedgerId) -> Result<(), rusqlite::Error> {
    transaction
        .prepare_cached("insert into removed (ledger_id) values (?1)")?
        .execute([ledger.to_string()])
        .map(drop)
}

fn write_said(transaction: &Transaction<'_>, ledger: &LedgerId, said: &Said) -> Result<(), rusqlite::Error> {
    let row =
        params![ledger.to_string(), said.id.as_str(), said.endpoint, said.region, signed(said.interval_ms)];
    transaction
        .prepare_cached(
            "insert into said (ledger_id, id, endpoint, region, interval_ms) values (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(row)
        .map(drop)
}

fn parsed<T>(row: &rusqlite::Row<'_>, column: usize) -> Result<T, rusqlite::Error>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    row.get::<_, String>(column)?.parse().map_err(|e| damaged(column, e))
}

fn damaged(column: usize, why: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(why))
}

fn number(row: &rusqlite::Row<'_>, column: usize) -> Result<u64, rusqlite::Error> {
    let value: i64 = row.get(column)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, value))
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority;

    #[test]
    fn the_migrations_are_valid() {
        migrations().validate().expect("valid");
    }

    fn ledger(n: u64) -> LedgerId {
        format!("{n:032x}").parse().expect("an id")
    }

    fn name(n: u64) -> NodeId {
        format!("node-{n}").parse().expect("an id")
    }

    fn said(n: u64) -> Arc<Said> {
        let endpoint = format!("http://10.0.0.{n}:80");
        Arc::new(Said { id: name(n), endpoint, region: Some("eu".into()), interval_ms: 200 })
    }

    #[tokio::test]
    async fn what_is_saved_is_read_back_from_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = Utf8Path::from_path(dir.path()).expect("UTF-8").join(FILE);
        let env = Env::real();
        let db = Store::open(&env, &path).expect("fresh");
        assert_eq!(db.load().await.expect("read"), Kept::default());
        let fleet_id = FleetId::mint(&env);
        let mut roster = Members::of_new_fleet(fleet_id);
        roster.put(7, name(1), ledger(1), "http://10.0.0.7:80");
        roster.remove(9, ledger(2));
        let kept = Kept {
            roster: Some(roster),
            bundle: Some(authority::first(fleet_id)),
            said: BTreeMap::from([(ledger(1), said(1))]),
            roll: Roll::default(),
        };
        db.save(Arc::new(kept.clone()), Changes::Whole).await.expect("written");
        drop(db);
        let db = Store::open(&env, &path).expect("as before");
        assert_eq!(db.load().await.expect("read"), kept);
    }

    #[tokio::test]
    async fn what_is_written_in_pieces_is_what_is_known() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = Utf8Path::from_path(dir.path()).expect("UTF-8").join(FILE);
        let env = Env::real();
        let db = Store::open(&env, &path).expect("fresh");
        let fleet_id = FleetId::mint(&env);
        let mut kept = Kept {
            roster: Some(Members::of_new_fleet(fleet_id)),
            bundle: Some(authority::first(fleet_id)),
            said: BTreeMap::new(),
            roll: Roll::default(),
        };
        type Step = (&'static [u64], fn(&mut Members, &mut BTreeMap<LedgerId, Arc<Said>>));
        let steps: [Step; 6] = [
            (&[1, 2, 3], |members, all| {
                for n in 1..=3 {
                    members.put(1, name(n), ledger(n), "http://a");
                    all.insert(ledger(n), said(n));
                }
            }),
            (&[2], |members, _| members.remove(2, ledger(2))),
            // One takes the name that another one gives up.
            (&[1, 3], |members, _| {
                members.put(3, name(9), ledger(3), "http://c");
                members.put(3, name(3), ledger(1), "http://d");
            }),
            (&[4], |_, all| drop(all.insert(ledger(4), said(4)))),
            (&[4], |_, all| drop(all.insert(ledger(4), said(5)))),
            (&[2], |members, _| members.put(4, name(2), ledger(2), "http://b")),
        ];
        for (changed, step) in steps {
            step(kept.roster.as_mut().expect("a roster"), &mut kept.said);
            let changes = Changes::Of(changed.iter().map(|n| ledger(*n)).collect());
            db.save(Arc::new(kept.clone()), changes).await.expect("written");
            assert_eq!(db.load().await.expect("read"), kept, "after {changed:?}");
        }
    }
}
