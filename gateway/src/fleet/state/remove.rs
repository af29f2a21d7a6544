//! Taking a node out of the roster, and back.

use std::time::Duration;

use drowse_shared::{
    api::{Code, Error},
    id::{LedgerId, NodeId},
};
use tokio::time::Instant;

use super::{INTERVAL, Next, State};
use crate::fleet::{Peer, judge::MISSED_MAX};

impl State {
    /// What holds once this node is removed, or nothing if there is no such node.
    pub(in crate::fleet) fn removal(&self, id: &NodeId) -> Result<Option<(LedgerId, Next)>, Error> {
        self.knows_its_nodes()?;
        let Some(node) = self.called(id) else { return Ok(None) };
        let interval =
            self.kept.said.get(&node.ledger).map_or(INTERVAL, |said| Duration::from_millis(said.interval_ms));
        let (wait, seen) = match self.age(&node.ledger, Instant::now()) {
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
        let mut next = self.next();
        next.remove(node.ledger);
        Ok(Some((node.ledger, next)))
    }

    pub(in crate::fleet) fn removed_peer(&self, id: &NodeId) -> Result<Peer, Error> {
        self.knows_its_nodes()?;
        let now = Instant::now();
        let removed = self.kept.roster.iter().flat_map(|roster| roster.removed());
        let called = |ledger: &&LedgerId| self.kept.said.get(*ledger).is_some_and(|said| said.id == *id);
        let mut ledgers: Vec<&LedgerId> = removed.filter(called).collect();
        // Of several that bore the id, the one that speaks now is meant.
        ledgers.sort_by_key(|ledger| self.age(ledger, now).map_or(Duration::MAX, |age| age.since));
        let Some(ledger) = ledgers.first() else {
            let member = self.called(id).is_some();
            let message = if member {
                format!("node {id} is a member of the fleet; there is nothing to readmit")
            } else {
                format!("no removed node {id} is known; it must check in with this gateway first")
            };
            let code = if member { Code::NodeLive } else { Code::NodeNotFound };
            return Err(Error::new(code, message));
        };
        if let Some(other) = self.called(id) {
            return Err(Error::new(
                Code::NodeTwin,
                format!(
                    "another node, the ledger {} at {}, is called {id} now; give the removed one another DROWSE_NODE_ID",
                    other.ledger, other.endpoint
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
        self.heard
            .get(ledger)
            .map(|heard| self.stranger(**ledger, heard, now))
            .ok_or_else(|| Error::new(Code::NodeNotFound, format!("no removed node {id} is known")))
    }

    pub(in crate::fleet) fn set_returning(&mut self, ledger: LedgerId, returning: bool) {
        let comparisons = self.returning.entry(ledger).or_default();
        *comparisons = if returning { *comparisons + 1 } else { comparisons.saturating_sub(1) };
        if *comparisons == 0 {
            self.returning.remove(&ledger);
        }
    }

    /// Whether a removed node is being compared with the others: it must be asked, and serves nothing yet.
    pub(in crate::fleet) fn is_returning(&self, ledger: &LedgerId) -> bool {
        self.returning.contains_key(ledger) && self.member(ledger).is_none()
    }

    /// What holds once this removed node is back.
    pub(in crate::fleet) fn readmission(&self, peer: &Peer) -> Result<Next, Error> {
        if self.called(&peer.id).is_some_and(|node| node.ledger != peer.ledger) {
            return Err(Error::new(Code::NodeTwin, format!("another node is called {} now", peer.id)));
        }
        let mut next = self.next();
        next.put_back(peer);
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        db::Kept,
        fleet::{check_in_for_tests as check_in, roster::Members, state::Draft},
    };
    use drowse_shared::api::nodes::Build;
    use jiff::Timestamp;

    #[tokio::test]
    async fn a_node_that_returns_is_asked_until_the_last_comparison_has_ended() {
        let said = check_in("back", 12, "http://back");
        let mut roster = Members::of_new_fleet(format!("{:032x}", 1).parse().expect("an id"));
        roster.remove(4, said.ledger_id);
        let mut state = State::new(Kept { roster: Some(roster), ..Kept::default() }, Build::unreleased());
        let mut next = state.next();
        let Ok(Draft::Taken { standing, exchange }) = state.draft(&mut next, &said) else { panic!("taken") };
        state.install(next);
        let _ = state.commit((standing, exchange), said.clone(), Timestamp::UNIX_EPOCH);
        for (returning, asked) in [(true, 1), (true, 1), (false, 1), (false, 0), (false, 0)] {
            state.set_returning(said.ledger_id, returning);
            assert_eq!(state.asked().len(), asked, "{returning}");
        }
    }
}
