//! Ports of spaces, by host, through gateway and node.

use drowse_e2e::{
    fleet::{Fleet, Plan},
    wait::{eventually, seconds},
};
use drowse_shared::api::spaces::State;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

pub(super) const DOMAIN: &str = "drowse.test";

/// Tells what it was asked, byte for byte; `/late` answers in two halves; an upgrade to `echo` is granted and echoes, one to
/// `ping` says something again and again.
const APP: &str = r#"
import os, socket, sys, threading, time
def serve(c):
    try:
        head = b''
        while b'\r\n\r\n' not in head:
            more = c.recv(65536)
            if not more: return
            head += more
        head, rest = head.split(b'\r\n\r\n', 1)
        if b'upgrade: echo' in head.lower():
            c.sendall(b'HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nhello ' + rest)
            while True:
                some = c.recv(65536)
                if not some: break
                c.sendall(some)
            c.sendall(b'bye')
            return
        if b'upgrade: ping' in head.lower():
            c.sendall(b'HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: ping\r\n\r\nhello ')
            while True:
                c.sendall(b'ping ')
                time.sleep(0.1)
        if b'upgrade: later' in head.lower():
            c.sendall(b'HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: later\r\n\r\nhello ')
            while not os.path.exists('now'): time.sleep(0.05)
            c.sendall(b'now')
            return
        if head.startswith(b'GET /events'):
            c.sendall(b'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n')
            for n in range(7):
                c.sendall(b'data: %d\n\n' % n)
                time.sleep(1)
            return
        if head.startswith(b'GET /trickle'):
            c.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n')
            for n in range(60):
                c.sendall(b'x')
                time.sleep(0.1)
            return
        if head.startswith(b'GET /refuses'):
            c.sendall(b'HTTP/1.1 404 Not Found\r\nDrowse-Answer: node\r\nContent-Length: 4\r\n\r\nnone')
            return
        if head.startswith(b'GET /late'):
            c.sendall(b'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n')
            time.sleep(1)
            c.sendall(b'data: 2\n\n')
            return
        c.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n' % len(head) + head)
    except OSError:
        pass
    finally:
        c.close()
s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((sys.argv[1], int(sys.argv[2])))
s.listen(100)
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"#;

pub(super) struct Web {
    pub(super) fleet: Fleet,
}

pub(super) struct Page {
    pub(super) status: u16,
    head: String,
    pub(super) body: String,
}

impl Web {
    async fn start(nodes: usize) -> Self {
        Self::over(Fleet::real(nodes)).await
    }

    pub(super) async fn over(plan: Plan) -> Self {
        Self { fleet: plan.gateway_env("DROWSE_DOMAIN", DOMAIN).start().await }
    }

    /// A space with the app on 8080.
    pub(super) async fn app(&self, name: &str) -> String {
        let id = self.fleet.acquire(name).await.space.id.to_string();
        let files = json!({ "name": name, "files": [{ "path": "app.py", "content": APP }] });
        self.fleet.door.call::<Value>("writeFiles", files).await.ok();
        self.fleet.detach(name, "python3 app.py 127.0.0.1 8080").await;
        let up = "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8080))'; do sleep 0.05; done";
        self.fleet.exec(name, &format!("{up} 2>/dev/null")).await;
        id
    }

