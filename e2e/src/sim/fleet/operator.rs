//! Somebody who runs the fleet: takes nodes out that are down, and back, and chooses where a name is held twice.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use axum::body::Body;
use drowse_node::executor::Vitality;
use drowse_shared::{
    api::nodes::{NodeReadmitted, NodeRemoved},
    http::{HttpClient, Limits, client},
};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::{
    Answer, Fleet, GATEWAY_PORT,
    client::{brief, send},
};
use crate::sim::{Fall, Kind};

/// The operator's host.
pub(super) const OPERATOR: &str = "op";
/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(150);
/// Between two tries.
const AGAIN: Duration = Duration::from_secs(3);
/// How long a removal is tried: a node that somebody starts meanwhile is not removed.
const REMOVAL: Duration = Duration::from_secs(60);
/// How long a readmission is tried while there is trouble.
const READMISSION: Duration = Duration::from_secs(120);
/// How soon everything of a removed node sleeps once it was told.
const SUSPENDED_WITHIN: Duration = Duration::from_secs(60);

/// How a node is taken out of the fleet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Removal<'a> {
    pub(super) gateway: &'a str,
    pub(super) node: &'a str,
    pub(super) fall: Fall,
    /// How long it stays down once it is removed.
    pub(super) down: Duration,
    /// How long it is up again before it is readmitted.
    pub(super) out: Duration,
    /// Whether the gateway loses its database while the node is down.
    pub(super) gateway_forgets: bool,
}

impl Fleet {
    /// A node falls, is removed, comes back, and is readmitted.
    pub(super) async fn remove_and_readmit(&self, removal: Removal<'_>) {
        let Removal { gateway, node, .. } = removal;
        // One at a time: with two out of three gone there is nothing to see.
        if !self.laws.outs().is_empty() {
            return;
        }
        self.world.crash(node, removal.fall);
        if self.removes(gateway, node).await {
            sleep(removal.down).await;
            if removal.gateway_forgets {
                self.world.crash(gateway, Fall::Process);
                self.forget(gateway);
                self.restart(gateway, Duration::from_secs(1)).await;
            }
        }
        self.restart(node, Duration::ZERO).await;
        let (back, life) = (self.world.elapsed(), self.world.life_of(node));
        sleep(removal.out).await;
        let up = self.world.is_up(node) && self.world.life_of(node) == life;
        let told = self.laws.shunned_since(node, back);
        let long_ago = told.is_some_and(|told| self.world.elapsed() - told >= SUSPENDED_WITHIN);
        if up && long_ago && self.runtime_fails_one_in.load(Relaxed) == 0 {
            self.must_sleep(node);
        }
        self.readmit(gateway, node, READMISSION).await;
    }

    /// Asks for the removal of a node that may well be live: then that is refused.
    pub(super) async fn remove_at_once(&self, gateway: &str, node: &str) {
        if self.laws.outs().is_empty() {
            self.asks_removal(gateway, node, &mut false).await;
        }
    }

    /// Takes every node back that is out. Whoever is asked is up.
    pub(super) async fn readmit_all(&self, within: Duration) {
        for node in self.laws.outs() {
            let Some(gateway) = self.gateways.first() else { return };
            if !self.readmit(gateway, &node, within).await {
                self.world
                    .fail(&format!("law 6: {node} cannot be readmitted {within:?} after the last fault"));
            }
        }
    }

    /// Everything on a removed node that was told so is asleep.
    fn must_sleep(&self, node: &str) {
        let Some(machine) = self.nodes.get(node).map(|node| &node.machine) else { return };
        for (id, name, vitality) in machine.bodies() {
            if vitality == Vitality::Running {
                self.world
                    .fail(&format!("{node} is removed from the fleet, and {id} of {name:?} runs on it"));
            }
        }
    }

    /// Removes a node that is down. Answers whether it is out.
    async fn removes(&self, gateway: &str, node: &str) -> bool {
        let until = self.world.elapsed() + REMOVAL;
        let mut unheard = false;
        while self.world.elapsed() < until && !self.world.is_up(node) {
            if self.asks_removal(gateway, node, &mut unheard).await {
                return true;
            }
            sleep(AGAIN).await;
        }
        false
    }

