use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use drowse_node::{checkin, executor::fake::Fault};
use drowse_shared::{
    api::{
        Code,
        exec::ExecResult,
        nodes::{CheckedIn, Standing},
        spaces::State,
    },
    http::{Limits, serve},
    seams::Env,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::harness::{Ground, Life, eventually};

async fn told(life: &Life, standing: Standing, more: Value) {
    let mut answer = json!({ "standing": standing });
    for (key, value) in more.as_object().expect("an object") {
        answer[key] = value.clone();
    }
    let answer: CheckedIn = serde_json::from_value(answer).expect("an answer");
    checkin::take(&life.node, answer, Instant::now()).await;
}

#[tokio::test]
async fn a_removed_node_freezes_its_spaces_and_serves_again_once_readmitted() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    told(&life, Standing::Removed, json!({})).await;
    eventually("its spaces freeze", || async { life.state("a").await == State::Frozen }).await;
    for verb in ["acquireSpace", "wakeSpace", "touchSpace"] {
        life.on(verb, "a").await.refused(&Code::SpaceSuspended);
    }
    life.exec("a", "true").await.refused(&Code::SpaceSuspended);
    life.crash().await;
    let life = ground.start().await;
    life.exec("a", "true").await.refused(&Code::SpaceSuspended);
    assert_eq!(life.raw("report", "").await.json()["removed"], true);
    told(&life, Standing::Member, json!({})).await;
    assert_eq!(life.state("a").await, State::Frozen, "it wakes when it is used");
    assert_eq!(life.exec("a", "echo hi").await.ok::<ExecResult>().stdout, "hi\n");
}

#[tokio::test]
async fn a_check_in_that_makes_no_progress_is_named_with_its_gateway() {
    let mut ground = Ground::new();
    // Takes connections and says nothing.
    let gateway = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    ground.gateways = vec![format!("http://{}", gateway.local_addr().expect("bound"))];
    let life = ground.start().await;
    let node = life.node.clone();
    node.env.spawn("check-in", checkin::run(node.clone(), ground.gateways[0].clone()));
    eventually("it is watched", || async {
        let stalled = node.watchdog.stalled(Instant::now() + Duration::from_secs(60));
        stalled.iter().any(|loops| loops.what == "check-in" && loops.about == ground.gateways[0])
    })
    .await;
    life.shutdown.stop();
}

#[tokio::test]
async fn a_wedged_space_of_a_removed_node_holds_up_no_other() {
    let ground = Ground::new();
    let life = ground.start().await;
    let wedged = life.acquire("a").await.space.id;
    life.acquire("b").await;
    ground.machine.on("freeze", Some(wedged), Some(Fault::Hang));
    told(&life, Standing::Removed, json!({})).await;
    eventually("the other one freezes", || async { life.state("b").await == State::Frozen }).await;
}

#[tokio::test]
async fn a_new_node_serves_soon_after_its_gateway_has_learned_the_fleet() {
    let mut ground = Ground::new();
    ground.check_in = Duration::from_secs(3600);
    let fleet = "0190f0c2a4b87c3d9e0f112233445566";
    let asked = Arc::new(AtomicUsize::new(0));
    let answer = move || async move {
        let settings = json!({ "spec": { "cpus": 2.0, "memoryBytes": 1_u64 << 30, "diskBytes": 1_u64 << 30, "pids": 100 } });
        axum::Json(match asked.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => json!({ "standing": "waiting" }),
            _ => json!({
                "standing": "member",
                "bundle": { "authorityId": fleet, "version": 1, "settings": settings },
            }),
        })
    };
    let env = Env::real();
    let gateway = env.net.bind("127.0.0.1:0").await.expect("bound");
    ground.gateways = vec![format!("http://{}", gateway.local())];
    let router = axum::Router::new().route("/checkIn", axum::routing::post(answer));
    let life = ground.start().await;
    env.spawn("gateway", serve(env.clone(), gateway, router, Limits::default(), life.shutdown.clone()));
    life.node.env.spawn("check-in", checkin::run(life.node.clone(), ground.gateways[0].clone()));
    eventually("it is configured", || async { life.node.fleet.is_configured() }).await;
    life.shutdown.stop();
}

