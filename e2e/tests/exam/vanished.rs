//! Machines that vanish without a word while something is under way between them.

use std::process::Stdio;

use drowse_e2e::{
    daemon::binary,
    door::Door,
    fleet::Fleet,
    relay::Relay,
    wait::{eventually, seconds, timed},
};
use drowse_shared::api::spaces::State;
use serde_json::json;
use tokio::{process::Command, time::timeout};

use super::streams::Terminal;

/// How long the daemons of these fleets take a silent peer for alive.
const PEER_TIMEOUT: &str = "2s";
/// Five times that, and time for what follows.
const NOTICED: std::time::Duration = std::time::Duration::from_secs(15);

/// Says something all the time.
const TALKS: &str = "while sleep 0.05; do echo tick; done";
/// Says nothing after its first word.
const RESTS: &str = "echo tick; exec sleep 600";

fn terminal(command: &str) -> String {
    format!("space=a&command={}", drowse_e2e::door::escape(command.as_bytes()))
}

/// A relay between clients and the gateway.
async fn before_the_gateway(fleet: &Fleet) -> Relay {
    Relay::to(fleet.door.endpoint.trim_start_matches("http://").parse().expect("an address")).await
}

async fn begun(door: &Door, command: &str) -> reqwest::Response {
    let mut stream = door.apart().stream("execStream", &json!({ "name": "a", "command": command })).await;
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains("stdout") {
        heard.extend_from_slice(&stream.chunk().await.expect("not cut").expect("it goes on"));
    }
    stream
}

/// Waits until nothing runs in the space that a client began.
async fn all_ended(fleet: &Fleet) {
    let runs = "ps -eo args | grep -c '^sleep 600$\\|[s]leep 0.05; do' || true";
    eventually("what a client ran ends with it", NOTICED, async || {
        (fleet.exec("a", runs).await == "0").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_client_that_vanishes_from_a_terminal_or_a_stream_ends_what_it_ran() {
    let fleet = Fleet::real(1).gateway_env("DROWSE_PEER_TIMEOUT", PEER_TIMEOUT).start().await;
    fleet.acquire("a").await;
    let wire = before_the_gateway(&fleet).await;
    let mut open = Vec::new();
    for command in [TALKS, RESTS] {
        let mut at = Terminal::open_at(&wire.endpoint(), &fleet, &terminal(command)).await.expect("opened");
        at.shows("tick").await;
        open.push(at);
    }
    let door = Door::new(&wire.endpoint(), &fleet.ground.token);
    let streams = (begun(&door, TALKS).await, begun(&door, RESTS).await);

    wire.vanish();
    all_ended(&fleet).await;
    // Nobody is left to pin it.
    fleet.door.turn("freezeSpace", "a").await.ok();
    assert_eq!(fleet.get("a").await.state, State::Frozen);
    drop((open, streams));
    fleet.end().await;
}

#[tokio::test]
async fn a_node_that_vanishes_ends_terminals_and_streams_and_neither_passes_for_whole() {
    let fleet = Fleet::real(1).wired().gateway_env("DROWSE_PEER_TIMEOUT", PEER_TIMEOUT);
    let fleet = fleet.node_env("DROWSE_PEER_TIMEOUT", PEER_TIMEOUT).start().await;
    fleet.acquire("a").await;
    let mut open = Vec::new();
    for command in [TALKS, RESTS] {
        let mut at = Terminal::open(&fleet, &terminal(command)).await.expect("opened");
        at.shows("tick").await;
        open.push(at);
    }
    let mut streams = [begun(&fleet.door, TALKS).await, begun(&fleet.door, RESTS).await];

    fleet.node("n1").inward.as_ref().expect("it is wired").vanish();
    for terminal in open {
        timeout(NOTICED, terminal.cut()).await.expect("a terminal ends by itself");
    }
    for stream in &mut streams {
        let cut = async {
            loop {
                match stream.chunk().await {
                    Ok(Some(_)) => {}
                    ended => return ended,
                }
            }
        };
        assert!(
            timeout(NOTICED, cut).await.expect("a stream ends by itself").is_err(),
            "it passes for whole"
        );
    }
    // The node noticed as well, and whoever comes anew is served.
    all_ended(&fleet).await;
    fleet.end().await;
}

#[tokio::test]
async fn the_command_says_within_half_a_minute_that_its_fleet_vanished() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    let wire = before_the_gateway(&fleet).await;
    let begin = |command: &str| {
        Command::new(binary("drowse"))
            .args(["space", "exec", "a", "--", "sh", "-c", command])
            .env("DROWSE_ENDPOINT", wire.endpoint())
            .env("DROWSE_TOKEN_FILE", fleet.ground.root.join("token"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("it starts")
    };
    let commands = [TALKS, RESTS].map(begin);
    eventually("both run", seconds(20), async || {
        let runs = fleet.exec("a", "ps -eo args | grep -c '^sleep 600$\\|^sh -c while' || true").await;
        (runs == "2").then_some(())
    })
    .await;
    wire.vanish();
    for command in commands {
        let (ended, took) = timed(command.wait_with_output()).await;
        let ended = ended.expect("it ends");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(125), "{said}");
        assert!(said.contains("was lost") && took < seconds(60), "{took:?}: {said}");
    }
    fleet.end().await;
}
