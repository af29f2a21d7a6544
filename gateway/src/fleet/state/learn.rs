//! A gateway with an empty database: it listens to what the nodes know before it hands out or creates anything. It never
//! takes their silence for a fleet that is new: the nodes that know better may all be down at once, and whatever fleet it
//! founded then would shut them out. Founding is an operator's word.

use std::time::Duration;

use drowse_shared::api::{Code, Error};
use tokio::time::Instant;

use super::{INTERVAL, Next, State, facts};
use crate::{
    authority,
    db::Kept,
    fleet::{
        judge::{self, MISSED_MAX, Meaning},
        roster::Members,
    },
};

const UNFOUNDED: &str = "this gateway started with an empty database, and no node that has checked in knows a fleet. If the \
    fleet is new, start the gateway once with --new-fleet (DROWSE_NEW_FLEET=true). If it is not, bring back one node that \
    was in it: the gateway learns the rest from it";

impl State {
    pub(in crate::fleet) fn knows_its_nodes(&self) -> Result<(), Error> {
        if !self.learning {
            return Ok(());
        }
        self.is_founded()?;
        let wait = self.learning_left().unwrap_or_default().as_secs() + 1;
        Err(Error::new(
            Code::FleetStarting,
            "the gateway has just started with an empty database and is still learning which nodes there are; a new \
             space could exist on one it has not heard yet",
        )
        .retry_after(wait))
    }

    /// Refuses when nobody knows a fleet: then every node is one that waits for it to be founded.
    pub(in crate::fleet) fn is_founded(&self) -> Result<(), Error> {
        if self.is_unfounded() {
            return Err(Error::new(Code::FleetStarting, UNFOUNDED).retry_after(INTERVAL.as_secs()));
        }
        Ok(())
    }

    /// Whether it has listened long enough, and nobody knew a fleet.
    fn is_unfounded(&self) -> bool {
        self.learning && self.kept.roster.is_none() && self.learning_left().is_none()
    }

    /// What an operator has to know about learning that cannot end by itself. Said once.
    pub(in crate::fleet) fn stuck(&mut self) -> Option<&'static str> {
        (self.is_unfounded() && !std::mem::replace(&mut self.said_stuck, true)).then_some(UNFOUNDED)
    }

    /// How long learning still takes; nothing when it may end.
    pub(in crate::fleet) fn learning_left(&self) -> Option<Duration> {
        if !self.learning {
            return None;
        }
        let mut roster = self.members().peekable();
        if roster.peek().is_some() && roster.all(|node| self.heard.contains_key(&node.ledger)) {
            return None;
        }
        let stated = self.heard.values().map(|heard| Duration::from_millis(heard.said.interval_ms)).max();
        let interval = stated.unwrap_or(INTERVAL);
        // Whoever else is there checks in within an interval of the first one.
        let last = match self.first_heard {
            Some(first) => (self.started + interval * MISSED_MAX).max(first + interval),
            None => self.started + interval * MISSED_MAX,
        };
        last.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// What a gateway keeps when it ends learning, or when the configuration it waited for died with its holder.
    pub(in crate::fleet) fn learned(&self) -> Option<Next> {
        let now = Instant::now();
        let held = self.heard.values().any(|heard| heard.age(now).is_live() && heard.said.bundle.is_some());
        if !self.learning && (self.kept.bundle.is_some() || held) {
            return None;
        }
        let mut kept: Kept = (*self.kept).clone();
        let mut roster = kept.roster.take()?;
        if self.learning {
            let version = roster.version + 1;
            for heard in self.heard.values() {
                let said = &heard.said;
                if let Ok(Meaning::Joined) = judge::judge(said, &roster, |ledger| self.age(ledger, now)) {
                    roster.put(version, said.node_id.clone(), said.ledger_id, &said.endpoint);
                }
                kept.said.insert(said.ledger_id, facts(said).into());
            }
        }
        if kept.bundle.is_none() && !held {
            kept.bundle = Some(authority::first(roster.fleet_id));
        }
        kept.roster = Some(roster);
        Some(Next::anew(kept))
    }

    /// Puts the outcome of learning in place.
    pub(in crate::fleet) fn settle_learned(&mut self, next: Next) {
        self.install(next);
        let roster = self.kept.roster.as_ref();
        tracing::info!(
            fleet = roster.map(|roster| roster.fleet_id.to_string()),
            nodes = roster.map_or(0, Members::len),
            "the fleet is known"
        );
        self.learning = false;
    }
}
