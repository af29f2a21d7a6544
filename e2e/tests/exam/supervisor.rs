use std::{
    net::TcpListener,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use drowse_e2e::{
    door::Door,
    fleet::Fleet,
    wait::{eventually, seconds},
};
use drowse_shared::api::exec::ExecResult;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixDatagram,
};

use super::ports::{DOMAIN, Web};

/// Where a supervisor listens.
struct Ear {
    socket: UnixDatagram,
    path: String,
    _dir: tempfile::TempDir,
}

impl Ear {
    fn open() -> Self {
        let dir = tempfile::tempdir().expect("room for a socket");
        let path = dir.path().join("notify").to_str().expect("UTF-8").to_owned();
        Self { socket: UnixDatagram::bind(&path).expect("bound"), path, _dir: dir }
    }

    /// Every word until one `is` what is waited for, that one included.
    async fn until(&self, promise: &str, is: impl Fn(&str) -> bool) -> Vec<String> {
        let mut heard = Vec::new();
        let listening = async {
            let mut bytes = [0; 1024];
            loop {
                let length = self.socket.recv(&mut bytes).await.expect("received");
                heard.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
                if is(&heard[heard.len() - 1]) {
                    return;
                }
            }
        };
        let said = tokio::time::timeout(seconds(30), listening).await;
        assert!(said.is_ok(), "it was never said: {promise}; but {heard:?}");
        heard
    }
}

fn serves(said: &str) -> bool {
    said.contains("READY=1\n")
}

#[tokio::test]
async fn the_supervisor_is_told_when_a_daemon_serves_and_spaces_know_nothing_of_it() {
    let (gateway, node) = (Ear::open(), Ear::open());
    let patience = Duration::from_millis(600).as_micros();
    let mut fleet = Fleet::real(1)
        .gateway_env("NOTIFY_SOCKET", &gateway.path)
        .gateway_env("WATCHDOG_USEC", patience)
        .node_env("NOTIFY_SOCKET", &node.path)
        .node_env("WATCHDOG_USEC", patience)
        .start()
        .await;
    gateway.until("the gateway serves", serves).await;
    let heard = node.until("the node serves", serves).await;
    assert!(heard.iter().any(|said| said.contains("STATUS=waiting for a gateway")), "{heard:?}");
    gateway.until("the gateway moves", |said| said.contains("WATCHDOG=1\n")).await;
    node.until("the node moves", |said| said.contains("WATCHDOG=1\n")).await;

    fleet.acquire("a").await;
    let wish = json!({ "name": "a", "command": "cat /proc/[0-9]*/environ /proc/mounts", "user": "root" });
    let seen = fleet.door.call::<ExecResult>("execCommand", wish).await.ok().stdout;
    assert!(seen.contains("PATH="), "it sees environments: {seen}");
    for word in ["NOTIFY_SOCKET", "WATCHDOG_USEC", node.path.as_str()] {
        assert!(!seen.contains(word), "{word} is known inside: {seen}");
    }

    // Alone without the gateway, a node that starts says what it waits for, and asks for time.
    fleet.gateway.stop().await;
    gateway.until("the gateway ends", |said| said.starts_with("STOPPING=1\n")).await;
    fleet.node_mut("n1").daemon.stop().await;
    node.until("the node ends", |said| said.starts_with("STOPPING=1\n")).await;
    fleet.node_mut("n1").daemon.start();
    node.until("the node serves: it has kept the configuration", serves).await;
    fleet.gateway.start();
    fleet.until_live("n1").await;
    fleet.end().await;
}

