use std::time::Duration;

use drowse_shared::{api::nodes::BundleVersion, id::FleetId};
use serde_json::{Value, json};

use crate::{
    fake::{Fake, roster},
    fleet::{Fleet, eventually, until},
};

const SHORT: Duration = Duration::from_millis(200);

async fn states(fleet: &Fleet) -> Vec<(String, String)> {
    let list = fleet.call("listNodes", json!({})).await;
    let nodes = list.body["nodes"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    nodes.iter().map(|node| (text(&node["id"]), text(&node["state"]))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_with_an_empty_database_learns_before_it_creates() {
    let mut fleet = Fleet::with(|_| {}).await;
    let (a, b) = (Fake::start(&fleet.env, "a", SHORT).await, Fake::start(&fleet.env, "b", SHORT).await);
    // Both are of a fleet that exists; the other one holds the name.
    let fleet_id = FleetId::mint(&fleet.env);
    for node in [&a, &b] {
        *node.roster.lock().unwrap() = Some(roster(fleet_id, 7, &[&*a, &*b]));
        *node.bundle.lock().unwrap() = Some(BundleVersion { authority_id: fleet_id, version: 3 });
    }
    b.hold("old");
    fleet.acquire("old").await.is(503, "fleet_starting");
    let answer = fleet.check_in(&a).await;
    // Its roster names b, which is asked to report at once, so the fleet is known a moment later.
    assert_eq!(answer.body["wantBundle"], json!(true), "{answer:?}");
    assert!(answer.body["bundle"].is_null(), "{answer:?}");
    let answer = fleet.acquire("old").await;
    assert!(answer.body["created"] == json!(false) || answer.status == 503, "{answer:?}");
    fleet.nodes = vec![a, b];
    for _ in 0..200 {
        if fleet.call("listNodes", json!({})).await.status == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let list = fleet.call("listNodes", json!({})).await;
    assert_eq!(list.body["fleetId"], json!(fleet_id), "{list:?}");
    assert_eq!(list.body["rosterVersion"], json!(7));
    assert_eq!(fleet.acquire("old").await.body["created"], json!(false));
    assert_eq!(fleet.built(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_database_does_not_forget_a_node_that_is_dead() {
    let mut fleet = Fleet::with(|_| {}).await;
    let (a, b) = (Fake::start(&fleet.env, "a", SHORT).await, Fake::start(&fleet.env, "b", SHORT).await);
    *a.roster.lock().unwrap() = Some(roster(FleetId::mint(&fleet.env), 7, &[&*a, &*b]));
    b.die().await;
    fleet.nodes = vec![a.clone(), b];
    for _ in 0..100 {
        fleet.check_in(&a).await;
        let answer = fleet.acquire("maybe-on-b").await;
        assert_eq!(answer.status, 503, "{answer:?}");
        if answer.code() == "node_silent" {
            answer.says("b");
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it never ended learning");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_learns_does_not_ask_again_and_again() {
    let fleet = Fleet::with(|_| {}).await;
    let slow = Duration::from_secs(5);
    let (a, b) = (Fake::start(&fleet.env, "a", slow).await, Fake::start(&fleet.env, "b", slow).await);
    let dead = Fake::start(&fleet.env, "dead", slow).await;
    let fleet_id = FleetId::mint(&fleet.env);
    *a.roster.lock().unwrap() = Some(roster(fleet_id, 7, &[&*a, &*b, &*dead]));
    *b.roster.lock().unwrap() = Some(roster(fleet_id, 6, &[&*a, &*b]));
    dead.die().await;
    fleet.check_in(&a).await;
    fleet.check_in(&b).await;
    // Nothing to wait for: it must not happen.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(b.count("report") < 5, "asked {} times", b.count("report"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_that_no_node_knows_is_founded_by_nobody_but_an_operator() {
    let fleet = Fleet::with(|_| {}).await;
    let fresh = Fake::start(&fleet.env, "fresh", SHORT).await;
    let answer = fleet.check_in(&fresh).await;
    assert_eq!((&answer.body["standing"], &answer.body["bundle"]), (&json!("waiting"), &json!(null)));
    fleet.acquire("early").await.is(503, "fleet_starting").says("is still learning");
    until("it has listened long enough", async || {
        fleet.check_in(&fresh).await;
        fleet.acquire("early").await.is(503, "fleet_starting").message().contains("--new-fleet")
    })
    .await;
    assert_eq!(fleet.check_in(&fresh).await.body["standing"], "waiting");

    // One that was in the fleet comes back late, and the fleet is the one it knows.
    let old = Fake::start(&fleet.env, "old", SHORT).await;
    let fleet_id = FleetId::mint(&fleet.env);
    *old.roster.lock().unwrap() = Some(roster(fleet_id, 7, &[&*old]));
    old.hold("kept");
    fleet.check_in(&old).await;
    until("the fresh node is taken in", async || {
        fleet.check_in(&old).await;
        fleet.check_in(&fresh).await.body["standing"] == "member"
    })
    .await;
    let list = fleet.call("listNodes", json!({})).await;
    assert_eq!(list.body["fleetId"], json!(fleet_id), "{list:?}");
    assert_eq!(fleet.acquire("kept").await.body["created"], json!(false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_gateway_serves_at_once_what_it_knew() {
    let mut fleet = Fleet::start(3).await;
    let made = fleet.acquire("kept").await;
    fleet.restart().await;
    let again = fleet.acquire("kept").await;
    assert_eq!(again.body["space"]["id"], made.body["space"]["id"], "{again:?}");
    fleet.settled().await;
    assert_eq!(fleet.acquire("new").await.body["created"], json!(true));
    fleet.nodes[2].die().await;
    fleet.restart().await;
    assert!(states(&fleet).await.contains(&("node-3".into(), "silent".into())));
    fleet.acquire("newer").await.is(503, "node_silent").says("node-3");
    fleet.call("removeNode", json!({ "nodeId": "node-3" })).await.is(409, "node_live").says("not heard yet");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twins_moves_and_strangers_are_refused_naming_both() {
    let fleet = Fleet::start(1).await;
    let twin = Fake::start(&fleet.env, "node-1", SHORT).await;
    let answer = fleet.check_in(&twin).await;
    answer.is(409, "node_twin").says(&twin.ledger.to_string()).says(&fleet.nodes[0].ledger.to_string());
    let mut moved = fleet.nodes[0].says();
    moved.endpoint = "http://10.9.9.9:80".into();
    let answer = fleet.call("checkIn", serde_json::to_value(&moved).unwrap()).await;
    answer.is(409, "node_moved").says("http://10.9.9.9:80").says(&fleet.nodes[0].endpoint);
    let stranger = Fake::start(&fleet.env, "node-2", SHORT).await;
    *stranger.roster.lock().unwrap() = Some(roster(FleetId::mint(&fleet.env), 1, &[]));
    fleet.check_in(&stranger).await.is(409, "foreign_fleet");
    // A restart is no twin: the same ledger, another life.
    assert_eq!(fleet.check_in(&fleet.nodes[0]).await.status, 200);
    twin.halt();
    stranger.halt();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_placed_on_once_another_one_knows_it() {
    let fleet = Fleet::start(2).await;
    for node in &fleet.nodes {
        let known = node.roster.lock().unwrap().clone().unwrap();
        assert_eq!((known.version, known.nodes.len()), (2, 2), "{} was told", node.id);
    }
    assert!(fleet.nodes[0].count("report") > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_found_to_be_removed_while_the_nodes_are_asked_holds_nothing() {
    let mut fleet = Fleet::with(|config| {
        config.new_fleet = true;
        // The round waits for everybody.
        config.find.grace = config.find.deadline;
    })
    .await;
    for id in ["out", "stays", "late"] {
        let node = Fake::start(&fleet.env, id, Duration::from_secs(5)).await;
        fleet.join(&node).await;
        fleet.nodes.push(node);
    }
    fleet.settled().await;
    let [out, stays, late] = &fleet.nodes[..] else { panic!("three") };
    out.hold("twice");
    stays.hold("twice");
    late.knobs.lock().unwrap().lookup_delay = Duration::from_millis(500);
    let removes = async {
        let asked = || late.calls.lock().unwrap().iter().any(|call| call.starts_with("lookup"));
        eventually("the last one is asked", asked).await;
        // Another gateway removed it; a node brings the news.
        let known = fleet.call("listNodes", json!({})).await.body;
        let fleet_id = serde_json::from_value(known["fleetId"].clone()).unwrap();
        let mut newer = roster(fleet_id, known["rosterVersion"].as_u64().unwrap() + 1, &[stays, late]);
        newer.removed = vec![out.ledger];
        *stays.roster.lock().unwrap() = Some(newer);
        assert_eq!(fleet.check_in(stays).await.status, 200);
    };
    let (answer, ()) = tokio::join!(fleet.acquire("twice"), removes);
    assert_eq!((answer.status, &answer.body["space"]["node"]), (200, &json!("stays")), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_node_waits_to_be_readmitted_and_comes_back_without_conflicts_only() {
    let mut fleet = Fleet::with(|config| config.new_fleet = true).await;
    let long = Fake::start(&fleet.env, "long", Duration::from_secs(5)).await;
    let short = Fake::start(&fleet.env, "short", SHORT).await;
    fleet.join(&long).await;
    fleet.join(&short).await;
    fleet.nodes = vec![long.clone(), short.clone()];
    fleet.settled().await;
    for name in ["mine", "both"] {
        short.hold(name);
    }
    assert_eq!(fleet.get("mine").await.status, 200);
    let answer = fleet.call("removeNode", json!({ "nodeId": "short" })).await;
    answer.is(409, "node_live").says("stop its daemon");
    tokio::time::sleep(SHORT * 2 + Duration::from_millis(100)).await;
    let answer = fleet.call("removeNode", json!({ "nodeId": "short" })).await;
    answer.is(409, "node_live").says("answers at");
    short.knobs.lock().unwrap().mute = true;
    let answer = fleet.call("removeNode", json!({ "nodeId": "short" })).await;
    assert_eq!(answer.body, json!({ "removed": true }), "{answer:?}");
    short.knobs.lock().unwrap().mute = false;
    let answer = fleet.call("removeNode", json!({ "nodeId": "short" })).await;
    assert_eq!(answer.body, json!({ "removed": false }));
    // Its names are free, its hints are gone.
    fleet.get("mine").await.is(404, "space_not_found");
    assert_eq!(fleet.acquire("both").await.body["created"], json!(true));
    // It comes back: no member, not asked.
    assert_eq!(fleet.check_in(&short).await.body["standing"], "removed");
    fleet.get("mine").await.is(404, "space_not_found");
    assert!(states(&fleet).await.contains(&("short".into(), "removed".into())));
    let answer = fleet.call("readmitNode", json!({ "nodeId": "short" })).await;
    let body = |node: &Fake| {
        json!({ "node": node.id, "id": node.spaces.lock().unwrap()["both"], "state": "active", "diskBytes": 4096,
            "createdAt": "2026-01-01T00:00:00Z", "lastActiveAt": "2026-01-01T00:00:00Z" })
    };
    let bodies = json!([body(&long), body(&short)]);
    let conflicts = json!([{ "name": "both", "nodes": ["long", "short"], "bodies": bodies }]);
    assert_eq!(
        answer.body,
        json!({ "readmitted": false, "conflicts": conflicts, "setAside": [] }),
        "{answer:?}"
    );
    fleet.get("mine").await.is(404, "space_not_found");
    short.drop_space("both");
    fleet.check_in(&short).await;
    let answer = fleet.call("readmitNode", json!({ "nodeId": "short" })).await;
    assert_eq!(answer.body, json!({ "readmitted": true, "conflicts": [], "setAside": [] }), "{answer:?}");
    fleet.check_in(&short).await;
    assert_eq!(fleet.get("mine").await.status, 200);
    fleet.call("readmitNode", json!({ "nodeId": "short" })).await.is(409, "node_live");
    fleet.call("readmitNode", json!({ "nodeId": "nobody" })).await.is(404, "node_not_found");
}

/// Node "short" is out and back; it and "long" hold what is named.
async fn doubled(names: &[&str]) -> (Fleet, std::sync::Arc<Fake>, std::sync::Arc<Fake>) {
    let mut fleet = Fleet::with(|config| config.new_fleet = true).await;
    let long = Fake::start(&fleet.env, "long", Duration::from_secs(5)).await;
    let short = Fake::start(&fleet.env, "short", SHORT).await;
    fleet.join(&long).await;
    fleet.join(&short).await;
    fleet.nodes = vec![long.clone(), short.clone()];
    fleet.settled().await;
    short.knobs.lock().unwrap().mute = true;
    tokio::time::sleep(SHORT * 2 + Duration::from_millis(100)).await;
    let answer = fleet.call("removeNode", json!({ "nodeId": "short" })).await;
    assert_eq!(answer.body, json!({ "removed": true }), "{answer:?}");
    short.knobs.lock().unwrap().mute = false;
    for name in names {
        long.hold(name);
        short.hold(name);
    }
    fleet.check_in(&short).await;
    (fleet, long, short)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_not_chosen_is_set_aside_before_the_node_is_back() {
    let (fleet, long, short) = doubled(&["a", "b", "c"]).await;
    let id_at = |node: &Fake, name: &str| node.spaces.lock().unwrap().get(name).copied();
    assert_eq!(fleet.get("a").await.body["on"], "long");
    let before: Vec<_> =
        ["a", "b", "c"].iter().map(|n| (id_at(&long, n).unwrap(), id_at(&short, n).unwrap())).collect();
    let choose = |more: Value| {
        let mut wish = json!({ "nodeId": "short" });
        wish.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fleet.call("readmitNode", wish)
    };
    let open = choose(json!({ "keep": { "a": "short", "b": "long" } })).await;
    assert_eq!((&open.body["readmitted"], &open.body["conflicts"][0]["name"]), (&json!(false), &json!("c")));
    choose(json!({ "keep": { "d": "short" }, "keepAll": "member" }))
        .await
        .is(400, "invalid_request")
        .says("\"d\"");
    choose(json!({ "keep": { "a": "nobody" }, "keepAll": "member" })).await.is(400, "invalid_request");
    choose(json!({ "keepAll": "short" })).await.is(400, "invalid_request");
    assert_eq!(long.count("setAside") + short.count("setAside"), 0);

    // One that will not keeps the node out; its own came first.
    long.set(|knobs| knobs.keeps_names = true);
    let choices = json!({ "keep": { "a": "short", "b": "long" }, "keepAll": "returning" });
    let refused = choose(choices.clone()).await;
    refused.is(503, "runtime_failed").says("node long").says("\"a\"").says("stays removed").says("1 other");
    fleet.check_in(&short).await;
    assert!(states(&fleet).await.contains(&("short".into(), "removed".into())));

    long.set(|knobs| knobs.keeps_names = false);
    let done = choose(choices).await;
    assert_eq!(done.body["readmitted"], json!(true), "{done:?}");
    let aside = |n: usize, name: &str| json!({ "was": name, "name": format!("{name}~{}", before[n].0), "node": "long", "id": before[n].0 });
    assert_eq!(done.body["setAside"], json!([aside(0, "a"), aside(2, "c")]), "b was set aside before");
    fleet.check_in(&short).await;
    for (name, node) in [("a", "short"), ("b", "long"), ("c", "short")] {
        assert_eq!(fleet.get(name).await.body["on"], node, "{name}: a hint is no obstacle");
    }
    for (id, node) in [(before[0].0, "long"), (before[1].1, "short"), (before[2].0, "long")] {
        assert_eq!(fleet.get(&id.to_string()).await.body["on"], node);
    }
    assert_eq!(fleet.built(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_on_its_way_back_holds_nothing_yet() {
    let (fleet, _long, short) = doubled(&[]).await;
    let slow = Fake::start(&fleet.env, "slow", Duration::from_secs(5)).await;
    fleet.join(&slow).await;
    slow.set(|knobs| knobs.lookup_delay = Duration::from_secs(1));
    short.hold("back");
    fleet.check_in(&short).await;
    let meanwhile = async {
        while slow.count("lookup Compare") == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        fleet.get("back").await
    };
    let wish = json!({ "nodeId": "short" });
    let (back, seen) = tokio::join!(fleet.call("readmitNode", wish), meanwhile);
    seen.is(503, "node_silent").says("on its way back");
    assert_eq!(back.body["readmitted"], json!(true), "{back:?}");
    fleet.check_in(&short).await;
    assert_eq!(fleet.get("back").await.body["on"], "short");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_ends_a_readmission_at_the_first_name_and_is_named() {
    let (fleet, long, short) = doubled(&["a"]).await;
    let quiet = Fake::start(&fleet.env, "quiet", Duration::from_secs(5)).await;
    fleet.join(&quiet).await;
    quiet.set(|knobs| knobs.lookup_delay = Duration::from_secs(30));
    for n in 0..200 {
        short.hold(&format!("b{n}"));
    }
    fleet.check_in(&short).await;
    let answer = fleet.call("readmitNode", json!({ "nodeId": "short", "keepAll": "member" })).await;
    answer.is(503, "node_silent").says("quiet").says("node short stays removed");
    assert_eq!(answer.body["details"]["nodes"], json!(["quiet"]), "{answer:?}");
    let compared = long.count("lookup Compare");
    assert!(compared <= 16 * 2, "{compared} names were compared");
    assert_eq!(long.count("setAside") + short.count("setAside"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_not_looked_for_where_it_may_have_been_given_up() {
    let (fleet, long, short) = doubled(&["a"]).await;
    assert_eq!(fleet.get("a").await.body["on"], "long");
    long.set(|knobs| knobs.loses_answers = true);
    fleet.check_in(&short).await;
    let lost = fleet.call("readmitNode", json!({ "nodeId": "short", "keepAll": "returning" })).await;
    lost.is(503, "runtime_failed").says("node long");
    let before = long.count("getSpace");
    fleet.get("a").await.is(404, "space_not_found");
    assert_eq!(long.count("getSpace"), before, "it was asked by what it said before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_roster_that_another_node_kept_is_taken_over() {
    let fleet = Fleet::start(1).await;
    let known = fleet.nodes[0].roster.lock().unwrap().clone().unwrap();
    let lost = Fake::start(&fleet.env, "lost", SHORT).await;
    let mut newer = roster(known.fleet_id, 9, &[&*lost]);
    newer.nodes.extend(known.nodes.clone());
    *fleet.nodes[0].roster.lock().unwrap() = Some(newer);
    fleet.check_in(&fleet.nodes[0]).await;
    eventually("the node it forgot was asked", || lost.count("report") > 0).await;
    lost.hold("there");
    assert_eq!(fleet.get("there").await.body["on"], "lost");
    lost.halt();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_no_from_who_has_not_checked_in_is_no_answer() {
    let mut fleet = Fleet::start(1).await;
    let node = fleet.nodes[0].clone();
    node.set(|knobs| knobs.mute = true);
    node.hold("there");
    fleet.restart().await;
    // Somebody answers at its address, but nobody knows yet that it is the node.
    fleet.acquire("new").await.is(503, "node_silent").says("has not checked in since this gateway started");
    assert_eq!(fleet.get("there").await.status, 200, "a yes may be used");
    fleet.check_in(&node).await;
    assert_eq!(fleet.acquire("new").await.body["created"], json!(true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_on_a_machine_that_vanished_is_cut() {
    let mut fleet = Fleet::with(|config| config.new_fleet = true).await;
    let node = Fake::start(&fleet.env, "node-1", SHORT).await;
    fleet.join(&node).await;
    node.hold("a");
    fleet.nodes = vec![node.clone()];
    fleet.settled().await;
    assert_eq!(fleet.get("a").await.status, 200);
    // It keeps its connections and answers nothing more.
    node.set(|knobs| (knobs.mute, knobs.lookup_delay) = (true, Duration::from_secs(3600)));
    let waits = fleet.call("execCommand", json!({ "name": "a", "command": "sleep 30" }));
    let stream = fleet.drain("readFile?space=a&path=/stalls");
    let (cut, ended) = tokio::join!(waits, stream);
    cut.is(503, "node_unreachable").says("it stopped answering");
    assert!(ended.is_err(), "a body that ends early does not look whole");
    fleet.get("a").await.is(503, "node_unreachable").says("no answer within");
}
