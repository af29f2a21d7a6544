use std::{collections::BTreeMap, fs, time::Duration};

use super::{Executor, Fleet, Gateway, TEMPLATES};
use crate::{
    daemon::Daemon,
    door::Door,
    ground::{Ground, free_port},
};

/// Describes a fleet before it starts.
pub struct Plan {
    pub(super) executor: Executor,
    nodes: usize,
    pub(super) wired: bool,
    gateways: usize,
    pub(super) check_in_seconds: f64,
    pub(super) state_bytes: Option<u64>,
    gateway_state_bytes: Option<u64>,
    gateway_env: BTreeMap<String, String>,
    pub(super) node_env: BTreeMap<String, String>,
}

impl Plan {
    pub(super) fn new(executor: Executor, nodes: usize) -> Self {
        Self {
            executor,
            nodes,
            wired: false,
            gateways: 1,
            check_in_seconds: 0.2,
            state_bytes: None,
            gateway_state_bytes: None,
            gateway_env: BTreeMap::new(),
            node_env: BTreeMap::new(),
        }
    }

    /// Puts a relay on each wire between the gateway and a node.
    #[must_use]
    pub fn wired(mut self) -> Self {
        self.wired = true;
        self
    }

    /// So many gateways over the same nodes. The relays of a wired fleet lie before the nodes, and before the first.
    #[must_use]
    pub fn gateways(mut self, count: usize) -> Self {
        self.gateways = count;
        self
    }

    /// Between two check-ins.
    #[must_use]
    pub fn check_in_seconds(mut self, seconds: f64) -> Self {
        self.check_in_seconds = seconds;
        self
    }

    /// Gives each node's state a file system of its own, of this size.
    #[must_use]
    pub fn state_bytes(mut self, bytes: u64) -> Self {
        self.state_bytes = Some(bytes);
        self
    }

    /// Gives each gateway's state a file system of its own, of this size.
    #[must_use]
    pub fn gateway_state_bytes(mut self, bytes: u64) -> Self {
        self.gateway_state_bytes = Some(bytes);
        self
    }

    /// A setting of the gateway.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "settings are written down in passing, as literals and as values"
    )]
    #[must_use]
    pub fn gateway_env(mut self, key: &str, value: impl ToString) -> Self {
        self.gateway_env.insert(key.to_owned(), value.to_string());
        self
    }

    /// A setting of every node.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "settings are written down in passing, as literals and as values"
    )]
    #[must_use]
    pub fn node_env(mut self, key: &str, value: impl ToString) -> Self {
        self.node_env.insert(key.to_owned(), value.to_string());
        self
    }

    /// Starts the gateway and the nodes, and waits until every node takes new spaces.
    pub async fn start(self) -> Fleet {
        let count = self.nodes;
        let mut fleet = self.lay_out();
        fleet.gateway.start();
        // A first check-in that finds nobody is repeated only an interval later.
        fleet.until_gateway_answers().await;
        for n in 1..=count {
            let node = fleet.describe_node(&format!("n{n}")).await;
            fleet.nodes.push(node);
        }
        for node in &mut fleet.nodes {
            node.daemon.start();
        }
        fleet.until_all_live().await;
        // Only once the nodes can tell them which fleet it is: with nobody who knows one, they would found another.
        for other in &mut fleet.others {
            other.daemon.start();
        }
        for other in &fleet.others {
            let check_in = Duration::from_secs_f64(fleet.plan.check_in_seconds);
            other.until_all_live(count, check_in).await;
        }
        fleet
    }

    fn lay_out(self) -> Fleet {
        if self.executor == Executor::Oci {
            let built = fs::read_dir(TEMPLATES).is_ok_and(|mut entries| entries.next().is_some());
            assert!(built, "no template in {TEMPLATES}: run deploy/base/build first, or use e2e/run");
        }
        let ground = Ground::take();
        let first = self.describe_gateway(&ground, "gateway");
        let others = (2..=self.gateways).map(|n| {
            let mut other = self.describe_gateway(&ground, &format!("gateway-{n}"));
            // The nodes bring it the fleet.
            other.daemon.env.remove("DROWSE_NEW_FLEET");
            other
        });
        let others = others.collect();
        let (gateway, door) = (first.daemon, first.door);
        Fleet { gateway, door, others, nodes: Vec::new(), ground, plan: self, ended: false }
    }

    fn describe_gateway(&self, ground: &Ground, name: &str) -> Gateway {
        let port = free_port();
        let mut daemon = Daemon::new(name, "drowse-gateway", ground.root.join(format!("logs/{name}.log")));
        daemon.set("DROWSE_TOKEN_FILE", ground.root.join("token"));
        daemon.set("DROWSE_GATEWAY_LISTEN", format!("127.0.0.1:{port}"));
        let state = ground.root.join(name);
        if let Some(bytes) = self.gateway_state_bytes {
            ground.small_disk(&state, bytes);
        }
        daemon.set("DROWSE_STATE", state);
        daemon.set("DROWSE_NEW_FLEET", "true");
        // A machine that runs tests is busy; only the test about this gate looks at it.
        daemon.set("DROWSE_CPU_PERCENT_MAX", 100);
        daemon.env.extend(self.gateway_env.clone());
        Gateway { daemon, door: Door::new(&format!("http://127.0.0.1:{port}"), &ground.token) }
    }
}
