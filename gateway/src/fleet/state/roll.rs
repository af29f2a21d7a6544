//! The roll to the gateway's build: what is kept of it, and what follows from that and from what nodes say.

use std::{collections::BTreeMap, time::Duration};

use drowse_shared::{
    api::{
        Code, Error,
        nodes::Build,
        upgrade::{FleetUpgrade, NodeUpgrade, Tell, UpgradeState},
    },
    id::{LedgerId, NodeId},
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{INTERVAL, Next, State};
use crate::{
    fleet::{judge::Age, roster::Member},
    upgrade::{self, Facts, Told, Verdict},
};

/// Longest wait of a gateway that has just started for members that may come before the next in line.
const SETTLING_MAX: Duration = Duration::from_secs(120);

/// What a person asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Goal {
    /// The build the nodes are to run.
    pub(crate) build: Build,
    /// Since when.
    pub(crate) started_at: Timestamp,
}

/// What is kept of a roll.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Roll {
    /// Whither, while nodes are told.
    pub(crate) goal: Option<Goal>,
    /// Who was told and still runs what it ran then.
    pub(crate) told: BTreeMap<LedgerId, Told>,
}

/// What the check-in of a node means for the roll.
enum Step {
    /// It got somewhere: what it was told is done with.
    Moved,
    /// Its turn has come.
    Told,
    /// Everybody is there. Who falls behind after this does so by a person's hand, and is left alone.
    Over,
}

impl State {
    fn facts<'a>(&'a self, roll: &'a Roll, ledger: &LedgerId, now: Instant) -> Facts<'a> {
        let heard = self.heard.get(ledger);
        let mut facts = Facts {
            build: heard.map(|heard| &heard.said.build),
            live: heard.is_some_and(|heard| heard.age(now).is_live()),
            told: roll.told.get(ledger),
            says: heard.and_then(|heard| heard.said.upgrade.as_ref()),
        };
        // A build that failed does not hold up the one that mends it, once a person has asked for that.
        let mended = self.goal().is_some() && facts.told.is_some_and(|told| told.takes != self.build);
        if mended && facts.has_ended() {
            facts.told = None;
        }
        facts
    }

    fn judged<'a>(&'a self, roll: &'a Roll, node: &Member, wall: Timestamp) -> Verdict<'a> {
        upgrade::judge(&self.build, self.facts(roll, &node.ledger, Instant::now()), wall)
    }

