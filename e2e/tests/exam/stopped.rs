use std::{collections::BTreeSet, time::Duration};

use drowse_e2e::{
    fleet::Fleet,
    relay::{Fault, Then, Way},
    wait::{eventually, seconds, timed},
};
use drowse_shared::api::{Code, nodes::NodeState, spaces::Acquired};
use rustix::process::Signal;
use serde_json::json;

/// What a call may take whose node was stopped: a look at it that fails twice.
const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_node_daemon_that_is_paused_costs_deadlines_and_goes_on_where_it_was() {
    let mut fleet = Fleet::real(1).wired().gateway_env("DROWSE_ANSWER_TIMEOUT", "4s").start().await;
    let space = fleet.acquire("a").await.space.id;
    fleet.detach("a", "while :; do date +%s%N > ticks; sleep 0.02; done").await;
    let wire = fleet.node("n1").inward.clone().expect("wired");
    wire.arm("POST /acquireSpace", Fault::at_once(Way::Request, Then::Hold));
    let (door, wish) = (fleet.door.apart(), json!({ "name": "new", "waitSeconds": 1 }));
    let creating = tokio::spawn(async move { door.call::<Acquired>("acquireSpace", wish).await });
    wire.until_met(1).await;
    let door = fleet.door.apart();
    let running = tokio::spawn(async move { timed(door.exec("a", "sleep 3; echo done")).await });
    eventually("the command runs", seconds(10), || async {
        let space = fleet.node("n1").door.get("a").await.ok().space;
        space.awake.is_some_and(|awake| awake.because.contains("exec")).then_some(())
    })
    .await;
    fleet.node_mut("n1").daemon.signal(Signal::STOP);
    // The create reaches its socket, and nobody who reads it.
    wire.release();

    fleet.until_standing("n1", "is down", |n| n.state == NodeState::Down).await;
    let (reply, took) = timed(fleet.door.exec("a", "true")).await;
    reply.refused(&Code::NodeUnreachable);
    assert!(took < LIMIT, "{took:?}");
    let (reply, took) = timed(fleet.door.acquire("another")).await;
    reply.refused(&Code::NodeSilent);
    assert!(took < LIMIT, "{took:?}");
    let (reply, took) = running.await.expect("no panic");
    reply.refused(&Code::NodeUnreachable);
    assert!(took < LIMIT, "{took:?}");
    creating.await.expect("no panic").refused(&Code::NodeUnreachable);

    fleet.node_mut("n1").daemon.signal(Signal::CONT);
    fleet.until_live("n1").await;
    assert_eq!(fleet.acquire("a").await.space.id, space);
    let tick = fleet.exec("a", "cat ticks").await;
    eventually("its processes never stopped", seconds(5), || async {
        (fleet.exec("a", "cat ticks").await != tick).then_some(())
    })
    .await;
    let new = fleet.acquire("new").await.space.id;
    let both = BTreeSet::from([space.to_string(), new.to_string()]);
    eventually("there is one body of each", seconds(10), || async {
        (fleet.in_ledgers().await == both && fleet.disks() == both).then_some(())
    })
    .await;
    assert_eq!(fleet.acquire("new").await.space.id, new);
    fleet.end().await;
}

#[tokio::test]
async fn a_gateway_that_is_paused_answers_late_and_builds_nothing_twice() {
    let mut fleet = Fleet::real(2).start().await;
    let space = fleet.acquire("a").await.space.id;
    fleet.gateway.signal(Signal::STOP);
    let names = ["a", "new", "new"];
    let late = names.map(|name| {
        let door = fleet.door.apart();
        tokio::spawn(async move { door.acquire(name).await })
    });
    let door = fleet.door.apart();
    let request = door.request(http::Method::POST, "/getSpace").json(&json!({ "name": "a" }));
    let impatient = door.send::<()>("getSpace", request.timeout(seconds(1))).await;
    assert!(impatient.is_err_and(|e| e.is_timeout()), "only the caller's own deadline ends its call now");
    let node = fleet.nodes.iter().find(|n| n.disks().contains(&space.to_string())).expect("one has it");
    node.door.exec("a", "true").await.ok();

    fleet.gateway.signal(Signal::CONT);
    let mut ids = Vec::new();
    for (name, late) in names.into_iter().zip(late) {
        let reply = late.await.expect("no panic");
        ids.push(
            eventually("a late answer, or one to a second try", seconds(20), || async {
                match reply.status {
                    200 => {
                        Some(serde_json::from_slice::<Acquired>(&reply.bytes).expect("an answer").space.id)
                    }
                    // It woke to nodes it had not heard for long.
                    503 => Some(fleet.acquire(name).await.space.id),
                    _ => panic!("{}", reply.text()),
                }
            })
            .await,
        );
    }
    fleet.until_all_live().await;
    assert_eq!((ids[0], ids[1]), (space, ids[2]), "one body each");
    let both = BTreeSet::from([ids[0].to_string(), ids[1].to_string()]);
    assert_eq!((fleet.in_ledgers().await, fleet.disks()), (both.clone(), both));
    fleet.end().await;
}
