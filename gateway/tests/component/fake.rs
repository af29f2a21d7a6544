use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Path, Request, State},
    response::{IntoResponse, Response},
    routing::post,
};
use drowse_shared::{
    api::{
        Code, Error,
        cursor::Cursor,
        headers::{CREATE, EXPECT, Expect, FORWARDED, SPACE},
        nodes::{
            Build, BundleVersion, CheckIn, CheckedIn, Disk, Intent, Lookup, LookupAnswer, Measure, Reading,
            Roster, SetAside, SetAsideBody, WIRE_VERSION,
        },
        spaces::{Key, ListSpaces, Order, Place},
    },
    http::Limits,
    id::{BootId, FleetId, LedgerId, SpaceId, Ticket},
    name::SpaceRef,
    seams::Env,
    shutdown::Shutdown,
};
use futures_util::StreamExt as _;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Notify;

/// How a node misbehaves.
#[derive(Default, Clone)]
pub(crate) struct Knobs {
    /// Lookups are answered so late.
    pub(crate) lookup_delay: Duration,
    /// Creates are answered so late.
    pub(crate) create_delay: Duration,
    /// So many creates are told that their ticket is void.
    pub(crate) void_tickets: usize,
    /// Creates are refused with this.
    pub(crate) refuse_create: Option<Code>,
    /// It answers no report.
    pub(crate) mute: bool,
    /// It says that it is removed.
    pub(crate) removed: bool,
    /// It sets nothing aside.
    pub(crate) keeps_names: bool,
    /// It sets aside, and nobody hears of it.
    pub(crate) loses_answers: bool,
}

pub(crate) struct Fake {
    pub(crate) id: String,
    pub(crate) ledger: LedgerId,
    boot: BootId,
    pub(crate) endpoint: String,
    pub(crate) knobs: Mutex<Knobs>,
    pub(crate) spaces: Mutex<BTreeMap<String, SpaceId>>,
    pub(crate) calls: Mutex<Vec<String>>,
    pub(crate) roster: Mutex<Option<Roster>>,
    pub(crate) bundle: Mutex<Option<BundleVersion>>,
    pub(crate) reading: Mutex<Reading>,
    pub(crate) interval: Duration,
    pub(crate) built: Mutex<usize>,
    pub(crate) create_arrived: Notify,
    tickets: Mutex<BTreeMap<String, Ticket>>,
    cut: Mutex<BTreeSet<String>>,
    stop: Shutdown,
    /// Told once its port is free.
    ended: Shutdown,
    env: Env,
}

impl Fake {
    pub(crate) async fn start(env: &Env, id: &str, interval: Duration) -> Arc<Self> {
        let listener = env.net.bind("127.0.0.1:0").await.unwrap();
        Self::on(env, id, interval, format!("http://{}", listener.local()), listener)
    }

    fn on(
        env: &Env,
        id: &str,
        interval: Duration,
        endpoint: String,
        listener: Box<dyn drowse_shared::seams::Accept>,
    ) -> Arc<Self> {
        let node = Arc::new(Self {
            id: id.to_owned(),
            ledger: LedgerId::mint(env),
            boot: BootId::mint(env),
            endpoint,
            knobs: Mutex::default(),
            spaces: Mutex::default(),
            calls: Mutex::default(),
            roster: Mutex::default(),
            bundle: Mutex::default(),
            reading: Mutex::new(Reading {
                cores: 2,
                cpu_percent: Some(1.0),
                memory_total_bytes: 8 << 30,
                memory_available_bytes: 4 << 30,
                swap_total_bytes: 0,
                swap_used_bytes: 0,
                disk: Some(Disk { total_bytes: 1 << 40, available_bytes: 1 << 39 }),
                spaces: BTreeMap::new(),
            }),
            interval,
            built: Mutex::default(),
            create_arrived: Notify::new(),
            tickets: Mutex::default(),
            cut: Mutex::default(),
            stop: Shutdown::new(),
            ended: Shutdown::new(),
            env: env.clone(),
        });
        let app = Router::new()
            .route("/lookup", post(lookup))
            .route("/report", post(report))
            .route("/listSpaces", post(list))
            .route("/measure", post(measure))
            .route("/setAside", post(set_aside))
            .route("/{verb}", post(verb))
            .with_state(node.clone());
        let served =
            drowse_shared::http::serve(env.clone(), listener, app, Limits::default(), node.stop.clone());
        let ended = node.ended.clone();
        env.spawn("fake", async move {
            served.await;
            ended.stop();
        });
        node
    }