    pub(super) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.fleet.door.endpoint.trim_start_matches("http://")).await.expect("the gateway")
    }

    /// Sends a whole request and reads to the end.
    async fn raw(&self, request: &str) -> Page {
        let mut io = self.connect().await;
        io.write_all(request.as_bytes()).await.expect("sent");
        let mut all = Vec::new();
        timeout(seconds(40), io.read_to_end(&mut all)).await.expect("in time").expect("read");
        let all = String::from_utf8_lossy(&all).into_owned();
        let (head, body) = all.split_once("\r\n\r\n").unwrap_or((&all, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Page {
            status: status.unwrap_or_else(|| panic!("{request:?}: {all:?}")),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    pub(super) async fn policy(&self, name: &str, policy: Value) {
        let wish = json!({ "name": name, "policy": policy });
        self.fleet.door.call::<Value>("updatePolicy", wish).await.ok();
    }

    pub(super) async fn freeze(&self, name: &str) {
        self.fleet.door.call::<Value>("freezeSpace", json!({ "name": name })).await.ok();
    }

    /// Asks with one more header; answers the status and the code of an error of ours.
    pub(super) async fn knock(&self, label: &str, target: &str, header: &str) -> (u16, String) {
        let request =
            format!("GET {target} HTTP/1.1\r\nHost: {label}.{DOMAIN}\r\nConnection: close\r\n{header}\r\n");
        let page = self.raw(&request).await;
        let error: Value = serde_json::from_str(&page.body).unwrap_or_default();
        let ours = error.is_null() && page.body.to_lowercase().contains("drowse-token:");
        assert!(!ours, "a header of ours at the app: {}", page.body);
        (page.status, error["code"].as_str().unwrap_or_default().to_owned())
    }

    pub(super) async fn get(&self, label: &str, target: &str) -> Page {
        self.raw(&format!("GET {target} HTTP/1.1\r\nHost: {label}.{DOMAIN}\r\nConnection: close\r\n\r\n"))
            .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_app_is_asked_what_its_caller_asked_whatever_its_space_did_before() {
    let web = Web::start(2).await;
    let id = web.app("shop").await;
    let host = format!("8080-{id}.{DOMAIN}");
    let target = "/a%2Fb//c/../d?x=%20+&&y=%C3%A4";
    let asked = format!(
        "GET {target} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer the-apps-own\r\nCookie: a=1\r\nX-Twice: 1\r\n\
         X-Twice: 2\r\nDrowse-Port: 22\r\nDrowse-Authorization: forged\r\nDrowse-Space: other\r\nConnection: close\r\n\r\n"
    );
    let page = web.raw(&asked).await;
    assert_eq!(page.status, 200, "{}", page.head);
    let said = page.body.to_lowercase();
    assert!(page.body.starts_with(&format!("GET {target} HTTP/1.1\r\n")), "{}", page.body);
    for kept in [
        &*format!("host: {host}"),
        "authorization: bearer the-apps-own",
        "cookie: a=1",
        "x-twice: 1\r\nx-twice: 2",
    ] {
        assert!(said.contains(kept), "{kept}: {said}");
    }
    assert!(!said.contains("drowse-"), "{said}");
    assert!(!page.head.to_lowercase().contains("drowse-"), "{}", page.head);

    for (verb, state) in [("freezeSpace", State::Frozen), ("touchSpace", State::Active)] {
        web.fleet.door.call::<Value>(verb, json!({ "name": "shop" })).await.ok();
        assert_eq!(web.fleet.get("shop").await.state, state);
        assert_eq!(web.get("shop", "/").await.status, 200, "after {verb}");
    }
    let refused = web.get("shop", "/refuses").await;
    assert_eq!((refused.status, &*refused.body), (404, "none"), "what an app refuses is the app's own");

    // IPv6 alone is found too.
    web.fleet.detach("shop", "python3 app.py ::1 8081").await;
    let page = web.fleet.exec("shop", "until python3 -c 'import socket; socket.create_connection((\"::1\", 8081))'; do sleep 0.05; done 2>/dev/null; echo up").await;
    assert_eq!(page, "up");
    assert_eq!(web.get(&format!("8081-{id}"), "/").await.status, 200);

    // What is not there, each in the words of its kind of host.
    let closed = web.get(&format!("9999-{id}"), "/").await;
    let body: Value = serde_json::from_str(&closed.body).expect("JSON");
    assert_eq!(
        (closed.status, &body["message"], &body["port"]),
        (502, &json!("The sandbox is running but port is not open"), &json!(9999))
    );
    let gone = web.get("8080-0190f0c2a4b87c3d9e0f112233445566", "/").await;
    let body: Value = serde_json::from_str(&gone.body).expect("JSON");
    assert_eq!(
        (gone.status, &body["message"], &body["code"]),
        (502, &json!("The sandbox was not found"), &json!(502))
    );
    for label in ["nobody", "a.shop", "8080-shop"] {
        assert_eq!(web.get(label, "/").await.status, 404, "{label}");
    }
    assert_eq!(web.get("api", "/listSpaces").await.status, 401, "a reserved name is the door");
    web.fleet.end().await;
}

/// Everything that comes until this has.
async fn until(io: &mut TcpStream, end: &str) -> String {
    let mut got = Vec::new();
    while !String::from_utf8_lossy(&got).contains(end) {
        let read = timeout(seconds(20), io.read_buf(&mut got)).await.expect("in time").expect("read");
        assert!(read > 0, "it ended: {}", String::from_utf8_lossy(&got));
    }
    String::from_utf8_lossy(&got).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_is_parked_while_its_space_is_frozen_and_a_byte_wakes_it() {
    let web = Web::start(1).await;
    web.app("shop").await;
    let mut io = web.connect().await;
    let asks =
        format!("GET /ws HTTP/1.1\r\nHost: shop.{DOMAIN}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    io.write_all(asks.as_bytes()).await.expect("sent");
    let head = until(&mut io, "hello ").await;
    assert!(head.starts_with("HTTP/1.1 101 ") && head.to_lowercase().contains("upgrade: echo"), "{head}");
    io.write_all(b"one").await.expect("sent");
    assert_eq!(until(&mut io, "one").await, "one");
    web.fleet.door.call::<Value>("freezeSpace", json!({ "name": "shop" })).await.ok();
    assert_eq!(web.fleet.get("shop").await.state, State::Frozen);
    io.write_all(b"two").await.expect("sent");
    assert_eq!(until(&mut io, "two").await, "two");
    assert_eq!(web.fleet.get("shop").await.state, State::Active);
    // Either side may end first, and the other is still heard.
    io.shutdown().await.expect("half closed");
    assert_eq!(until(&mut io, "bye").await, "bye");
    let refused = web
        .raw(&format!("GET /refuses HTTP/1.1\r\nHost: shop.{DOMAIN}\r\nConnection: upgrade, close\r\nUpgrade: other\r\n\r\n"))
        .await;
    assert_eq!((refused.status, &*refused.body), (404, "none"), "no tunnel");
    web.fleet.end().await;
}

/// Whoever held the places at the app of the shop has left: it is reached again.
async fn has_room_again(web: Web) {
    eventually("there is room again", seconds(20), || async {
        (web.get("shop", "/").await.status == 200).then_some(())
    })
    .await;
    web.fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_fills_all_places_at_apps_leaves_the_verbs_theirs() {
    const FILES: u64 = 256;
    let mut web = Web::start(1).await;
    web.fleet.kill_gateway();
    web.fleet.gateway.with_files(FILES);
    web.fleet.revive_gateway().await;
    web.fleet.until_all_live().await;
    web.app("shop").await;
    let asks =
        format!("GET /ws HTTP/1.1\r\nHost: shop.{DOMAIN}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    let mut held = Vec::new();
    let refused = loop {
        let mut io = web.connect().await;
        io.write_all(asks.as_bytes()).await.expect("sent");
        let mut start = [0; 12];
        timeout(seconds(20), io.read_exact(&mut start)).await.expect("in time").expect("answered");
        if !start.ends_with(b"101") {
            break String::from_utf8_lossy(&start).into_owned();
        }
        held.push(io);
        assert!((held.len() as u64) < FILES / 2, "strangers may have them all");
    };
    assert_eq!(refused, "HTTP/1.1 503", "after {} tunnels", held.len());
    assert!(held.len() > 10, "{} tunnels are not many", held.len());
    for n in 0..10 {
        web.fleet.acquire("shop").await;
        assert_eq!(web.fleet.exec("shop", &format!("echo {n}")).await, n.to_string());
        web.fleet.write("shop", "file", n.to_string()).await;
    }
    drop(held);
    has_room_again(web).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_fills_all_places_at_the_app_of_one_space_leaves_other_spaces_theirs() {
    let web = Web::over(Fleet::real(1).node_env("DROWSE_CONNECTIONS_MAX", 64)).await;
    web.app("shop").await;
    web.app("other").await;
    let asks =
        format!("GET /ws HTTP/1.1\r\nHost: shop.{DOMAIN}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    let mut held = Vec::new();
    for _ in 0..16 {
        let mut io = web.connect().await;
        io.write_all(asks.as_bytes()).await.expect("sent");
        assert!(until(&mut io, "hello").await.contains("101"));
        held.push(io);
    }
    let mut one_more = web.connect().await;
    one_more.write_all(asks.as_bytes()).await.expect("sent");
    let refused = until(&mut one_more, "too_many_connections").await;
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert_eq!(web.get("other", "/").await.status, 200);
    drop(held);
    has_room_again(web).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_died_unseen_is_started_by_nobody_who_may_not_wake_its_space() {
    let web = Web::start(1).await;
    let id = web.app("shop").await;
    web.policy("shop", json!({ "wakeOn": "none" })).await;
    assert_eq!(web.get("shop", "/").await.status, 200, "it is awake");
    let pid = std::fs::read_to_string(web.fleet.ground.run.join("0").join(&id).join("bundle/pid"));
    let pid = pid.expect("it runs").parse().ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("we are root");
    for _ in 0..3 {
        assert_eq!(web.knock("shop", "/", "").await, (503, "space_asleep".to_owned()));
    }
    assert_eq!(web.fleet.get("shop").await.state, State::Stopped);
    web.fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_comes_up_after_a_wake_is_waited_for() {
    let web = Web::start(1).await;
    web.app("shop").await;
    web.fleet.door.call::<Value>("stopSpace", json!({ "name": "shop" })).await.ok();
    let (page, ()) = tokio::join!(web.get("shop", "/late"), async {
        while web.fleet.get("shop").await.state != State::Active {
            tokio::task::yield_now().await;
        }
        web.fleet.detach("shop", "sleep 1; python3 app.py 127.0.0.1 8080").await;
    });
    assert_eq!(page.status, 200);
    assert!(page.body.contains("data: 1") && page.body.contains("data: 2"), "{}", page.body);
    web.fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reaches_and_who_wakes_a_space_is_for_its_policy_to_say() {
    const PORTS: &str = "a-token-of-the-ports-0123456789abcdef";
    let web = Web::start(1).await;
    let id = web.app("shop").await;
    let (host, fleet_token) = (format!("8080-{id}"), web.fleet.ground.token.clone());
    let show = |token: &str| format!("Drowse-Token: {token}\r\n");
    let ok = (200, String::new());
    let private = (401, "port_private".to_owned());
    let asleep = (503, "space_asleep".to_owned());

    // A private port wants a token in one place, and an app never sees it.
    web.policy("shop", json!({ "ports": { "8080": "private" }, "portToken": PORTS })).await;
    let shown = web.fleet.get("shop").await.policy;
    assert!(shown.is_private(8080) && shown.port_token_digest.is_some());
    for (target, header, expected) in [
        ("/", String::new(), &private),
        ("/", show("wrong"), &private),
        ("/", show(PORTS) + &show(PORTS), &private),
        ("/", format!("Cookie: Drowse-Token={PORTS}\r\n"), &private),
        ("/", format!("Authorization: Bearer {PORTS}\r\n"), &private),
        (&*format!("/?Drowse-Token={PORTS}"), String::new(), &private),
        ("/", show(PORTS), &ok),
        ("/", show(&fleet_token), &ok),
    ] {
        for label in ["shop", &host] {
            assert_eq!(&web.knock(label, target, &header).await, expected, "{label} {target} {header}");
        }
    }
    web.freeze("shop").await;
    assert_eq!(web.knock("shop", "/", "").await, private);
    assert_eq!(web.fleet.get("shop").await.state, State::Frozen, "a stranger does not wake it");
    assert_eq!(web.knock("shop", "/", &show(PORTS)).await, ok);

    // Who wakes a space whose ports are public.
    web.policy("shop", json!({ "ports": {}, "wakeOn": "authenticated", "neverWakePaths": ["/quiet"] })).await;
    assert_eq!(web.knock("shop", "/quiet", "").await, ok, "it is awake");
    web.freeze("shop").await;
    assert_eq!(web.knock("shop", "/", "").await, asleep);
    assert_eq!(web.knock("shop", "/quiet?x", &show(PORTS)).await, asleep);
    assert_eq!(web.fleet.get("shop").await.state, State::Frozen);
    assert_eq!(web.knock("shop", "/", &show(PORTS)).await, ok);

    // A tunnel is held to it as well: what comes on it wakes nothing, and ends it.
    let mut io = web.connect().await;
    let asks =
        format!("GET /ws HTTP/1.1\r\nHost: shop.{DOMAIN}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    io.write_all(asks.as_bytes()).await.expect("sent");
    let mut heard = Vec::new();
    while !heard.ends_with(b"hello ") {
        timeout(seconds(20), io.read_buf(&mut heard)).await.expect("in time").expect("read");
    }
    web.policy("shop", json!({ "wakeOn": "none" })).await;
    web.freeze("shop").await;
    assert_eq!(web.knock("shop", "/", &show(&fleet_token)).await, asleep);
    io.write_all(b"one").await.expect("sent");
    let ended = timeout(seconds(20), io.read_to_end(&mut heard)).await.expect("in time");
    assert!(ended.is_err() || heard.ends_with(b"hello "), "{}", String::from_utf8_lossy(&heard));
    assert_eq!(web.fleet.get("shop").await.state, State::Frozen);

    // And how often: many who wait for one wake are one.
    web.policy("shop", json!({ "wakeOn": "any", "wakesPerMinuteMax": 3 })).await;
    let woken = futures_util::future::join_all((0..20).map(|_| web.knock("shop", "/", ""))).await;
    assert!(woken.iter().all(|answer| *answer == ok), "{woken:?}");
    web.freeze("shop").await;
    assert_eq!(web.knock("shop", "/", "").await, (429, "too_many_wakes".to_owned()), "the fourth");
    assert_eq!(web.fleet.get("shop").await.state, State::Frozen);
    web.fleet.door.call::<Value>("wakeSpace", json!({ "name": "shop" })).await.ok();
    assert_eq!(web.knock("shop", "/", "").await, ok, "a verb wakes it all the same");

    let metrics = web.fleet.node("n1").door.page("/metrics").await.text();
    for line in [r#"verb="port",status="200""#, r#"verb="port",status="401""#, r#"verb="port",status="429""#]
    {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    web.fleet.end().await;
}
