//! The production fleet in a world: gateway `g` (and `h`), nodes `n0`–`n2` over the fake executor, clients `c0`–`c3`.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use camino::Utf8PathBuf;
use drowse_node::{
    executor::{
        Executor,
        fake::{Fake, Machine},
    },
    ledger::Database,
    reading::Meter,
};
use drowse_shared::{
    api::nodes::{Disk as DiskReading, Reading},
    seams::Env,
    shutdown::Shutdown,
    token::Token,
};
use futures_util::future::join_all;
use tokio::time::sleep;

use super::{Fall, Run, Weather, World, run};

/// Faults, drawn by the seed.
mod chaos;
/// Somebody who uses the fleet.
mod client;
/// Databases that outlive daemons.
mod disk;
/// What seeds have found.
#[cfg(test)]
mod found;
/// Many seeds, one after the other.
mod hunt;
/// What must hold.
mod laws;
/// Somebody who runs the fleet.
mod operator;
/// What a run will do.
pub mod plan;
/// Spaces that nobody uses any more.
mod quiet;
/// Runs about one moment.
mod scenes;
/// Makes a failing plan small.
pub mod shrink;
/// What the wire shows of who is a member.
mod standing;
/// What the wire shows of tickets.
mod tap;
/// What a machine's disk has not taken yet.
mod unsynced;
/// What one hears on the wire.
mod wire;
/// The machine as the laws see it.
mod witness;

pub use client::{Client, Ended};
pub use disk::Disk;
pub use hunt::failing_seeds;
pub use laws::{Answer, Laws};
use operator::OPERATOR;
pub use plan::Plan;
pub use scenes::{crosswise, fall_at, known_too_late};
use unsynced::Unsynced;
use witness::Witness;

/// The hosts of the gateways.
pub const GATEWAYS: [&str; 2] = ["g", "h"];
/// Where gateways listen.
const GATEWAY_PORT: u16 = 4677;
/// The hosts and ids of the nodes.
pub const NODES: [&str; 4] = ["n0", "n1", "n2", JOINER];
/// The node that is not there from the start.
const JOINER: &str = "n3";
/// The hosts of the clients.
pub const CLIENTS: [&str; 4] = ["c0", "c1", "c2", "c3"];
/// The names clients use.
const NAMES: [&str; 6] = ["ada", "bob", "cyd", "dan", "eve", "fay"];
/// How long a fleet is left alone with each of its gateways before trouble begins.
const GATHERS: Duration = Duration::from_secs(40);
/// How soon everything works again once nothing is broken.
const RECOVERY: Duration = Duration::from_secs(120);
/// Two check-ins of a node, as they are by default.
const TWO_CHECK_INS: Duration = Duration::from_secs(10);

/// A node's machine and its disks: they outlive the daemon.
struct Node {
    machine: Machine,
    unsynced: Unsynced,
    ledger: Disk,
    state: Utf8PathBuf,
}

/// Production gateway and nodes in a world.
#[derive(Clone)]
pub struct Fleet {
    /// Where it lives.
    pub world: World,
    /// What is known of it.
    pub laws: Laws,
    token: Token,
    gateways: &'static [&'static str],
    databases: Arc<BTreeMap<&'static str, Disk>>,
    /// One call into a runtime in so many fails.
    runtime_fails_one_in: Arc<AtomicU64>,
    nodes: Arc<BTreeMap<&'static str, Node>>,
    /// The nodes that are there from the start.
    starts: &'static [&'static str],
    _home: Arc<tempfile::TempDir>,
}

/// A machine with room for everything.
struct Roomy;

impl Meter for Roomy {
    fn measure(&self) -> Reading {
        Reading {
            cores: 4,
            cpu_percent: Some(5.0),
            memory_total_bytes: 16 << 30,
            memory_available_bytes: 12 << 30,
            swap_total_bytes: 0,
            swap_used_bytes: 0,
            disk: Some(DiskReading { total_bytes: 1 << 40, available_bytes: 1 << 39 }),
            spaces: BTreeMap::new(),
        }
    }
}

