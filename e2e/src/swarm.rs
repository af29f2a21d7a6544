//! A thousand nodes in one process: they check in, answer lookups, build spaces that are a row in a map, and misbehave
//! when told. What speaks to them is a real gateway over real sockets.

/// HTTP/1.1, as little of it as daemons of ours speak with each other.
mod wire;

/// The same questions without a gateway: what asking a fleet costs at the least.
pub mod bare;
/// One node.
mod node;
/// What a node answers.
mod verbs;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use drowse_shared::{
    api::nodes::Roster,
    id::{LedgerId, SpaceId},
    seams::Env,
};
use tokio::{runtime::Runtime, sync::Notify, task::JoinSet};

use node::Node;

/// Describes a swarm before it joins.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where the gateway is: `http://host:port`.
    pub gateway: String,
    /// The fleet token.
    pub token: String,
    /// How many nodes.
    pub nodes: usize,
    /// How many spaces each holds from the start; see [`name_of`].
    pub names_each: usize,
    /// Between its check-ins.
    pub interval: Duration,
    /// The first check-ins are spread over this.
    pub joins_over: Duration,
}

/// What a node does when it is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mood {
    /// Answers and checks in.
    Well,
    /// Accepts and reads, never answers; and does not check in.
    Hung,
    /// Accepts and reads, never answers; and checks in all the same.
    Deaf,
    /// Packets to it vanish: no connection comes about. It stays so.
    Dark,
}

/// What was asked of the swarm, all nodes together.
#[derive(Debug, Default)]
pub struct Counts {
    /// Check-ins that were answered.
    pub check_ins: AtomicU64,
    /// Bytes of check-ins, heads included.
    pub check_in_bytes: AtomicU64,
    /// Bytes of the answers to them.
    pub answer_bytes: AtomicU64,
    /// Check-ins that were refused or had no answer.
    pub refused: AtomicU64,
    /// Times a gateway asked for the roster whole.
    pub wanted: AtomicU64,
    /// `report`.
    pub reports: AtomicU64,
    /// Bytes of `report`s.
    pub report_bytes: AtomicU64,
    /// `lookup`.
    pub lookups: AtomicU64,
    /// Spaces built.
    pub built: AtomicU64,
    /// Connections opened to nodes.
    pub connections: AtomicU64,
}

/// What all nodes share.
struct Common {
    plan: Plan,
    env: Env,
    counts: Counts,
    /// The last rosters that came, so that a thousand nodes parse and keep each once.
    rosters: std::sync::Mutex<Vec<(blake3::Hash, Arc<KeptRoster>)>>,
}

struct KeptRoster {
    roster: Roster,
    version: drowse_shared::api::nodes::RosterVersion,
}

/// A thousand nodes.
pub struct Swarm {
    common: Arc<Common>,
    nodes: Vec<Arc<Node>>,
    /// None once it was stopped.
    runtime: Option<Runtime>,
}

/// The name of the `k`-th space that the `n`-th node holds from the start.
pub fn name_of(n: usize, k: usize) -> String {
    format!("name-{n}-{k}")
}

/// Which node holds this name from the start, and as which.
fn holder_of(name: &str) -> Option<(usize, usize)> {
    let (n, k) = name.strip_prefix("name-")?.split_once('-')?;
    Some((n.parse().ok()?, k.parse().ok()?))
}

fn id_of(n: usize, k: usize) -> SpaceId {
    format!("{n:016x}{k:016x}").parse().expect("32 digits")
}

fn ledger_of(n: usize) -> LedgerId {
    format!("5a{n:030x}").parse().expect("32 digits")
}

impl Swarm {
    /// Opens every node's door; they begin to check in.
    ///
    /// # Panics
    /// When sockets run out.
    pub fn start(plan: Plan) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("swarm")
            .enable_all()
            .build()
            .expect("threads are left");
        let common = Arc::new(Common {
            env: Env::real(),
            counts: Counts::default(),
            rosters: std::sync::Mutex::default(),
            plan,
        });
        let nodes: Vec<Arc<Node>> = (0..common.plan.nodes)
            .map(|n| {
                // A loopback address of its own, as machines have.
                let host =
                    [127, 1, u8::try_from(n / 250).expect("few"), u8::try_from(n % 250 + 1).expect("few")];
                let listener = std::net::TcpListener::bind(SocketAddr::from((host, 0))).expect("a port");
                listener.set_nonblocking(true).expect("a socket");
                let node = Arc::new(Node {
                    n,
                    address: listener.local_addr().expect("bound"),
                    mood: AtomicU8::new(Mood::Well as u8),
                    turned: Notify::new(),
                    memory: std::sync::Mutex::default(),
                    boot: drowse_shared::id::BootId::mint(&common.env),
                    common: common.clone(),
                });
                runtime.spawn(node.clone().serve(listener));
                runtime.spawn(node.clone().check_in());
                node
            })
            .collect();
        Self { common, nodes, runtime: Some(runtime) }
    }

    /// What was asked so far.
    pub fn counts(&self) -> &Counts {
        &self.common.counts
    }

    /// Tells some nodes to behave so from now on.
    ///
    /// # Panics
    /// When there is no such node.
    pub async fn turn(&self, nodes: impl IntoIterator<Item = usize>, mood: Mood) {
        let mut dark = JoinSet::new();
        let runtime = self.runtime.as_ref().expect("it was not stopped");
        for n in nodes {
            let node = self.nodes[n].clone();
            node.mood.store(mood as u8, Relaxed);
            node.turned.notify_waiters();
            if mood == Mood::Dark {
                dark.spawn_on(node.until_dark(), runtime.handle());
            }
        }
        dark.join_all().await;
    }

    /// The id of a node.
    pub fn id(&self, n: usize) -> String {
        self.nodes[n].id()
    }

    /// Where the nodes are.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.address).collect()
    }

    /// The last lookup that came to each node, byte by byte.
    pub fn asked(&self) -> Vec<Vec<u8>> {
        self.nodes.iter().map(|node| node.asked()).collect()
    }

    /// How many nodes keep a roster of at least so many nodes.
    pub fn who_know(&self, nodes: usize) -> usize {
        self.nodes.iter().filter(|node| node.known_nodes() >= nodes).count()
    }

    /// Spaces built on a node.
    pub fn built_on(&self, n: usize) -> usize {
        self.nodes[n].built()
    }
}

impl Drop for Swarm {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
