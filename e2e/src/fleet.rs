use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
    time::Duration,
};

use camino::Utf8PathBuf;
use drowse_shared::api::{
    exec::ExecResult,
    nodes::{LookupAnswer, Node as NodeEntry, NodeList, NodeState},
    spaces::{Acquired, Space, SpaceList},
};
use serde_json::{Value, json};

use crate::{
    daemon::{Daemon, profile_dir},
    door::Door,
    ground::{Ground, free_port, ids_in},
    relay::Relay,
    wait::eventually,
};

/// A fleet comes up within this, on a machine that compiles beside it.
const UP_WITHIN: Duration = Duration::from_secs(30);
/// Where the templates are that `deploy/base/build` makes.
const TEMPLATES: &str = "/var/lib/drowse/templates";

/// What runs the spaces of a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executor {
    /// In memory.
    Fake,
    /// runc.
    Oci,
}

/// Describes a fleet before it starts.
pub struct Plan {
    executor: Executor,
    nodes: usize,
    wired: bool,
    check_in_seconds: f64,
    state_bytes: Option<u64>,
    gateway_env: BTreeMap<String, String>,
    node_env: BTreeMap<String, String>,
}

/// One gateway, its nodes, and the ground they stand on.
pub struct Fleet {
    /// The gateway's daemon.
    pub gateway: Daemon,
    /// What the gateway answers at.
    pub door: Door,
    /// In order: `n1`, `n2`, …
    pub nodes: Vec<Node>,
    /// Where all of it lies.
    pub ground: Ground,
    plan: Plan,
    ended: bool,
}

/// One node of a fleet.
pub struct Node {
    /// `n1`, `n2`, …
    pub id: String,
    /// Its daemon.
    pub daemon: Daemon,
    /// Its own door, not through any relay.
    pub door: Door,
    /// The wire from the gateway to it, in a wired fleet.
    pub inward: Option<Relay>,
    /// The wire from it to the gateway, in a wired fleet.
    pub outward: Option<Relay>,
    /// Its state directory.
    pub state: Utf8PathBuf,
}

impl Plan {
    fn new(executor: Executor, nodes: usize) -> Self {
        Self {
            executor,
            nodes,
            wired: false,
            check_in_seconds: 0.2,
            state_bytes: None,
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
        for n in 1..=count {
            let node = fleet.describe_node(&format!("n{n}")).await;
            fleet.nodes.push(node);
        }
        for node in &mut fleet.nodes {
            node.daemon.start();
        }
        fleet.until_all_live().await;
        fleet
    }

    fn lay_out(self) -> Fleet {
        if self.executor == Executor::Oci {
            let built = fs::read_dir(TEMPLATES).is_ok_and(|mut entries| entries.next().is_some());
            assert!(built, "no template in {TEMPLATES}: run deploy/base/build first, or use e2e/run");
        }
        let ground = Ground::take();
        let port = free_port();
        let mut gateway = Daemon::new("gateway", "drowse-gateway", ground.root.join("logs/gateway.log"));
        gateway.set("DROWSE_TOKEN_FILE", ground.root.join("token"));
        gateway.set("DROWSE_GATEWAY_LISTEN", format!("127.0.0.1:{port}"));
        gateway.set("DROWSE_STATE", ground.root.join("gateway"));
        gateway.set("DROWSE_NEW_FLEET", "true");
        // A machine that runs tests is busy; only the test about this gate looks at it.
        gateway.set("DROWSE_CPU_PERCENT_MAX", 100);
        gateway.env.extend(self.gateway_env.clone());
        let door = Door::new(&format!("http://127.0.0.1:{port}"), &ground.token);
        Fleet { gateway, door, nodes: Vec::new(), ground, plan: self, ended: false }
    }
}

impl Node {
    /// The ids of spaces whose disks lie in its state.
    pub fn disks(&self) -> BTreeSet<String> {
        ids_in(&self.state.join("spaces"))
    }
}

impl Fleet {
    /// A fleet of `nodes` nodes whose spaces are real.
    pub fn real(nodes: usize) -> Plan {
        Plan::new(Executor::Oci, nodes)
    }

    /// A fleet of `nodes` nodes whose spaces are in memory.
    pub fn fake(nodes: usize) -> Plan {
        Plan::new(Executor::Fake, nodes)
    }

