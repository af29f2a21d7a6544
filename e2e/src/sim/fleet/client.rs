use std::time::Duration;

use axum::body::{Body, to_bytes};
use drowse_shared::{
    api::spaces::Acquired,
    http::{HttpClient, Limits, client, why},
    seams::Env,
    token::Token,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{Fleet, laws::Answer, plan::Action};
use crate::sim::{Chance, Kind};

/// What a call may take on top of what it asks for, as docs/api.md#deadlines promises.
const DEADLINE: Duration = Duration::from_secs(120);
/// What the network may take of it, before the first byte and after the last.
const WIRE: Duration = Duration::from_secs(5);
/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// After this time whoever asked for `body` was told something.
fn promised(body: &Value) -> Duration {
    let asked = ["timeoutSeconds", "waitSeconds"].iter().filter_map(|field| body[field].as_u64()).sum();
    DEADLINE + Duration::from_secs(asked) + WIRE
}

/// Somebody who uses the fleet from a host of their own.
pub struct Client {
    fleet: Fleet,
    me: String,
    env: Env,
    http: HttpClient<Body>,
}

/// How a call ended.
#[derive(Debug, Clone)]
pub enum Ended {
    /// An answer.
    Told(Answer),
    /// The connection broke.
    Broke(String),
    /// The caller left.
    Left,
}

impl Client {
    /// On the host `me`, whose seams are `env`.
    pub fn new(fleet: &Fleet, me: &str, env: &Env) -> Self {
        Self {
            fleet: fleet.clone(),
            me: me.to_owned(),
            env: env.clone(),
            http: client(env, Limits::default()),
        }
    }

    /// One verb about one name, at one gateway. A caller without patience leaves.
    pub async fn call(
        &self,
        gateway: &str,
        verb: &'static str,
        name: &str,
        body: &Value,
        patience: Option<Duration>,
    ) -> Ended {
        let (world, laws) = (&self.fleet.world, &self.fleet.laws);
        let wish = laws.asks(verb, name, body);
        world.tell(Kind::Asked, format!("{} asks {gateway}: {verb} {name}", self.me));
        let life = world.life_of(gateway);
        let at = format!("{gateway}:{}", super::GATEWAY_PORT);
        let asked = send(&self.http, &self.fleet.token, &at, verb, body);
        let promised = promised(body);
        let ended = match timeout(patience.unwrap_or(promised), asked).await {
            Ok(Ok(answer)) => Ended::Told(answer),
            Ok(Err(broke)) => Ended::Broke(broke),
            Err(_) => Ended::Left,
        };
        let brief = match &ended {
            Ended::Told(answer) => format!("{} {}", answer.status, brief(&answer.body)),
            Ended::Broke(why) => format!("broke: {why}"),
            Ended::Left => "left".to_owned(),
        };
        world.tell(Kind::Told, format!("{}: {verb} {name} at {gateway} -> {brief}", self.me));
        match &ended {
            Ended::Told(answer) => laws.told(wish, answer),
            Ended::Left if patience.is_none() && world.life_of(gateway) == life => {
                world.fail(&format!("law 6: {}: {verb} {name} got no answer in {promised:?}", self.me));
            }
            _ => {}
        }
        ended
    }

    /// One of the gateways.
    pub(super) fn any_gateway(&self) -> &'static str {
        self.fleet.world.draw(Chance::Whim, &self.me, |rng| *rng.pick(self.fleet.gateways))
    }

    /// Simulated time.
    pub(super) fn elapsed(&self) -> Duration {
        self.fleet.world.elapsed()
    }

    /// Says that a promise is broken.
    pub(super) fn fail(&self, what: &str) {
        self.fleet.world.fail(what);
    }

    /// Asks what a plan says, one thing after the other, and leaves early where it says so.
    pub async fn live(&self, actions: Vec<Action>) {
        let began = Instant::now();
        for Action { at_ms, gateway, verb, name, leaves_after_ms, .. } in actions {
            sleep_until(began + Duration::from_millis(at_ms)).await;
            let (verb, body) = verb.call(&name, &format!("{} at {at_ms}", self.me));
            self.call(&gateway, verb, &name, &body, leaves_after_ms.map(Duration::from_millis)).await;
        }
    }

    /// Acquires a name once nothing is broken any more. Law 6: that works, soon.
    pub async fn insist(&self, name: &str, within: Duration) -> Option<Acquired> {
        let start = self.fleet.world.elapsed();
        let mut last = None;
        while self.fleet.world.elapsed() - start < within {
            let ended =
                self.call(self.any_gateway(), "acquireSpace", name, &json!({ "name": name }), None).await;
            if let Ended::Told(Answer { status: 200, body, .. }) = &ended {
                return serde_json::from_value(body.clone()).ok();
            }
            last = Some(ended);
            let pause = self.env.random_u64() % 1000;
            sleep(Duration::from_millis(500 + pause)).await;
        }
        self.fleet
            .world
            .fail(&format!("law 6: {name} cannot be acquired {within:?} after the last fault: {last:?}"));
        None
    }
}

/// One verb at one door.
///
/// # Errors
/// Why no answer came, in words.
pub(super) async fn send(
    http: &HttpClient<Body>,
    token: &Token,
    at: &str,
    verb: &str,
    body: &Value,
) -> Result<Answer, String> {
    let request = http::Request::post(format!("http://{at}/{verb}"))
        .header(http::header::AUTHORIZATION, token.bearer())
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.to_string()))
        .map_err(|error| error.to_string())?;
    let response = http.request(request).await.map_err(|error| why(&error))?;
    let status = response.status().as_u16();
    let says_when = response.headers().contains_key(http::header::RETRY_AFTER);
    let body = Body::new(response.into_body());
    let bytes = to_bytes(body, ANSWER_BYTES_MAX).await.map_err(|error| why(&error))?;
    let body = serde_json::from_slice(&bytes)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
    Ok(Answer { status, says_when, body })
}

/// An answer in a few words.
pub(super) fn brief(body: &Value) -> String {
    let text = |key: &str| body.get(key).and_then(Value::as_str).map(str::to_owned);
    if let (Some(code), Some(message)) = (text("code"), text("message")) {
        return format!("{code}: {message}");
    }
    let space = body.get("space").unwrap_or(body);
    let mut out = Vec::new();
    for key in ["id", "node", "state"] {
        out.extend(space.get(key).and_then(Value::as_str).map(str::to_owned));
    }
    for key in ["created", "destroyed", "resumed", "exitCode"] {
        out.extend(body.get(key).map(|value| format!("{key}={value}")));
    }
    out.join(" ")
}
