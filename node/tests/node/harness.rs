use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body};
use camino::Utf8PathBuf;
use drowse_node::{
    Config, Parts,
    config::Runs,
    door,
    executor::fake::{Fake, Machine},
    node::Node,
    reading::Still,
    service::{self, Built},
};
use drowse_shared::{
    api::{
        Code, Error,
        spaces::{Acquired, Space, State},
    },
    http::Limits,
    id::SpaceId,
    seams::Env,
    shutdown::Shutdown,
    token::Token,
};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A state directory and a machine: what outlives a daemon.
pub(crate) struct Ground {
    _dir: tempfile::TempDir,
    pub(crate) state: Utf8PathBuf,
    pub(crate) machine: Machine,
    pub(crate) gateways: Vec<String>,
    pub(crate) check_in: Duration,
    pub(crate) upgrader: Option<Utf8PathBuf>,
}

/// One life of a daemon.
pub(crate) struct Life {
    pub(crate) node: Arc<Node>,
    pub(crate) router: Router,
    pub(crate) shutdown: Shutdown,
}

/// What was answered.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) bytes: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    #[track_caller]
    pub(crate) fn ok<T: serde::de::DeserializeOwned>(&self) -> T {
        assert_eq!(self.status, 200, "{}", self.text());
        serde_json::from_value(self.json()).expect("the shape of the verb")
    }

    #[track_caller]
    pub(crate) fn refused(&self, code: &Code) -> Error {
        let error: Error = serde_json::from_value(self.json()).expect("an error");
        assert_eq!((&error.code, self.status), (code, code.status()), "{}", self.text());
        error
    }
}

impl Ground {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let state = Utf8PathBuf::from_path_buf(dir.path().join("state")).expect("UTF-8");
        Self {
            _dir: dir,
            state,
            machine: Machine::default(),
            gateways: Vec::new(),
            check_in: Duration::from_secs(5),
            upgrader: None,
        }
    }

    /// Starts a daemon over what is here.
    pub(crate) async fn start(&self) -> Life {
        self.try_start().await.unwrap_or_else(|error| panic!("it starts: {error}"))
    }

    pub(crate) async fn try_start(&self) -> Result<Life, service::Error> {
        let env = Env::real();
        let config = Config {
            token: Token::checked(TOKEN, "a test").expect("long enough"),
            listen: "127.0.0.1:4676".to_owned(),
            node_id: "n1".parse().expect("an id"),
            gateways: self.gateways.clone(),
            endpoint: None,
            region: None,
            state: self.state.clone(),
            run: self.state.clone(),
            runtime: "none".to_owned(),
            cgroup_parent: "none".to_owned(),
            check_in: self.check_in,
            executor: Runs::Fake,
            templates: self.state.clone(),
            agent: "none".into(),
            limits: Limits::default(),
            agent_timeout: Duration::from_secs(40),
            starts: drowse_node::starts::Limits::default(),
            upgrader: self.upgrader.clone(),
            build: drowse_shared::api::nodes::Build::unreleased(),
        };
        let parts = Parts::over(Fake::new(&env, self.machine.clone()), Arc::new(Still::default()));
        let shutdown = Shutdown::new();
        let Built { node, left, .. } = service::build(env.clone(), config, parts, shutdown.clone()).await?;
        env.spawn("tend", drowse_node::lifecycle::reconcile::tend(node.clone(), left));
        env.spawn("keys", drowse_node::exec::keyed::tend(node.clone()));
        env.spawn("idle", drowse_node::lifecycle::idle::run(node.clone()));
        Ok(Life { router: door::router(node.clone()), node, shutdown })
    }
}

impl Life {
    /// The process is killed: nothing is finished, only the lock is given back.
    pub(crate) async fn crash(self) {
        let node = Arc::downgrade(&self.node);
        self.shutdown.stop();
        drop((self.node, self.router));
        eventually("the old life is gone", || async { node.strong_count() == 0 }).await;
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.expect("infallible");
        let status = response.status();
        let bytes = response.into_body().collect().await.expect("a whole answer").to_bytes().to_vec();
        Reply { status, bytes }
    }

    pub(crate) fn request(&self, target: &str) -> http::request::Builder {
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        Request::post(target).header("authorization", format!("Bearer {TOKEN}"))
    }

    pub(crate) async fn raw(&self, target: &str, body: impl Into<Body>) -> Reply {
        self.send(self.request(target).body(body.into()).expect("a request")).await
    }

    pub(crate) async fn call(&self, verb: &str, body: Value) -> Reply {
        self.raw(verb, body.to_string()).await
    }

    pub(crate) async fn on(&self, verb: &str, name: &str) -> Reply {
        self.call(verb, json!({ "name": name })).await
    }

    pub(crate) async fn acquire(&self, name: &str) -> Acquired {
        self.on("acquireSpace", name).await.ok()
    }

    pub(crate) async fn get(&self, name: &str) -> Space {
        serde_json::from_value(self.on("getSpace", name).await.ok::<Value>()["space"].clone())
            .expect("a space")
    }

    pub(crate) async fn state(&self, name: &str) -> State {
        self.get(name).await.state
    }

    pub(crate) async fn exec(&self, name: &str, command: &str) -> Reply {
        self.call("execCommand", json!({ "name": name, "command": command })).await
    }

    pub(crate) async fn id(&self, name: &str) -> SpaceId {
        self.get(name).await.id
    }
}

/// Waits for something to come true, in bounded time.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    for _ in 0..1000 {
        if check().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("within 10 s: {what}");
}
