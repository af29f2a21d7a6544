use std::{
    os::unix::fs::PermissionsExt as _,
    sync::{Arc, Mutex},
};

use camino::Utf8PathBuf;
use drowse_node::{checkin, upgrade};
use drowse_shared::{
    api::{
        nodes::Build,
        upgrade::{BUILD_HEADER, LastUpgrade, PATH, Progress, Tell},
    },
    http::{Limits, serve},
    seams::Env,
};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::harness::{Ground, Life, eventually};

/// Stands for `deploy/upgrade`: what it is given is kept, and the upgrade is over.
const UPGRADER: &str =
    "#!/bin/sh\ncp \"$1\" \"$2/fetched\"\necho '{\"state\":\"succeeded\"}' >\"$2/status.json\"\n";
const RELEASE: &[u8] = &[7; 3 << 20];

/// What a gateway does when it is asked for its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// Says that it is busy.
    Busy,
    /// Sends half of it and is gone.
    Half,
    /// Sends it.
    All,
    /// Has none.
    None,
}

/// A gateway that does one thing after another, the last of them for ever. Answers where it is, and how often it was asked.
async fn gateway(script: &'static [Does]) -> (String, Arc<Mutex<usize>>) {
    let env = Env::real();
    let mut listener = env.net.bind("127.0.0.1:0").await.expect("a port");
    let (endpoint, asked) = (format!("http://{}", listener.local()), Arc::new(Mutex::new(0)));
    let count = asked.clone();
    env.spawn("gateway", async move {
        while let Ok((mut io, _)) = listener.accept().await {
            let turn = {
                let mut asked = count.lock().expect("nobody panics");
                *asked += 1;
                *asked - 1
            };
            let does = script[turn.min(script.len() - 1)];
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") && io.read_buf(&mut request).await.is_ok_and(|n| n > 0) {}
            let head = |status: &str, length: usize| {
                format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n")
                    .into_bytes()
            };
            let answer = match does {
                Does::Busy => head("503 Service Unavailable", 0),
                Does::None => head("404 Not Found", 0),
                Does::Half => [head("200 OK", RELEASE.len()), RELEASE[..RELEASE.len() / 2].to_vec()].concat(),
                Does::All => [head("200 OK", RELEASE.len()), RELEASE.to_vec()].concat(),
            };
            // Whoever asked may be gone.
            drop(io.write_all(&answer).await);
            drop(io.shutdown().await);
        }
    });
    (endpoint, asked)
}

/// A node that could take another build.
async fn able(gateways: Vec<String>) -> (Ground, Life) {
    let mut ground = Ground::new();
    ground.gateways = gateways;
    let upgrader = ground.state.with_file_name("upgrader");
    std::fs::write(&upgrader, UPGRADER).expect("written");
    std::fs::set_permissions(&upgrader, std::fs::Permissions::from_mode(0o755)).expect("ours");
    ground.upgrader = Some(upgrader);
    let life = ground.start().await;
    (ground, life)
}

async fn told(script: &'static [Does]) -> (Ground, Life, Arc<Mutex<usize>>) {
    let (endpoint, asked) = gateway(script).await;
    let (ground, life) = able(Vec::new()).await;
    let tell = Tell { build: Build::unreleased(), at: jiff::Timestamp::UNIX_EPOCH };
    upgrade::take(&life.node, &endpoint, tell);
    (ground, life, asked)
}

async fn last(life: &Life) -> Option<LastUpgrade> {
    life.node.upgrades.say(&life.node.env).await.last
}

#[tokio::test]
async fn a_release_whose_gateway_is_interrupted_is_fetched_again_and_whole() {
    let (ground, life, asked) = told(&[Does::Busy, Does::Half, Does::All]).await;
    eventually("it has the release", || async {
        let Some(last) = last(&life).await else { return false };
        assert_ne!(last.state, Progress::Failed, "{last:?}");
        last.state == Progress::Succeeded
    })
    .await;
    let fetched: Utf8PathBuf = ground.state.join("upgrade/fetched");
    assert!(std::fs::read(fetched).expect("it is there") == RELEASE, "what came before the cut is not in it");
    assert_eq!(*asked.lock().expect("nobody panics"), 3);
}

#[tokio::test]
async fn a_release_that_there_is_not_is_not_asked_for_again() {
    let (_ground, life, asked) = told(&[Does::None]).await;
    eventually("it gives up", || async {
        last(&life).await.is_some_and(|last| last.state == Progress::Failed)
    })
    .await;
    let error = last(&life).await.and_then(|last| last.error).expect("a reason");
    assert!(error.contains("404"), "{error}");
    assert_eq!(*asked.lock().expect("nobody panics"), 1);
}

#[tokio::test]
async fn a_tell_beside_a_wish_is_heard_and_another_build_than_the_one_told_is_not_taken() {
    let answers = Arc::new(Mutex::new(0));
    let check_in = {
        let answers = answers.clone();
        axum::routing::post(move || async move {
            let mut answers = answers.lock().expect("nobody panics");
            *answers += 1;
            let mut answer = json!({ "standing": "member" });
            if *answers == 1 {
                answer["wantBundle"] = json!(true);
                answer["upgrade"] = json!({ "build": { "version": "2.0.0" }, "at": "2026-01-01T00:00:00Z" });
            }
            axum::Json(answer)
        })
    };
    let release = axum::routing::get(|| async { ([(BUILD_HEADER, r#"{"version":"3.0.0"}"#)], RELEASE) });
    let router = axum::Router::new().route("/checkIn", check_in).route(PATH, release);
    let env = Env::real();
    let listener = env.net.bind("127.0.0.1:0").await.expect("a port");
    let endpoint = format!("http://{}", listener.local());
    let (_ground, life) = able(vec![endpoint.clone()]).await;
    env.spawn("gateway", serve(env.clone(), listener, router, Limits::default(), life.shutdown.clone()));
    life.node.env.spawn("check-in", checkin::run(life.node.clone(), endpoint));
    eventually("it says what came of it", || async {
        last(&life).await.is_some_and(|last| last.state == Progress::Failed)
    })
    .await;
    let last = last(&life).await.expect("it was told");
    assert_eq!(last.tell.build.version, "2.0.0");
    let error = last.error.expect("a reason");
    assert!(error.contains("hands out 3.0.0") && error.contains("told to take 2.0.0"), "{error}");
    assert_eq!(*answers.lock().expect("nobody panics"), 2, "what it wants is brought at once");
    life.shutdown.stop();
}
