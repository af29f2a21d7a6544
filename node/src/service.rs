//! The node from start to end: lock, ledger, identity, reconcile, then the door and the check-ins.

use std::{sync::Arc, sync::Mutex};

use anyhow::Context;
use drowse_shared::{
    db,
    http::serve,
    id::{BootId, LedgerId},
    seams::{Accept, BoxFuture, Env},
    shutdown::{GRACE, Shutdown},
    slots::{QUEUE_MAX, Slots},
    supervisor::Supervisor,
    throttle::Throttle,
    watchdog::Watchdog,
};

use crate::{
    adopt::note,
    checkin,
    config::{Config, Runs},
    door::{self, metrics::Metrics},
    exec::keyed::{self, Keyed},
    executor::{
        Executor,
        fake::{Fake, Machine},
        oci::{Deadlines, Oci, OciConfig},
    },
    fleet::Fleet,
    kept::Kept,
    ledger::{self, Database, Ledger, identity},
    lifecycle::{idle, reconcile, renew},
    live::Live,
    milestone::{Milestone, Milestones, Row, unwatched},
    node::Node,
    places::Places,
    reading::{self, Gauge, Meter},
    starts::Starts,
    tickets::Tickets,
    upgrade::Upgrades,
};

/// Makes the executor once it is known whose it is.
pub type OpenExecutor =
    Box<dyn FnOnce(LedgerId) -> BoxFuture<'static, anyhow::Result<Arc<dyn Executor>>> + Send>;

/// What a node is put together from.
pub struct Parts {
    /// Where the ledger's database comes from.
    pub database: Database,
    /// Makes the executor.
    pub executor: OpenExecutor,
    /// Measures the machine.
    pub meter: Arc<dyn Meter>,
    /// Sees what is done to spaces; nobody in production.
    pub milestones: Arc<dyn Milestones>,
    /// Who started it.
    pub supervisor: Supervisor,
}

impl Parts {
    /// The machine itself, with the executor the settings name.
    ///
    /// # Errors
    /// When the machine cannot be measured.
    pub fn open(env: &Env, config: &Config) -> anyhow::Result<Self> {
        Self::watched(env, config, unwatched())
    }

    /// The same, and somebody watches.
    ///
    /// # Errors
    /// When the machine cannot be measured.
    pub fn watched(env: &Env, config: &Config, milestones: Arc<dyn Milestones>) -> anyhow::Result<Self> {
        let watching = milestones.clone();
        let meter = reading::Machine::new(config.state.clone()).context("measuring this machine")?;
        let (env, config) = (env.clone(), config.clone());
        let executor: OpenExecutor = match config.executor {
            Runs::Fake => {
                Box::new(move |_| Box::pin(async move { Ok(Fake::new(&env, Machine::default()) as _) }))
            }
            Runs::Oci => Box::new(move |ledger_id| {
                Box::pin(async move {
                    let oci = Oci::open(env, oci_config(config, ledger_id, watching)).await?;
                    Ok(Arc::new(oci) as _)
                })
            }),
        };
        let supervisor = Supervisor::default();
        Ok(Self { database: Database::File, executor, meter: Arc::new(meter), milestones, supervisor })
    }

    /// Parts over an executor that is already there.
    pub fn over(executor: Arc<dyn Executor>, meter: Arc<dyn Meter>) -> Self {
        Self {
            database: Database::File,
            executor: Box::new(|_| Box::pin(async move { Ok(executor) })),
            meter,
            milestones: unwatched(),
            supervisor: Supervisor::default(),
        }
    }
}