#[tokio::test]
async fn a_node_with_a_gateway_builds_only_while_it_is_heard_and_keeps_what_it_was_told() {
    let mut ground = Ground::new();
    ground.gateways = vec!["http://127.0.0.1:9".to_owned()];
    let life = ground.start().await;
    assert!(!life.node.fleet.is_configured(), "it does not listen yet");
    life.on("acquireSpace", "a").await.refused(&Code::FleetStarting);
    let fleet = "0190f0c2a4b87c3d9e0f112233445566";
    let settings =
        json!({ "spec": { "cpus": 2.0, "memoryBytes": 1_u64 << 30, "diskBytes": 1_u64 << 30, "pids": 100 } });
    let roster = |version: u64| json!({ "fleetId": fleet, "version": version, "nodes": [] });
    told(&life, Standing::Member, json!({ "bundle": { "authorityId": fleet, "version": 3, "settings": settings }, "roster": roster(7) })).await;
    assert!(life.node.fleet.is_configured());
    assert_eq!(life.acquire("a").await.space.spec.cpus, 2.0, "the fleet's defaults");
    told(&life, Standing::Member, json!({ "roster": roster(6) })).await;
    life.crash().await;

    let life = ground.start().await;
    assert!(life.node.fleet.is_configured(), "its own copy counts");
    assert!(!life.acquire("a").await.created, "what exists is served");
    life.on("acquireSpace", "b").await.refused(&Code::FleetStarting);
    let report = life.call("report", json!({ "roster": roster(9) })).await.json();
    assert_eq!((&report["roster"]["version"], &report["bundle"]["version"]), (&json!(9), &json!(3)));
    assert!(report["roster"]["nodes"].is_null() && report["rosterCopy"].is_null(), "named only: {report}");
    let report = life.call("report", json!({ "wantRoster": true })).await.json();
    assert_eq!(report["rosterCopy"]["version"], 9, "whole when it is wanted: {report}");
    assert_eq!(report["rosterCopy"]["nodes"], json!([]));
}

#[tokio::test]
async fn what_one_gateway_wants_is_brought_to_it_whatever_another_one_says() {
    const FLEET: &str = "0190f0c2a4b87c3d9e0f112233445566";
    let mut ground = Ground::new();
    ground.check_in = Duration::from_millis(20);
    let asked = Arc::new(AtomicUsize::new(0));
    let brought = Arc::new(AtomicUsize::new(0));
    let answer = {
        let (asked, brought) = (asked.clone(), brought.clone());
        axum::routing::post(move |said: axum::Json<Value>| async move {
            asked.fetch_add(1, Ordering::Relaxed);
            let copy = said["bundleCopy"]["version"] == 3;
            brought.fetch_add(usize::from(copy), Ordering::Relaxed);
            axum::Json(json!({ "standing": "member", "wantBundle": !copy }))
        })
    };
    let env = Env::real();
    let gateway = env.net.bind("127.0.0.1:0").await.expect("bound");
    ground.gateways = vec![format!("http://{}", gateway.local())];
    let router = axum::Router::new().route("/checkIn", answer);
    let life = ground.start().await;
    let roster = json!({ "fleetId": FLEET, "version": 1, "nodes": [] });
    let bundle = json!({ "authorityId": FLEET, "version": 3, "settings": {} });
    told(&life, Standing::Member, json!({ "bundle": bundle, "roster": roster })).await;
    env.spawn("gateway", serve(env.clone(), gateway, router, Limits::default(), life.shutdown.clone()));
    life.node.env.spawn("check-in", checkin::run(life.node.clone(), ground.gateways[0].clone()));
    // Another gateway, which has it already, is told as often.
    eventually("it is there", || async {
        told(&life, Standing::Member, json!({ "wantBundle": false })).await;
        brought.load(Ordering::Relaxed) >= 3
    })
    .await;
    let (asked, brought) = (asked.load(Ordering::Relaxed), brought.load(Ordering::Relaxed));
    assert!(asked <= 2 * brought + 2, "it came with every second check-in: {brought} of {asked}");
    life.shutdown.stop();
}
