use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use serde_json::json;

use crate::fleet::{Fleet, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_known_space_is_reached_without_asking() {
    let fleet = Fleet::start(3).await;
    fleet.nodes[1].hold("here");
    assert_eq!(fleet.get("here").await.body["on"], "node-2", "built behind its back");
    let asked = fleet.nodes[0].count("lookup Read");
    for _ in 0..5 {
        assert_eq!(fleet.get("here").await.status, 200);
        assert_eq!(fleet.acquire("here").await.body["created"], json!(false));
    }
    assert_eq!(fleet.nodes[0].count("lookup Read"), asked);
    assert_eq!(fleet.nodes[0].count("lookup Create"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_behind_its_back_nobody_sees_a_404() {
    let fleet = Fleet::start(2).await;
    for verb in ["getSpace", "acquireSpace", "touchSpace"] {
        fleet.nodes[0].hold("moves");
        assert_eq!(fleet.get("moves").await.status, 200);
        fleet.nodes[0].drop_space("moves");
        fleet.nodes[1].hold("moves");
        let answer = fleet.call(verb, json!({ "name": "moves" })).await;
        assert_eq!(answer.status, 200, "{verb}: {answer:?}");
        fleet.nodes[1].drop_space("moves");
        fleet.get("moves").await.is(404, "space_not_found");
    }
    // Streamed: small bodies are sent again, large ones are confirmed first.
    for bytes in [10_usize, 3 << 20] {
        fleet.nodes[0].hold("moves");
        assert_eq!(fleet.get("moves").await.status, 200);
        fleet.nodes[0].drop_space("moves");
        fleet.nodes[1].hold("moves");
        let answer = fleet.raw("writeFile?space=moves&path=/x", vec![7_u8; bytes]).await;
        assert_eq!((answer.status, &answer.body["bytes"]), (200, &json!(bytes)), "{answer:?}");
        fleet.nodes[1].drop_space("moves");
        fleet.raw("writeFile?space=moves&path=/x", vec![7_u8; bytes]).await.is(404, "space_not_found");
    }
    // Of unknown length.
    fleet.nodes[0].hold("moves");
    fleet.get("moves").await;
    fleet.nodes[0].drop_space("moves");
    fleet.nodes[1].hold("moves");
    let chunks = stream::iter((0..100).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(&[1; 1000]))));
    let answer = fleet.raw("writeFile?space=moves&path=/x", Body::from_stream(chunks)).await;
    assert_eq!((answer.status, &answer.body["bytes"]), (200, &json!(100_000)), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn destroyed_behind_its_back_an_acquire_builds_it_by_placement() {
    let fleet = Fleet::start(2).await;
    fleet.acquire("filler").await;
    fleet.nodes[0].hold("stale");
    assert_eq!(fleet.get("stale").await.body["on"], "node-1");
    fleet.nodes[0].drop_space("stale");
    let answer = fleet.acquire("stale").await;
    assert_eq!((answer.status, &answer.body["created"]), (200, &json!(true)), "{answer:?}");
    assert_eq!(answer.body["space"]["node"], "node-2", "the emptier one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_holder_is_named_and_nothing_is_built_elsewhere() {
    let fleet = Fleet::start(2).await;
    fleet.nodes[1].hold("there");
    assert_eq!(fleet.get("there").await.status, 200);
    fleet.nodes[1].die().await;
    fleet.acquire("there").await.is(503, "node_unreachable").says("node-2").says("connection refused");
    fleet.acquire("there").await.is(503, "node_silent").says("node-2");
    fleet.get("there").await.is(503, "node_silent");
    assert_eq!(fleet.built(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_holders_are_a_conflict_for_every_verb() {
    let fleet = Fleet::start(3).await;
    fleet.nodes[0].hold("twice");
    fleet.nodes[2].hold("twice");
    for verb in ["getSpace", "acquireSpace", "destroySpace"] {
        let answer = fleet.call(verb, json!({ "name": "twice" })).await;
        answer.is(409, "space_conflict").says("node-1 and node-3").says("destroy one copy");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_space_that_goes_and_is_built_anew_elsewhere_during_a_lookup_is_no_conflict() {
    let fleet = Fleet::start(2).await;
    let [before, after] = &fleet.nodes[..] else { panic!("two nodes") };
    before.hold("anew");
    after.set(|knobs| knobs.lookup_delay = Duration::from_millis(100));
    let (answer, ()) = tokio::join!(fleet.get("anew"), async {
        while before.count("lookup Read") == 0 || after.count("lookup Read") == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        before.drop_space("anew");
        after.hold("anew");
    });
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_second_yes_is_not_missed() {
    let fleet = Fleet::start(2).await;
    fleet.nodes[0].hold("twice");
    fleet.nodes[1].hold("twice");
    fleet.nodes[1].set(|knobs| knobs.lookup_delay = Duration::from_millis(400));
    assert_eq!(fleet.get("twice").await.status, 200, "decided after the grace");
    tokio::time::sleep(Duration::from_millis(500)).await;
    fleet.get("twice").await.is(409, "space_conflict");
    fleet.acquire("twice").await.is(409, "space_conflict");
    fleet.nodes[1].drop_space("twice");
    assert_eq!(fleet.acquire("twice").await.status, 200, "one copy is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_daemon_under_two_ids_is_a_conflict_that_says_so() {
    let fleet = Fleet::start(1).await;
    let mut twin = fleet.nodes[0].says();
    twin.node_id = "node-9".parse().unwrap();
    twin.ledger_id = drowse_shared::id::LedgerId::mint(&fleet.env);
    let answer = fleet.call("checkIn", serde_json::to_value(&twin).unwrap()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    fleet.nodes[0].hold("same");
    let answer = fleet.get("same").await;
    answer.is(409, "space_conflict").says("one daemon under several ids").says(&fleet.nodes[0].endpoint);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_took_over_an_address_does_not_answer_for_the_node_before() {
    let fleet = Fleet::start(1).await;
    let mut before = fleet.nodes[0].says();
    before.node_id = "node-9".parse().unwrap();
    before.ledger_id = drowse_shared::id::LedgerId::mint(&fleet.env);
    assert_eq!(fleet.call("checkIn", serde_json::to_value(&before).unwrap()).await.status, 200);
    for verb in ["getSpace", "acquireSpace", "destroySpace"] {
        let answer = fleet.call(verb, json!({ "name": "held-by-node-9" })).await;
        answer.is(503, "node_silent").says("node-9").says("another ledger").says("removeNode");
    }
    assert_eq!(fleet.built(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_one_unknown_name_share_a_round() {
    let fleet = Fleet::start(1).await;
    fleet.nodes[0].hold("popular");
    fleet.nodes[0].set(|knobs| knobs.lookup_delay = Duration::from_millis(200));
    let gets = (0..20).map(|_| fleet.get("popular"));
    for answer in futures_util::future::join_all(gets).await {
        assert_eq!(answer.status, 200);
    }
    assert_eq!(fleet.nodes[0].count("lookup Read"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_leaves_ends_its_read_at_the_node() {
    let fleet = Fleet::start(1).await;
    let node = &fleet.nodes[0];
    node.hold("a");
    let arrived = async {
        eventually("it runs", || node.count("execCommand") == 1).await;
    };
    fleet.abandon("execCommand", json!({ "name": "a", "command": "sleep 30" }), arrived).await;
    eventually("it is cut", || node.was_cut("execCommand")).await;
    let (status, bytes) = fleet.peek("readFile?space=a&path=/endless").await;
    assert_eq!((status.as_u16(), bytes.is_empty()), (200, false), "head and first bytes come at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_are_merged_paged_and_name_the_silent() {
    let fleet = Fleet::start(3).await;
    for n in 0..10 {
        fleet.nodes[n % 3].hold(&format!("s{n}"));
    }
    let mut names = Vec::new();
    let mut cursor = json!(null);
    for _ in 0..4 {
        let mut ask = json!({ "limit": 3 });
        if !cursor.is_null() {
            ask["cursor"] = cursor;
        }
        let page = fleet.call("listSpaces", ask).await;
        let spaces = page.body["spaces"].as_array().unwrap();
        names.extend(spaces.iter().map(|space| space["name"].as_str().unwrap().to_owned()));
        cursor = page.body["nextCursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    let expected: Vec<String> = (0..10).map(|n| format!("s{n}")).collect();
    assert_eq!(names, expected);
    fleet.nodes[2].die().await;
    let page = fleet.call("listSpaces", json!({})).await;
    assert_eq!((page.status, &page.body["silent"][0]["node"]), (200, &json!("node-3")), "{page:?}");
    assert_eq!(page.body["spaces"].as_array().unwrap().len(), 7);
}
