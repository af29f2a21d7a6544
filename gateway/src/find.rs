//! Which node holds a space: a hint from the cache, else every node is asked.

/// One round of lookups.
mod ask;
/// Hints: which node was last seen to hold a space.
pub(crate) mod cache;
/// Who may ask the nodes.
pub(crate) mod share;
/// What the answers of a round mean.
pub(crate) mod verdict;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use drowse_shared::{
    api::nodes::{Held, Intent, Lookup, LookupAnswer},
    id::{LedgerId, SpaceId, Ticket},
    name::SpaceRef,
    seams::Env,
};
use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use tokio::time::Instant;

use crate::{
    budget::Budget,
    fleet::{Fleet, Peer},
    forward::peer::Peers,
    metrics::Metrics,
};
use cache::{Cache, Hit};
use share::Share;
use verdict::{Answer, Said, Verdict};

pub(crate) use share::Busy;

/// Most spaces that may be remembered.
pub(crate) const CACHE_ENTRIES_MAX: i64 = cache::ENTRIES_MAX as i64;

/// Most rounds that wait, about names that were never seen.
const STRANGERS_WAITING_MAX: usize = 1024;
/// The same about spaces that were.
const KNOWN_WAITING_MAX: usize = 4096;
/// How many nodes a confirmation, which asks one, counts as: so many of them may ask one node at once.
const CONFIRMATION: usize = 4;
/// Most names remembered for having had two holders.
const SUSPECTS_MAX: usize = 1024;
/// Largest answer to a lookup.
const LOOKUP_BYTES_MAX: usize = 64 << 10;

/// How nodes are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest wait for one node, connecting included.
    pub deadline: Duration,
    /// How long live nodes may still answer once one said yes.
    pub grace: Duration,
    /// Most spaces remembered.
    pub cache_entries: usize,
    /// How long each is.
    pub cache_age: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(2),
            grace: Duration::from_millis(150),
            cache_entries: 100_000,
            cache_age: Duration::from_secs(60),
        }
    }
}

type Flight = Shared<BoxFuture<'static, Result<Arc<Vec<Said>>, Busy>>>;

/// A read of one name that is on the way.
#[derive(Clone)]
struct Round {
    flight: Flight,
    /// The one after it, for those who joined it and need one that began after they came.
    next: Arc<OnceLock<Flight>>,
}

/// Finds spaces.
pub(crate) struct Finder {
    env: Env,
    fleet: Arc<Fleet>,
    peers: Arc<Peers>,
    metrics: Arc<Metrics>,
    limits: Limits,
    cache: Mutex<Cache>,
    /// Reads of one name that are on the way; whoever reads it meanwhile waits for the same answers.
    flights: Mutex<BTreeMap<SpaceRef, Round>>,
    readers: AtomicUsize,
    /// Names a second node said yes to after a decision. Their next round waits for every answer.
    suspects: Mutex<BTreeMap<SpaceRef, Instant>>,
    strangers: Share,
    known: Share,
}

/// Counts who waits for a read, however the wait ends.
struct Reading<'a>(&'a AtomicUsize);