    /// A node of this fleet that is not started yet.
    pub async fn describe_node(&self, id: &str) -> Node {
        let ground = &self.ground;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let state = ground.root.join(id);
        if let Some(bytes) = self.plan.state_bytes {
            ground.small_disk(&state, bytes);
        }
        let mut daemon = Daemon::new(id, "drowse-node", ground.root.join(format!("logs/{id}.log")));
        let (mut inward, mut outward) = (None, None);
        let (mut endpoint, mut gateway) = (format!("http://{address}"), self.door.endpoint.clone());
        if self.plan.wired {
            let gateway_address = gateway.trim_start_matches("http://").parse().expect("an address");
            let (to_node, to_gateway) = (Relay::to(address).await, Relay::to(gateway_address).await);
            (endpoint, gateway) = (to_node.endpoint(), to_gateway.endpoint());
            (inward, outward) = (Some(to_node), Some(to_gateway));
        }
        daemon.set("DROWSE_TOKEN_FILE", ground.root.join("token"));
        daemon.set("DROWSE_NODE_LISTEN", address);
        daemon.set("DROWSE_NODE_ID", id);
        daemon.set("DROWSE_NODE_ENDPOINT", endpoint);
        daemon.set("DROWSE_GATEWAY", gateway);
        daemon.set("DROWSE_STATE", &state);
        daemon.set("DROWSE_RUN", &ground.run);
        daemon.set("DROWSE_CGROUP_PARENT", &ground.cgroup_parent);
        daemon.set("DROWSE_CHECK_IN_SECONDS", self.plan.check_in_seconds);
        daemon.set("DROWSE_TEMPLATES", TEMPLATES);
        daemon.set("DROWSE_AGENT", profile_dir().join("drowse-agent"));
        daemon.set("DROWSE_EXECUTOR", if self.plan.executor == Executor::Oci { "oci" } else { "fake" });
        daemon.env.extend(self.plan.node_env.clone());
        let door = Door::new(&format!("http://{address}"), &ground.token);
        Node { id: id.to_owned(), daemon, door, inward, outward, state }
    }

    /// A node by its id.
    ///
    /// # Panics
    /// When there is none.
    pub fn node(&self, id: &str) -> &Node {
        self.nodes.iter().find(|n| n.id == id).unwrap_or_else(|| panic!("no node {id} in this fleet"))
    }

    /// A node by its id, to do something to it.
    ///
    /// # Panics
    /// When there is none.
    pub fn node_mut(&mut self, id: &str) -> &mut Node {
        self.nodes.iter_mut().find(|n| n.id == id).unwrap_or_else(|| panic!("no node {id} in this fleet"))
    }

    /// Two check-in intervals: what is silent for longer reads as down.
    pub fn two_intervals(&self) -> Duration {
        Duration::from_secs_f64(self.plan.check_in_seconds * 2.0)
    }

    // What happens to daemons.

    /// SIGKILL to a node.
    pub fn kill(&mut self, node: &str) {
        self.node_mut(node).daemon.kill();
    }

    /// Starts a node again, and waits until it serves.
    pub async fn revive(&mut self, node: &str) {
        self.node_mut(node).daemon.start();
        self.until_live(node).await;
    }

    /// SIGKILL to the gateway.
    pub fn kill_gateway(&mut self) {
        self.gateway.kill();
    }

    /// Starts the gateway again, over whatever its state directory holds, and waits until it answers.
    pub async fn revive_gateway(&mut self) {
        self.gateway.env.remove("DROWSE_NEW_FLEET");
        self.gateway.start();
        let door = self.door.clone();
        eventually("the gateway answers", UP_WITHIN, || async {
            door.attempt::<Value>("listNodes", &json!({})).await.ok().filter(|r| r.status == 200)
        })
        .await;
    }

    /// Starts the gateway again with other settings, and waits until every node takes part again.
    pub async fn reconfigure_gateway(&mut self, settings: &[(&str, &str)]) {
        self.gateway.stop().await;
        for (key, value) in settings {
            self.gateway.set(key, value);
        }
        self.revive_gateway().await;
        for node in self.nodes.iter().map(|n| n.id.clone()).collect::<Vec<_>>() {
            self.until_standing(&node, "is live", |n| n.state == NodeState::Live).await;
        }
    }

    /// Waits until a node answers at its own door.
    pub async fn until_answers(&self, node: &str) {
        let door = self.node(node).door.clone();
        eventually(&format!("{node} answers"), UP_WITHIN, || async {
            door.attempt::<Value>("listSpaces", &json!({})).await.ok().filter(|r| r.status == 200)
        })
        .await;
    }

    /// Waits until a node answers and the gateway would place a new space on it.
    pub async fn until_live(&self, node: &str) {
        // The gateway may not have noticed yet that it was away.
        self.until_answers(node).await;
        self.until_standing(node, "takes spaces", |n| n.state == NodeState::Live && n.refuses.is_none())
            .await;
    }

    /// Waits until the gateway sees a node so.
    pub async fn until_standing(
        &self,
        node: &str,
        promise: &str,
        is: impl Fn(&NodeEntry) -> bool,
    ) -> NodeEntry {
        let is = &is;
        eventually(&format!("{node} {promise}"), UP_WITHIN, || async move {
            let reply = self.door.attempt::<NodeList>("listNodes", &json!({})).await.ok()?;
            let nodes = (reply.status == 200).then(|| reply.ok().nodes)?;
            nodes.into_iter().find(|n| n.id.as_str() == node && is(n))
        })
        .await
    }

