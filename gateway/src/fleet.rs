//! Which nodes there are, and what each last said.
//!
//! What is known for good, the roster above all, changes only by check-ins and by `removeNode` and `readmitNode`, one
//! change at a time, and is on disk before anybody is told. What nodes last reported lives in memory: after a restart a
//! node is *silent* until it is heard.

/// Telling nodes a new roster at once, and hearing those that are known after a restart.
pub(crate) mod announce;
/// Spaces placed since a reading.
pub(crate) mod counts;
/// Domains that lead to spaces.
mod domains;
/// Check-ins that wait to be taken.
mod inbox;
/// What a check-in means.
pub(crate) mod judge;
/// Bringing a removed node back.
pub(crate) mod readmit;
/// Rolling the nodes to the gateway's build.
mod roll;
/// The roster, and two that differ.
pub(crate) mod roster;
/// What is known and heard, and what follows from it.
mod state;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drowse_shared::{
    api::{
        Code, Error,
        nodes::{Build, CheckIn, CheckedIn, NodeList, NodeRemoved, NodeState, Standing},
    },
    id::{FleetId, LedgerId, NodeId, SpaceId, Ticket},
    seams::Env,
};
use http::Uri;
use tokio::sync::Notify;

use crate::{
    db::{self, Store},
    place::Gates,
};
use counts::Outcome;
use inbox::{Inbox, Waits};
use roster::Members;
use state::{Draft, Next, State};
pub(crate) use state::{Roll, Written, no_release};

#[cfg(test)]
pub(crate) use judge::tests::check_in as check_in_for_tests;

/// A node that can be asked and sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    /// What it really is.
    pub(crate) ledger: LedgerId,
    /// What an operator calls it.
    pub(crate) id: NodeId,
    /// Where it is reached.
    pub(crate) endpoint: Arc<str>,
    /// Whether it checks in.
    pub(crate) live: bool,
}

/// A place for a new space, counted at once. Whoever has it says what became of it.
#[derive(Debug)]
#[must_use]
pub(crate) struct Pick {
    /// Where the space goes.
    pub(crate) peer: Peer,
    /// The node's permission.
    pub(crate) ticket: Ticket,
}

/// The fleet, as this gateway knows it.
pub(crate) struct Fleet {
    env: Env,
    db: Store,
    gates: Gates,
    state: Mutex<State>,
    // Held by whoever changes what is kept, from reading it to having written it.
    order: tokio::sync::Mutex<()>,
    inbox: Mutex<Inbox>,
    // The roster changed, or a node was heard.
    changed: Notify,
    // The roster changed: whoever talks with a node looks whether it is still of the fleet.
    roster: Notify,
    announce: Notify,
}