/// What the oci executor is told, from the settings of a node.
pub fn oci_config(config: Config, ledger_id: LedgerId, milestones: Arc<dyn Milestones>) -> OciConfig {
    OciConfig {
        runtime: config.runtime.into(),
        state: config.state,
        run: config.run,
        templates: config.templates,
        agent: config.agent,
        cgroup_parent: config.cgroup_parent,
        ledger_id,
        deadlines: Deadlines::default(),
        milestones,
    }
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    /// The spaces run elsewhere.
    #[error(transparent)]
    Copied(#[from] note::Error),
    /// The executor.
    #[error("the executor cannot be used")]
    Executor(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The address.
    #[error("{address} cannot be listened on; set DROWSE_NODE_LISTEN to a free address of this machine")]
    Listen {
        /// Which.
        address: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// A node that is put together and reconciled, and does not serve yet.
pub struct Built {
    /// The node.
    pub node: Arc<Node>,
    /// What reconcile left for later.
    pub left: reconcile::Leftovers,
    early: Option<Box<dyn Accept>>,
    supervisor: Supervisor,
}

/// Runs a node until `shutdown` says stop. Bodies go on afterwards; the next life finds them.
///
/// # Errors
/// Why it did not start.
pub async fn run(env: Env, config: Config, parts: Parts, shutdown: Shutdown) -> Result<(), Error> {
    let built = build(env, config, parts, shutdown.clone()).await?;
    let node = built.node.clone();
    serve_until_told(built).await?;
    if !shutdown.finish(GRACE).await {
        tracing::warn!("what still ran after {GRACE:?} was cut; spaces run on and are found again");
    }
    reconcile::write_activity(&node).await;
    tracing::info!("node ended; its spaces run on");
    Ok(())
}

/// Locks, opens, finds out who this node is, and brings ledger and reality together.
///
/// # Errors
/// Why it cannot start.
pub async fn build(env: Env, config: Config, parts: Parts, shutdown: Shutdown) -> Result<Built, Error> {
    let (env, counts) = env.counted();
    let (supervisor, watchdog) = (parts.supervisor, Watchdog::default());
    supervisor.starts("finding its spaces");
    env.spawn("supervisor", supervisor.clone().attend(watchdog.clone(), shutdown.clone()));
    note::refuse(&config.state, None)?;
    let ledger = Ledger::open(&env, &config.state, parts.database).await?;
    let written = identity::written(&ledger, &config.state).await?;
    let named = written.or_else(|| identity::on_disks(&config.state).into_iter().min());
    // An executor that keeps no files under the state directory is asked what its cards say.
    let provisional = named.unwrap_or_else(|| LedgerId::mint(&env));
    let executor = (parts.executor)(provisional).await.map_err(|error| Error::Executor(error.into()))?;
    let found = reconcile::survey(&*executor).await;
    let ledger_id = named.or_else(|| reconcile::identities(found.as_ref()).min()).unwrap_or(provisional);
    identity::keep(&ledger, &config.state, ledger_id).await?;
    parts.milestones.reached(Milestone::Row(Row::Identity));

    // Port 0 must be bound to be known; any other port stays closed until this node may serve.
    let early = if config.listen.ends_with(":0") { Some(bind(&env, &config).await?) } else { None };
    let endpoint = endpoint(&config, early.as_deref());
    let fleet = Fleet::load(&ledger, ledger_id, config.gateways.is_empty(), config.check_in).await?;
    let kept = Kept::load(&ledger).await?;
    let node = Arc::new(Node {
        boot: BootId::mint(&env),
        slots: Slots::new(QUEUE_MAX),
        tickets: Mutex::new(Tickets::default()),
        kept,
        live: Live::default(),
        page_outs: Arc::default(),
        places: Arc::new(Places::new(config.limits.connections_max)),
        starts: Starts::new(config.starts),
        upgrades: Arc::new(Upgrades::new(config.upgrader.clone(), &config.state)),
        keyed: Keyed::default(),
        metrics: Metrics::default(),
        lines: Throttle::default(),
        counts,
        milestones: parts.milestones,
        gauge: Gauge::new(parts.meter),
        shutdown,
        watchdog,
        env,
        endpoint,
        ledger_id,
        ledger,
        executor,
        fleet,
        config,
    });
    tracing::info!(node = %node.config.node_id, ledger = %node.ledger_id, boot = %node.boot, "node starts");
    let left = match &found {
        Some(found) => reconcile::boot(&node, found).await?,
        None => reconcile::Leftovers::default(),
    };
    Ok(Built { node, left, early, supervisor })
}

async fn serve_until_told(built: Built) -> Result<(), Error> {
    let Built { node, early, left, supervisor } = built;
    if early.is_none() {
        // A node that could not listen later must not become one of the fleet first.
        drop(bind(&node.env, &node.config).await?);
    }
    node.env.spawn("watchdog", node.watchdog.clone().run(node.shutdown.clone()));
    let ledger = node.ledger.clone();
    let probe = move || {
        let ledger = ledger.clone();
        async move { ledger.probe().await }
    };
    let pulse = node.watchdog.watch("database", db::TURN);
    node.env.spawn("database", db::watch(probe, pulse, node.shutdown.clone()));
    for gateway in node.config.gateways.clone() {
        let worker = node.clone();
        node.env.spawn("check-in", checkin::run(worker, gateway));
    }
    if !node.fleet.is_configured() {
        tracing::info!("waiting for a gateway to hand out the fleet's configuration before listening");
        supervisor.starts("waiting for a gateway to hand out the fleet's configuration");
    }
    drowse_shared::select_biased! {
        () = node.shutdown.stopping() => return Ok(()),
        () = node.fleet.configured() => {}
    }
    let listener = match early {
        Some(listener) => listener,
        None => bind(&node.env, &node.config).await?,
    };
    tracing::info!(address = listener.local(), endpoint = node.endpoint, "listening");
    supervisor.serves(format!("serves at {}", listener.local()));
    node.env.spawn("tend", reconcile::tend(node.clone(), left));
    node.env.spawn("agents", renew::run(node.clone()));
    node.env.spawn("keys", keyed::tend(node.clone()));
    node.env.spawn("idle", idle::run(node.clone()));
    let limits = node.config.limits;
    serve(node.env.clone(), listener, door::router(node.clone()), limits, node.shutdown.clone()).await;
    Ok(())
}

async fn bind(env: &Env, config: &Config) -> Result<Box<dyn Accept>, Error> {
    let address = &config.listen;
    env.net.bind(address).await.map_err(|source| Error::Listen { address: address.clone(), source })
}

/// Where gateways reach this node: as it was told, else the address it listens on.
fn endpoint(config: &Config, bound: Option<&dyn Accept>) -> String {
    config.endpoint.clone().unwrap_or_else(|| {
        let address = bound.map_or_else(|| config.listen.clone(), Accept::local);
        let address = address.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:");
        format!("http://{address}")
    })
}
