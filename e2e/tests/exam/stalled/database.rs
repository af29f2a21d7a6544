use std::{fs::File, os::fd::AsRawFd as _, time::Duration};

use camino::Utf8Path;
use drowse_e2e::{
    census::Census,
    door::Door,
    fleet::Fleet,
    wait::{eventually, seconds},
};
use drowse_shared::api::{Code, health::Status, nodes::NodeState};
use rusqlite::Connection;
use serde_json::{Value, json};

use super::{Call, ROOM, all, as_before, ended_well_within, furnish, hasty, json_verb, quiet};

/// A write waits so long for its turn, and then for the database itself.
const WRITE: Duration = Duration::from_secs(35);
/// What says that the call may be made again: the node could not, or was not heard in time because it could not.
const PASSING: [Code; 4] = [Code::TimedOut, Code::NodeUnreachable, Code::NodeSilent, Code::SpaceBusy];

/// A database that this process has, and its daemon has not.
enum Held {
    Writes(Connection),
    Everything(File),
}

impl Held {
    /// No other process can write.
    fn writes(database: &Utf8Path) -> Self {
        let connection = Connection::open(database).expect("it is there");
        connection.busy_timeout(seconds(10)).expect("a plain setting");
        connection.execute_batch("begin exclusive").expect("it is free in time");
        Self::Writes(connection)
    }

    /// No other process can read either: all locks of SQLite's write-ahead log are taken.
    fn everything(database: &Utf8Path) -> Self {
        let index =
            File::options().read(true).write(true).open(format!("{database}-shm")).expect("it is used");
        let locks = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: 120,
            l_len: 8,
            l_pid: 0,
        };
        // SAFETY: the descriptor is open, and the struct outlives the call.
        #[expect(unsafe_code, reason = "no crate locks a range of a file")]
        let taken = unsafe { libc::fcntl(index.as_raw_fd(), libc::F_SETLKW, &raw const locks) };
        assert_eq!(taken, 0, "{}", std::io::Error::last_os_error());
        Self::Everything(index)
    }

    fn release(self) {
        match self {
            Self::Writes(connection) => connection.execute_batch("rollback").expect("it was begun"),
            Self::Everything(index) => drop(index),
        }
    }
}

/// Waits until a daemon says so of itself, to anybody who asks.
async fn says(door: &Door, status: Status) {
    eventually(&format!("healthz says {status:?}"), seconds(20), || async {
        let health: Value = door.with_token(None).page("/healthz").await.ok();
        let loops = health["stalled"].as_array().map_or(0, Vec::len);
        assert!(loops <= 1 && (loops == 0 || health["stalled"][0]["loop"] == "database"), "{health}");
        (health["status"] == json!(status)).then_some(())
    })
    .await;
}

fn verbs<'a>(door: &Door, name: &str) -> Vec<Call<'a>> {
    let of = |suffix: &str| json!({ "name": format!("{name}{suffix}") });
    vec![
        json_verb(door, "getSpace", of("")),
        json_verb(door, "listSpaces", json!({})),
        json_verb(door, "execCommand", json!({ "name": name, "command": "true", "timeoutSeconds": 1 })),
        json_verb(door, "readFile", json!({ "name": name, "path": "file" })),
        json_verb(door, "acquireSpace", json!({ "name": format!("{name}-new"), "waitSeconds": 1 })),
        json_verb(door, "freezeSpace", of("-frozen")),
        json_verb(door, "updatePolicy", json!({ "name": name, "policy": { "freezeAfterSeconds": 600 } })),
        json_verb(door, "destroySpace", of("-destroyed")),
    ]
}

#[tokio::test]
async fn a_ledger_that_another_process_holds_costs_its_callers_seconds_and_is_said() {
    // As long as in production, what the node has its say about first.
    let fleet = hasty(Fleet::fake(1)).gateway_env("DROWSE_ANSWER_TIMEOUT", "110s").start().await;
    let node = &fleet.nodes[0];
    let ledger = node.state.join("ledger.db");
    for name in ["warm", "writes", "everything"] {
        furnish(&fleet, name).await;
    }
    all(verbs(&fleet.door, "warm")).await;
    let before = quiet(&fleet).await;
    for name in ["writes", "everything"] {
        let held = if name == "writes" { Held::writes(&ledger) } else { Held::everything(&ledger) };
        let calls = async { all(verbs(&fleet.door, name)).await };
        let counted = async {
            says(&node.door, Status::Stalled).await;
            let census = Census::of(&node.daemon, &node.door).await.expect("it answers");
            assert!(census.tasks.get("db").is_some_and(|jobs| *jobs > 0), "jobs are counted: {census:?}");
            says(&fleet.door, Status::Ok).await;
        };
        let (ended, ()) = tokio::join!(calls, counted);
        ended_well_within(name, &ended, &PASSING, WRITE + ROOM);
        for ended in &ended {
            let reply = ended.reply.as_ref().expect("checked above");
            println!("{name}: {} was answered {} after {:?}", ended.verb, reply.status, ended.took);
            let writes =
                matches!(ended.verb, "acquireSpace" | "freezeSpace" | "updatePolicy" | "destroySpace");
            // 202: it is still on its way.
            let is_done = reply.status == 200;
            assert!(!writes || !is_done, "{name}: {} cannot have succeeded", ended.verb);
        }
        held.release();
        says(&node.door, Status::Ok).await;
        fleet.until_live("n1").await;
        for suffix in ["", "-new", "-frozen", "-stopped", "-destroyed"] {
            let space = format!("{name}{suffix}");
            fleet.acquire(&space).await;
            assert_eq!(fleet.exec(&space, "echo back").await, "back", "{space}");
        }
        assert_eq!(fleet.read(name, "file").await.len(), 100_000);
    }
    as_before(&fleet, &before).await;
    fleet.end().await;
}

#[tokio::test]
async fn a_gateway_whose_database_another_process_holds_serves_all_spaces_and_says_so() {
    // Nodes are not down while a write waits.
    let mut fleet = Fleet::fake(2).check_in_seconds(4.0).start().await;
    furnish(&fleet, "a").await;
    let held = Held::writes(&fleet.ground.root.join("gateway/gateway.db"));
    // It holds no space state, so there is nothing of spaces that it would write.
    for ended in all(verbs(&fleet.door, "a")).await {
        let reply = ended.reply.expect("a whole answer");
        assert_eq!(reply.status, 200, "{}: {}", ended.verb, reply.text());
    }
    fleet.kill("n2");
    fleet.until_standing("n2", "is down", |node| node.state == NodeState::Down).await;
    let remove = [json_verb(&fleet.door, "removeNode", json!({ "nodeId": "n2" }))];
    let ended = all(remove.into_iter().collect()).await;
    ended_well_within("a removal", &ended, &[Code::TimedOut], seconds(25));
    assert_eq!(ended[0].reply.as_ref().expect("checked").status, 503, "nothing was removed");
    says(&fleet.door, Status::Stalled).await;
    fleet.until_standing("n2", "is still known", |node| node.state == NodeState::Down).await;

    held.release();
    says(&fleet.door, Status::Ok).await;
    assert!(fleet.door.remove_node("n2").await.ok().removed);
    fleet.node_mut("n2").daemon.start();
    eventually("n2 is readmitted", seconds(20), || async {
        (fleet.door.readmit_node("n2").await.status == 200).then_some(())
    })
    .await;
    fleet.until_live("n2").await;
    fleet.end().await;
}
