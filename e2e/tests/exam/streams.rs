//! Output as it comes, and terminals, through gateway and node.

use base64::{Engine, engine::general_purpose::STANDARD};
use drowse_e2e::{
    door::Door,
    fleet::Fleet,
    gauge,
    wait::{eventually, seconds, timed},
};
use drowse_shared::api::{
    Code,
    attach::{AttachEvent, AttachStarted},
    exec::{ExecEnded, ExecEvent},
    spaces::{Resumed, State},
};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::{net::TcpStream, time::timeout};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Error, Message, client::IntoClientRequest as _},
};

/// What a stream of events came to.
#[derive(Default)]
struct Heard {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    pid: u32,
    ended: Option<ExecEnded>,
}

fn heard(text: &str) -> Heard {
    let mut heard = Heard::default();
    for line in text.lines() {
        match serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")) {
            ExecEvent::Started(started) => heard.pid = started.pid,
            ExecEvent::Stdout(base64) => heard.stdout.extend(STANDARD.decode(base64).expect("base64")),
            ExecEvent::Stderr(base64) => heard.stderr.extend(STANDARD.decode(base64).expect("base64")),
            ExecEvent::Alive {} => {}
            ExecEvent::Ended(ended) => heard.ended = Some(ended),
            ExecEvent::Failed(error) => panic!("{error}"),
        }
    }
    heard
}

async fn stream(door: &Door, wish: Value) -> Heard {
    let reply = door.call::<Value>("execStream", wish).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    heard(&reply.text())
}

pub(super) struct Terminal {
    socket: WebSocketStream<TcpStream>,
    pub(super) started: AttachStarted,
    seen: Vec<u8>,
}

/// Why there is no terminal: the status and what was said.
pub(super) type Refused = (u16, String);

impl Terminal {
    pub(super) async fn open(fleet: &Fleet, query: &str) -> Result<Self, Refused> {
        Self::open_at(&fleet.door.endpoint, fleet, query).await
    }

    pub(super) async fn open_at(endpoint: &str, fleet: &Fleet, query: &str) -> Result<Self, Refused> {
        let address = endpoint.trim_start_matches("http://");
        let mut request = format!("ws://{address}/attach?{query}").into_client_request().expect("a request");
        let token = format!("Bearer {}", fleet.ground.token).parse().expect("a header");
        request.headers_mut().insert("authorization", token);
        let io = TcpStream::connect(address).await.expect("the gateway");
        let mut socket = match client_async(request, io).await {
            Ok((socket, _)) => socket,
            Err(Error::Http(answer)) => {
                let text = answer.body().clone().unwrap_or_default();
                return Err((answer.status().as_u16(), String::from_utf8_lossy(&text).into_owned()));
            }
            Err(other) => panic!("{other}"),
        };
        let first =
            timeout(seconds(10), socket.next()).await.expect("in time").expect("a message").expect("whole");
        let AttachEvent::Started(started) =
            serde_json::from_str(first.to_text().expect("text")).expect("JSON")
        else {
            panic!("{first}")
        };
        Ok(Self { socket, started, seen: Vec::new() })
    }

    pub(super) async fn types(&mut self, text: &str) {
        self.socket.send(Message::binary(text.as_bytes().to_vec())).await.expect("it is open");
    }

    async fn orders(&mut self, order: Value) {
        self.socket.send(Message::text(order.to_string())).await.expect("it is open");
    }

    /// Waits until it shows this, and forgets what came before.
    pub(super) async fn shows(&mut self, wanted: &str) {
        let found = timeout(seconds(20), async {
            loop {
                let seen = String::from_utf8_lossy(&self.seen).into_owned();
                if let Some(at) = seen.find(wanted) {
                    self.seen = seen.as_bytes()[at + wanted.len()..].to_vec();
                    return;
                }
                match self.socket.next().await.expect("it goes on").expect("whole") {
                    Message::Binary(bytes) => self.seen.extend_from_slice(&bytes),
                    Message::Text(text) => panic!("{text}"),
                    _ => {}
                }
            }
        });
        if found.await.is_err() {
            panic!("{wanted:?} does not come after {:?}", String::from_utf8_lossy(&self.seen));
        }
    }

    /// What it says in words.
    async fn says(&mut self) -> AttachEvent {
        loop {
            let message = timeout(seconds(20), self.socket.next()).await.expect("in time");
            if let Message::Text(text) = message.expect("it goes on").expect("whole") {
                return serde_json::from_str(&text).expect("JSON");
            }
        }
    }

