use drowse_e2e::{
    door::Door,
    fleet::Fleet,
    wait::{eventually, seconds, timed},
};
use drowse_shared::api::{Code, spaces::SpaceAnswer};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::streams::Terminal;

/// How many requests a gateway has at its nodes.
async fn forwards(door: &Door) -> usize {
    let text = door.request(http::Method::GET, "/metrics").send().await.expect("answered").text().await;
    let text = text.expect("read");
    let line = text.lines().find(|line| line.contains("table_entries") && line.contains("\"forwards\""));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("it is counted")
}

#[tokio::test]
async fn whoever_asks_while_a_node_is_restarted_waits_for_it() {
    let mut fleet = Fleet::fake(2).check_in_seconds(5.0).start().await;
    for node in ["n1", "n2"] {
        fleet.node(node).door.acquire(&format!("on-{node}")).await.ok();
        fleet.get(&format!("on-{node}")).await;
    }
    fleet.node_mut("n1").daemon.stop().await;
    let door = fleet.door.clone();
    // What a space in memory does not lose with its node.
    let asks = ["getSpace", "listEvents"].map(|verb| {
        let door = door.clone();
        tokio::spawn(async move { door.call::<Value>(verb, json!({ "name": "on-n1" })).await.status })
    });
    eventually("both wait at the gateway", seconds(5), || async {
        (forwards(&door).await == 2).then_some(())
    })
    .await;
    // Others do not wait with them.
    fleet.get("on-n2").await;
    fleet.node_mut("n1").daemon.start();
    for ask in asks {
        assert_eq!(ask.await.expect("it ran"), 200, "it was never sent before, so it is sent now");
    }

    // One that does not come back is waited for as long as it counts as live.
    fleet.until_answers("n1").await;
    fleet.get("on-n1").await;
    fleet.kill("n1");
    let (reply, took) = timed(door.call::<SpaceAnswer>("getSpace", json!({ "name": "on-n1" }))).await;
    reply.refused(&Code::NodeUnreachable);
    assert!(took < seconds(15), "two intervals of five seconds at most: {took:?}");
    fleet.revive("n1").await;
    fleet.end().await;
}

#[tokio::test]
async fn a_node_that_is_told_to_stop_lets_terminals_go_and_finishes_what_it_was_asked() {
    let mut fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    let terminal = Terminal::open(&fleet, "space=a").await.expect("a terminal");
    let door = fleet.door.clone();
    let work = json!({ "name": "a", "command": "touch begun; sleep 4; echo whole" });
    let work = tokio::spawn(async move { door.call::<Value>("execCommand", work).await });
    eventually("it has begun", seconds(10), || async {
        (fleet.exec("a", "test ! -e begun || echo yes").await.trim() == "yes").then_some(())
    })
    .await;
    fleet.node_mut("n1").daemon.signal(Signal::TERM);
    let code = timeout(seconds(3), terminal.close_code()).await.expect("whoever sits there is told at once");
    assert_eq!(code, 1012);
    assert!(!work.is_finished());
    // Many times as long as a silent node counts as live.
    assert!(fleet.two_intervals() * 5 < seconds(4));
    assert_eq!(work.await.expect("it ran").ok()["stdout"], "whole\n");
    fleet.node_mut("n1").daemon.exit(seconds(15)).await;
    fleet.revive("n1").await;
    fleet.end().await;
}
