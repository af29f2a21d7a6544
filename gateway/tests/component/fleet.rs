use std::{sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use camino::Utf8Path;
use drowse_gateway::{Config, Parts, run};
use drowse_shared::{
    api::nodes::{CheckedIn, Standing},
    http::{HttpClient, Limits, client},
    seams::Env,
    shutdown::Shutdown,
    token::Token,
};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::fake::Fake;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// Long enough that nothing is down by accident.
const INTERVAL: Duration = Duration::from_secs(5);

pub(crate) struct Fleet {
    pub(crate) env: Env,
    pub(crate) endpoint: String,
    pub(crate) nodes: Vec<Arc<Fake>>,
    pub(crate) config: Config,
    client: HttpClient<Body>,
    stop: Shutdown,
    // Gone with the fleet.
    _dir: tempfile::TempDir,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("")
    }

    pub(crate) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or("")
    }

    #[track_caller]
    pub(crate) fn is(&self, status: u16, code: &str) -> &Self {
        assert_eq!((self.status, self.code()), (status, code), "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn says(&self, part: &str) -> &Self {
        assert!(self.message().contains(part), "{:?} does not say {part:?}", self.message());
        self
    }
}

impl Fleet {
    /// A new fleet with so many nodes, all taken in and known to each other.
    pub(crate) async fn start(nodes: usize) -> Self {
        let mut fleet = Self::with(|config| config.new_fleet = true).await;
        for n in 1..=nodes {
            let node = Fake::start(&fleet.env, &format!("node-{n}"), INTERVAL).await;
            fleet.join(&node).await;
            fleet.nodes.push(node);
        }
        fleet.settled().await;
        fleet
    }

    /// Waits until nothing is refused by any node.
    pub(crate) async fn settled(&self) {
        for _ in 0..400 {
            let list = self.call("listNodes", json!({})).await;
            let nodes = list.body["nodes"].as_array().cloned().unwrap_or_default();
            if nodes.iter().all(|node| node["refuses"].is_null()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("never settled: {:?}", self.call("listNodes", json!({})).await);
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let env = Env::real();
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::with_defaults(Token::checked(TOKEN, "test").unwrap());
        config.listen = "127.0.0.1:0".to_owned();
        config.state = Utf8Path::from_path(dir.path()).unwrap().join("gateway");
        change(&mut config);
        let (endpoint, stop) = boot(&env, &config).await;
        Self {
            client: client(&env, Limits::default()),
            env,
            endpoint,
            nodes: Vec::new(),
            config,
            stop,
            _dir: dir,
        }
    }

    /// Ends the gateway and starts another one on what it kept.
    pub(crate) async fn restart(&mut self) {
        self.stop.finish(Duration::ZERO).await;
        for _ in 0..200 {
            if self.client.request(self.request("healthz", Body::empty())).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        (self.endpoint, self.stop) = boot(&self.env, &self.config).await;
    }

    pub(crate) async fn check_in(&self, node: &Fake) -> Answer {
        let mut answer = self.call("checkIn", serde_json::to_value(node.says()).unwrap()).await;
        if answer.body["wantRoster"] == true {
            answer = self.call("checkIn", serde_json::to_value(node.says_all()).unwrap()).await;
        }
        if answer.status == 200 {
            let checked: CheckedIn = serde_json::from_value(answer.body.clone()).unwrap();
            node.hears(&checked);
        }
        answer
    }

    pub(crate) async fn join(&self, node: &Fake) {
        // The second one tells that the configuration arrived.
        for _ in 0..2 {
            let answer = self.check_in(node).await;
            assert_eq!(
                answer.body["standing"],
                serde_json::to_value(Standing::Member).unwrap(),
                "{answer:?}"
            );
        }
    }

    fn request(&self, verb: &str, body: Body) -> Request<Body> {
        Request::post(format!("{}/{verb}", self.endpoint))
            .header("authorization", format!("Bearer {TOKEN}"))
            .body(body)
            .unwrap()
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.client.request(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) async fn call(&self, verb: &str, body: Value) -> Answer {
        self.send(self.request(verb, Body::from(body.to_string()))).await
    }

    pub(crate) async fn raw(&self, verb: &str, body: impl Into<Body>) -> Answer {
        self.send(self.request(verb, body.into())).await
    }

    pub(crate) async fn acquire(&self, name: &str) -> Answer {
        self.call("acquireSpace", json!({ "name": name })).await
    }

    pub(crate) async fn get(&self, name: &str) -> Answer {
        self.call("getSpace", json!({ "name": name })).await
    }

    /// Begins a request and leaves at once when `leave` says so.
    pub(crate) async fn abandon(&self, verb: &str, body: Value, leave: impl Future<Output = ()>) {
        let request = self.request(verb, Body::from(body.to_string()));
        // A client of its own: leaving closes the connection.
        let client: HttpClient<Body> = client(&self.env, Limits::default());
        drowse_shared::select_biased! {
            answer = client.request(request) => panic!("answered before it was abandoned: {answer:?}"),
            () = leave => {}
        }
    }

    /// Reads the first bytes of a streamed answer, then leaves.
    pub(crate) async fn peek(&self, verb: &str) -> (StatusCode, Bytes) {
        let client: HttpClient<Body> = client(&self.env, Limits::default());
        let response = client.request(self.request(verb, Body::empty())).await.unwrap();
        let status = response.status();
        let frame = response.into_body().frame().await.unwrap().unwrap();
        (status, frame.into_data().unwrap())
    }

    /// Reads a streamed answer to its end.
    pub(crate) async fn drain(&self, verb: &str) -> Result<Bytes, hyper::Error> {
        let response = self.client.request(self.request(verb, Body::empty())).await.unwrap();
        Ok(response.into_body().collect().await?.to_bytes())
    }

    pub(crate) fn built(&self) -> usize {
        self.nodes.iter().map(|node| node.built()).sum()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop.stop();
        for node in &self.nodes {
            node.halt();
        }
    }
}

async fn boot(env: &Env, config: &Config) -> (String, Shutdown) {
    // The one before may be about to give its database back.
    let mut parts = Parts::open(env, config);
    for _ in 0..200 {
        if parts.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        parts = Parts::open(env, config);
    }
    let mut parts = parts.unwrap();
    let (ready, address) = tokio::sync::oneshot::channel();
    parts.ready = Some(ready);
    let stop = Shutdown::new();
    let running = run(env.clone(), config.clone(), parts, stop.clone());
    env.spawn("gateway", async move { running.await.unwrap() });
    (format!("http://{}", address.await.unwrap()), stop)
}

/// Waits for what other tasks bring about.
pub(crate) async fn eventually(what: &str, check: impl Fn() -> bool) {
    until(what, async || check()).await;
}

/// The same, of what has to be asked.
pub(crate) async fn until(what: &str, mut check: impl AsyncFnMut() -> bool) {
    for _ in 0..1000 {
        if check().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never: {what}");
}