    /// Answers whether the node is out. `unheard` says whether the answer of any question was lost.
    async fn asks_removal(&self, gateway: &str, node: &str, unheard: &mut bool) -> bool {
        self.laws.removal_asked(node);
        let asked = self.ask(&at(gateway), "removeNode", json!({ "nodeId": node })).await;
        match asked {
            Some(Answer { status: 200, body, .. }) => match serde_json::from_value::<NodeRemoved>(body) {
                Ok(NodeRemoved { removed }) => {
                    self.laws.removal_told(gateway, node, removed);
                    true
                }
                Err(error) => {
                    self.world.fail(&format!("removeNode answered nonsense: {error}"));
                    false
                }
            },
            Some(Answer { status: 409 | 503, .. }) => {
                if !*unheard {
                    self.laws.removal_refused(node);
                }
                false
            }
            Some(answer) => {
                self.world.fail(&format!("removeNode {node} was answered {answer:?}"));
                false
            }
            None => {
                *unheard = true;
                false
            }
        }
    }

    /// Readmits a node; of a name that is held twice its copy goes. Answers whether it is back.
    async fn readmit(&self, gateway: &str, node: &str, within: Duration) -> bool {
        let until = self.world.elapsed() + within;
        while self.world.elapsed() < until {
            if !self.laws.outs().iter().any(|out| out == node) {
                return true;
            }
            let asked = self.world.elapsed();
            self.laws.readmission_asked(node);
            let answer = self.ask(&at(gateway), "readmitNode", json!({ "nodeId": node })).await;
            match answer {
                Some(Answer { status: 200, body, .. }) => {
                    match serde_json::from_value::<NodeReadmitted>(body) {
                        Ok(NodeReadmitted { readmitted: true, .. }) => self.laws.readmitted(node),
                        Ok(NodeReadmitted { conflicts, .. }) => {
                            self.laws.readmission_refused(node, asked, &conflicts);
                            for conflict in &conflicts {
                                self.destroy_at(node, conflict.name.as_str()).await;
                            }
                        }
                        Err(error) => self.world.fail(&format!("readmitNode answered nonsense: {error}")),
                    }
                }
                // It is a member: it was never removed, or readmitted unheard, or nobody is left who knew.
                Some(Answer { status: 409, body, .. }) if body["code"] == "node_live" => {
                    self.laws.readmitted(node);
                    for name in self.laws.doubled(node) {
                        self.destroy_at(node, &name).await;
                    }
                }
                Some(Answer { status: 404 | 503, .. }) => self.laws.readmission_refused(node, asked, &[]),
                Some(answer) => self.world.fail(&format!("readmitNode {node} was answered {answer:?}")),
                None => {}
            }
            sleep(AGAIN).await;
        }
        false
    }

    /// Destroys what one node holds of a name, at its own door.
    async fn destroy_at(&self, node: &str, name: &str) {
        let body = json!({ "name": name });
        let wish = self.laws.asks("destroySpace", name, &body);
        if let Some(Answer { status: 200, .. }) =
            self.ask(&format!("{node}:4676"), "destroySpace", body).await
        {
            self.laws.over(wish);
        }
    }

    async fn ask(&self, at: &str, verb: &'static str, body: serde_json::Value) -> Option<Answer> {
        let (fleet, to) = (self.clone(), at.to_owned());
        let asked = self.world.on(OPERATOR, |env| async move {
            let http: HttpClient<Body> = client(&env, Limits::default());
            fleet.world.tell(Kind::Asked, format!("{OPERATOR} asks {to}: {verb} {body}"));
            let answer = timeout(PATIENCE, send(&http, &fleet.token, &to, verb, &body)).await;
            let said = match &answer {
                Ok(Ok(answer)) => format!("{} {} {}", answer.status, brief(&answer.body), answer.body),
                Ok(Err(why)) => format!("broke: {why}"),
                Err(_) => "left".to_owned(),
            };
            fleet.world.tell(Kind::Told, format!("{OPERATOR}: {verb} {body} at {to} -> {said}"));
            answer.ok()?.ok()
        });
        asked.await?
    }
}

fn at(gateway: &str) -> String {
    format!("{gateway}:{GATEWAY_PORT}")
}
