use std::time::Duration;

use drowse_e2e::{
    fleet::Fleet,
    wait::{eventually, seconds, throughout, timed},
};
use drowse_shared::api::{Code, nodes::NodeState, spaces::State};

/// One space on each of three nodes, named after it.
async fn one_space_each(fleet: &Fleet) {
    for node in ["n1", "n2", "n3"] {
        fleet.node(node).door.acquire(&format!("on-{node}")).await.ok();
        fleet.exec(&format!("on-{node}"), "true").await;
    }
}

#[tokio::test]
async fn a_dead_node_takes_only_its_own_spaces_with_it() {
    let mut fleet = Fleet::real(3).start().await;
    one_space_each(&fleet).await;
    fleet.kill("n1");

    let reply = fleet.door.exec("on-n1", "true").await;
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert!(reply.error().message.contains("n1"), "{}", reply.text());
    let (reply, took) = timed(fleet.door.acquire("new")).await;
    let error = reply.refused(&Code::NodeSilent);
    assert!(error.message.contains("n1"), "{}", error.message);
    assert!(took < seconds(3), "the lookup has a deadline: {took:?}");
    assert_eq!(fleet.exec("on-n2", "echo fine").await, "fine");
    assert_eq!(fleet.exec("on-n3", "echo fine").await, "fine");
    assert!(fleet.holders_but("new", "n1").await.is_empty(), "nothing was built on a guess");

    fleet.until_standing("n1", "is down", |n| n.state == NodeState::Down).await;
    let reply = fleet.door.acquire("on-n1").await;
    assert!(reply.status == 503 && reply.error().message.contains("n1"), "{}", reply.text());
    fleet.revive("n1").await;
    assert_eq!(fleet.exec("on-n1", "echo back").await, "back");
    fleet.end().await;
}

#[tokio::test]
async fn a_node_whose_packets_vanish_costs_the_lookup_deadline_not_the_connect_timeout() {
    let fleet = Fleet::real(3).wired().start().await;
    one_space_each(&fleet).await;
    let dark = fleet.node("n2");
    let wires = [dark.inward.clone().expect("wired"), dark.outward.clone().expect("wired")];
    wires.iter().for_each(drowse_e2e::relay::Relay::black_hole);
    fleet.until_standing("n2", "is down", |n| n.state == NodeState::Down).await;

    let (reply, took) = timed(fleet.door.acquire("new")).await;
    let error = reply.refused(&Code::NodeSilent);
    assert!(error.message.contains("n2"), "{}", error.message);
    assert!(took < Duration::from_millis(3500), "2 s for the lookup, not 10 s for the connect: {took:?}");
    let reply = fleet.door.get("on-n2").await;
    assert!(reply.status == 503 && reply.error().message.contains("n2"), "{}", reply.text());
    let (said, took) = timed(fleet.exec("on-n1", "echo fine")).await;
    assert!(said == "fine" && took < seconds(2), "a known name elsewhere is not held up: {took:?}");
    let list = fleet.door.list(serde_json::json!({})).await.ok();
    assert_eq!(list.silent.iter().map(|s| s.node.as_str()).collect::<Vec<_>>(), ["n2"]);

    wires.iter().for_each(drowse_e2e::relay::Relay::forward);
    fleet.until_live("n2").await;
    assert_eq!(fleet.exec("on-n2", "echo back").await, "back");
    fleet.acquire("new").await;
    fleet.end().await;
}

#[tokio::test]
async fn a_removed_node_comes_back_frozen_until_it_is_readmitted() {
    let mut fleet = Fleet::real(3).start().await;
    one_space_each(&fleet).await;
    fleet.detach("on-n1", "while :; do date +%s%N > ticks; sleep 0.02; done").await;
    fleet.door.remove_node("n1").await.refused(&Code::NodeLive);

    fleet.kill("n1");
    fleet.until_standing("n1", "is down", |n| n.state == NodeState::Down).await;
    fleet.door.acquire("new").await.refused(&Code::NodeSilent);
    assert!(fleet.door.remove_node("n1").await.ok().removed);
    fleet.acquire("new").await;
    assert!(!fleet.door.remove_node("n1").await.ok().removed, "it is no node any more");

    fleet.node_mut("n1").daemon.start();
    let node = &fleet.node("n1").door;
    eventually("the removed node serves its door", seconds(20), || async {
        node.attempt::<serde_json::Value>("listSpaces", &serde_json::json!({})).await.ok()
    })
    .await;
    eventually("its space is frozen", seconds(10), || async {
        (node.get("on-n1").await.ok().space.state == State::Frozen).then_some(())
    })
    .await;
    throughout("it stays frozen, whoever asks", seconds(1), || async {
        let refused = node.exec("on-n1", "true").await;
        assert!(refused.status == 409 || refused.status == 503, "{}", refused.text());
        let through = fleet.door.exec("on-n1", "true").await;
        assert!(through.status != 200, "{}", through.text());
        node.get("on-n1").await.ok().space.state == State::Frozen
    })
    .await;

    let readmitted = fleet.door.readmit_node("n1").await.ok();
    assert!(readmitted.readmitted && readmitted.conflicts.is_empty(), "{readmitted:?}");
    fleet.until_live("n1").await;
    let door = &fleet.door;
    let tick = eventually("its space serves again", seconds(10), || async {
        let reply = door.exec("on-n1", "cat ticks").await;
        (reply.status == 200).then(|| reply.ok().stdout)
    })
    .await;
    eventually("the same process goes on", seconds(5), || async {
        (fleet.exec("on-n1", "cat ticks").await != tick.trim_end()).then_some(())
    })
    .await;
    fleet.end().await;
}

#[tokio::test]
async fn readmitting_names_what_was_built_elsewhere_meanwhile() {
    let mut fleet = Fleet::real(2).start().await;
    fleet.node("n1").door.acquire("wanted").await.ok();
    fleet.kill("n1");
    fleet.until_standing("n1", "is down", |n| n.state == NodeState::Down).await;
    assert!(fleet.door.remove_node("n1").await.ok().removed);
    assert_eq!(fleet.acquire("wanted").await.space.node.as_str(), "n2");

    fleet.node_mut("n1").daemon.start();
    let door = &fleet.door;
    let answer = eventually("the conflict is listed", seconds(20), || async {
        let reply = door.readmit_node("n1").await;
        (reply.status == 200).then(|| reply.ok()).filter(|r| !r.conflicts.is_empty())
    })
    .await;
    assert!(!answer.readmitted);
    assert_eq!(answer.conflicts[0].name.as_str(), "wanted");
    assert_eq!(fleet.get("wanted").await.node.as_str(), "n2", "the one that serves is not disturbed");

    let node = &fleet.node("n1").door;
    assert!(node.destroy("wanted").await.ok().destroyed);
    assert!(fleet.door.readmit_node("n1").await.ok().readmitted);
    fleet.until_live("n1").await;
    assert_eq!(fleet.get("wanted").await.node.as_str(), "n2");
    fleet.end().await;
}
