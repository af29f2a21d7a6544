use axum::{extract::Request, http::StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::*;

/// Says what it was asked. Grants every protocol at `/grant`, once its turn comes.
async fn app(request: Request) -> Response {
    let (parts, body) = request.into_parts();
    tokio::task::yield_now().await;
    if parts.uri.path() == "/grant" && parts.headers.contains_key(header::UPGRADE) {
        let granted = [(header::CONNECTION, "upgrade"), (header::UPGRADE, "echo")];
        return (StatusCode::SWITCHING_PROTOCOLS, granted).into_response();
    }
    match axum::body::to_bytes(body, 1 << 20).await {
        Ok(body) => format!("<{} {}>", parts.uri, String::from_utf8_lossy(&body)).into_response(),
        Err(error) => {
            let fault = Fault::caused(&error).expect("nothing else goes wrong");
            refusal(fault).into_response()
        }
    }
}

fn served() -> DuplexStream {
    served_until(&Shutdown::default())
}

fn served_until(shutdown: &Shutdown) -> DuplexStream {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let room = Arc::new(Semaphore::new(1));
    let served = Served {
        app: Router::new().fallback(app),
        limits: Limits::default(),
        shutdown: shutdown.clone(),
        place: room.try_acquire_owned().expect("free"),
    };
    let caller = Caller { address: "127.0.0.1:1".to_owned(), is_near: true };
    Env::real().spawn("test", connection(Box::new(ours), served, caller));
    theirs
}

/// What is answered to pieces that are sent one after the other, each once nothing more is said to the one before.
async fn said(pieces: &[&str]) -> String {
    let mut io = served();
    let mut said = Vec::new();
    for piece in pieces {
        io.write_all(piece.as_bytes()).await.expect("open");
        let more = async { while io.read_buf(&mut said).await.is_ok_and(|read| read > 0) {} };
        let _ = tokio::time::timeout(std::time::Duration::from_millis(50), more).await;
    }
    let _ = io.shutdown().await;
    io.read_to_end(&mut said).await.expect("an end");
    String::from_utf8_lossy(&said).into_owned()
}

fn statuses(said: &str) -> Vec<&str> {
    said.split("HTTP/1.1 ").skip(1).filter_map(|answer| answer.get(..3)).collect()
}

#[tokio::test(start_paused = true)]
async fn who_has_one_reading_is_answered_and_who_has_not_is_told_why() {
    let get = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
    let posted = "POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n";
    let asks = "GET /c HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    let grant = &*asks.replace("/c", "/grant");
    let bare = "GET /d HTTP/1.1\nHost: a\n\n";
    for (pieces, expected) in [
        (&[get, get][..], &["200", "200"][..]),
        (&[&(get.repeat(2))], &["200", "200"]),
        (&[bare], &["400"]),
        (&["GET /d HTTP/1.1\r\nHo", "st: a\r\nHost: b\r\n\r\n"], &["400"]),
        // Whoever came before is answered.
        (&[&format!("{get}{bare}")], &["200", "400"]),
        (&[get, bare], &["200", "400"]),
        (&[posted, "0\r\n\r\n"], &["200"]),
        (&[posted, "x\r\n\r\n"], &["400"]),
        (&[&format!("{posted}0\r\n\r\n{bare}")], &["200", "400"]),
        // A request for another protocol, refused, granted, and with something behind it that did not wait.
        (&[asks, get], &["200", "200"]),
        // The server holds the connection for the protocol it was asked for, so that it can only be closed.
        (&[asks, bare], &["200"]),
        (&[grant], &["101"]),
        (&[&format!("{asks}{get}")], &["400"]),
        (&[&format!("{get}{grant}{get}")], &["200", "400"]),
        // HTTP/1.0 knows no other protocol.
        (&[&grant.replace("1.1", "1.0")], &["200"]),
    ] {
        let said = said(pieces).await.replace("HTTP/1.0", "HTTP/1.1");
        assert_eq!(statuses(&said), expected, "{pieces:?}: {said}");
        assert_eq!(said.contains("invalid_request"), expected.contains(&"400"), "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_came_just_before_the_end_is_answered_and_who_says_nothing_holds_nobody_up() {
    let shutdown = Shutdown::new();
    let (mut quick, mut silent) = (served_until(&shutdown), served_until(&shutdown));
    tokio::task::yield_now().await;
    shutdown.stop();
    tokio::task::yield_now().await;
    quick.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("open");
    let mut said = Vec::new();
    quick.read_to_end(&mut said).await.expect("an end");
    let said = String::from_utf8_lossy(&said);
    assert!(said.starts_with("HTTP/1.1 200") && said.contains("connection: close"), "{said}");
    let began = tokio::time::Instant::now();
    silent.read_to_end(&mut Vec::new()).await.expect("an end");
    assert!(began.elapsed() <= FIRST_WORD, "{:?}", began.elapsed());
}