    /// The port is refused from now on.
    pub(crate) async fn die(&self) {
        self.stop.finish(Duration::ZERO).await;
        self.ended.stopping().await;
    }

    /// Takes no more work; what runs ends by itself.
    pub(crate) fn halt(&self) {
        self.stop.stop();
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Knobs)) {
        change(&mut self.knobs.lock().unwrap());
    }

    /// Puts a space there behind the gateway's back.
    pub(crate) fn hold(&self, name: &str) -> SpaceId {
        let id = SpaceId::mint(&self.env);
        self.spaces.lock().unwrap().insert(name.to_owned(), id);
        id
    }

    pub(crate) fn drop_space(&self, name: &str) {
        self.spaces.lock().unwrap().remove(name);
    }

    pub(crate) fn count(&self, call: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|c| c.as_str() == call).count()
    }

    pub(crate) fn built(&self) -> usize {
        *self.built.lock().unwrap()
    }

    pub(crate) fn says(&self) -> CheckIn {
        CheckIn {
            node_id: self.id.parse().unwrap(),
            ledger_id: self.ledger,
            boot: self.boot,
            endpoint: self.endpoint.clone(),
            region: None,
            build: Build::unreleased(),
            wire_min: WIRE_VERSION,
            wire_max: WIRE_VERSION,
            interval_ms: u64::try_from(self.interval.as_millis()).unwrap(),
            reading: Some(self.reading.lock().unwrap().clone()),
            bundle: *self.bundle.lock().unwrap(),
            bundle_copy: None,
            draining: false,
            roster: self.roster.lock().unwrap().as_ref().map(Roster::identity),
            roster_copy: None,
            removed: self.knobs.lock().unwrap().removed,
            upgrade: None,
        }
    }

    /// The same, with the roster it keeps.
    pub(crate) fn says_all(&self) -> CheckIn {
        let roster_copy = self.roster.lock().unwrap().clone();
        CheckIn { roster_copy, ..self.says() }
    }

    pub(crate) fn hears(&self, answer: &CheckedIn) {
        if let Some(roster) = &answer.roster {
            *self.roster.lock().unwrap() = Some(roster.clone());
        }
        if let Some(bundle) = &answer.bundle {
            *self.bundle.lock().unwrap() =
                Some(BundleVersion { authority_id: bundle.authority_id, version: bundle.version });
        }
    }

    fn space(&self, name: &str, id: SpaceId) -> Value {
        json!({ "id": id, "name": name, "state": "active", "node": self.id, "epoch": 1,
            "createdAt": "2026-01-01T00:00:00Z", "lastActiveAt": "2026-01-01T00:00:00Z",
            "policy": { "freezeAfterSeconds": 1, "stopAfterSeconds": 2, "hibernateAfterSeconds": 3 },
            "spec": { "cpus": 1.0, "memoryBytes": 1, "diskBytes": 1, "pids": 1 },
            "template": { "name": "base", "digest": "d" }, "metadata": {} })
    }

    fn find(&self, space: &SpaceRef) -> Option<(String, SpaceId)> {
        let spaces = self.spaces.lock().unwrap();
        let found = spaces.iter().find(|(name, id)| match space {
            SpaceRef::Name(n) => n.as_str() == name.as_str(),
            SpaceRef::Id(i) => i == *id,
        });
        found.map(|(name, id)| (name.clone(), *id))
    }
}

