//! Ten thousand callers who want one thing at once are one question to the fleet.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use drowse_e2e::{
    crowd::{Answers, Crowd, request},
    fleet::Fleet,
    wait::{eventually, seconds, timed},
};
use rustix::process::Signal;
use serde_json::{Value, json};

const CALLERS: usize = 10_000;
/// Long enough for every caller to arrive on a busy machine: until the test lets go, no node answers anything.
const HELD: Duration = Duration::from_secs(45);
/// From the moment they are let go until the last one is answered.
const WITHIN: Duration = Duration::from_secs(40);

/// A number on the gateway's page of metrics; 0 when it is not there.
async fn metric(fleet: &Fleet, line: &str) -> u64 {
    let page = fleet.door.page("/metrics").await.text();
    let found = page.lines().find_map(|l| l.strip_prefix(line)?.trim().parse().ok());
    found.unwrap_or(0)
}

fn table(name: &str) -> String {
    format!("drowse_gateway_table_entries{{table=\"{name}\"}}")
}

async fn fleet() -> Fleet {
    Fleet::fake(3)
        // Nodes are held for as long as the crowd takes to gather, and are not down for that.
        .check_in_seconds(60.0)
        .gateway_env("DROWSE_LOOKUP_DEADLINE", "60s")
        .start()
        .await
}

async fn gather(fleet: &Fleet) -> Crowd {
    let to: SocketAddr = fleet.door.endpoint.trim_start_matches("http://").parse().expect("an address");
    let (crowd, took) = timed(Crowd::gather(to, CALLERS)).await;
    eprintln!("{CALLERS} connections in {took:?}");
    crowd
}

fn all_nodes(fleet: &mut Fleet, signal: Signal) {
    fleet.nodes.iter_mut().for_each(|node| node.daemon.signal(signal));
}

/// Everybody asks while no node answers; they are let go once so many wait.
async fn ask(fleet: &mut Fleet, crowd: &mut Crowd, verb: &str, name: &str, waits: (&str, u64)) -> Answers {
    let body = json!({ "name": name, "waitSeconds": 90 });
    let body = if verb == "acquireSpace" { body } else { json!({ "name": name }) };
    let body = serde_json::to_vec(&body).expect("plain");
    let question = request(verb, &fleet.ground.token, &body);
    all_nodes(fleet, Signal::STOP);
    let all_wait = async {
        eventually("everybody waits", HELD, || async {
            (metric(fleet, &table(waits.0)).await >= waits.1).then_some(())
        })
        .await;
        all_nodes(fleet, Signal::CONT);
        tokio::time::Instant::now()
    };
    let (answers, let_go) = tokio::join!(crowd.ask(question), all_wait);
    let took = let_go.elapsed();
    eprintln!("{verb} of {name}: the last of {CALLERS} was answered {took:?} after the nodes were let go");
    assert!(took < WITHIN, "{verb}: {took:?}");
    answers
}

fn ids(answers: &Answers) -> BTreeSet<String> {
    answers.iter().map(|(_, body)| body["space"]["id"].to_string()).collect()
}

fn all(answers: &Answers, status: u16) {
    let other = answers.iter().find(|(is, _)| *is != status);
    assert!(other.is_none(), "one of {} was answered {other:?}", answers.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_acquires_of_one_name_are_one_question_one_body_and_one_wake() {
    let mut fleet = fleet().await;
    let mut crowd = gather(&fleet).await;
    let creates = "drowse_gateway_lookup_rounds_total{intent=\"create\"}";
    let reads = "drowse_gateway_lookup_rounds_total{intent=\"read\"}";

    let others = CALLERS as u64 - 1;
    let answers = ask(&mut fleet, &mut crowd, "acquireSpace", "wanted", ("creates_waiting", others)).await;
    all(&answers, 200);
    assert_eq!(ids(&answers).len(), 1, "one id");
    assert_eq!(answers.iter().filter(|(_, body)| body["created"] == json!(true)).count(), 1, "one made it");
    assert_eq!(metric(&fleet, creates).await, 2, "everybody was asked, and asked again for the tickets");
    assert_eq!(metric(&fleet, "drowse_gateway_lookups_total{answer=\"no\"}").await, 6, "three nodes, twice");
    let holder = fleet.holder("wanted").await;
    let peak_mib = fleet.gateway.peak_bytes() >> 20;
    eprintln!("the gateway's peak: {peak_mib} MiB");
    assert!(peak_mib < 600, "{peak_mib} MiB");
    let built: Vec<_> = fleet.spread().await.into_iter().filter(|(_, spaces)| *spaces > 0).collect();
    assert_eq!(built, [(holder, 1)], "one body in the whole fleet");

    for (verb, how) in [("freezeSpace", "thawed"), ("stopSpace", "restarted")] {
        fleet.door.turn(verb, "wanted").await.ok();
        // A few go to the node, and the rest wait for them.
        let answers =
            ask(&mut fleet, &mut crowd, "acquireSpace", "wanted", ("crowds_waiting", others - 63)).await;
        all(&answers, 200);
        assert_eq!(ids(&answers).len(), 1);
        let woken: Vec<&Value> =
            answers.iter().map(|(_, b)| &b["resumed"]).filter(|r| !r.is_null()).collect();
        assert_eq!(woken, [&json!(how)], "{verb}: one wake");
    }
    assert_eq!(
        (metric(&fleet, creates).await, metric(&fleet, reads).await),
        (2, 0),
        "nobody was asked again"
    );
    drop(crowd);
    for name in ["creates", "creates_waiting", "crowds", "crowds_waiting", "slots"] {
        eventually(&format!("{name} is empty again"), seconds(10), || async {
            (metric(&fleet, &table(name)).await == 0).then_some(())
        })
        .await;
    }
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_reads_of_a_name_nobody_has_are_two_questions() {
    let mut fleet = fleet().await;
    let mut crowd = gather(&fleet).await;
    let answers = ask(&mut fleet, &mut crowd, "getSpace", "nobody", ("reads_waiting", CALLERS as u64)).await;
    all(&answers, 404);
    let rounds = metric(&fleet, "drowse_gateway_lookup_rounds_total{intent=\"read\"}").await;
    // Whoever came while the first was on its way asks once more, together.
    assert_eq!(rounds, 2, "rounds");
    assert_eq!(metric(&fleet, "drowse_gateway_lookups_total{answer=\"no\"}").await, 6, "three nodes, twice");
    fleet.end().await;
}
