//! Peers that are there and do nothing: every call ends in time and in words, and nothing is left of it.

/// The agent inside a space stands still.
mod agent;
/// A client begins and does not go on.
mod client;
/// Somebody else has a daemon's database.
mod database;
/// The node, or the wire to it, stands still.
mod node;

use std::{future::Future, pin::Pin, time::Duration};

use drowse_e2e::{
    census::Census,
    door::{Door, Reply},
    fleet::{Fleet, Plan},
    wait::{seconds, timed},
};
use drowse_shared::api::Code;
use serde_json::{Value, json};

/// The settings of these fleets: as in production, and shorter.
const CLIENT: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(4);
const ANSWER: Duration = Duration::from_secs(3);
/// What a request asks for by itself, here.
const ASKED: Duration = Duration::from_secs(1);
/// Two rounds of lookups, and a machine that compiles beside it.
const ROOM: Duration = Duration::from_secs(8);

fn hasty(plan: Plan) -> Plan {
    let (client, idle) = (format!("{}s", CLIENT.as_secs()), format!("{}s", IDLE.as_secs()));
    let answer = format!("{}s", ANSWER.as_secs());
    // The node has its say before the gateway gives it up, or gives up sending to it.
    let agent = format!("{}ms", CLIENT.min(ANSWER).as_millis() - 500);
    plan.gateway_env("DROWSE_CLIENT_TIMEOUT", &client)
        .gateway_env("DROWSE_IDLE_TIMEOUT", &idle)
        .gateway_env("DROWSE_ANSWER_TIMEOUT", &answer)
        .gateway_env("DROWSE_LOOKUP_DEADLINE", "1s")
        .node_env("DROWSE_CLIENT_TIMEOUT", &client)
        .node_env("DROWSE_IDLE_TIMEOUT", &idle)
        .node_env("DROWSE_AGENT_TIMEOUT", &agent)
}

/// How one call ended.
struct Ended {
    verb: &'static str,
    took: Duration,
    /// What was answered, if a whole answer came.
    reply: Option<Reply<Value>>,
}

type Call<'a> = Pin<Box<dyn Future<Output = Ended> + 'a>>;

fn json_verb<'a>(door: &Door, verb: &'static str, body: Value) -> Call<'a> {
    let door = door.apart();
    Box::pin(async move {
        let (reply, took) = timed(door.attempt(verb, &body)).await;
        Ended { verb, took, reply: reply.ok() }
    })
}

/// A file that fills every window between client and node.
const LARGE_BYTES: usize = 24 << 20;

fn upload<'a>(door: &Door, space: &str) -> Call<'a> {
    let (door, target) = (door.apart(), Door::stream_target("writeFile", space, b"large"));
    Box::pin(async move {
        let request = door.request(http::Method::POST, &target).body(vec![b'x'; LARGE_BYTES]);
        let (reply, took) = timed(door.send("writeFile", request)).await;
        Ended { verb: "writeFile as a stream", took, reply: reply.ok() }
    })
}

fn download<'a>(door: &Door, space: &str, path: &str) -> Call<'a> {
    let (door, target) = (door.apart(), Door::stream_target("readFile", space, path.as_bytes()));
    Box::pin(async move {
        let request = door.request(http::Method::POST, &target);
        let (reply, took) = timed(door.send("readFile", request)).await;
        Ended { verb: "readFile as a stream", took, reply: reply.ok() }
    })
}

/// Verbs that reach into a space.
fn inside<'a>(door: &Door, name: &str) -> Vec<Call<'a>> {
    let files = json!([{ "path": "file", "content": "x" }]);
    vec![
        json_verb(
            door,
            "execCommand",
            json!({ "name": name, "command": "true", "timeoutSeconds": ASKED.as_secs() }),
        ),
        json_verb(door, "listFiles", json!({ "name": name })),
        json_verb(door, "readFile", json!({ "name": name, "path": "file" })),
        json_verb(door, "writeFile", json!({ "name": name, "path": "file", "content": "x" })),
        json_verb(door, "writeFiles", json!({ "name": name, "files": files })),
        upload(door, name),
        download(door, name, "file"),
    ]
}

