//! Clients whose machines vanish without a word.

use std::process::Stdio;

use drowse_e2e::{
    fleet::Fleet,
    wait::{eventually, seconds},
};
use drowse_shared::api::spaces::State;
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use super::ports::{DOMAIN, Web};

const GHOST: &str = include_str!("ghost.pl");

/// A client that opened a tunnel and has vanished.
async fn ghost(web: &Web, protocol: &str) -> Child {
    let address = web.fleet.door.endpoint.trim_start_matches("http://").to_owned();
    let (host, port) = address.split_once(':').expect("an address");
    let asks = format!(
        "GET / HTTP/1.1\r\nHost: shop.{DOMAIN}\r\nConnection: upgrade\r\nUpgrade: {protocol}\r\n\r\n"
    );
    let mut ghost = Command::new("perl")
        .args(["-e", GHOST, host, port, &asks])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("perl");
    let said = BufReader::new(ghost.stdout.take().expect("piped")).lines().next_line().await;
    assert_eq!(said.expect("it speaks").as_deref(), Some("gone"));
    ghost
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_vanished_keeps_neither_its_tunnel_nor_its_space() {
    let plan = Fleet::real(1).gateway_env("DROWSE_PEER_TIMEOUT", "2s");
    let web = Web::over(plan).await;
    web.app("shop").await;
    web.policy("shop", json!({ "freezeAfterSeconds": 1 })).await;
    // What the app says to the one keeps its space awake, as long as somebody might hear it. The other is quiet.
    let ghosts = (ghost(&web, "ping").await, ghost(&web, "echo").await);
    let vanished = || async {
        let metrics = web.fleet.door.page("/metrics").await.text();
        metrics.contains(r#"tunnels_ended_total{end="vanished"} 2"#).then_some(())
    };
    eventually("the gateway notices both", seconds(20), vanished).await;
    let asleep = || async { (web.fleet.get("shop").await.state == State::Frozen).then_some(()) };
    eventually("the space sleeps", seconds(20), asleep).await;
    let node = web.fleet.node("n1").door.page("/metrics").await.text();
    let ended = node.lines().filter(|line| line.starts_with("drowse_node_tunnels_ended_total{"));
    let ended: u32 = ended.filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok()).sum();
    assert_eq!(ended, 2, "{node}");
    drop(ghosts);
    web.fleet.end().await;
}
