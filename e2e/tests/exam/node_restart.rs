use drowse_e2e::{
    door::Door,
    fleet::Fleet,
    wait::{eventually, seconds, timed},
};
use drowse_shared::api::{Code, spaces::SpaceAnswer};
use serde_json::{Value, json};

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