/// Every verb about spaces, to spaces named after `name`.
fn every_verb<'a>(door: &Door, name: &str) -> Vec<Call<'a>> {
    let of = |suffix: &str| json!({ "name": format!("{name}{suffix}") });
    let wait = ASKED.as_secs();
    let mut calls = inside(door, name);
    calls.extend([
        json_verb(door, "getSpace", of("")),
        json_verb(door, "touchSpace", of("")),
        json_verb(door, "wakeSpace", of("")),
        json_verb(door, "updatePolicy", json!({ "name": name, "policy": { "freezeAfterSeconds": 600 } })),
        json_verb(door, "updateMetadata", json!({ "name": name, "metadata": {} })),
        json_verb(door, "acquireSpace", json!({ "name": name, "waitSeconds": wait })),
        json_verb(door, "acquireSpace", json!({ "name": format!("{name}-new"), "waitSeconds": wait })),
        json_verb(door, "freezeSpace", of("-frozen")),
        json_verb(door, "stopSpace", of("-stopped")),
        json_verb(door, "destroySpace", of("-destroyed")),
        json_verb(door, "listSpaces", json!({})),
        json_verb(door, "listNodes", json!({})),
    ]);
    calls
}

/// Makes what [`every_verb`] is about.
async fn furnish(fleet: &Fleet, name: &str) {
    for suffix in ["", "-frozen", "-stopped", "-destroyed"] {
        fleet.acquire(&format!("{name}{suffix}")).await;
    }
    fleet.write(name, "file", vec![b'x'; 100_000]).await;
}

/// Lets all calls run at once.
async fn all(calls: Vec<Call<'_>>) -> Vec<Ended> {
    futures_util::future::join_all(calls).await
}

/// Every call has ended in time, and those that were refused with one of these codes.
fn ended_well(what: &str, ended: &[Ended], codes: &[Code]) {
    ended_well_within(what, ended, codes, ANSWER + ASKED + ROOM);
}

/// The same, with a limit of its own.
fn ended_well_within(what: &str, ended: &[Ended], codes: &[Code], limit: Duration) {
    for Ended { verb, took, reply } in ended {
        assert!(*took <= limit, "{what}: {verb} took {took:?}, more than {limit:?}");
        let Some(reply) = reply else { panic!("{what}: {verb} got no answer at all") };
        if reply.status >= 400 {
            let error = reply.error();
            assert!(codes.contains(&error.code), "{what}: {verb} was answered {}", reply.text());
        }
    }
}

/// What the gateway and the first node have open while nothing is asked of them.
async fn quiet(fleet: &Fleet) -> [Census; 2] {
    // A pool of connections, and the database's, are as large as the largest crowd so far.
    let crowd = (0..32).map(|_| async { fleet.door.apart().list(json!({})).await.ok() });
    futures_util::future::join_all(crowd).await;
    let mut quiet = Vec::new();
    for (daemon, door) in [(&fleet.gateway, &fleet.door), (&fleet.nodes[0].daemon, &fleet.nodes[0].door)] {
        let census = drowse_e2e::wait::eventually("kept connections are given up", seconds(20), || async {
            let census = Census::of(daemon, door).await?;
            let connections = census.tasks.get("connection").copied().unwrap_or(0);
            // One that asks, and one between gateway and node each way.
            (connections <= 2 && census.dialled <= 1).then_some(census)
        });
        quiet.push(census.await);
    }
    let [gateway, node] = quiet.try_into().unwrap_or_else(|_| unreachable!("two were counted"));
    [gateway, node]
}

/// Nothing is left of what happened since `before`, nor in any table of the gateway but its cache.
async fn as_before(fleet: &Fleet, before: &[Census; 2]) {
    drowse_e2e::wait::eventually("the gateway's tables are empty", IDLE * 5, || async {
        let page = fleet.door.page("/metrics").await.text();
        let rows = page.lines().filter_map(|line| line.strip_prefix("drowse_gateway_table_entries{table=\""));
        let used = rows.filter(|row| !row.starts_with("cache\"") && !row.ends_with(" 0")).count();
        (used == 0 && page.contains("table=\"forwards\"")).then_some(())
    })
    .await;
    let within = IDLE * 5;
    let gateway = Census::until_back(&before[0], &fleet.gateway, &fleet.door, within).await;
    let node = &fleet.nodes[0];
    let node = Census::until_back(&before[1], &node.daemon, &node.door, within).await;
    for (name, now, before) in [("gateway", gateway, &before[0]), ("node", node, &before[1])] {
        let tasks = |census: &Census| census.tasks.values().sum::<u64>();
        println!(
            "{name}: tasks {} → {}, connections {}+{} → {}+{}, descriptors {} → {}, resident {} → {} KiB",
            tasks(before),
            tasks(&now),
            before.accepted,
            before.dialled,
            now.accepted,
            now.dialled,
            before.files,
            now.files,
            before.rss_bytes >> 10,
            now.rss_bytes >> 10,
        );
    }
}
