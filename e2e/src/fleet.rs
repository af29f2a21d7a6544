use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use camino::Utf8PathBuf;
use drowse_shared::api::{
    nodes::{Node as NodeEntry, NodeList, NodeState},
    spaces::SpaceList,
};
use serde_json::{Value, json};

use crate::{
    daemon::{Daemon, profile_dir},
    door::Door,
    ground::{Ground, free_port, ids_in},
    relay::Relay,
    wait::eventually,
};

/// A fleet before it starts.
mod plan;
/// The verbs of a story, and what the nodes hold by their own word.
mod story;

pub use plan::Plan;

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

/// A gateway beside the first.
pub struct Gateway {
    /// Its daemon.
    pub daemon: Daemon,
    /// What it answers at.
    pub door: Door,
}

impl Gateway {
    /// Waits until it would place a new space on so many nodes, which come to it every so often.
    pub async fn until_all_live(&self, nodes: usize, check_in: Duration) {
        eventually("the other gateway knows the nodes", UP_WITHIN + check_in, || async {
            let reply = self.door.attempt::<NodeList>("listNodes", &json!({})).await.ok()?;
            let known = (reply.status == 200).then(|| reply.ok().nodes)?;
            let takes = known.iter().filter(|n| n.state == NodeState::Live && n.refuses.is_none());
            (takes.count() == nodes).then_some(())
        })
        .await;
    }
}

/// A gateway, its nodes, and the ground they stand on.
pub struct Fleet {
    /// The gateway's daemon.
    pub gateway: Daemon,
    /// What the gateway answers at.
    pub door: Door,
    /// Further gateways over the same nodes.
    pub others: Vec<Gateway>,
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
        let others = self.others.iter().map(|other| other.door.endpoint.clone());
        daemon.set("DROWSE_GATEWAY", std::iter::once(gateway).chain(others).collect::<Vec<_>>().join(","));
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
        self.until_gateway_answers().await;
    }

    /// Waits until the gateway answers.
    async fn until_gateway_answers(&self) {
        eventually("the gateway answers", UP_WITHIN, || async {
            self.door.attempt::<Value>("listNodes", &json!({})).await.ok().filter(|r| r.status == 200)
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
        for other in &mut self.others {
            other.daemon.stop().await;
        }
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
