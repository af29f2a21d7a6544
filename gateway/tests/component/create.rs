use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use serde_json::json;

use crate::fleet::{Fleet, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_creates_once_and_returns_the_same_space_ever_after() {
    let fleet = Fleet::start(2).await;
    let first = fleet.acquire("shop").await;
    assert_eq!((first.status, &first.body["created"]), (200, &json!(true)), "{first:?}");
    let again = fleet.acquire("shop").await;
    assert_eq!(again.body["created"], json!(false));
    assert_eq!(again.body["space"]["id"], first.body["space"]["id"]);
    let by_id = fleet.acquire(first.body["space"]["id"].as_str().unwrap()).await;
    assert_eq!((by_id.status, &by_id.body["created"]), (200, &json!(false)), "{by_id:?}");
    assert_eq!(fleet.built(), 1);
    let gone = fleet.call("destroySpace", json!({ "name": "shop" })).await;
    assert_eq!(gone.body, json!({ "destroyed": true }));
    let gone = fleet.call("destroySpace", json!({ "name": "shop" })).await;
    assert_eq!((gone.status, gone.body), (200, json!({ "destroyed": false })));
    let anew = fleet.acquire("shop").await;
    assert_ne!(anew.body["space"]["id"], first.body["space"]["id"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_callers_of_one_new_name_get_one_body() {
    let fleet = Fleet::start(3).await;
    for round in 0..5 {
        let name = format!("crowd-{round}");
        let answers: Vec<_> =
            stream::iter(0..64).map(|_| fleet.acquire(&name)).buffer_unordered(64).collect().await;
        let created = answers.iter().filter(|answer| answer.body["created"] == json!(true)).count();
        assert_eq!(created, 1, "exactly one made it");
        assert!(
            answers.iter().all(|a| a.body["space"]["id"] == answers[0].body["space"]["id"]),
            "{answers:?}"
        );
        assert_eq!(fleet.built(), round + 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_whose_caller_leaves_is_finished_and_not_repeated() {
    let fleet = Fleet::start(1).await;
    let node = &fleet.nodes[0];
    node.set(|knobs| knobs.create_delay = Duration::from_millis(300));
    fleet.abandon("acquireSpace", json!({ "name": "left" }), node.create_arrived.notified()).await;
    // The next caller waits for the one in flight instead of asking for a second body.
    let answer = fleet.acquire("left").await;
    assert_eq!((answer.status, &answer.body["created"]), (200, &json!(false)), "{answer:?}");
    assert_eq!((node.built(), node.count("acquireSpace")), (1, 2));
    assert!(!node.was_cut("acquireSpace"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_leaves_gives_up_its_place_and_asks_nobody() {
    let fleet = Fleet::start(1).await;
    let node = &fleet.nodes[0];
    node.set(|knobs| knobs.create_delay = Duration::from_millis(300));
    let leave = tokio::time::sleep(Duration::from_millis(100));
    let (first, ()) = tokio::join!(fleet.acquire("queue"), async {
        node.create_arrived.notified().await;
        fleet.abandon("acquireSpace", json!({ "name": "queue" }), leave).await;
    });
    assert_eq!(first.body["created"], json!(true));
    assert_eq!(node.count("acquireSpace"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_void_ticket_is_asked_for_again_once() {
    let fleet = Fleet::start(2).await;
    fleet.nodes[0].set(|knobs| knobs.void_tickets = 1);
    assert_eq!(fleet.acquire("once").await.body["created"], json!(true), "asked again");
    for node in &fleet.nodes {
        node.set(|knobs| knobs.void_tickets = 2);
    }
    let answer = fleet.acquire("twice").await;
    answer.is(503, "space_busy");
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(fleet.built(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_spreads_evenly_and_what_is_refused_or_destroyed_gives_its_place_back() {
    let fleet = Arc::new(Fleet::start(4).await);
    stream::iter(0..40)
        .for_each_concurrent(40, |n| {
            let fleet = fleet.clone();
            async move { assert_eq!(fleet.acquire(&format!("burst-{n}")).await.status, 200) }
        })
        .await;
    let spread: Vec<usize> = fleet.nodes.iter().map(|node| node.built()).collect();
    assert_eq!(spread, [10, 10, 10, 10]);
    // Short-lived: the place is free again, so the next goes to the same, smallest id.
    for _ in 0..3 {
        let made = fleet.acquire("short").await;
        assert_eq!(made.body["space"]["node"], "node-1", "{made:?}");
        fleet.call("destroySpace", json!({ "name": "short" })).await;
    }
    fleet.nodes[0].set(|knobs| knobs.refuse_create = Some(drowse_shared::api::Code::NodeDiskFull));
    for _ in 0..3 {
        fleet.acquire("refused").await.is(507, "node_disk_full");
    }
    fleet.nodes[0].set(|knobs| knobs.refuse_create = None);
    assert_eq!(fleet.acquire("next").await.body["space"]["node"], "node-1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_takes_it_is_said_with_every_nodes_reason() {
    let fleet = Fleet::start(2).await;
    fleet.nodes[0].reading.lock().unwrap().cpu_percent = Some(99.0);
    fleet.nodes[1].reading.lock().unwrap().disk.as_mut().unwrap().available_bytes = 1;
    for node in &fleet.nodes {
        fleet.check_in(node).await;
    }
    let answer = fleet.acquire("none").await;
    answer.is(503, "no_capacity").says("node-1: cpu 99 %").says("node-2: its data disk");
    assert!(answer.headers.contains_key("retry-after"));
    let empty = Fleet::start(0).await;
    empty.acquire("none").await.is(503, "no_capacity").says("no node has checked in");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_built_while_somebody_is_silent() {
    let fleet = Fleet::start(2).await;
    fleet.nodes[1].die().await;
    let answer = fleet.acquire("new").await;
    answer.is(503, "node_silent").says("node-2").says("may hold \"new\"");
    assert_eq!(answer.body["details"]["nodes"], json!(["node-2"]));
    assert_eq!(fleet.built(), 0);
    fleet.get("new").await.is(503, "node_silent");
    fleet.call("destroySpace", json!({ "name": "new" })).await.is(503, "node_silent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_a_create_that_fails_shares_its_answer() {
    let fleet = Fleet::start(2).await;
    fleet.nodes[1].set(|knobs| knobs.lookup_delay = Duration::from_secs(60));
    let begun = tokio::time::Instant::now();
    let answers: Vec<_> =
        stream::iter(0..20).map(|_| fleet.acquire("new")).buffer_unordered(20).collect().await;
    for answer in &answers {
        answer.is(503, "node_silent");
    }
    // One after another they would take 40 s.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert!(fleet.nodes[0].count("lookup") <= 2, "asked {} times", fleet.nodes[0].count("lookup"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_costs_the_lookup_deadline_and_not_more() {
    let fleet = Fleet::start(2).await;
    fleet.nodes[0].hold("known");
    fleet.nodes[1].set(|knobs| knobs.lookup_delay = Duration::from_secs(60));
    let begun = tokio::time::Instant::now();
    fleet.acquire("new").await.is(503, "node_silent").says("no answer within 2000 ms");
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(4), "{took:?}");
    // A name that is found elsewhere waits for the grace only.
    let begun = tokio::time::Instant::now();
    assert_eq!(fleet.get("known").await.status, 200);
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn destroy_is_finished_though_its_caller_leaves() {
    let fleet = Fleet::start(1).await;
    let node = &fleet.nodes[0];
    node.hold("doomed");
    node.set(|knobs| knobs.lookup_delay = Duration::from_millis(200));
    let leave = tokio::time::sleep(Duration::from_millis(100));
    fleet.abandon("destroySpace", json!({ "name": "doomed" }), leave).await;
    eventually("it is gone", || node.spaces.lock().unwrap().is_empty()).await;
}
