//! What survives a restart: the roster, what each node said of itself, and the configuration. No space is in it.

use std::collections::BTreeMap;

use camino::Utf8Path;
use drowse_shared::{
    api::nodes::{Bundle, Roster, RosterNode},
    db::{self, Db},
    id::{FleetId, LedgerId, NodeId},
    seams::Env,
};
use rusqlite::{Connection, OptionalExtension as _, params, types::Type};
use rusqlite_migration::{M, Migrations};

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

/// The shape of the database, oldest first.
pub(crate) fn migrations() -> Migrations<'static> {
    Migrations::new(vec![M::up(SCHEMA)])
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
    pub(crate) roster: Option<Roster>,
    /// The newest configuration.
    pub(crate) bundle: Option<Bundle>,
    /// By ledger.
    pub(crate) said: BTreeMap<LedgerId, Said>,
}

/// Opens the database.
pub(crate) fn open(env: &Env, path: &Utf8Path) -> Result<Db, db::Error> {
    Db::open(env, path, &migrations())
}

/// Reads everything.
pub(crate) async fn load(db: &Db) -> Result<Kept, db::Error> {
    db.run(read).await
}

/// Replaces everything, in one transaction.
pub(crate) async fn save(db: &Db, kept: Kept) -> Result<(), db::Error> {
    db.run(move |connection| write(connection, &kept)).await
}

fn read(connection: &mut Connection) -> Result<Kept, rusqlite::Error> {
    let transaction = connection.transaction()?;
    let fleet = transaction
        .query_row("select fleet_id, roster_version, bundle from fleet", [], |row| {
            Ok((parsed::<FleetId>(row, 0)?, number(row, 1)?, row.get::<_, Option<String>>(2)?))
        })
        .optional()?;
    let Some((fleet_id, version, bundle)) = fleet else { return Ok(Kept::default()) };
    let bundle = bundle.map(|text| serde_json::from_str(&text)).transpose().map_err(|e| damaged(2, e))?;
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
            Ok((parsed(row, 0)?, said))
        })?
        .collect::<Result<_, _>>()?;
    Ok(Kept { roster: Some(Roster { fleet_id, version, nodes, removed }), bundle, said })
}

fn write(connection: &mut Connection, kept: &Kept) -> Result<(), rusqlite::Error> {
    let Some(roster) = &kept.roster else { return Ok(()) };
    let bundle = kept.bundle.as_ref().map(serde_json::to_string).transpose();
    let bundle = bundle.map_err(|e| rusqlite::Error::ToSqlConversionFailure(Box::new(e)))?;
    let transaction = connection.transaction()?;
    transaction.execute(
        "insert or replace into fleet (one, fleet_id, roster_version, bundle) values (1, ?1, ?2, ?3)",
        params![roster.fleet_id.to_string(), signed(roster.version), bundle],
    )?;
    transaction.execute_batch("delete from nodes; delete from removed; delete from said;")?;
    for node in &roster.nodes {
        transaction.execute(
            "insert into nodes (ledger_id, id, endpoint, since_version) values (?1, ?2, ?3, ?4)",
            params![node.ledger_id.to_string(), node.id.as_str(), node.endpoint, signed(node.since_version)],
        )?;
    }
    for ledger in &roster.removed {
        transaction.execute("insert into removed (ledger_id) values (?1)", [ledger.to_string()])?;
    }
    for (ledger, said) in &kept.said {
        transaction.execute(
            "insert into said (ledger_id, id, endpoint, region, interval_ms) values (?1, ?2, ?3, ?4, ?5)",
            params![
                ledger.to_string(),
                said.id.as_str(),
                said.endpoint,
                said.region,
                signed(said.interval_ms)
            ],
        )?;
    }
    transaction.commit()
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

    #[tokio::test]
    async fn what_is_saved_is_read_back_from_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = Utf8Path::from_path(dir.path()).expect("UTF-8").join(FILE);
        let env = Env::real();
        let db = open(&env, &path).expect("fresh");
        assert_eq!(load(&db).await.expect("read"), Kept::default());
        let (fleet_id, ledger) = (FleetId::mint(&env), LedgerId::mint(&env));
        let id: NodeId = "node-1".parse().expect("an id");
        let endpoint = "http://10.0.0.7:80".to_owned();
        let node =
            RosterNode { id: id.clone(), ledger_id: ledger, endpoint: endpoint.clone(), since_version: 7 };
        let said = Said { id, endpoint, region: Some("eu".into()), interval_ms: 200 };
        let mut removed = vec![LedgerId::mint(&env), LedgerId::mint(&env)];
        removed.sort();
        let kept = Kept {
            roster: Some(Roster { fleet_id, version: 9, nodes: vec![node], removed }),
            bundle: Some(authority::first(fleet_id)),
            said: BTreeMap::from([(ledger, said)]),
        };
        save(&db, kept.clone()).await.expect("written");
        drop(db);
        let db = open(&env, &path).expect("as before");
        assert_eq!(load(&db).await.expect("read"), kept);
    }
}
