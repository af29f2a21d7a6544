//! What a flood is made of.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use drowse_e2e::{
    crowd::{Line, request},
    ground::{random_below, random_hex},
};
use serde_json::json;

/// What a flood sends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Name,
    Id,
    Token,
    Json,
    Head,
    /// A space's own host, which needs no token.
    Host,
    /// A port of one.
    Port,
}

pub(super) const KINDS: [Kind; 7] =
    [Kind::Name, Kind::Id, Kind::Token, Kind::Json, Kind::Head, Kind::Host, Kind::Port];

/// The domain whose hosts are spaces.
pub(super) const DOMAIN: &str = "spaces.test";

pub(super) fn sent(kind: Kind, token: &str) -> Vec<u8> {
    let stranger = random_hex(16);
    let body = |name: &str| serde_json::to_vec(&json!({ "name": name })).expect("plain");
    match kind {
        Kind::Name => request("getSpace", token, &body(&format!("nobody-{stranger}"))),
        Kind::Id => request("execCommand", token, &body(&format!("0198{}", random_hex(28)))),
        Kind::Token => request("acquireSpace", &stranger, &body(&stranger)),
        Kind::Json => request("acquireSpace", token, b"{\"name\":"),
        Kind::Head => {
            let mut long = request("getSpace", token, b"");
            let at = long.len() - 2;
            long.splice(at..at, format!("x-long: {}\r\n", "x".repeat(200_000)).into_bytes());
            long
        }
        Kind::Host => page(&format!("nobody-{stranger}")),
        Kind::Port => page(&format!("8080-0198{}", random_hex(28))),
    }
}

fn page(host: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nhost: {host}.{DOMAIN}\r\n\r\n").into_bytes()
}

/// Whether a flood's request may be answered so.
pub(super) fn is_fair(kind: Kind, status: u16) -> bool {
    match kind {
        // Not there, or one of too many.
        Kind::Name | Kind::Id => matches!(status, 404 | 503),
        Kind::Token => status == 401,
        Kind::Json => status == 400,
        Kind::Head => status == 431,
        Kind::Host => matches!(status, 404 | 503),
        Kind::Port => matches!(status, 502 | 503),
    }
}

/// What the flood was answered: how often each kind which status. 0 is a connection that ended.
pub(super) type Told = BTreeMap<(String, u16), u64>;

/// Floods until it is told to stop.
pub(super) async fn pour(
    to: SocketAddr,
    token: String,
    pause: Duration,
    stop: Arc<AtomicBool>,
    told: Arc<Mutex<Told>>,
) {
    let mut line = None;
    let mut kinds = KINDS.into_iter().cycle();
    while !stop.load(Ordering::Relaxed) {
        let kind = kinds.next().expect("it goes round");
        let mut open = match line.take() {
            Some(open) => open,
            None => match Line::open(to).await {
                Ok(open) => open,
                Err(_) => continue,
            },
        };
        let asked = sent(kind, &token);
        let answered = async {
            // A head that is too long is refused before all of it is sent.
            let sent = open.send(&asked).await;
            let answer = open.answer().await;
            if answer.is_err() { sent.map(|()| 0) } else { answer.map(|(status, _)| status) }
        };
        let status = tokio::time::timeout(Duration::from_secs(20), answered).await;
        let status = status.ok().and_then(Result::ok).unwrap_or(0);
        *told.lock().expect("unpoisoned").entry((format!("{kind:?}"), status)).or_default() += 1;
        if status != 0 && !matches!(kind, Kind::Head) {
            line = Some(open);
        }
        // Strangers do not keep time with each other, also where they were answered in one moment.
        tokio::time::sleep(pause / 2 + pause.mul_f64(random_below(1000) as f64 / 1000.0)).await;
    }
}