async fn lookup(State(node): State<Arc<Fake>>, Json(ask): Json<Lookup>) -> Result<Json<LookupAnswer>, Error> {
    node.calls.lock().unwrap().push(format!("lookup {:?}", ask.intent));
    let delay = node.knobs.lock().unwrap().lookup_delay;
    tokio::time::sleep(delay).await;
    Ok(Json(match node.find(&ask.space) {
        Some((name, id)) => serde_json::from_value(
            json!({ "answer": "yes", "id": id, "name": name, "state": "active", "epoch": 1, "holding": "home" }),
        )
        .unwrap(),
        None if ask.ledger_id.is_some_and(|asked| asked != node.ledger) => {
            return Err(Error::new(Code::NodeTwin, "another ledger has this address now"));
        }
        None if ask.ticket.is_some() => {
            let newest = node.tickets.lock().unwrap().get(&ask.space.to_string()).copied();
            LookupAnswer::No { ticket: newest.filter(|newest| Some(*newest) == ask.ticket) }
        }
        None if ask.intent == Intent::Create => {
            let ticket = Ticket::mint(&node.env);
            node.tickets.lock().unwrap().insert(ask.space.to_string(), ticket);
            LookupAnswer::No { ticket: Some(ticket) }
        }
        None => LookupAnswer::No { ticket: None },
    }))
}

async fn report(State(node): State<Arc<Fake>>, Json(ask): Json<Value>) -> Json<CheckIn> {
    node.calls.lock().unwrap().push("report".into());
    if node.knobs.lock().unwrap().mute {
        std::future::pending::<()>().await;
    }
    if let Ok(roster) = serde_json::from_value::<Roster>(ask["roster"].clone()) {
        *node.roster.lock().unwrap() = Some(roster);
    }
    Json(if ask["wantRoster"] == true { node.says_all() } else { node.says() })
}

async fn list(State(node): State<Arc<Fake>>, Json(ask): Json<ListSpaces>) -> Json<Value> {
    let spaces = node.spaces.lock().unwrap().clone();
    let after = ask.cursor.map(|cursor| cursor.place().key.to_string()).unwrap_or_default();
    let limit = ask.limit.unwrap_or(100) as usize;
    let page: Vec<_> = spaces.iter().filter(|(name, _)| **name > after).collect();
    let cursor = (page.len() > limit).then(|| {
        let (name, id) = page[limit - 1];
        Cursor::after(Order::Asc, Place { key: Key::Name(name.parse().unwrap()), id: *id })
    });
    let spaces: Vec<Value> = page.iter().take(limit).map(|(name, id)| node.space(name, **id)).collect();
    Json(json!({ "spaces": spaces, "nextCursor": cursor, "silent": [] }))
}

async fn measure(State(node): State<Arc<Fake>>, Json(ask): Json<Measure>) -> Result<Json<Value>, Error> {
    let (name, id) =
        node.find(&SpaceRef::Id(ask.id)).ok_or_else(|| Error::new(Code::SpaceNotFound, "none"))?;
    Ok(Json(json!({ "space": node.space(&name, id), "diskBytes": 4096 })))
}

async fn set_aside(
    State(node): State<Arc<Fake>>,
    Json(wish): Json<SetAside>,
) -> Result<Json<SetAsideBody>, Error> {
    node.calls.lock().unwrap().push("setAside".into());
    if node.knobs.lock().unwrap().keeps_names {
        return Err(Error::new(Code::RuntimeFailed, "wedged"));
    }
    assert_eq!(wish.ledger_id, node.ledger);
    let name = wish.name.aside(wish.id);
    let mut spaces = node.spaces.lock().unwrap();
    spaces.remove(wish.name.as_str());
    spaces.insert(name.to_string(), wish.id);
    if node.knobs.lock().unwrap().loses_answers {
        return Err(Error::new(Code::RuntimeFailed, "its card could not be written"));
    }
    Ok(Json(SetAsideBody { was: wish.name, name, node: node.id.parse().unwrap(), id: wish.id }))
}

/// Counts a request that was dropped before it was answered.
struct Watched<'a>(&'a Fake, &'a str, bool);

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if !self.2 {
            self.0.cut.lock().unwrap().insert(self.1.to_owned());
        }
    }
}

impl Fake {
    pub(crate) fn was_cut(&self, verb: &str) -> bool {
        self.cut.lock().unwrap().contains(verb)
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|v| v.to_str().ok())
}