impl Fleet {
    /// Every host down, every disk empty.
    pub fn new(world: &World, gateways: &'static [&'static str], nodes: &'static [&'static str]) -> Self {
        // In memory where that is possible: nothing of it has to outlast the run.
        let home = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let home = home.expect("a directory for what daemons keep");
        let path = Utf8PathBuf::from_path_buf(home.path().to_owned()).expect("temporary paths are UTF-8");
        world.set_home(path.as_str());
        let disk = |host: &str, database| Disk::new(path.join(host).as_std_path(), database);
        let node = |name: &str| Node {
            machine: Machine::default(),
            unsynced: Unsynced::default(),
            ledger: disk(name, "ledger.db"),
            state: path.join(name),
        };
        Self {
            world: world.clone(),
            laws: Laws::new(world),
            token: Token::checked("0123456789abcdef0123456789abcdef", "the simulation").expect("long enough"),
            gateways,
            databases: Arc::new(gateways.iter().map(|name| (*name, disk(name, "gateway.db"))).collect()),
            runtime_fails_one_in: Arc::default(),
            nodes: Arc::new(NODES.iter().map(|name| (*name, node(name))).collect()),
            starts: nodes,
            _home: Arc::new(home),
        }
    }

    /// Starts the daemons and the clients' hosts, and waits until the fleet is whole.
    pub async fn start(&self) {
        for name in self.starts {
            self.start_node(name);
        }
        for name in CLIENTS.into_iter().chain([OPERATOR]) {
            self.world.host(name, |_| async {});
        }
        for name in self.gateways {
            let fleet = self.clone();
            self.world.host(name, move |env| fleet.clone().gateway(env, name));
            // Every node has to know of every other before the first database is lost, and a second gateway joins the
            // fleet that the first one founded.
            sleep(GATHERS).await;
        }
    }

    /// Starts a node for the first time.
    fn start_node(&self, name: &'static str) {
        let fleet = self.clone();
        self.world.host(name, move |env| fleet.clone().node(env, name));
    }

    async fn gateway(self, env: Env, name: &'static str) {
        let Some(database) = self.databases.get(name) else { return };
        if self.world.rose_from(name) == Some(Fall::Power) {
            database.power_lost(&self.world, name);
        }
        let mut config = drowse_gateway::Config::with_defaults(self.token.clone());
        config.listen = format!("{name}:{GATEWAY_PORT}");
        // What an operator says once, when there is nothing yet.
        config.new_fleet = self.gateways.first() == Some(&name) && self.world.life_of(name) == 1;
        let parts = drowse_gateway::Parts::over(&env, database.open());
        let parts = match parts {
            Ok(parts) => parts,
            Err(error) => return self.world.fail(&format!("{name} does not open its database: {error}")),
        };
        if let Err(error) = drowse_gateway::run(env, config, parts, Shutdown::new()).await {
            self.world.fail(&format!("{name} does not start: {error}"));
        }
    }

    async fn node(self, env: Env, name: &'static str) {
        let Some(node) = self.nodes.get(name) else { return };
        let Some(pulse) = self.world.pulse(name) else { return };
        if self.world.rose_from(name) == Some(Fall::Power) {
            node.machine.reboot();
            node.unsynced.power_lost(name, &node.machine, &self.world, &self.laws);
            node.ledger.power_lost(&self.world, name);
        }
        let config = drowse_node::Config {
            token: self.token.clone(),
            listen: format!("{name}:4676"),
            node_id: name.parse().expect("a node id"),
            gateways: self.gateways.iter().map(|g| format!("http://{g}:{GATEWAY_PORT}")).collect(),
            endpoint: Some(format!("http://{name}:4676")),
            region: None,
            state: node.state.clone(),
            run: node.state.clone(),
            runtime: "none".to_owned(),
            cgroup_parent: "none".to_owned(),
            check_in: Duration::from_secs(5),
            executor: drowse_node::config::Runs::Fake,
            templates: node.state.clone(),
            agent: "none".into(),
            limits: drowse_shared::http::Limits::default(),
            agent_timeout: Duration::from_secs(40),
            starts: drowse_node::starts::Limits::default(),
            upgrader: None,
            build: drowse_shared::api::nodes::Build::unreleased(),
        };
        let executor: Arc<dyn Executor> = Arc::new(Witness {
            inner: Fake::new(&env, node.machine.clone()),
            machine: node.machine.clone(),
            unsynced: node.unsynced.clone(),
            world: self.world.clone(),
            laws: self.laws.clone(),
            pulse,
            host: name,
            fails_one_in: self.runtime_fails_one_in.clone(),
        });
        let mut parts = drowse_node::Parts::over(executor, Arc::new(Roomy));
        parts.database = Database::Open(node.ledger.open());
        if let Err(error) = drowse_node::run(env, config, parts, Shutdown::new()).await {
            self.world.fail(&format!("{name} does not start: {error}"));
        }
    }

    /// Clients use names while everything around them breaks. It ends when the clients have asked everything.
    async fn trouble_and_work(&self, plan: &Plan) {
        self.runtime_fails_one_in.store(plan.runtime_fails_one_in, Relaxed);
        let work = CLIENTS.map(|me| {
            let actions = plan.actions.iter().filter(|action| action.client == me).cloned().collect();
            self.world.on(me, move |env| {
                let client = Client::new(self, me, &env);
                async move { client.live(actions).await }
            })
        });
        let trouble = async {
            self.chaos(&plan.troubles).await;
            std::future::pending::<()>().await;
        };
        drowse_shared::select_biased! {
            _ = join_all(work) => {}
            () = trouble => {}
        }
    }

    /// Once nothing is broken everything works, and there is exactly what was acknowledged.
    async fn settle(&self, names: Vec<String>, weather: Weather) {
        self.repair().await;
        self.runtime_fails_one_in.store(0, Relaxed);
        self.world.set_weather(Weather { slow_one_in: 0, duplicate_one_in: 0, ..weather });
        self.readmit_all(RECOVERY).await;
        // Whoever learned of a removal only now has said so by then.
        sleep(TWO_CHECK_INS).await;
        self.readmit_all(RECOVERY).await;
        let fleet = self.clone();
        let held = self.world.on(CLIENTS[0], |env| async move {
            let client = Client::new(&fleet, CLIENTS[0], &env);
            let mut held = BTreeMap::new();
            for name in &names {
                client.insist(name, RECOVERY).await;
            }
            // A destroy whose caller left is carried out all the same, and what is half removed goes; then it is quiet.
            sleep(laws::LINGERS).await;
            for name in &names {
                if let Some(acquired) = client.insist(name, RECOVERY).await {
                    held.insert(name.clone(), vec![acquired.space.id]);
                }
            }
            if let Some(name) = names.first() {
                client.watches(name).await;
            }
            held
        });
        let held = held.await.unwrap_or_default();
        let there = self.laws.bodies();
        if held != there && !self.world.has_failed() {
            self.world.fail(&format!("clients hold {held:?}, machines hold {there:?}"));
        }
        let tally: Vec<String> = self.laws.tally().iter().map(|(what, n)| format!("{what} x{n}")).collect();
        self.world.note(&format!("TALLY {}", tally.join(", ")));
    }
}

/// When the first client may ask and the first trouble begin, in milliseconds since the world began.
fn start_ms(plan: &Plan) -> u64 {
    plan.gateways().len() as u64 * u64::try_from(GATHERS.as_millis()).unwrap_or(u64::MAX)
}

/// Carries out a plan: clients, and delays, drops, cuts, falls. The laws are checked throughout; the first that is
/// broken ends it.
pub fn scenario(plan: &Plan) -> Run<()> {
    let plan = plan.clone();
    run(plan.seed, move |world| async move {
        world.set_weather(plan.weather);
        let fleet = Fleet::new(&world, plan.gateways(), plan.nodes());
        let all = async {
            fleet.start().await;
            fleet.trouble_and_work(&plan).await;
            fleet.settle(plan.names(), plan.weather).await;
        };
        drowse_shared::select_biased! {
            () = world.failed() => {}
            () = all => {}
        }
    })
}
