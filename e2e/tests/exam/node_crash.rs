use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use drowse_e2e::{
    door::{Door, Reply},
    fleet::Fleet,
    ground::{random_below, random_hex},
    wait::{eventually, seconds},
};
use drowse_shared::api::{
    exec::ExecResult,
    spaces::{Acquired, Destroyed, SpaceAnswer, State},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// What the node has acknowledged about a space.
#[derive(Debug, Clone)]
struct Known {
    id: String,
    /// The content of `file`.
    file: String,
    /// A detached process, and when it started by the clock of the kernel, so that no other one passes for it.
    pid: u32,
    since: String,
}

type Ledger = Arc<Mutex<BTreeMap<String, Known>>>;

/// A command that tells when a process started.
fn since(pid: u32) -> String {
    format!("cut -d' ' -f22 /proc/{pid}/stat")
}

async fn ask<T: serde::de::DeserializeOwned>(door: &Door, verb: &str, body: serde_json::Value) -> Option<T> {
    let reply: Reply<T> = door.attempt(verb, &body).await.ok()?;
    (reply.status == 200).then(|| reply.ok())
}

/// Makes a space, starts something in it, writes, freezes, wakes, and sometimes destroys it again; stops at the first
/// thing that is not acknowledged.
async fn life(door: &Door, name: &str, known: &Ledger) -> Option<()> {
    let made: Acquired = ask(door, "acquireSpace", json!({ "name": name })).await?;
    let exec = async |command: &str, detach: bool| -> Option<ExecResult> {
        ask(door, "execCommand", json!({ "name": name, "command": command, "detach": detach })).await
    };
    let file = random_hex(64);
    exec(&format!("printf {file} > file; sync file"), false).await.filter(|r| r.exit_code == Some(0))?;
    let pid = exec("exec sleep 100000", true).await?.pid;
    let since = exec(&since(pid), false).await?.stdout.trim().to_owned();
    let new = Known { id: made.space.id.to_string(), file, pid, since };
    known.lock().expect("no panics inside").insert(name.to_owned(), new);
    ask::<SpaceAnswer>(door, "freezeSpace", json!({ "name": name })).await?;
    ask::<SpaceAnswer>(door, "wakeSpace", json!({ "name": name })).await?;
    if random_below(3) == 0 {
        known.lock().expect("no panics inside").remove(name);
        ask::<Destroyed>(door, "destroySpace", json!({ "name": name })).await?;
    }
    Some(())
}

async fn worker(door: Door, prefix: String, known: Ledger, stop: CancellationToken) {
    for n in 0.. {
        if stop.is_cancelled() {
            return;
        }
        if life(&door, &format!("{prefix}-{n}"), &known).await.is_none() {
            // Refused, or the node is dead: the next life is another name.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_a_node_at_random_moments_loses_nothing_it_acknowledged() {
    killed(10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn soak_killing_a_node_at_random_moments_loses_nothing_it_acknowledged() {
    killed(200).await;
}

async fn killed(rounds: usize) {
    let mut fleet = Fleet::real(1).start().await;
    let known: Ledger = Ledger::default();
    let mut survived = 0;
    for round in 0..rounds {
        let stop = CancellationToken::new();
        let workers: Vec<_> = (0..3)
            .map(|w| {
                let door = fleet.node("n1").door.apart();
                tokio::spawn(worker(door, format!("r{round}-{w}"), known.clone(), stop.clone()))
            })
            .collect();
        let before = known.lock().expect("no panics inside").len();
        eventually("something is acknowledged", seconds(30), || async {
            (known.lock().expect("no panics inside").len() > before).then_some(())
        })
        .await;
        // Then at any moment of the lives that follow.
        tokio::time::sleep(Duration::from_millis(random_below(300))).await;
        fleet.kill("n1");
        stop.cancel();
        for worker in workers {
            worker.await.expect("an acknowledged answer can be read");
        }
        fleet.revive("n1").await;

        let acknowledged = known.lock().expect("no panics inside").clone();
        for (name, expected) in &acknowledged {
            let space = fleet.get(name).await;
            assert_eq!(space.id.to_string(), expected.id, "round {round}: {name}");
            assert_eq!(fleet.exec(name, "cat file").await, expected.file, "round {round}: {name}");
            assert_eq!(fleet.exec(name, &since(expected.pid)).await, expected.since, "round {round}: {name}");
        }
        survived += acknowledged.len();
        let (node, ground) = (fleet.node("n1"), &fleet.ground);
        eventually("nothing is on the machine that the ledger does not know", seconds(15), || async {
            let list = node.door.list(json!({ "limit": 1000 })).await.ok().spaces;
            let listed: BTreeSet<String> = list.iter().map(|s| s.id.to_string()).collect();
            let mut found = ground.spaces_in_kernel();
            found.append(&mut ground.spaces_in_runtime());
            found.append(&mut node.disks());
            found.is_subset(&listed).then_some(())
        })
        .await;
        // A machine of two cores need not carry all ten rounds at once.
        let kept: BTreeSet<&String> = acknowledged.keys().rev().take(4).collect();
        known.lock().expect("no panics inside").retain(|name, _| kept.contains(name));
        for space in fleet.list("").await {
            if !kept.contains(&space.name.to_string()) {
                fleet.destroy(space.name.as_str()).await;
            }
        }
    }
    assert!(
        survived >= rounds,
        "the kills came before anything was acknowledged: {survived} in {rounds} rounds"
    );
    fleet.end().await;
}

#[tokio::test]
async fn a_node_that_is_told_to_stop_and_started_again_leaves_its_spaces_as_they_were() {
    let mut fleet = Fleet::real(1).start().await;
    for name in ["runs", "frozen", "stopped"] {
        fleet.acquire(name).await;
    }
    let pid = fleet.detach("runs", "exec sleep 100000").await;
    let started = fleet.exec("runs", &since(pid)).await;
    let cold = fleet.detach("frozen", "exec sleep 100000").await;
    let began = fleet.exec("frozen", &since(cold)).await;
    fleet.freeze("frozen").await;
    fleet.door.turn("stopSpace", "stopped").await.ok();

    fleet.node_mut("n1").daemon.stop().await;
    fleet.revive("n1").await;
    for (name, state) in [("runs", State::Active), ("frozen", State::Frozen), ("stopped", State::Stopped)] {
        assert_eq!(fleet.get(name).await.state, state, "{name}");
    }
    assert_eq!(fleet.exec("runs", &since(pid)).await, started);
    assert_eq!(fleet.exec("frozen", &since(cold)).await, began);
    fleet.exec("stopped", "true").await;
    fleet.end().await;
}

#[tokio::test]
async fn what_was_not_acknowledged_is_whole_or_gone_after_a_crash() {
    let mut fleet = Fleet::real(1).start().await;
    for round in 0..6 {
        let name = format!("half-{round}");
        let door = fleet.node("n1").door.apart();
        let wanted = name.clone();
        let call = tokio::spawn(async move {
            let _ = door.attempt::<Acquired>("acquireSpace", &json!({ "name": wanted })).await;
        });
        tokio::time::sleep(Duration::from_millis(random_below(80))).await;
        fleet.kill("n1");
        call.await.expect("a refusal is fine");
        fleet.revive("n1").await;
        let acquired = fleet.acquire(&name).await;
        assert_eq!(acquired.space.state, State::Active);
        fleet.exec(&name, "touch works").await;
        assert_eq!(fleet.list(&name).await.len(), 1);
    }
    fleet.end().await;
}

#[tokio::test]
async fn two_nodes_of_one_machine_started_in_the_other_order_keep_their_own() {
    let mut fleet = Fleet::real(2).start().await;
    let mut processes = BTreeMap::new();
    for node in ["n1", "n2"] {
        let name = format!("of-{node}");
        fleet.node(node).door.acquire(&name).await.ok();
        let pid = fleet.detach(&name, "exec sleep 100000").await;
        processes.insert(node, (pid, fleet.exec(&name, &since(pid)).await));
    }
    for (first, second) in [("n2", "n1"), ("n1", "n2")] {
        fleet.kill("n1");
        fleet.kill("n2");
        fleet.node_mut(first).daemon.start();
        fleet.until_answers(first).await;
        fleet.node_mut(second).daemon.start();
        fleet.until_all_live().await;
        for node in ["n1", "n2"] {
            let name = format!("of-{node}");
            assert_eq!(fleet.holder(&name).await, node);
            let (pid, started) = &processes[node];
            let promise = format!("the same process, after {first} came first");
            assert_eq!(fleet.exec(&name, &since(*pid)).await, *started, "{promise}");
        }
    }
    // New spaces of both get along.
    for n in 0..4 {
        let name = format!("new-{n}");
        fleet.acquire(&name).await;
        fleet.exec(&name, "sudo true").await;
    }
    fleet.end().await;
}

#[tokio::test]
async fn a_lost_ledger_is_rebuilt_from_the_disks() {
    let mut fleet = Fleet::real(2).start().await;
    let wish = json!({ "name": "a", "metadata": { "owner": "ada" } });
    let made = fleet.node("n1").door.call::<Acquired>("acquireSpace", wish).await.ok().space;
    fleet.write("a", "kept", "safe").await;
    let stopped = fleet.node("n1").door.acquire("stopped").await.ok().space;
    fleet.write("stopped", "kept", "too").await;
    fleet.door.turn("stopSpace", "stopped").await.ok();

    fleet.kill("n1");
    let state = fleet.node("n1").state.clone();
    let mut deleted = 0;
    for entry in fs::read_dir(&state).expect("the node's state") {
        let path = entry.expect("readable").path();
        let name = path.file_name().expect("not ..").to_string_lossy().into_owned();
        if name.contains("ledger") && name.contains(".db") {
            fs::remove_file(&path).expect("a file");
            deleted += 1;
        }
    }
    assert!(deleted > 0, "there is a ledger to delete in {state}");
    fleet.revive("n1").await;

    let space = fleet.get("a").await;
    assert_eq!((space.id, space.node.as_str()), (made.id, "n1"));
    assert_eq!(space.metadata["owner"], "ada");
    assert_eq!(fleet.get("stopped").await.id, stopped.id);
    let again = fleet.acquire("a").await;
    assert_eq!((again.created, again.space.id), (false, made.id));
    assert_eq!(fleet.read("a", "kept").await, b"safe");
    assert_eq!(fleet.read("stopped", "kept").await, b"too");
    assert_eq!(fleet.holder("a").await, "n1");
    assert_eq!(fleet.door.nodes().await.ok().nodes.len(), 2, "no twin");
    fleet.end().await;
}