async fn verb(
    State(node): State<Arc<Fake>>,
    Path(verb): Path<String>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    node.calls.lock().unwrap().push(verb.clone());
    let mut watched = Watched(&node, &verb, false);
    assert_eq!(header(&parts.headers, FORWARDED), Some("1"));
    let space = header(&parts.headers, SPACE).unwrap();
    let space: SpaceRef = percent_encoding::percent_decode_str(space).decode_utf8().unwrap().parse().unwrap();
    let found = node.find(&space);
    if let Some(expect) = header(&parts.headers, EXPECT) {
        let expect: Expect = expect.parse().unwrap();
        let mine = found.as_ref().is_some_and(|(_, id)| expect.id.is_none_or(|expected| expected == *id));
        if !mine {
            watched.2 = true;
            return Err(Error::new(Code::NotMine, "not mine"));
        }
    }
    let answer = match verb.as_str() {
        "acquireSpace" => acquire(&node, &parts.headers, &space, found).await,
        "destroySpace" => {
            let name = found.map(|(name, _)| name);
            let destroyed = name.is_some_and(|name| node.spaces.lock().unwrap().remove(&name).is_some());
            Ok(Json(json!({ "destroyed": destroyed })).into_response())
        }
        "writeFile" => {
            let mut bytes = 0;
            let mut body = body.into_data_stream();
            while let Some(chunk) = body.next().await {
                bytes += chunk.unwrap().len();
            }
            Ok(Json(json!({ "bytes": bytes })).into_response())
        }
        "readFile" if parts.uri.query().is_some_and(|query| query.contains("stalls")) => {
            let first = futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"x"))]);
            Ok(Body::from_stream(first.chain(futures_util::stream::pending())).into_response())
        }
        "readFile" => {
            let endless = futures_util::stream::unfold(0_u64, |n| async move {
                if n > 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Some((Ok::<_, std::io::Error>(Bytes::from_static(b"0123456789")), n + 1))
            });
            Ok(Body::from_stream(endless).into_response())
        }
        "execCommand" => {
            tokio::time::sleep(Duration::from_secs(30)).await;
            Ok(Json(json!({})).into_response())
        }
        _ => Ok(Json(json!({ "on": node.id, "headers": format!("{:?}", parts.headers) })).into_response()),
    };
    watched.2 = true;
    answer
}

async fn acquire(
    node: &Fake,
    headers: &HeaderMap,
    space: &SpaceRef,
    found: Option<(String, SpaceId)>,
) -> Result<Response, Error> {
    if let Some((name, id)) = found {
        return Ok(Json(json!({ "space": node.space(&name, id), "created": false })).into_response());
    }
    node.create_arrived.notify_one();
    let knobs = node.knobs.lock().unwrap().clone();
    tokio::time::sleep(knobs.create_delay).await;
    let quoted = header(headers, CREATE).map(str::to_owned);
    let ticket = node.tickets.lock().unwrap().remove(&space.to_string());
    if quoted != ticket.map(|t| t.to_string()) || quoted.is_none() || knobs.void_tickets > 0 {
        node.set(|knobs| knobs.void_tickets = knobs.void_tickets.saturating_sub(1));
        return Err(Error::new(Code::TicketVoid, "void"));
    }
    if let Some(code) = knobs.refuse_create {
        return Err(Error::new(code, "refused as told"));
    }
    let id = node.hold(&space.to_string());
    *node.built.lock().unwrap() += 1;
    let answer = json!({ "space": node.space(&space.to_string(), id), "created": true });
    Ok((StatusCode::OK, Json(answer)).into_response())
}

/// A roster as a node of an older fleet would bring it.
pub(crate) fn roster(fleet_id: FleetId, version: u64, nodes: &[&Fake]) -> Roster {
    let nodes = nodes.iter().map(|node| drowse_shared::api::nodes::RosterNode {
        id: node.id.parse().unwrap(),
        ledger_id: node.ledger,
        endpoint: node.endpoint.clone(),
        since_version: 1,
    });
    Roster { fleet_id, version, nodes: nodes.collect(), removed: Vec::new() }
}
