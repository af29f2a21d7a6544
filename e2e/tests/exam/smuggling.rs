//! What a client sends has one reading from the gateway to the app: whatever could be taken for another number of requests,
//! or for other ones, is refused.

use std::{collections::BTreeMap, sync::Arc};

use drowse_e2e::{fleet::Fleet, wait::seconds};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};

use payloads::Payload;

/// What is sent, and what must come of it.
mod payloads;

const DOMAIN: &str = "drowse.test";
/// Payloads on their way at the same time.
const AT_ONCE: usize = 8;

/// Writes down every request it was sent whole, and every byte that belongs to none.
const APP: &str = include_str!("smuggling/app.py");

/// One line of the app's record.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Asked {
    line: String,
    host: Vec<String>,
    body: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_app_sees_another_request_than_the_gateway_counted() {
    let fleet = Fleet::real(1).gateway_env("DROWSE_DOMAIN", DOMAIN).start().await;
    let (victim, other) = tokio::join!(app(&fleet, "victim"), app(&fleet, "other"));
    let (victim, other) = (format!("8080-{victim}.{DOMAIN}"), format!("8080-{other}.{DOMAIN}"));
    let all: Vec<Payload> = payloads::all();
    assert!(all.len() >= 100, "{} payloads", all.len());

    let gateway = fleet.door.endpoint.trim_start_matches("http://").to_owned();
    let room = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
    let mut sent = JoinSet::new();
    for (number, payload) in all.iter().enumerate() {
        let words = |text: &str| {
            text.replace("HOST", &victim).replace("OTHER", &other).replace("/P", &format!("/p{number}"))
        };
        let steps: Vec<String> = payload.steps.iter().map(|step| words(step)).collect();
        let (gateway, room) = (gateway.clone(), room.clone());
        sent.spawn(async move {
            let _turn = room.acquire_owned().await.expect("open");
            (number, answers(&gateway, &steps).await)
        });
    }
    let answered: BTreeMap<usize, String> = sent.join_all().await.into_iter().collect();
    let record = record(&fleet, "victim").await;

    for (number, payload) in all.iter().enumerate() {
        let said = &answered[&number];
        assert_eq!(statuses(said), payload.answers, "answers to {payload:?}: {said}");
        assert!(!said.contains("stolen"), "an answer of another request: {payload:?}: {said}");
        let path = format!("/p{number}");
        let got = record.iter().filter(|asked| asked.line.split(' ').nth(1) == Some(&path));
        let got: Vec<_> = got.map(|asked| (asked.line.replace(&path, "/P"), asked.body.clone())).collect();
        assert_eq!(got, payload.reached, "what the app got of {payload:?}, which was answered {said}");
    }
    let known = |asked: &Asked| asked.line.contains(" /p") && asked.host == [victim.clone()];
    let strange: Vec<_> = record.iter().filter(|asked| !known(asked)).collect();
    assert!(strange.is_empty(), "{strange:?}");
    assert_eq!(self::record(&fleet, "other").await, [], "what another space got");

    let reached: usize = all.iter().map(|payload| payload.reached.len()).sum();
    let own: usize = all.iter().map(|payload| payload.own).sum();
    assert_eq!(
        (record.len(), counted(&fleet).await),
        (reached, reached + own),
        "the app's count and the gateway's"
    );
    fleet.end().await;
}

/// A space with the app on 8080.
async fn app(fleet: &Fleet, name: &str) -> String {
    let id = fleet.acquire(name).await.space.id.to_string();
    let files = json!({ "name": name, "files": [{ "path": "app.py", "content": APP }] });
    fleet.door.call::<Value>("writeFiles", files).await.ok();
    fleet.detach(name, "python3 app.py").await;
    fleet.exec(name, "until [ -e ready ]; do sleep 0.05; done").await;
    id
}

async fn record(fleet: &Fleet, name: &str) -> Vec<Asked> {
    let lines = fleet.exec(name, "cat record").await;
    lines.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}

/// Sends step after step, each once the one before was answered, and reads to the end.
async fn answers(gateway: &str, steps: &[String]) -> String {
    let talk = async {
        let mut io = TcpStream::connect(gateway).await.expect("the gateway");
        let mut said = Vec::new();
        for step in steps {
            let heard = said.len();
            io.write_all(step.as_bytes()).await.expect("sent");
            while !complete(&said[heard..]) {
                if io.read_buf(&mut said).await.expect("read") == 0 {
                    return said;
                }
            }
        }
        // It may be a reset, when something of what was sent was never read.
        while io.read_buf(&mut said).await.is_ok_and(|read| read > 0) {}
        said
    };
    let said = timeout(seconds(20), talk).await.unwrap_or_else(|_| panic!("no end: {steps:?}"));
    String::from_utf8_lossy(&said).into_owned()
}

/// Whether the head of an answer and some of its body are there; 1xx and 101 have none.
fn complete(said: &[u8]) -> bool {
    let said = String::from_utf8_lossy(said);
    said.split_once("\r\n\r\n").is_some_and(|(head, body)| head.starts_with("HTTP/1.1 1") || !body.is_empty())
}

fn statuses(said: &str) -> Vec<u16> {
    let after = |version| said.match_indices(version).map(|(at, found): (usize, &str)| at + found.len());
    let mut at: Vec<usize> = after("HTTP/1.1 ").chain(after("HTTP/1.0 ")).collect();
    at.sort_unstable();
    at.into_iter().filter_map(|at| said.get(at..at + 3)?.parse().ok()).collect()
}

/// Requests for ports that the gateway counted.
async fn counted(fleet: &Fleet) -> usize {
    let text = fleet.door.page("/metrics").await.text();
    let lines =
        text.lines().filter(|line| line.contains("requests_total{") && line.contains("verb=\"port\""));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
}