    /// Everything it shows from here on, and how it ends.
    pub(super) async fn heard_out(mut self) -> (Vec<u8>, ExecEnded) {
        loop {
            let message = timeout(seconds(20), self.socket.next()).await.expect("in time");
            match message.expect("it goes on").expect("whole") {
                Message::Binary(bytes) => self.seen.extend_from_slice(&bytes),
                Message::Text(text) => match serde_json::from_str(&text).expect("JSON") {
                    AttachEvent::Ended(ended) => return (self.seen, ended),
                    other => panic!("{other:?}"),
                },
                _ => {}
            }
        }
    }

    /// The code it is closed with, whatever it shows before.
    pub(super) async fn close_code(mut self) -> u16 {
        loop {
            let message = self.socket.next().await.expect("a close").expect("whole");
            if let Message::Close(close) = message {
                return close.expect("a code").code.into();
            }
        }
    }

    /// Waits until the connection breaks. An end in order is none.
    pub(super) async fn cut(mut self) {
        loop {
            match self.socket.next().await {
                None | Some(Err(_)) => return,
                Some(Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(other)) => panic!("it ends in order: {other:?}"),
            }
        }
    }

    async fn ends(mut self) -> ExecEnded {
        match self.says().await {
            AttachEvent::Ended(ended) => ended,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn output_comes_as_it_is_written_whole_and_ends_with_its_caller() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    let said =
        stream(&fleet.door, json!({ "name": "a", "command": "cat; echo no >&2; exit 7", "stdin": "yes" }))
            .await;
    assert_eq!((said.stdout.as_slice(), said.stderr.as_slice()), (&b"yes"[..], &b"no\n"[..]));
    assert_eq!(said.ended.map(|ended| (ended.exit_code, ended.timed_out)), Some((7, false)));
    let said = stream(&fleet.door, json!({ "name": "a", "command": "sleep 60", "timeoutSeconds": 1 })).await;
    assert_eq!(said.ended.map(|ended| ended.timed_out), Some(true));

    // 64 MiB, byte for byte.
    let make = "head -c 67108864 /dev/urandom | tee big";
    let said = stream(&fleet.door, json!({ "name": "a", "command": make })).await;
    assert_eq!(said.stdout.len(), 64 << 20);
    let mut sum = fleet.exec("a", "b2sum -l 256 big 2>/dev/null || sha256sum big").await;
    sum.truncate(64);
    fleet.exec("a", "rm big").await;
    let read = said.stdout;
    fleet.door.write("a", b"copy", read).await;
    let mut again = fleet.exec("a", "b2sum -l 256 copy 2>/dev/null || sha256sum copy").await;
    again.truncate(64);
    assert_eq!(sum, again);

    // A reader that stands still holds the command back, and costs nobody memory.
    let reading = fleet.door.stream("execStream", &json!({ "name": "a", "command": "cat /dev/zero" })).await;
    tokio::time::sleep(seconds(2)).await;
    let resident = |pid| gauge::resident_bytes(pid) >> 20;
    let before = [fleet.gateway.pid(), fleet.node("n1").daemon.pid()].map(resident);
    tokio::time::sleep(seconds(3)).await;
    let after = [fleet.gateway.pid(), fleet.node("n1").daemon.pid()].map(resident);
    for (before, after) in before.iter().zip(after) {
        assert!(after <= before + 8, "{before} MiB became {after} MiB");
    }
    assert_eq!(fleet.exec("a", "pgrep -c -f /dev/zero").await, "1");
    drop(reading);
    eventually("the command ends with its caller", seconds(10), || async {
        let reply = fleet.door.exec("a", "pgrep -f '^cat /dev/zero'").await.ok();
        (reply.exit_code == Some(1)).then_some(())
    })
    .await;
    let refused = fleet.door.call::<Value>("execStream", json!({ "name": "a", "argv": ["nowhere"] })).await;
    refused.refused(&Code::CommandNotFound);
    let key = json!({ "name": "a", "command": "true", "idempotencyKey": "k" });
    fleet.door.call::<Value>("execStream", key).await.refused(&Code::InvalidRequest);
    fleet.end().await;
}

#[tokio::test]
async fn a_terminal_is_one_in_every_way_and_is_come_back_to() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    let mut bash = Terminal::open(&fleet, "space=a&rows=33&cols=121").await.expect("opened");
    bash.types("stty size; tty\n").await;
    bash.shows("33 121").await;
    bash.shows("/dev/pts/").await;
    bash.orders(json!({ "resize": { "rows": 50, "cols": 90 } })).await;
    bash.types("stty size\n").await;
    bash.shows("50 90").await;
    bash.types("sleep 1000; echo interrupted=$?\n").await;
    bash.shows("sleep 1000").await;
    eventually("it sleeps", seconds(10), || async {
        (fleet.door.exec("a", "pgrep -f '^sleep 1000'").await.ok().exit_code == Some(0)).then_some(())
    })
    .await;
    bash.types("\u{3}").await;
    bash.types("echo after=$?\n").await;
    bash.shows("after=130").await;
    bash.types("exit 5\n").await;
    assert_eq!(bash.ends().await.exit_code, 5);

    // Without a tag it ends with its client; with one it goes on, and is what one comes back to.
    let loose = Terminal::open(&fleet, "space=a&command=exec%20sleep%202000").await.expect("opened");
    let (pid, _gone) = (loose.started.pid, loose);
    drop(_gone);
    eventually("a terminal that was left ends", seconds(10), || async {
        let there = fleet.door.exec("a", &format!("kill -0 {pid}")).await.ok();
        (there.exit_code != Some(0)).then_some(())
    })
    .await;
    let mut kept = Terminal::open(&fleet, "space=a&tag=main").await.expect("opened");
    assert!(!kept.started.joined);
    kept.types("mark=here; echo ready\n").await;
    kept.shows("ready\r\n").await;
    let pid = kept.started.pid;
    drop(kept);
    let mut back = Terminal::open(&fleet, "space=a&tag=main").await.expect("joined");
    assert!(back.started.joined && back.started.pid == pid);
    back.types("echo still=$mark\n").await;
    back.shows("still=here").await;

    // Quiet, it lets the space sleep; a byte wakes it.
    assert_eq!(fleet.freeze("a").await.state, State::Frozen);
    let ((), took) = timed(async {
        back.types("echo woken\n").await;
        back.shows("woken\r\n").await;
    })
    .await;
    assert!(took < seconds(5), "{took:?}");
    assert_eq!(fleet.get("a").await.state, State::Active);
    back.types("exit\n").await;
    assert_eq!(back.ends().await.exit_code, 0);

    // A command without a terminal is joined by its pid; what it reads and says is its own.
    let pid = fleet.detach("a", "echo begun; exec sleep 3000").await;
    let mut joined = Terminal::open(&fleet, &format!("space=a&pid={pid}")).await.expect("joined");
    joined.shows("begun\n").await;
    joined.orders(json!({ "signal": "STOP" })).await;
    let refusal = joined.says().await;
    let AttachEvent::Failed(refusal) = refusal else { panic!("{refusal:?}") };
    assert!(refusal.message.contains("INT"), "it says which signals there are: {refusal}");
    joined.orders(json!({ "signal": "KILL" })).await;
    assert_eq!(joined.ends().await.exit_code, 137);

    for (query, status, says) in [
        ("space=nobody", 404, "nobody"),
        ("space=a&rows=0", 400, "rows"),
        ("space=a&colour=1", 400, "colour"),
        ("space=a&pid=999999", 404, "999999"),
        ("space=a&user=nobody-here", 400, "nobody-here"),
        ("rows=4", 400, "space"),
    ] {
        let (got, text) =
            Terminal::open(&fleet, query).await.err().unwrap_or_else(|| panic!("{query} is opened"));
        assert!(got == status && text.contains(says), "{query}: {got} {text}");
    }

    // Woken from its disk, it says so.
    fleet.door.turn("stopSpace", "a").await.ok();
    let fresh = Terminal::open(&fleet, "space=a&command=true").await.expect("opened");
    assert_eq!(fresh.started.resumed, Some(Resumed::Restarted));
    assert_eq!(fresh.ends().await.exit_code, 0);

    let before = fleet.exec("a", "ls /dev/pts | wc -l; ls /proc | grep -c '^[0-9]'").await;
    for _ in 0..200 {
        let one = Terminal::open(&fleet, "space=a&command=true").await.expect("opened");
        assert_eq!(one.ends().await.exit_code, 0);
    }
    let after = fleet.exec("a", "ls /dev/pts | wc -l; ls /proc | grep -c '^[0-9]'").await;
    assert_eq!(before, after, "200 terminals leave nothing");
    fleet.end().await;
}