    /// Every member in the order of the roll, with how far it is.
    fn line<'a>(&'a self, roll: &'a Roll, wall: Timestamp) -> Vec<(&'a Member, Verdict<'a>)> {
        let mut line: Vec<_> = self.members().map(|node| (node, self.judged(roll, node, wall))).collect();
        line.sort_by(|(a, _), (b, _)| a.id.cmp(&b.id));
        line
    }

    /// Whether nodes are told to take the gateway's build. A goal of a build that the gateway no longer runs is none.
    fn goal(&self) -> Option<&Goal> {
        self.kept.roll.goal.as_ref().filter(|goal| goal.build == self.build)
    }

    fn step(&self, ledger: &LedgerId, wall: Timestamp) -> Option<Step> {
        let node = self.member(ledger)?;
        let roll = &self.kept.roll;
        let facts = self.facts(roll, ledger, Instant::now());
        let state = upgrade::judge(&self.build, facts, wall).state;
        let arrived = state.is_there();
        // While its installer is at work the new build may still give way, however late it is.
        let open = matches!(state, UpgradeState::Upgrading | UpgradeState::Stuck);
        if facts.told.is_some() && !open && (arrived || facts.has_moved()) {
            return Some(Step::Moved);
        }
        self.goal()?;
        if arrived {
            return self.is_over(wall).then_some(Step::Over);
        }
        // Asked of a node that is behind only: a check-in of any other one does not sort the fleet.
        let due = state == UpgradeState::Behind
            && !self.is_settling()
            && upgrade::turn(
                self.line(roll, wall).into_iter().map(|(node, judged)| (node.ledger, judged.state)),
            ) == Some(node.ledger);
        due.then_some(Step::Told)
    }

    fn is_over(&self, wall: Timestamp) -> bool {
        let roll = &self.kept.roll;
        self.members().all(|node| self.judged(roll, node, wall).is_settled())
    }

    /// Whether this gateway has just started and one it has not heard may yet turn out to be next in line.
    fn is_settling(&self) -> bool {
        let since = self.started.elapsed();
        self.members().any(|node| {
            let said = self.kept.said.get(&node.ledger);
            let interval = said.map_or(INTERVAL, |said| Duration::from_millis(said.interval_ms));
            !self.has_heard(&node.ledger) && since < SETTLING_MAX && Age { since, interval }.is_live()
        })
    }

    /// Whether a node that has just checked in has something to be told, or has done what it was told.
    pub(in crate::fleet) fn has_step(&self, ledger: &LedgerId, wall: Timestamp) -> bool {
        !self.learning && self.step(ledger, wall).is_some()
    }

    /// What is kept from now on, and what the node is told.
    pub(in crate::fleet) fn stepped(
        &self,
        ledger: &LedgerId,
        wall: Timestamp,
    ) -> Option<(Next, Option<Tell>)> {
        let mut next = self.next();
        match self.step(ledger, wall)? {
            Step::Moved => {
                next.change_roll().told.remove(ledger);
                Some((next, None))
            }
            Step::Over => {
                next.change_roll().goal = None;
                Some((next, None))
            }
            Step::Told => {
                let ran = self.heard.get(ledger)?.said.build.clone();
                let told = Told { at: wall, ran, takes: self.build.clone() };
                next.change_roll().told.insert(*ledger, told);
                Some((next, Some(Tell { build: self.build.clone(), at: wall })))
            }
        }
    }

    /// `upgradeFleet`: nodes that are behind are told from now on.
    pub(in crate::fleet) fn rolled(&self, wall: Timestamp) -> Result<Option<Next>, Error> {
        self.knows_its_nodes()?;
        if self.build.committed_at.is_none() {
            return Err(no_release());
        }
        if self.goal().is_some() {
            return Ok(None);
        }
        let mut next = self.next();
        if self.is_over(wall) {
            // One of another build would count again once the gateway runs that.
            return Ok(next.change_roll().goal.take().map(|_| next));
        }
        next.change_roll().goal = Some(Goal { build: self.build.clone(), started_at: wall });
        Ok(Some(next))
    }

    /// `stopUpgrade`: whoever was told goes on, and nobody else is told.
    pub(in crate::fleet) fn halted(&self) -> Result<Option<Next>, Error> {
        self.knows_its_nodes()?;
        if self.kept.roll.goal.is_none() {
            return Ok(None);
        }
        let mut next = self.next();
        next.change_roll().goal = None;
        Ok(Some(next))
    }

    /// `retryUpgrade`: a stuck node is back in line, and waits for its turn like any other. One that is not heard is not
    /// given back: its installer may be at work, and the next in line would be told meanwhile.
    pub(in crate::fleet) fn retried(&self, id: &NodeId, wall: Timestamp) -> Result<Next, Error> {
        self.knows_its_nodes()?;
        let Some(node) = self.called(id) else {
            return Err(Error::new(Code::NodeNotFound, format!("the fleet has no node {id}")));
        };
        let state = self.judged(&self.kept.roll, node, wall).state;
        if state != UpgradeState::Stuck {
            return Err(Error::new(
                Code::NotStuck,
                format!("node {id} is {}; only an upgrade that is stuck is tried again", state.as_str()),
            )
            .with("state", state.as_str().to_owned()));
        }
        if !self.is_live(&node.ledger) {
            let message = format!(
                "node {id} does not check in, and its installer may be at work; start it, or, if it is gone for good, removeNode it"
            );
            return Err(Error::new(Code::NodeSilent, message).with("nodes", vec![id.to_string()]));
        }
        let mut next = self.next();
        next.change_roll().told.remove(&node.ledger);
        Ok(next)
    }

    /// How far the fleet is.
    pub(in crate::fleet) fn upgrade(&self, wall: Timestamp) -> Result<FleetUpgrade, Error> {
        self.knows_its_nodes()?;
        let (roll, goal) = (&self.kept.roll, self.goal());
        let nodes = self.line(roll, wall).into_iter().map(|(node, judged)| {
            let told = roll
                .told
                .get(&node.ledger)
                .filter(|_| matches!(judged.state, UpgradeState::Upgrading | UpgradeState::Stuck));
            NodeUpgrade {
                id: node.id.clone(),
                build: self.heard.get(&node.ledger).map(|heard| heard.said.build.clone()),
                state: judged.state,
                told_at: told.map(|told| told.at),
                reason: judged.why.map(|why| why.to_string()),
            }
        });
        Ok(FleetUpgrade {
            build: self.build.clone(),
            rolling: goal.is_some(),
            started_at: goal.map(|goal| goal.started_at),
            trouble: self
                .untold
                .as_ref()
                .filter(|(ledger, _)| self.is_due(ledger, wall))
                .map(|(_, why)| why.clone()),
            nodes: nodes.collect(),
        })
    }

    fn is_due(&self, ledger: &LedgerId, wall: Timestamp) -> bool {
        matches!(self.step(ledger, wall), Some(Step::Told))
    }

    /// What came of writing down this node's step.
    pub(in crate::fleet) fn set_written(
        &mut self,
        ledger: LedgerId,
        written: Result<(), &Error>,
        wall: Timestamp,
    ) {
        let due = self.is_due(&ledger, wall);
        self.untold = written.err().filter(|_| due).map(|error| (ledger, error.message.clone()));
    }
}

/// There is nothing to roll to.
pub(crate) fn no_release() -> Error {
    Error::new(
        Code::NoRelease,
        "this gateway was not started from a release, so there is none that nodes could take; install one with install.sh",
    )
}
