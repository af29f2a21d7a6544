use std::{net::SocketAddr, time::Duration};

use drowse_e2e::{
    door::Door,
    fleet::Fleet,
    wait::{eventually, seconds, timed},
};
use drowse_shared::api::{Code, Error};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{CLIENT, IDLE, LARGE_BYTES, as_before, hasty, quiet};

/// Most connections of the gateway here.
const CONNECTIONS_MAX: usize = 64;

fn address(door: &Door) -> SocketAddr {
    door.endpoint.trim_start_matches("http://").parse().expect("an address")
}

/// Sends this and nothing more, and hears the other side out.
async fn heard(door: &Door, said: &[u8]) -> (String, Duration) {
    let (answer, took) = timed(async {
        let mut stream = TcpStream::connect(address(door)).await.expect("it listens");
        stream.write_all(said).await.expect("it is open");
        let mut answer = Vec::new();
        let end = tokio::time::timeout(seconds(30), stream.read_to_end(&mut answer)).await;
        // Whatever its end, what came before counts.
        let _ = end.expect("the other side ends it");
        answer
    })
    .await;
    (String::from_utf8_lossy(&answer).into_owned(), took)
}

fn post(target: &str, token: &str, length: usize, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {target} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\ncontent-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// The error of a raw answer.
fn error(what: &str, answer: &str) -> Error {
    let (head, body) =
        answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{what}: no answer: {answer:?}"));
    let error: Error = serde_json::from_str(body).unwrap_or_else(|e| panic!("{what}: {e}: {body:?}"));
    let status = format!("HTTP/1.1 {}", error.code.status().as_u16());
    assert!(head.starts_with(&status), "{what}: {head}");
    error
}

#[tokio::test]
async fn a_client_that_begins_and_does_not_go_on_is_answered_and_let_go() {
    let fleet = hasty(Fleet::fake(1)).gateway_env("DROWSE_CONNECTIONS_MAX", CONNECTIONS_MAX).start().await;
    fleet.acquire("a").await;
    fleet.write("a", "kept", "as it was").await;
    let before = quiet(&fleet).await;
    let token = fleet.ground.token.clone();
    let doors = [("gateway", fleet.door.clone()), ("node", fleet.nodes[0].door.clone())];

    let half = vec![b'x'; 100_000];
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("half a head", b"POST /getSpace HTTP/1.1\r\nhost: a\r\nautho".to_vec()),
        ("half a JSON body", post("/getSpace", &token, 1000, b"{\"name\":")),
        ("half a small file", post("/writeFile?space=a&path=kept", &token, 50_000, &half[..100])),
        ("half an upload", post("/writeFile?space=a&path=kept", &token, 1 << 20, &half)),
    ];
    let asked = doors.iter().flat_map(|(at, door)| {
        cases.iter().map(move |(what, said)| async move {
            let (answer, took) = heard(door, said).await;
            let what = format!("{what} at the {at}");
            let error = error(&what, &answer);
            assert_eq!(error.code, Code::RequestTimeout, "{what}: {}", error.message);
            assert!(took < CLIENT * 5, "{what}: {took:?}");
        })
    });
    let silent = doors.iter().map(|(at, door)| async move {
        let (answer, took) = heard(door, b"").await;
        assert!(answer.is_empty() && took < IDLE * 5, "a silent connection at the {at}: {answer:?} {took:?}");
    });
    let kept = doors.iter().map(|(at, door)| {
        let whole = post("/getSpace", &token, 12, b"{\"name\":\"a\"}");
        async move {
            let (answer, took) = heard(door, &whole).await;
            assert_eq!(
                answer.matches("HTTP/1.1").count(),
                1,
                "one answer and a silent end at the {at}: {answer}"
            );
            assert!(took < IDLE * 5, "an idle connection at the {at}: {took:?}");
        }
    });
    let trickle = async {
        let mut stream = TcpStream::connect(address(&fleet.door)).await.expect("it listens");
        let (_, took) = timed(async {
            // A byte now and then is no progress towards a head.
            while stream.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
        assert!(took < CLIENT * 5, "a head that trickles: {took:?}");
    };
    tokio::join!(
        futures_util::future::join_all(asked),
        futures_util::future::join_all(silent),
        futures_util::future::join_all(kept),
        trickle,
    );
    assert_eq!(fleet.read("a", "kept").await, b"as it was", "half an upload changes nothing");
    as_before(&fleet, &before).await;
    fleet.end().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_is_let_go() {
    let fleet = hasty(Fleet::fake(1)).start().await;
    fleet.acquire("a").await;
    fleet.write("a", "large", vec![b'x'; LARGE_BYTES]).await;
    assert_eq!(fleet.read("a", "large").await.len(), LARGE_BYTES);
    let before = quiet(&fleet).await;
    let token = &fleet.ground.token;
    let mut readers = Vec::new();
    for door in [&fleet.door, &fleet.nodes[0].door] {
        let mut stream = TcpStream::connect(address(door)).await.expect("it listens");
        stream.write_all(&post("/readFile?space=a&path=large", token, 0, b"")).await.expect("it is open");
        stream.readable().await.expect("the answer begins");
        readers.push(stream);
    }
    // They are still there, and not read.
    as_before(&fleet, &before).await;
    for mut stream in readers {
        let mut got = Vec::new();
        let end =
            tokio::time::timeout(seconds(10), stream.read_to_end(&mut got)).await.expect("it has ended");
        assert!(end.is_err() || got.len() < LARGE_BYTES, "it must not pass for the whole file");
    }
    fleet.end().await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused_before_all_of_it_is_read() {
    let fleet = hasty(Fleet::fake(1)).start().await;
    fleet.acquire("a").await;
    let before = quiet(&fleet).await;
    for (at, door) in [("gateway", &fleet.door), ("node", &fleet.nodes[0].door)] {
        for (length, status) in [(40 << 10, 200), (200 << 10, 431), (4 << 20, 431)] {
            let long = format!("POST /getSpace HTTP/1.1\r\nx-long: {}\r\n", "x".repeat(length));
            let whole = post("/getSpace", &fleet.ground.token, 12, b"{\"name\":\"a\"}");
            let rest = &whole["POST /getSpace HTTP/1.1\r\n".len()..];
            let (mut answer, mut stream) =
                (vec![0; 64], TcpStream::connect(address(door)).await.expect("it listens"));
            // It may be cut while it is sent.
            let _ = stream.write_all(&[long.as_bytes(), rest].concat()).await;
            let read = tokio::time::timeout(seconds(5), stream.read(&mut answer)).await;
            let read = read.expect("it is answered at once").expect("the answer comes before the end");
            let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{length} bytes at the {at}: {answer:?}"
            );
        }
    }
    as_before(&fleet, &before).await;
    fleet.end().await;
}

#[tokio::test]
async fn one_connection_too_many_is_refused_in_words_and_the_fleet_goes_on() {
    let fleet = Fleet::fake(1).gateway_env("DROWSE_CONNECTIONS_MAX", CONNECTIONS_MAX).start().await;
    fleet.acquire("a").await;
    let held = std::cell::RefCell::new(Vec::new());
    let refused = eventually("a connection is refused", seconds(10), || {
        let (held, door) = (&held, &fleet.door);
        async move {
            let mut stream = TcpStream::connect(address(door)).await.expect("it listens");
            let mut answer = Vec::new();
            match tokio::time::timeout(Duration::from_millis(50), stream.read_to_end(&mut answer)).await {
                // It waits for a request: there was room.
                Err(_) => {
                    held.borrow_mut().push(stream);
                    None
                }
                Ok(_) => Some(String::from_utf8_lossy(&answer).into_owned()),
            }
        }
    })
    .await;
    let error = error("one too many", &refused);
    assert_eq!(error.code, Code::TooManyConnections);
    assert!(
        error.message.contains("DROWSE_CONNECTIONS_MAX") && refused.contains("retry-after:"),
        "{refused}"
    );
    let held = held.into_inner();
    assert!(held.len() <= CONNECTIONS_MAX, "{}", held.len());
    let reply = fleet.door.apart().attempt::<()>("getSpace", &serde_json::json!({ "name": "a" })).await;
    reply.expect("the refusal reaches a client that sent its request").refused(&Code::TooManyConnections);
    // Nodes keep the connection they have.
    fleet.nodes[0].door.exec("a", "true").await.ok();
    drop(held);
    eventually("there is room again", seconds(10), || async {
        let reply =
            fleet.door.apart().attempt::<()>("getSpace", &serde_json::json!({ "name": "a" })).await.ok()?;
        (reply.status == 200).then_some(())
    })
    .await;
    fleet.until_live("n1").await;
    fleet.end().await;
}
