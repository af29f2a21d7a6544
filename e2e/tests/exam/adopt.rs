use std::{collections::BTreeMap, fs, process::Command};

use camino::Utf8Path;
use drowse_e2e::{
    daemon::binary,
    fleet::Fleet,
    wait::{eventually, seconds},
};
use drowse_shared::api::{
    nodes::NodeState,
    spaces::{SpaceList, State},
};
use serde_json::{Value, json};

/// `drowse-node adopt` as an operator of the second node runs it: exit code, standard output, standard error.
fn adopt(fleet: &Fleet, dir: &Utf8Path, flags: &[&str]) -> (i32, String, String) {
    let output = Command::new(binary("drowse-node"))
        .arg("adopt")
        .arg(dir)
        .args(flags)
        .env_clear()
        .envs(&fleet.node("n2").daemon.env)
        .output()
        .expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// What losing power does to spaces: every process of theirs is gone at once.
fn lose_power(ids: &[String]) {
    for entry in fs::read_dir("/proc").expect("/proc is mounted").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let groups = fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        if ids.iter().any(|id| groups.contains(id.as_str())) {
            let pid = rustix::process::Pid::from_raw(pid).expect("positive");
            // It may have ended with another one.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

#[tokio::test]
async fn spaces_of_a_dead_machine_are_adopted_by_another_node_and_served_nowhere_else() {
    let mut fleet = Fleet::real(2).start().await;
    let mut known = BTreeMap::new();
    for name in ["a", "b", "c", "d"] {
        let made = fleet.door.call::<Value>(
            "acquireSpace",
            json!({ "name": name, "metadata": { "of": name }, "policy": { "freezeAfterSeconds": 500 } }),
        );
        let made = made.await.ok();
        fleet.write(name, "data/file", format!("of {name}")).await;
        fleet.exec(name, "sync; chmod 600 data/file").await;
        known.insert(name.to_owned(), made["space"].clone());
    }
    let state = fleet.node("n1").state.clone();
    let id_of = |space: &Value| space["id"].as_str().expect("an id").to_owned();
    let moving: BTreeMap<String, Value> =
        known.into_iter().filter(|(_, space)| space["node"] == "n1").collect();
    assert!(!moving.is_empty(), "placement spreads");

    let (code, _, says) = adopt(&fleet, &state, &[]);
    assert!(code == 1 && says.contains("stop it"), "this node's daemon runs: {says}");
    fleet.node_mut("n2").daemon.stop().await;
    let (code, _, says) = adopt(&fleet, &state, &[]);
    assert!(code == 1 && says.contains("are not a dead node's"), "the other one's runs: {says}");

    fleet.kill("n1");
    let (code, _, says) = adopt(&fleet, &state, &["--dry-run"]);
    assert!(says.contains("drowse node ls") || code != 1, "heard a moment ago: {code} {says}");
    fleet.until_standing("n1", "reads as down", |node| node.state == NodeState::Down).await;
    let (code, table, _) = adopt(&fleet, &state, &["--dry-run"]);
    assert!(code == 2 && table.contains("in use"), "its processes still run: {table}");
    assert!(table.contains("drowse node rm n1"), "{table}");
    lose_power(&moving.values().map(id_of).collect::<Vec<_>>());
    eventually("its disks are let go of", seconds(10), || async {
        (adopt(&fleet, &state, &["--dry-run"]).0 == 0).then_some(())
    })
    .await;
    eventually("the dead node is removed", seconds(10), || async {
        (fleet.door.remove_node("n1").await.status == 200).then_some(())
    })
    .await;

    let (code, report, says) = adopt(&fleet, &state, &["--json"]);
    assert_eq!(code, 0, "{report} {says}");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let rows = report["spaces"].as_array().expect("a list");
    assert_eq!(rows.len(), moving.len());
    assert!(rows.iter().all(|row| row["outcome"] == "moved"), "{report}");
    assert!(!report["remains"].to_string().contains("node rm"), "it is removed already: {report}");
    let (code, table, _) = adopt(&fleet, &state, &[]);
    assert!(code == 0 && table.contains("no space lies in"), "nothing is left to take: {table}");

    fleet.revive("n2").await;
    for (name, was) in &moving {
        let is = fleet.get(name).await;
        assert_eq!((is.state, is.node.as_str()), (State::Stopped, "n2"), "{name}");
        let told = fleet.door.call::<Value>("listEvents", json!({ "name": name })).await.ok();
        assert_eq!(told["events"][0]["what"], "adopted", "{name}: {told}");
        let acquired = fleet.acquire(name).await;
        assert!(!acquired.created && acquired.space.id.to_string() == id_of(was), "{name}: {acquired:?}");
        let is = serde_json::to_value(&acquired.space).expect("plain data");
        for same in ["createdAt", "policy", "metadata", "spec", "template"] {
            assert_eq!(is[same], was[same], "{name}: {same}");
        }
        assert_eq!(fleet.read(name, "data/file").await, format!("of {name}").into_bytes());
        assert_eq!(fleet.exec(name, "stat -c '%a %U' data/file").await, "600 user");
    }

    // The dead machine comes back after all: it has nothing to serve, and serves nothing.
    fleet.node_mut("n1").daemon.start();
    fleet.until_answers("n1").await;
    let list: SpaceList = fleet.node("n1").door.list(json!({})).await.ok();
    assert_eq!(list.spaces.len(), 0, "{:?}", list.spaces);
    for name in moving.keys() {
        assert_eq!(fleet.holders(name).await, ["n2"], "{name}");
        fleet.exec(name, "true").await;
    }
    fleet.end().await;
}
