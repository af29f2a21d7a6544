use drowse_e2e::{
    fleet::Fleet,
    ground::random_hex,
    wait::{eventually, seconds},
};
use drowse_shared::api::{Code, nodes::CheckIn, nodes::CheckedIn, nodes::NodeState};
use serde_json::{Value, json};

/// What a node says of itself, as a gateway would hear it.
async fn report(fleet: &Fleet, node: &str) -> Value {
    let report: CheckIn = fleet.node(node).door.call("report", json!({})).await.ok();
    serde_json::to_value(report).expect("plain data")
}

#[tokio::test]
async fn one_name_on_two_nodes_is_for_a_person_to_decide() {
    let fleet = Fleet::real(2).start().await;
    for node in ["n1", "n2"] {
        fleet.node(node).door.acquire("double").await.ok();
    }
    let mut last = None;
    for _ in 0..3 {
        let reply = fleet.door.get("double").await;
        if reply.status != 200 {
            last = Some(reply.refused(&Code::SpaceConflict));
            break;
        }
    }
    let error = last.expect("a conflict is seen by the third call at the latest");
    assert!(error.message.contains("n1") && error.message.contains("n2"), "{}", error.message);
    fleet.door.acquire("double").await.refused(&Code::SpaceConflict);
    fleet.door.destroy("double").await.refused(&Code::SpaceConflict);
    assert_eq!(fleet.holders("double").await, ["n1", "n2"], "nothing was destroyed on a guess");

    fleet.node("n2").door.destroy("double").await.ok();
    assert_eq!(fleet.acquire("double").await.space.node.as_str(), "n1");
    fleet.end().await;
}

#[tokio::test]
async fn one_daemon_under_two_ids_is_told_apart_from_two_copies() {
    let mut fleet = Fleet::real(2).start().await;
    let made = fleet.node("n2").door.acquire("mine").await.ok().space;
    fleet.node_mut("n2").daemon.stop().await;
    fleet.node_mut("n2").daemon.set("DROWSE_NODE_ID", "n2-renamed");
    fleet.node_mut("n2").daemon.start();
    let door = &fleet.door;
    let error = eventually("the gateway sees one daemon under two ids", seconds(20), || async {
        let reply = door.get("mine").await;
        (reply.status == 409).then(|| reply.refused(&Code::SpaceConflict))
    })
    .await;
    for word in ["n2", "n2-renamed", "one daemon", "removeNode"] {
        assert!(error.message.contains(word), "{word:?} is missing in: {}", error.message);
    }
    let removed = eventually("the old id can be removed once it is down", seconds(10), || async {
        let reply = door.remove_node("n2").await;
        (reply.status == 200).then(|| reply.ok().removed)
    })
    .await;
    assert!(removed);
    let found = eventually("the space is found under the new id", seconds(10), || async {
        let reply = door.get("mine").await;
        (reply.status == 200).then(|| reply.ok().space)
    })
    .await;
    assert_eq!((found.id, found.node.as_str()), (made.id, "n2-renamed"));
    assert_eq!(fleet.exec("mine", "echo alive").await, "alive");
    fleet.end().await;
}

#[tokio::test]
async fn a_twin_of_a_live_node_is_refused_naming_both() {
    let mut fleet = Fleet::fake(2).start().await;
    let before = fleet.door.nodes().await.ok().nodes;
    let mut twin = fleet.describe_node("n1").await;
    twin.state = fleet.ground.root.join("twin");
    twin.daemon.name = "twin".to_owned();
    twin.daemon.set("DROWSE_STATE", &twin.state);
    twin.daemon.start();
    let endpoint = twin.door.endpoint.clone();
    eventually("the twin's log says that it was refused, and why", seconds(15), || async {
        let log = twin.daemon.log();
        (log.contains("node_twin") || log.contains(&endpoint)).then_some(())
    })
    .await;
    let after = fleet.door.nodes().await.ok().nodes;
    assert_eq!((after[0].ledger_id, &after[0].endpoint), (before[0].ledger_id, &before[0].endpoint));
    assert_eq!(after.len(), 2);

    let mut said = report(&fleet, "n1").await;
    said["ledgerId"] = random_hex(32).into();
    said["endpoint"] = "http://127.0.0.1:9".into();
    let error = fleet.door.call::<CheckedIn>("checkIn", said).await.refused(&Code::NodeTwin);
    assert!(error.message.contains("http://127.0.0.1:9"), "{}", error.message);
    assert!(error.message.contains(&before[0].endpoint), "{}", error.message);
    twin.daemon.kill();
    fleet.nodes.retain(|n| n.id != "twin");
    fleet.end().await;
}

#[tokio::test]
async fn a_node_that_moves_is_refused_while_it_was_just_heard_elsewhere_and_taken_after() {
    let mut fleet = Fleet::fake(2).check_in_seconds(0.5).start().await;
    let made = fleet.node("n1").door.acquire("mine").await.ok().space;
    let mut said = report(&fleet, "n1").await;
    let old = fleet.node("n1").door.endpoint.clone();
    said["endpoint"] = "http://127.0.0.1:9".into();
    let error = fleet.door.call::<CheckedIn>("checkIn", said).await.refused(&Code::NodeMoved);
    assert!(
        error.message.contains("http://127.0.0.1:9") && error.message.contains(&old),
        "{}",
        error.message
    );

    let moved = fleet.describe_node("n1").await;
    let node = fleet.node_mut("n1");
    node.daemon.stop().await;
    node.door = moved.door;
    for key in ["DROWSE_NODE_LISTEN", "DROWSE_NODE_ENDPOINT"] {
        let value = moved.daemon.env[key].clone();
        node.daemon.set(key, value);
    }
    node.daemon.start();
    let new = fleet.node("n1").door.endpoint.clone();
    fleet
        .until_standing("n1", "lives at its new endpoint", |n| {
            n.state == NodeState::Live && n.endpoint == new
        })
        .await;
    // The fake keeps no bodies over a restart; the ledger knows the space all the same.
    assert_eq!(fleet.node("n1").door.get("mine").await.ok().space.id, made.id);
    assert_eq!(fleet.get("mine").await.id, made.id);
    fleet.end().await;
}

#[tokio::test]
async fn a_reboot_is_no_twin() {
    let mut fleet = Fleet::real(2).start().await;
    let made = fleet.node("n1").door.acquire("mine").await.ok().space;
    for round in 0..3 {
        let from = fleet.node("n1").daemon.log_bytes();
        fleet.kill("n1");
        fleet.revive("n1").await;
        let log = fleet.node("n1").daemon.log_since(from);
        assert!(!log.contains("node_twin") && !log.contains("node_moved"), "round {round}: {log}");
        assert_eq!(fleet.acquire("mine").await.space.id, made.id);
    }
    fleet.end().await;
}