/// Asks on a connection of its own each time, until told to stop. Nobody tries again.
async fn knocks(door: &Door, done: &AtomicUsize, goes_on: impl Fn() -> bool) {
    while goes_on() {
        for (verb, body) in [("listNodes", json!({})), ("getSpace", json!({ "name": "a" }))] {
            let reply = door
                .apart()
                .attempt::<Value>(verb, &body)
                .await
                .unwrap_or_else(|error| panic!("{verb}: {error}"));
            // It has to find the space anew, and the node may be in the middle of its check-in.
            assert!(reply.status == 200 || reply.status == 503, "{verb}: {}", reply.text());
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[tokio::test]
async fn a_gateway_whose_socket_is_held_for_it_refuses_nobody_while_it_is_restarted() {
    let mut fleet = Fleet::fake(1).start().await;
    fleet.acquire("a").await;
    fleet.gateway.stop().await;
    let address = fleet.door.endpoint.trim_start_matches("http://").to_owned();
    let held = TcpListener::bind(&address).expect("it is free again");
    fleet.gateway.env.remove("DROWSE_NEW_FLEET");
    fleet.gateway.inherit(&held);
    fleet.gateway.start();
    fleet.until_live("n1").await;

    let (done, over) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let goes_on = || over.load(Ordering::Relaxed) == 0;
    let door = fleet.door.clone();
    let restarts = async {
        for _ in 0..4 {
            let before = done.load(Ordering::Relaxed);
            eventually("requests pass", seconds(30), || async {
                (done.load(Ordering::Relaxed) > before + 20).then_some(())
            })
            .await;
            fleet.gateway.stop().await;
            fleet.gateway.start();
        }
        over.store(1, Ordering::Relaxed);
    };
    tokio::join!(restarts, knocks(&door, &done, goes_on), knocks(&door, &done, goes_on));

    // Whoever comes while nobody is there waits for the next one, however the last one ended.
    fleet.gateway.kill();
    let waits =
        async { door.apart().attempt::<Value>("listNodes", &json!({})).await.map(|reply| reply.status) };
    let (status, ()) = tokio::join!(waits, async { fleet.gateway.start() });
    assert_eq!(status.expect("nobody was refused"), 200);
    fleet.end().await;
}

/// Grants a websocket and says `hello` on it again and again, a frame each.
const TALKS: &str = r#"
import socket, threading, time
def talk(c):
    c.recv(65536)
    c.sendall(b'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n')
    try:
        while True:
            c.sendall(b'\x81\x05hello')
            time.sleep(0.01)
    except OSError:
        pass
s = socket.socket()
s.bind(('127.0.0.1', 8080))
s.listen(10)
while True:
    threading.Thread(target=talk, args=(s.accept()[0],), daemon=True).start()
"#;

#[tokio::test]
async fn a_websocket_is_told_that_its_node_is_restarted_and_the_app_goes_on() {
    let mut web = Web::over(Fleet::real(1)).await;
    web.fleet.acquire("talk").await;
    web.fleet.write("talk", "talks.py", TALKS).await;
    let pid = web.fleet.detach("talk", "exec python3 talks.py").await;
    let mut io = web.connect().await;
    let asks = format!(
        "GET /ws HTTP/1.1\r\nHost: talk.{DOMAIN}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    let up = "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8080))'; do sleep 0.05; done";
    web.fleet.exec("talk", &format!("{up} 2>/dev/null")).await;
    io.write_all(asks.as_bytes()).await.expect("sent");
    let mut heard = Vec::new();
    while !heard.ends_with(b"hello") {
        assert!(io.read_buf(&mut heard).await.expect("read") > 0, "{}", String::from_utf8_lossy(&heard));
    }
    let ends = async {
        io.read_to_end(&mut heard).await.expect("an end");
        drop(io);
    };
    tokio::join!(ends, web.fleet.node_mut("n1").daemon.stop());
    let text = String::from_utf8_lossy(&heard);
    let last = heard.windows(4).rposition(|at| at[0] == 0x88 && at[2..] == 1012_u16.to_be_bytes());
    let last = last.unwrap_or_else(|| panic!("no close with 1012: {text}"));
    assert_eq!(usize::from(heard[last + 1]), heard.len() - last - 2, "it is the last word: {text}");
    assert!(heard[..last].ends_with(b"\x81\x05hello"), "between two frames: {text}");
    web.fleet.revive("n1").await;
    web.fleet.exec("talk", &format!("kill -0 {pid}")).await;
    web.fleet.end().await;
}