impl<'a> Reading<'a> {
    fn begin(readers: &'a AtomicUsize) -> Self {
        readers.fetch_add(1, Ordering::Relaxed);
        Self(readers)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How much of what is bounded is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Spaces whose node is remembered, or was.
    pub(crate) cache: usize,
    /// Names being read for, and who waits for that.
    pub(crate) reads: (usize, usize),
    /// Names that had two holders.
    pub(crate) suspects: usize,
    /// Questions out about names never seen, and rounds that wait.
    pub(crate) strangers: (usize, usize),
    /// The same about spaces that were.
    pub(crate) known: (usize, usize),
}

impl Finder {
    pub(crate) fn new(
        env: &Env,
        fleet: Arc<Fleet>,
        peers: Arc<Peers>,
        metrics: Arc<Metrics>,
        limits: Limits,
        budget: Budget,
    ) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            fleet,
            peers,
            metrics,
            limits,
            cache: Mutex::new(Cache::new(limits.cache_entries, limits.cache_age, env.random_u64())),
            flights: Mutex::default(),
            readers: AtomicUsize::new(0),
            suspects: Mutex::default(),
            strangers: Share::new(budget.strangers, STRANGERS_WAITING_MAX),
            known: Share::new(budget.known, KNOWN_WAITING_MAX),
        })
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flights(&self) -> MutexGuard<'_, BTreeMap<SpaceRef, Round>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn suspects(&self) -> MutexGuard<'_, BTreeMap<SpaceRef, Instant>> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is in use now.
    pub(crate) fn sizes(&self) -> Sizes {
        Sizes {
            cache: self.cache().len(),
            reads: (self.flights().len(), self.readers.load(Ordering::Relaxed)),
            suspects: self.suspects().len(),
            strangers: (self.strangers.out(), self.strangers.waiting()),
            known: (self.known.out(), self.known.waiting()),
        }
    }

    /// The share that questions about this space are of.
    fn share(&self, space: &SpaceRef) -> &Share {
        if self.cache().knows(space) { &self.known } else { &self.strangers }
    }

    /// Where the space was last seen, if its node is still of the fleet.
    pub(crate) fn hint(&self, space: &SpaceRef) -> Option<(Peer, Hit)> {
        let hit = self.cache().get(space, Instant::now());
        let found = hit.and_then(|hit| match self.fleet.peer(&hit.ledger) {
            Some(peer) => Some((peer, hit)),
            None => {
                self.cache().forget(space);
                None
            }
        });
        self.metrics.cache(found.is_some());
        found
    }

    /// Remembers a node's own answer.
    pub(crate) fn learn(&self, peer: &Peer, held: &Held) {
        self.cache().put(Hit::of(peer, held), Instant::now());
    }

    /// A hint proved wrong: it is not used again.
    pub(crate) fn doubt(&self, space: &SpaceRef) {
        self.cache().doubt(space);
    }

    /// Forgets a space that is gone.
    fn forget(&self, space: &SpaceRef) {
        self.cache().forget(space);
    }

    /// Forgets a space that is gone.
    pub(crate) fn forget_id(&self, id: &SpaceId) {
        self.forget(&SpaceRef::Id(*id));
    }

    /// Forgets everything about a node.
    pub(crate) fn forget_node(&self, ledger: &LedgerId) {
        self.cache().forget_node(ledger);
    }

    /// Asks every node, to read or use the space. Callers of one name share a round.
    pub(crate) async fn find(self: &Arc<Self>, space: &SpaceRef) -> Result<Verdict, Busy> {
        let _reading = Reading::begin(&self.readers);
        let (round, joined) = self.board(space);
        let verdict = self.conclude(&round.flight.await?);
        // A round that began before this caller came may have asked a node just before the space was built there. All who
        // joined it came before it ended, so that one more serves them all, however late each of them gets to run.
        if joined && !matches!(verdict, Verdict::Holder { .. }) {
            let next = round.next.get_or_init(|| self.board(space).0.flight).clone();
            return Ok(self.conclude(&next.await?));
        }
        Ok(verdict)
    }

    fn board(self: &Arc<Self>, space: &SpaceRef) -> (Round, bool) {
        let mut flights = self.flights();
        if let Some(round) = flights.get(space) {
            return (round.clone(), true);
        }
        let (finder, about) = (self.clone(), space.clone());
        let flight = async move {
            let said = finder.settled_round(&about, Intent::Read, false).await;
            finder.flights().remove(&about);
            said.map(Arc::new)
        };
        // The flight is flown by a task: the caller that began it may leave. What is kept here of it keeps no finder.
        let task = {
            let (finder, env, about) = (Arc::downgrade(self), self.env.clone(), space.clone());
            async move {
                if let Some(said) = env.finish("lookup", flight).await {
                    return said;
                }
                // Nobody is known to have said anything, which is not "no".
                let finder = finder.upgrade().ok_or(Busy)?;
                finder.flights().remove(&about);
                Ok(Arc::new(finder.silence()))
            }
        };
        let round = Round { flight: task.boxed().shared(), next: Arc::default() };
        flights.insert(space.clone(), round.clone());
        (round, false)
    }

    /// What is known when a round was cut: nobody has answered.
    fn silence(&self) -> Vec<Said> {
        let silent = |peer| Said { peer, answer: Answer::Silent("the question to it was cut".to_owned()) };
        self.fleet.asked().into_iter().map(silent).collect()
    }

    /// Asks every node, to create the space if all say no. Inside the name's slot.
    ///
    /// Another gateway may be asking for the same name: each could get the newest ticket of the node it has in mind.
    /// So all are asked again once all have said no; of two gateways at most one then finds all its tickets the newest.
    pub(crate) async fn find_to_create(self: &Arc<Self>, space: &SpaceRef) -> Result<Verdict, Busy> {
        let said = self.settled_round(space, Intent::Create, false).await?;
        let first = verdict::verdict(&said);
        if !matches!(first, Verdict::Nobody { .. }) {
            return Ok(first);
        }
        // What is half done goes before what has not begun.
        let _turn = self.known.turn(said.len()).await?;
        self.metrics.round(Intent::Create);
        let again = said.iter().map(|said| async move {
            let Answer::No { ticket } = said.answer else { return said.clone() };
            let answer = self.ask_one(&said.peer, space, Intent::Create, ticket).await;
            Said { peer: said.peer.clone(), answer }
        });
        let again = futures_util::future::join_all(again).await;
        Ok(if verdict::is_contested(&said, &again) { Verdict::Contested } else { self.conclude(&again) })
    }

    /// What a round means. Who became known while it went on was not asked, and may hold the space: then "nobody" says
    /// nothing.
    fn conclude(&self, said: &[Said]) -> Verdict {
        match verdict::verdict(said) {
            Verdict::Nobody { asked, .. } if !self.fleet.is_everybody(&asked) => Verdict::Contested,
            verdict => verdict,
        }
    }

    /// Asks every node and waits for every answer.
    pub(crate) async fn ask_all(
        self: &Arc<Self>,
        space: &SpaceRef,
        intent: Intent,
    ) -> Result<Vec<Said>, Busy> {
        self.settled_round(space, intent, true).await
    }

    /// One round. The answers are of different moments: where a space went from one node and was built anew on another
    /// meanwhile, both said yes. So holders are asked once more before there are several.
    async fn settled_round(
        self: &Arc<Self>,
        space: &SpaceRef,
        intent: Intent,
        all: bool,
    ) -> Result<Vec<Said>, Busy> {
        let said = self.round(space, intent, all).await?;
        if !matches!(verdict::verdict(&said), Verdict::Conflict { .. }) {
            return Ok(self.of_the_fleet(said));
        }
        let _turn = self.known.turn(said.len()).await?;
        let again = said.into_iter().map(|said| async move {
            if !matches!(said.answer, Answer::Yes(_)) {
                return said;
            }
            match self.ask_one(&said.peer, space, intent, None).await {
                // It held it a moment ago.
                Answer::Silent(_) => said,
                answer => Said { answer, ..said },
            }
        });
        Ok(self.of_the_fleet(futures_util::future::join_all(again).await))
    }

    /// Without who was removed, or found to be, while the round went on: what it holds is not the fleet's.
    fn of_the_fleet(&self, mut said: Vec<Said>) -> Vec<Said> {
        said.retain(|said| {
            !matches!(said.answer, Answer::Yes(_)) || self.fleet.peer(&said.peer.ledger).is_some()
        });
        said
    }

    /// Asks one node, as a hint about it is not enough to begin a large upload.
    pub(crate) async fn confirm(&self, peer: &Peer, space: &SpaceRef) -> Result<Answer, Busy> {
        let _turn = self.known.turn(CONFIRMATION).await?;
        let answer = self.ask_one(peer, space, Intent::Read, None).await;
        match &answer {
            Answer::Yes(held) => self.learn(peer, held),
            Answer::No { .. } | Answer::Silent(_) => self.doubt(space),
        }
        Ok(answer)
    }

    async fn ask_one(&self, peer: &Peer, space: &SpaceRef, intent: Intent, ticket: Option<Ticket>) -> Answer {
        let lookup = Lookup { space: space.clone(), intent, ticket, ledger_id: Some(peer.ledger) };
        let deadline = self.limits.deadline;
        let call =
            self.peers.call::<_, LookupAnswer>(&peer.endpoint, "lookup", &lookup, deadline, LOOKUP_BYTES_MAX);
        let answer = match call.await {
            // It serves nothing before it is back, and what it holds may be held by another one too.
            Ok(LookupAnswer::Yes(_)) if self.fleet.is_returning(&peer.ledger) => {
                Answer::Silent("it was removed, holds the space, and is only on its way back".to_owned())
            }
            Ok(LookupAnswer::Yes(held)) => Answer::Yes(held),
            // A "no" counts only from who is known to be the node: before its first check-in anybody could be
            // answering there.
            Ok(LookupAnswer::No { .. }) if !self.fleet.has_heard(&peer.ledger) => {
                Answer::Silent("it has not checked in since this gateway started".to_owned())
            }
            Ok(LookupAnswer::No { ticket }) => Answer::No { ticket },
            Err(failure) => Answer::Silent(failure.to_string()),
        };
        self.metrics.lookup(match answer {
            Answer::Yes(_) => "yes",
            Answer::No { .. } => "no",
            Answer::Silent(_) => "silent",
        });
        answer
    }

    fn is_suspect(&self, space: &SpaceRef) -> bool {
        self.suspects().contains_key(space)
    }

    fn suspect(&self, space: SpaceRef) {
        let mut suspects = self.suspects();
        if suspects.len() >= SUSPECTS_MAX {
            let oldest = suspects.iter().min_by_key(|(_, since)| **since).map(|(space, _)| space.clone());
            oldest.and_then(|space| suspects.remove(&space));
        }
        suspects.insert(space, Instant::now());
    }

    fn clear(&self, space: &SpaceRef) {
        self.suspects().remove(space);
    }
}
