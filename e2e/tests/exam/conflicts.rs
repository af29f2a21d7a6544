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

/// A first caller may be answered before the second holder has spoken, a third one not.
async fn conflict_by_the_third_call(fleet: &Fleet, name: &str) -> drowse_shared::api::Error {
    for _ in 0..3 {
        let reply = fleet.door.get(name).await;
        if reply.status != 200 {
            return reply.refused(&Code::SpaceConflict);
        }
    }
    panic!("three calls about {name} went to one of its two holders");
}

#[tokio::test]
async fn one_name_on_two_nodes_is_for_a_person_to_decide() {
    let fleet = Fleet::real(2).start().await;
    for node in ["n1", "n2"] {
        fleet.node(node).door.acquire("double").await.ok();
    }
    let error = conflict_by_the_third_call(&fleet, "double").await;
    assert!(error.message.contains("n1") && error.message.contains("n2"), "{}", error.message);
    fleet.door.acquire("double").await.refused(&Code::SpaceConflict);
    fleet.door.destroy("double").await.refused(&Code::SpaceConflict);
    assert_eq!(fleet.holders("double").await, ["n1", "n2"], "nothing was destroyed on a guess");

    fleet.node("n2").door.destroy("double").await.ok();
    assert_eq!(fleet.acquire("double").await.space.node.as_str(), "n1");
    fleet.end().await;
}

#[tokio::test]
async fn a_daemon_that_comes_back_under_another_id_is_told_so_and_then_renamed() {
    let mut fleet = Fleet::real(2).start().await;
    let made = fleet.node("n2").door.acquire("mine").await.ok().space;
    let mut said = report(&fleet, "n2").await;
    said["nodeId"] = "n2-renamed".into();
    let error = fleet.door.call::<CheckedIn>("checkIn", said).await.refused(&Code::NodeTwin);
    for word in ["n2", "one daemon under two ids", "DROWSE_NODE_ID"] {
        assert!(error.message.contains(word), "{word:?} is missing in: {}", error.message);
    }

    let node = fleet.node_mut("n2");
    node.daemon.stop().await;
    node.daemon.set("DROWSE_NODE_ID", "n2-renamed");
    node.daemon.start();
    node.id = "n2-renamed".to_owned();
    fleet.until_live("n2-renamed").await;
    let nodes = fleet.door.nodes().await.ok().nodes;
    assert_eq!(nodes.iter().map(|n| n.id.as_str()).collect::<Vec<_>>(), ["n1", "n2-renamed"]);
    let found = fleet.get("mine").await;
    assert_eq!((found.id, found.node.as_str()), (made.id, "n2-renamed"));
    fleet.end().await;
}

#[tokio::test]
async fn two_ids_at_one_endpoint_are_no_two_copies_and_it_is_said() {
    let mut fleet = Fleet::real(2).start().await;
    // n2 is replaced by a daemon with a ledger of its own at the same address, and nobody removed n2.
    let mut heir = fleet.describe_node("heir").await;
    for key in ["DROWSE_NODE_LISTEN", "DROWSE_NODE_ENDPOINT"] {
        let value = fleet.node("n2").daemon.env[key].clone();
        heir.daemon.set(key, value);
    }
    fleet.node_mut("n2").daemon.stop().await;
    fleet.until_standing("n2", "is down", |n| n.state == NodeState::Down).await;
    heir.door = fleet.node("n2").door.clone();
    heir.daemon.start();
    fleet.nodes.retain(|n| n.id != "n2");
    fleet.nodes.push(heir);
    fleet.until_answers("heir").await;
    fleet.until_standing("heir", "is live", |n| n.state == NodeState::Live).await;

    let made = fleet.node("heir").door.acquire("mine").await.ok().space;
    let error = conflict_by_the_third_call(&fleet, "mine").await;
    for word in ["n2", "heir", "one daemon", "removeNode"] {
        assert!(error.message.contains(word), "{word:?} is missing in: {}", error.message);
    }
    assert!(fleet.door.remove_node("n2").await.ok().removed);
    assert_eq!(fleet.acquire("mine").await.space.id, made.id);
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
