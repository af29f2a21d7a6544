//! The parts put together, from start to end.

use std::{io, sync::Arc};

use camino::Utf8PathBuf;
use drowse_shared::{
    api::nodes::Build,
    db,
    http::{Limits, serve},
    id::SpaceId,
    lock::{self, SingleWriter},
    name::SpaceRef,
    seams::{Counts, Env},
    shutdown::{GRACE, Shutdown},
    slots::{QUEUE_MAX, Slots},
    supervisor::Supervisor,
    throttle::Throttle,
    watchdog::Watchdog,
};
use tokio::sync::{Semaphore, oneshot};

use crate::{
    Config,
    budget::Budget,
    db::Store,
    door::{self, acquire::flight::Flights, ask::Asks, room::Room},
    find::{Finder, share::Share},
    fleet::{Fleet, announce},
    forward::{http::Nodes, peer::Peers, sign::Signs},
    metrics::Metrics,
};

/// Most names that are looked for or built at once.
const CREATES_MAX: usize = 1024;
/// How many of those who want one space are sent to its node at a time. Well within a node's queue for one space, and what a
/// pool of connections keeps.
const CROWD_WIDTH: usize = 64;
/// Most who fetch the release at once: nodes take it one after another.
const RELEASES_MAX: usize = 4;
/// Most lists under way at once.
const LISTS_MAX: usize = 16;
/// Most that wait.
const LISTS_WAITING_MAX: usize = 256;
/// Most who wait: for one space that is known, and for all together that are being built.
const CROWD_MAX: usize = 16_384;

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another one runs on the database.
    #[error(transparent)]
    Lock(#[from] lock::Error),
    /// The database.
    #[error(transparent)]
    Db(#[from] db::Error),
    /// The state directory.
    #[error("the state directory {path} cannot be made; set DROWSE_STATE to a directory this user can write")]
    State {
        /// Which.
        path: camino::Utf8PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The address.
    #[error("{address} cannot be listened on; set DROWSE_GATEWAY_LISTEN to a free address of this machine")]
    Listen {
        /// Which.
        address: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What a gateway works on besides its settings.
pub struct Parts {
    /// Its database.
    pub db: Store,
    /// Keeps a second gateway off it.
    pub lock: Option<SingleWriter>,
    /// Is told the address once it is bound.
    pub ready: Option<oneshot::Sender<String>>,
    /// Who started it.
    pub supervisor: Supervisor,
}

impl Parts {
    /// Opens the database in the state directory.
    ///
    /// # Errors
    /// When another gateway runs on it, or it cannot be opened or is of a newer version.
    pub fn open(env: &Env, config: &Config) -> Result<Self, Error> {
        fs_err::create_dir_all(&config.state)
            .map_err(|source| Error::State { path: config.state.clone(), source })?;
        let path = config.state.join(crate::db::FILE);
        let lock = SingleWriter::acquire(&path, "DROWSE_STATE")?;
        Ok(Self {
            db: Store::open(env, &path)?,
            lock: Some(lock),
            ready: None,
            supervisor: Supervisor::default(),
        })
    }

    /// Uses a connection that is already open, as a simulation does.
    ///
    /// # Errors
    /// When it cannot be brought to this version's shape.
    pub fn over(env: &Env, connection: rusqlite::Connection) -> Result<Self, Error> {
        let db = Store::over(env, connection)?;
        Ok(Self { db, lock: None, ready: None, supervisor: Supervisor::default() })
    }
}

/// Everything a request may need.
pub(crate) struct Gateway {
    /// The outside.
    pub(crate) env: Env,
    /// Which build this is.
    pub(crate) build: Build,
    /// Where its programs are, and the release that nodes may take.
    pub(crate) release: Option<Utf8PathBuf>,
    /// How many fetch it at a time.
    pub(crate) releases: Arc<Semaphore>,
    /// Under which spaces have hosts.
    pub(crate) domain: Option<String>,
    /// The fleet token.
    pub(crate) token: drowse_shared::token::Token,
    /// Which nodes there are, and their doors.
    pub(crate) nodes: Nodes,
    /// Which of them holds a space.
    pub(crate) finder: Arc<Finder>,
    /// One create or destroy of a name at a time.
    pub(crate) slots: Slots<SpaceRef>,
    /// Names that are looked for or built, and who waits for them.
    pub(crate) creates: Arc<Flights>,
    /// Who wants one space: a few at a time go to its node.
    pub(crate) crowds: Slots<SpaceId>,
    /// Requests that may be at nodes at a time.
    pub(crate) budget: Budget,
    /// For what callers send.
    pub(crate) room: Room,
    /// Lists under way: each holds a page of every node.
    pub(crate) lists: Share,
    /// Names a proxy asked about.
    pub(crate) asks: Asks,
    /// How many refusals are written down.
    pub(crate) lines: Throttle,
    /// Counters.
    pub(crate) metrics: Arc<Metrics>,
    /// What is open.
    pub(crate) counts: Counts,
    /// How long clients are waited for.
    pub(crate) limits: Limits,
    /// Notices loops that stand still.
    pub(crate) watchdog: Watchdog,
    /// Whether to go on.
    pub(crate) shutdown: Shutdown,
}

impl Gateway {
    /// What is kept in memory or waits, and how much of it.
    pub(crate) fn tables(&self) -> Vec<(&'static str, usize)> {
        let find = self.finder.sizes();
        let (creates, waiters) = self.creates.sizes();
        vec![
            ("cache", find.cache),
            ("reads", find.reads.0),
            ("reads_waiting", find.reads.1),
            ("suspects", find.suspects),
            ("lookups_strangers", find.strangers.0),
            ("lookups_strangers_waiting", find.strangers.1),
            ("lookups_known", find.known.0),
            ("lookups_known_waiting", find.known.1),
            ("creates", creates),
            ("creates_waiting", waiters),
            ("crowds", self.crowds.len()),
            ("crowds_waiting", self.crowds.waiting()),
            ("forwards", self.budget.forwards.saturating_sub(self.nodes.places.available_permits())),
            ("apps", self.budget.apps.saturating_sub(self.nodes.app_places.available_permits())),
            ("bodies_kib", self.room.used_kib()),
            ("lists", self.lists.out()),
            ("lists_waiting", self.lists.waiting()),
            ("asks", self.asks.len()),
            ("slots", self.slots.len()),
            ("slots_waiting", self.slots.waiting()),
        ]
    }
}

/// Runs a gateway until `shutdown`.
///
/// # Errors
/// When it cannot start.
pub async fn run(env: Env, config: Config, parts: Parts, shutdown: Shutdown) -> Result<(), Error> {
    let Parts { db, lock, ready, supervisor } = parts;
    let (env, counts) = env.counted();
    let db = db.through(&env);
    let fleet =
        Arc::new(Fleet::open(&env, db.clone(), config.gates, config.new_fleet, config.build.clone()).await?);
    let peers = Arc::new(Peers::new(&env, config.limits, config.token.clone(), &fleet));
    let metrics = Arc::new(Metrics::default());
    // A lookup is a caller's: it waits as what is sent on does.
    let doors = Arc::new(peers.patiently());
    let finder = Finder::new(&env, fleet.clone(), doors, metrics.clone(), config.find, config.budget);
    let listener = env
        .net
        .bind(&config.listen)
        .await
        .map_err(|source| Error::Listen { address: config.listen.clone(), source })?;
    let address = listener.local();
    tracing::info!(address, "listening");
    let watchdog = Watchdog::default();
    env.spawn("watchdog", watchdog.clone().run(shutdown.clone()));
    supervisor.serves(format!("serves at {address}"));
    env.spawn("supervisor", supervisor.attend(watchdog.clone(), shutdown.clone()));
    if let Some(ready) = ready {
        // Nobody may be waiting for it.
        let _ = ready.send(address);
    }
    let pulse = watchdog.watch("database", db::TURN);
    let probed = move || {
        let db = db.clone();
        async move { db.probe().await }
    };
    env.spawn("database", db::watch(probed, pulse, shutdown.clone()));
    let pulse = watchdog.watch("announce", announce::ROUND);
    env.spawn("announce", announce::run(fleet.clone(), peers.clone(), shutdown.clone(), pulse));
    let gateway = Arc::new(Gateway {
        env: env.clone(),
        build: config.build,
        release: config.release,
        releases: Arc::new(Semaphore::new(RELEASES_MAX)),
        domain: config.domain,
        token: config.token,
        nodes: Nodes {
            fleet,
            peers,
            answer_timeout: config.answer_timeout,
            places: Arc::new(Semaphore::new(config.budget.forwards)),
            app_places: Arc::new(Semaphore::new(config.budget.apps)),
            signs: Signs::default(),
        },
        budget: config.budget,
        room: Room::default(),
        lists: Share::new(LISTS_MAX, LISTS_WAITING_MAX),
        finder,
        slots: Slots::new(QUEUE_MAX),
        creates: Flights::new(CREATES_MAX, CROWD_MAX),
        crowds: Slots::wide(CROWD_WIDTH, CROWD_MAX),
        asks: Asks::default(),
        lines: Throttle::default(),
        metrics,
        counts,
        limits: config.limits,
        watchdog,
        shutdown: shutdown.clone(),
    });
    let ended = gateway.metrics.clone();
    serve(env, listener, door::router(gateway), config.limits, shutdown.clone()).await;
    if !shutdown.finish(GRACE).await {
        tracing::warn!(
            grace_seconds = GRACE.as_secs(),
            "requests still ran when the grace was over; they were cut"
        );
    }
    let tunnels = ended.tunnels();
    if !tunnels.is_empty() {
        tracing::info!(tunnels, "tunnels that ended in this life, by how");
    }
    drop(lock);
    Ok(())
}