    /// Waits until the gateway would place a new space on every node that runs.
    pub async fn until_all_live(&mut self) {
        let mut ids = Vec::new();
        for node in &mut self.nodes {
            if node.daemon.runs() {
                ids.push(node.id.clone());
            }
        }
        for id in ids {
            self.until_live(&id).await;
        }
    }

    // The verbs of the story, through the gateway. Each expects success.

    /// Acquires a space.
    pub async fn acquire(&self, name: &str) -> Acquired {
        self.door.acquire(name).await.ok()
    }

    /// Shows a space.
    pub async fn get(&self, name: &str) -> Space {
        self.door.get(name).await.ok().space
    }

    /// Runs a command in a space; it must end with 0. Answers what it printed, without the last newline.
    pub async fn exec(&self, name: &str, command: &str) -> String {
        let result = self.door.exec(name, command).await.ok();
        assert_eq!(result.exit_code, Some(0), "{command:?} in {name}: {result:?}");
        result.stdout.trim_end_matches('\n').to_owned()
    }

    /// Starts a command that runs on, and answers its pid.
    pub async fn detach(&self, name: &str, command: &str) -> u32 {
        let result: ExecResult = self.door.detach(name, command).await.ok();
        assert!(result.detached, "{result:?}");
        result.pid
    }

    /// Writes a file.
    pub async fn write(&self, name: &str, path: &str, content: impl Into<Vec<u8>>) {
        self.door.write(name, path.as_bytes(), content.into()).await.ok();
    }

    /// Reads a file.
    pub async fn read(&self, name: &str, path: &str) -> Vec<u8> {
        self.door.read(name, path.as_bytes()).await.octets()
    }

    /// Destroys a space; whether there was one.
    pub async fn destroy(&self, name: &str) -> bool {
        self.door.destroy(name).await.ok().destroyed
    }

    /// Suspends a space.
    pub async fn freeze(&self, name: &str) -> Space {
        self.door.turn("freezeSpace", name).await.ok().space
    }

    /// Every space whose name begins so, over all pages.
    pub async fn list(&self, prefix: &str) -> Vec<Space> {
        let mut all = Vec::new();
        let mut filters = json!({ "namePrefix": prefix });
        loop {
            let page: SpaceList = self.door.list(filters.clone()).await.ok();
            assert!(page.silent.is_empty(), "silent: {:?}", page.silent);
            all.extend(page.spaces);
            let Some(cursor) = page.next_cursor else { return all };
            filters["cursor"] = json!(cursor);
        }
    }

    /// The nodes whose own ledger holds this name, asked each at its own door.
    pub async fn holders(&self, name: &str) -> Vec<String> {
        self.holders_but(name, "").await
    }

    /// The same, without asking one that does not run.
    pub async fn holders_but(&self, name: &str, dead: &str) -> Vec<String> {
        let mut holders = Vec::new();
        for node in self.nodes.iter().filter(|n| n.id != dead) {
            if let LookupAnswer::Yes(_) = node.door.lookup(name).await.ok() {
                holders.push(node.id.clone());
            }
        }
        holders
    }

    /// The one node that holds this name.
    ///
    /// # Panics
    /// When it is none or several.
    pub async fn holder(&self, name: &str) -> String {
        let mut holders = self.holders(name).await;
        assert_eq!(holders.len(), 1, "{name} is on {holders:?}");
        holders.remove(0)
    }

    /// How many spaces each running node holds by its own word.
    pub async fn spread(&self) -> BTreeMap<String, usize> {
        let mut spread = BTreeMap::new();
        for node in &self.nodes {
            let list: SpaceList = node.door.list(json!({ "limit": 1000 })).await.ok();
            spread.insert(node.id.clone(), list.spaces.len());
        }
        spread
    }

    /// The end of the story: every space is destroyed at its own node, every daemon stops when told, and nothing is
    /// left on the machine.
    ///
    /// # Panics
    /// When a daemon does not stop, or something is left.
    pub async fn end(mut self) {
        for node in &mut self.nodes {
            if !node.daemon.runs() {
                node.daemon.start();
            }
        }
        for node in &self.nodes {
            let door = &node.door;
            let spaces = eventually(&format!("{} lists its spaces", node.id), UP_WITHIN, || async {
                let reply = door.attempt::<SpaceList>("listSpaces", &json!({ "limit": 1000 })).await.ok()?;
                (reply.status == 200).then(|| reply.ok().spaces)
            })
            .await;
            for space in spaces {
                door.destroy(&space.id.to_string()).await.ok();
            }
        }
        for node in &mut self.nodes {
            node.daemon.stop().await;
        }
        self.gateway.stop().await;
        self.ground.drop_small_disks();
        let mut left = Vec::new();
        for _ in 0..250 {
            left = self.ground.leftovers();
            if left.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(left.is_empty(), "left on the machine:\n{}", left.join("\n"));
        self.ended = true;
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.ground.keep_logs();
        } else {
            assert!(
                self.ended,
                "a story that does not end with `fleet.end()` proves nothing about what is left"
            );
        }
    }
}