impl Fleet {
    /// Takes up what was kept, as a gateway of this build. A gateway that kept nothing learns, unless it was told that the fleet is new.
    pub(crate) async fn open(
        env: &Env,
        db: Store,
        gates: Gates,
        new_fleet: bool,
        build: Build,
    ) -> Result<Self, drowse_shared::db::Error> {
        let mut kept = db.load().await?;
        if kept.roster.is_none() && new_fleet {
            let fleet_id = FleetId::mint(env);
            kept.roster = Some(Members::of_new_fleet(fleet_id));
            kept.bundle = Some(crate::authority::first(fleet_id));
            db.save(Arc::new(kept.clone()), db::Changes::Whole).await?;
            tracing::info!(fleet = %fleet_id, "a new fleet");
        }
        Ok(Self {
            env: env.clone(),
            db,
            gates,
            state: Mutex::new(State::new(kept, build)),
            order: tokio::sync::Mutex::new(()),
            inbox: Mutex::default(),
            changed: Notify::new(),
            roster: Notify::new(),
            announce: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a check-in, or the answer of a node that was asked to report. Runs to its end once begun.
    pub(crate) async fn check_in(self: &Arc<Self>, said: CheckIn) -> Result<CheckedIn<Written>, Error> {
        let said = match self.take_plain(said) {
            Ok(answer) => return answer,
            Err(said) => *said,
        };
        let answer = self.inbox().wait(said)?;
        let fleet = self.clone();
        let task = async move {
            let _order = fleet.order.lock().await;
            fleet.take_in().await;
        };
        self.env.finish("check-in", task).await;
        answer.await.unwrap_or_else(|_| Err(torn_down()))
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a check-in of a member about which nothing is new, which is nearly every one: without a task, a queue or a
    /// wait. Gives any other one back.
    fn take_plain(&self, said: CheckIn) -> Result<Result<CheckedIn<Written>, Error>, Box<CheckIn>> {
        // Nobody is between reading what is kept and having written it.
        let Ok(_order) = self.order.try_lock() else { return Err(Box::new(said)) };
        let mut state = self.state();
        if !state.is_plain(&said) {
            return Err(Box::new(said));
        }
        let mut next = state.next();
        let draft = state.draft(&mut next, &said);
        debug_assert!(!next.is_changed(), "it would have to be written");
        let (answer, news) = self.settle_draft(&mut state, draft, said);
        drop(state);
        self.heard(news);
        Ok(answer)
    }

    /// Puts in place what was thought through and is written. Answers it, and whether others should hear of it now.
    fn settle_draft(
        &self,
        state: &mut State,
        draft: Result<Draft, Error>,
        said: CheckIn,
    ) -> (Result<CheckedIn<Written>, Error>, bool) {
        match draft {
            Err(error) => (Err(error), false),
            Ok(Draft::Unread) => {
                let answer = CheckedIn {
                    standing: Standing::Waiting,
                    roster: None,
                    want_roster: true,
                    bundle: None,
                    want_bundle: false,
                    upgrade: None,
                };
                (Ok(answer), false)
            }
            Ok(Draft::Taken { standing, exchange }) => {
                let (answer, back) = state.commit((standing, exchange), said, self.env.clock.wall());
                (Ok(answer), back)
            }
        }
    }

    fn heard(&self, news: bool) {
        self.changed.notify_waiters();
        if news {
            self.announce.notify_one();
        }
    }

    /// Takes those that wait, with one write for all. Inside the order.
    async fn take_in(&self) {
        let waiting = self.inbox().next();
        if waiting.is_empty() {
            return;
        }
        let mut next = self.state().next();
        let drafts: Vec<_> = {
            let mut state = self.state();
            waiting.iter().map(|waits| state.draft(&mut next, &waits.said)).collect()
        };
        let written = self.keep(&next).await;
        let mut state = self.state();
        let changed = written.is_ok() && state.install(next);
        let mut news = changed;
        for (Waits { said, to }, mut draft) in waiting.into_iter().zip(drafts) {
            if let Err(error) = &written {
                // What changes nothing is taken all the same.
                let mut alone = state.next();
                draft = state.draft(&mut alone, &said);
                if alone.is_changed() {
                    draft = Err(error.clone());
                }
            }
            let (answer, back) = self.settle_draft(&mut state, draft, said);
            news |= back;
            // The node may have left.
            let _ = to.send(answer);
        }
        drop(state);
        if changed {
            self.roster.notify_waiters();
        }
        self.heard(news);
    }

    async fn keep(&self, next: &Next) -> Result<(), Error> {
        let Some((kept, changes)) = next.to_write() else { return Ok(()) };
        written(self.db.save(kept, changes).await)
    }

    /// The same for what a person asks for, also on a full disk: that is how room is made.
    async fn keep_in_need(&self, next: &Next) -> Result<(), Error> {
        let Some((kept, changes)) = next.to_write() else { return Ok(()) };
        written(self.db.save_in_need(kept, changes).await)
    }

    /// Every node that may hold a space.
    pub(crate) fn asked(&self) -> Vec<Peer> {
        self.state().asked()
    }

    /// Whether these are all who may hold a space.
    pub(crate) fn is_everybody(&self, asked: &BTreeSet<LedgerId>) -> bool {
        self.state().is_everybody(asked)
    }

    /// Whether a removed node is being compared with the others: it must be asked, and serves nothing yet.
    pub(crate) fn is_returning(&self, ledger: &LedgerId) -> bool {
        self.state().is_returning(ledger)
    }

    /// A node that may hold a space.
    pub(crate) fn peer(&self, ledger: &LedgerId) -> Option<Peer> {
        self.state().peer(ledger)
    }

    /// Whether this process has heard the node.
    pub(crate) fn has_heard(&self, ledger: &LedgerId) -> bool {
        self.state().has_heard(ledger)
    }

    /// Whether the node checks in.
    pub(crate) fn is_live(&self, ledger: &LedgerId) -> bool {
        self.state().is_live(ledger)
    }

    /// Whether a node of this address checks in.
    pub(crate) fn is_live_at(&self, uri: &Uri) -> bool {
        self.state().is_live_at(uri)
    }

    /// Ends once the node is no longer of the fleet.
    pub(crate) async fn gone(&self, ledger: &LedgerId) {
        loop {
            let changed = self.roster.notified();
            tokio::pin!(changed);
            // Registered before it is looked at, so that no change falls between.
            changed.as_mut().enable();
            if self.peer(ledger).is_none() {
                return;
            }
            changed.await;
        }
    }

    /// Refuses while the fleet is still learning which nodes it has.
    pub(crate) fn knows_its_nodes(&self) -> Result<(), Error> {
        self.state().knows_its_nodes()
    }

    /// Refuses while nobody knows a fleet.
    pub(crate) fn is_founded(&self) -> Result<(), Error> {
        self.state().is_founded()
    }

    /// Picks a node for a new space among those that gave a ticket, and counts it at once, if everybody who may hold the
    /// space was asked.
    pub(crate) fn pick(
        &self,
        asked: &BTreeSet<LedgerId>,
        tickets: &BTreeMap<LedgerId, Ticket>,
    ) -> Result<Pick, NoPick> {
        let mut state = self.state();
        if !state.is_everybody(asked) {
            return Err(NoPick::NotAsked);
        }
        state.pick(tickets, &self.gates).map_err(NoPick::NoCapacity)
    }

    /// What became of a pick.
    pub(crate) fn settle(&self, ledger: &LedgerId, outcome: Outcome) {
        self.state().settle(ledger, outcome);
    }

    /// A space was destroyed there.
    pub(crate) fn destroyed(&self, ledger: &LedgerId, id: &SpaceId) {
        self.state().destroyed(ledger, id);
    }

    /// Waits until a node was heard or the roster changed, at most so long.
    pub(crate) async fn news(&self, patience: Duration) {
        let _ = tokio::time::timeout(patience, self.changed.notified()).await;
    }

    /// `listNodes`.
    pub(crate) fn list(&self) -> Result<NodeList, Error> {
        self.state().list(&self.gates)
    }

    /// Nodes by state.
    pub(crate) fn census(&self) -> Vec<(NodeState, u64)> {
        self.state().census()
    }

    /// `removeNode`: refused while it is live, or may be. Answers the ledger that was removed.
    pub(crate) async fn remove(
        self: &Arc<Self>,
        id: NodeId,
    ) -> Result<(NodeRemoved, Option<LedgerId>), Error> {
        let fleet = self.clone();
        let task = async move {
            let _order = fleet.order.lock().await;
            let Some((ledger, next)) = fleet.state().removal(&id)? else {
                return Ok((NodeRemoved { removed: false }, None));
            };
            fleet.keep_in_need(&next).await?;
            fleet.state().install(next);
            fleet.changed.notify_waiters();
            fleet.roster.notify_waiters();
            fleet.announce.notify_one();
            tracing::warn!(node = %id, %ledger, "removed; its spaces stay frozen until it is readmitted");
            Ok((NodeRemoved { removed: true }, Some(ledger)))
        };
        self.env.finish("remove-node", task).await.unwrap_or_else(|| Err(torn_down()))
    }

    /// The member of this name.
    pub(crate) fn called(&self, id: &NodeId) -> Option<Peer> {
        let state = self.state();
        let ledger = state.called(id)?.ledger;
        state.peer(&ledger)
    }

    /// A removed node that was heard, to be looked at before it is readmitted.
    pub(crate) fn removed_peer(&self, id: &NodeId) -> Result<Peer, Error> {
        self.state().removed_peer(id)
    }

    /// From now on lookups ask this removed node too, or no longer.
    pub(crate) fn set_returning(&self, ledger: LedgerId, returning: bool) {
        self.state().set_returning(ledger, returning);
    }

    /// Puts a removed node back into the roster. Runs to its end once begun: what is written is so in memory too.
    pub(crate) async fn readmit(self: &Arc<Self>, peer: &Peer) -> Result<(), Error> {
        let (fleet, peer) = (self.clone(), peer.clone());
        let task = async move {
            let _order = fleet.order.lock().await;
            let next = fleet.state().readmission(&peer)?;
            fleet.keep(&next).await?;
            fleet.state().install(next);
            fleet.changed.notify_waiters();
            fleet.announce.notify_one();
            tracing::warn!(node = %peer.id, ledger = %peer.ledger, "readmitted");
            Ok(())
        };
        self.env.finish("readmit-node", task).await.unwrap_or_else(|| Err(torn_down()))
    }

    /// Nodes that must be shown the newest roster, or that were not heard yet.
    fn untold(&self) -> (Option<Written>, Vec<Peer>) {
        self.state().untold()
    }

    /// Ends learning when it is time and some node knew the fleet. Answers when to look again.
    async fn learn(&self) -> Option<Duration> {
        let _order = self.order.lock().await;
        if let Some(wait) = self.state().learning_left() {
            return Some(wait);
        }
        let stuck = self.state().stuck();
        if let Some(words) = stuck {
            tracing::warn!("{words}");
        }
        let next = self.state().learned()?;
        if self.keep(&next).await.is_err() {
            return Some(Duration::from_secs(1));
        }
        self.state().settle_learned(next);
        self.changed.notify_waiters();
        self.announce.notify_one();
        None
    }
}

/// Why there is no place for a new space.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NoPick {
    /// Somebody who may hold it became known and was not asked.
    NotAsked,
    /// Nobody takes it.
    NoCapacity(NoCapacity),
}

/// Nobody takes a new space.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NoCapacity {
    /// In words, for the caller.
    pub(crate) error: Error,
    /// Whether it is about to pass, as when a node has only just joined.
    pub(crate) passing: bool,
}

/// What a caller hears of a write, and the log why.
fn written(written: Result<(), drowse_shared::db::Error>) -> Result<(), Error> {
    written.map_err(|error| {
        tracing::error!(error = &error as &dyn std::error::Error, "the gateway's database cannot be written");
        if error.is_busy() {
            let message =
                "the gateway's database did not take it in time, and nothing was changed; try again";
            return Error::new(Code::TimedOut, message);
        }
        Error::new(Code::Internal, "the gateway cannot write its database; its log says why")
    })
}

/// The process is going down.
pub(crate) fn torn_down() -> Error {
    Error::new(Code::ShuttingDown, "the gateway is shutting down; try again")
}
