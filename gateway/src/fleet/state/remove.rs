//! Taking a node out of the roster, and back.

use std::time::Duration;

use drowse_shared::{
    api::{Code, Error, nodes::RosterNode},
    id::{LedgerId, NodeId},
};

use super::{INTERVAL, State};
use crate::{
    db::Kept,
    fleet::{Peer, judge::MISSED_MAX, roster},
};

impl State {
    /// What holds once this node is removed, or nothing if there is no such node.
    pub(in crate::fleet) fn removal(&self, id: &NodeId) -> Result<Option<(LedgerId, Kept)>, Error> {
        self.knows_its_nodes()?;
        let Some(node) = self.members().find(|node| node.id == *id) else { return Ok(None) };
        let interval = self
            .kept
            .said
            .get(&node.ledger_id)
            .map_or(INTERVAL, |said| Duration::from_millis(said.interval_ms));
        let (wait, seen) = match self.age(&node.ledger_id) {
            Some(age) => (
                (age.interval * MISSED_MAX).checked_sub(age.since),
                format!("checked in {} s ago", age.since.as_secs()),
            ),
            None => (
                (interval * MISSED_MAX).checked_sub(self.started.elapsed()),
                "was not heard yet by this gateway, which has only just started".to_owned(),
            ),
        };
        if let Some(wait) = wait {
            return Err(Error::new(
                Code::NodeLive,
                format!("node {id} {seen}; stop its daemon, wait two check-in intervals, and remove it then"),
            )
            .retry_after(wait.as_secs() + 1));
        }
        let mut kept = self.kept.clone();
        kept.roster = kept.roster.map(|roster| roster::without(&roster, node.ledger_id));
        Ok(Some((node.ledger_id, kept)))
    }

    pub(in crate::fleet) fn removed_peer(&self, id: &NodeId) -> Result<Peer, Error> {
        self.knows_its_nodes()?;
        let removed = self.kept.roster.iter().flat_map(|roster| &roster.removed);
        let called = |ledger: &&LedgerId| self.kept.said.get(*ledger).is_some_and(|said| said.id == *id);
        let mut ledgers: Vec<&LedgerId> = removed.filter(called).collect();
        // Of several that bore the id, the one that speaks now is meant.
        ledgers.sort_by_key(|ledger| self.age(ledger).map_or(Duration::MAX, |age| age.since));
        let Some(ledger) = ledgers.first() else {
            let member = self.members().any(|node| node.id == *id);
            let message = if member {
                format!("node {id} is a member of the fleet; there is nothing to readmit")
            } else {
                format!("no removed node {id} is known; it must check in with this gateway first")
            };
            let code = if member { Code::NodeLive } else { Code::NodeNotFound };
            return Err(Error::new(code, message));
        };
        if let Some(other) = self.members().find(|node| node.id == *id) {
            return Err(Error::new(
                Code::NodeTwin,
                format!(
                    "another node, the ledger {} at {}, is called {id} now; give the removed one another DROWSE_NODE_ID",
                    other.ledger_id, other.endpoint
                ),
            ));
        }
        if !self.is_live(ledger) {
            return Err(Error::new(
                Code::NodeSilent,
                format!(
                    "node {id} is removed and does not check in; start its daemon so that its spaces can be compared"
                ),
            ));
        }
        let heard =
            self.heard.get(ledger).map(|heard| (heard.said.node_id.clone(), heard.said.endpoint.clone()));
        heard
            .map(|(id, endpoint)| self.seen(**ledger, &id, &endpoint))
            .ok_or_else(|| Error::new(Code::NodeNotFound, format!("no removed node {id} is known")))
    }

    pub(in crate::fleet) fn set_returning(&mut self, ledger: LedgerId, returning: bool) {
        let comparisons = self.returning.entry(ledger).or_default();
        *comparisons = if returning { *comparisons + 1 } else { comparisons.saturating_sub(1) };
        if *comparisons == 0 {
            self.returning.remove(&ledger);
        }
    }

    /// What holds once this removed node is back.
    pub(in crate::fleet) fn readmission(&self, peer: &Peer) -> Result<Kept, Error> {
        if self.members().any(|node| node.id == peer.id && node.ledger_id != peer.ledger) {
            return Err(Error::new(Code::NodeTwin, format!("another node is called {} now", peer.id)));
        }
        let node = RosterNode {
            id: peer.id.clone(),
            ledger_id: peer.ledger,
            endpoint: peer.endpoint.to_string(),
            since_version: 0,
        };
        let mut kept = self.kept.clone();
        kept.roster = kept.roster.map(|roster| roster::with_node(&roster, node));
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::check_in_for_tests as check_in;
    use drowse_shared::api::nodes::Roster;
    use jiff::Timestamp;

    #[tokio::test]
    async fn a_node_that_returns_is_asked_until_the_last_comparison_has_ended() {
        let said = check_in("back", 12, "http://back");
        let fleet_id = format!("{:032x}", 1).parse().expect("an id");
        let roster = Roster { fleet_id, version: 4, nodes: Vec::new(), removed: vec![said.ledger_id] };
        let mut state = State::new(Kept { roster: Some(roster), ..Kept::default() });
        let draft = state.draft(&said).expect("taken");
        let _ = state.commit(draft, said.clone(), Timestamp::UNIX_EPOCH);
        for (returning, asked) in [(true, 1), (true, 1), (false, 1), (false, 0), (false, 0)] {
            state.set_returning(said.ledger_id, returning);
            assert_eq!(state.asked().len(), asked, "{returning}");
        }
    }
}
