//! What is known and heard, and what follows from it. No socket, no disk: whoever holds it reads the roster's next shape
//! here, writes it, and then puts it in place.

/// A gateway with an empty database.
mod learn;
/// What is kept, thought further.
mod next;
/// Choosing a node for a new space.
mod pick;
/// Taking a node out of the roster, and back.
mod remove;
/// The roll to the gateway's build.
mod roll;
/// The nodes as people see them.
mod show;
/// What nodes are told, and what they tell of it.
mod tell;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use drowse_shared::{
    api::{
        Error,
        nodes::{Build, Bundle, CheckIn, CheckedIn, Standing},
    },
    id::{LedgerId, NodeId},
};
use http::{Uri, uri::Authority};
use jiff::Timestamp;
use tokio::time::Instant;

use super::{
    Peer,
    counts::Counts,
    judge::{self, Age, Meaning},
    roster::{self, Member, Members},
};
use crate::{
    authority,
    db::{Kept, Said},
    place::Measured,
};
pub(super) use next::Next;
pub(crate) use roll::{Roll, no_release};
use tell::Told;
pub(crate) use tell::Written;

/// Between check-ins, as long as no node has said.
const INTERVAL: Duration = Duration::from_secs(5);

/// What a node last said, and when.
struct Heard {
    at: Instant,
    wall: Timestamp,
    /// Without the roster and the bundle it brought.
    said: CheckIn,
    /// What placement looks at.
    measured: Option<Measured>,
    /// The roster of ours that it showed that it keeps.
    echoed: u64,
}

impl Heard {
    fn age(&self, now: Instant) -> Age {
        Age {
            since: now.saturating_duration_since(self.at),
            interval: Duration::from_millis(self.said.interval_ms),
        }
    }
}

/// A check-in thought through, before anything is written.
pub(super) enum Draft {
    /// It is taken once what follows from it is written.
    Taken {
        /// What the node is.
        standing: Standing,
        /// What becomes of the configuration.
        exchange: authority::Exchange,
    },
    /// The node keeps a roster nobody here has seen, which may name nodes nobody here knows. Nothing is taken before it
    /// is.
    Unread,
}

/// See the module.
pub(super) struct State {
    kept: Arc<Kept>,
    /// The gateway's.
    build: Build,
    learning: bool,
    said_stuck: bool,
    started: Instant,
    first_heard: Option<Instant>,
    heard: BTreeMap<LedgerId, Heard>,
    counts: BTreeMap<LedgerId, Counts>,
    told: Told,
    /// Removed nodes that are being readmitted: asked already, not yet members. With how many comparisons are under way:
    /// one that ends must not keep a create from asking while another one still counts on it.
    returning: BTreeMap<LedgerId, usize>,
    /// Whose turn had come and could not be written down, and why.
    untold: Option<(LedgerId, String)>,
}

impl State {
    pub(super) fn new(kept: Kept, build: Build) -> Self {
        Self {
            build,
            learning: kept.roster.is_none(),
            said_stuck: false,
            kept: Arc::new(kept),
            started: Instant::now(),
            first_heard: None,
            heard: BTreeMap::new(),
            counts: BTreeMap::new(),
            told: Told::default(),
            returning: BTreeMap::new(),
            untold: None,
        }
    }

    fn age(&self, ledger: &LedgerId, now: Instant) -> Option<Age> {
        self.heard.get(ledger).map(|heard| heard.age(now))
    }

    fn members(&self) -> impl Iterator<Item = &Member> {
        self.kept.roster.iter().flat_map(Members::iter)
    }

    fn member(&self, ledger: &LedgerId) -> Option<&Member> {
        self.kept.roster.as_ref().and_then(|roster| roster.get(ledger))
    }

    pub(super) fn called(&self, id: &NodeId) -> Option<&Member> {
        self.kept.roster.as_ref().and_then(|roster| roster.called(id))
    }

    /// Thinks a check-in through, on top of those thought through before it.
    pub(super) fn draft(&mut self, next: &mut Next, said: &CheckIn) -> Result<Draft, Error> {
        if let Some(ours) = next.roster() {
            judge::foreign(said, ours.fleet_id)?;
        }
        let unread = said.roster.as_ref().is_some_and(|theirs| !self.is_ours(theirs));
        if unread && said.roster_copy.is_none() {
            return Ok(Draft::Unread);
        }
        let merged = match (next.roster(), &said.roster_copy) {
            (Some(ours), Some(theirs)) => roster::merge(ours, theirs),
            (None, Some(theirs)) => Some(Members::of(theirs)),
            (_, None) => None,
        };
        let now = Instant::now();
        let meaning = match merged.as_ref().or(next.roster()) {
            Some(ours) => judge::judge(said, ours, |ledger| self.age(ledger, now))?,
            None => Meaning::Joined,
        };
        let standing = match &meaning {
            Meaning::Removed => Standing::Removed,
            _ if self.learning => Standing::Waiting,
            _ => Standing::Member,
        };
        if let Some(merged) = merged {
            tracing::info!(node = %said.node_id, version = merged.version, "a node knew more of the roster");
            next.take_over(merged);
        }
        let mut exchange = authority::exchange(next.bundle(), said);
        if let Some(bundle) = exchange.adopt.take() {
            tracing::info!(node = %said.node_id, version = bundle.version, "a node held newer configuration");
            next.change(said.ledger_id).bundle = Some(*bundle);
        }
        // A removed node needs it too: without, it would not open its door to be asked what it holds.
        exchange.hand_out &= standing != Standing::Waiting;
        match &meaning {
            Meaning::Removed | Meaning::Same => {}
            // Said once; a node that waits comes again and again.
            Meaning::Joined if self.heard.contains_key(&said.ledger_id) => {}
            Meaning::Joined => {
                tracing::info!(node = %said.node_id, ledger = %said.ledger_id, endpoint = said.endpoint,
                waiting = self.learning, "a node joins");
            }
            Meaning::Moved { from } => {
                tracing::warn!(node = %said.node_id, from, to = said.endpoint, "a node moved");
            }
            Meaning::Renamed { from } => {
                tracing::warn!(ledger = %said.ledger_id, from, to = %said.node_id, "a node was renamed");
            }
        }
        if standing != Standing::Waiting {
            if !matches!(meaning, Meaning::Removed | Meaning::Same) {
                next.put(said);
            }
            next.note(said.ledger_id, facts(said));
        }
        Ok(Draft::Taken { standing, exchange })
    }

    /// Whether nothing of a check-in would have to be written: it comes from a member, as known.
    pub(super) fn is_plain(&self, said: &CheckIn) -> bool {
        let kept = self.kept.said.get(&said.ledger_id);
        let as_kept = kept.is_some_and(|kept| {
            kept.id == said.node_id
                && kept.endpoint == said.endpoint
                && kept.region == said.region
                && kept.interval_ms == said.interval_ms
        });
        let member = self.member(&said.ledger_id);
        let as_known =
            member.is_some_and(|member| member.id == said.node_id && *member.endpoint == *said.endpoint);
        as_kept && as_known && said.roster_copy.is_none() && said.bundle_copy.is_none()
    }

    /// The configuration, once it is known.
    pub(super) fn bundle(&self) -> Option<&Bundle> {
        self.kept.bundle.as_ref()
    }

    /// Whether a node holds newer configuration than this version.
    pub(super) fn is_behind(&self, version: u64) -> bool {
        self.heard.values().any(|heard| heard.said.bundle.is_some_and(|held| held.version > version))
    }

    /// What is kept, to be thought further.
    pub(super) fn next(&self) -> Next {
        Next::of(self.kept.clone(), !self.learning)
    }

    /// Puts in place what was written. Answers whether the roster changed.
    pub(super) fn install(&mut self, next: Next) -> bool {
        let before = self.version();
        self.kept = next.into_kept();
        self.version() != before
    }

    /// Puts a check-in in place whose consequences are. Answers it, and whether other nodes should hear of it now.
    pub(super) fn commit(
        &mut self,
        (standing, exchange): (Standing, authority::Exchange),
        mut said: CheckIn,
        wall: Timestamp,
    ) -> (CheckedIn<Written>, bool) {
        let keeps = said.roster_copy.take().map(|roster| roster.identity()).or_else(|| said.roster.take());
        said.roster = None;
        said.bundle_copy = None;
        let measured = said.reading.as_ref().map(Measured::from);
        let now = Instant::now();
        self.first_heard.get_or_insert(now);
        if measured.is_some() {
            self.counts.entry(said.ledger_id).or_default().read();
        }
        self.warn_of_shared_endpoint(&said);
        let ledger = said.ledger_id;
        let back = !self.is_live(&ledger);
        let mut echoed = self.echo(keeps.as_ref());
        // A report and a check-in of one life may overtake each other; what a node has kept it does not lose.
        if let Some(before) = self.heard.get(&ledger).filter(|before| before.said.boot == said.boot) {
            echoed = echoed.max(before.echoed);
            if before.said.bundle.map(|bundle| bundle.version) > said.bundle.map(|bundle| bundle.version) {
                said.bundle = before.said.bundle;
            }
        }
        self.heard.insert(ledger, Heard { at: now, wall, said, measured, echoed });
        let member = standing != Standing::Waiting;
        let keeps = keeps.map_or(0, |keeps| keeps.version);
        let answer = CheckedIn {
            standing,
            roster: if member { self.newer_than(keeps) } else { None },
            want_roster: false,
            bundle: self.kept.bundle.as_ref().filter(|_| exchange.hand_out).cloned(),
            want_bundle: exchange.want,
            upgrade: None,
        };
        (answer, back || self.learning)
    }

    fn version(&self) -> Option<u64> {
        self.kept.roster.as_ref().map(|roster| roster.version)
    }

    /// Two ids at one address are two names for one daemon, or a wrong setting. Said when it becomes so.
    fn warn_of_shared_endpoint(&self, said: &CheckIn) {
        if self.heard.get(&said.ledger_id).is_some_and(|before| before.said.endpoint == said.endpoint) {
            return;
        }
        for other in self.members().filter(|n| n.ledger != said.ledger_id && *n.endpoint == *said.endpoint) {
            tracing::warn!(node = %said.node_id, other = %other.id, endpoint = said.endpoint,
                "two nodes give one endpoint; set DROWSE_NODE_ENDPOINT of each to its own");
        }
    }

    fn seen(&self, member: &Member, now: Instant) -> Peer {
        Peer {
            ledger: member.ledger,
            id: member.id.clone(),
            endpoint: member.endpoint.clone(),
            live: self.age(&member.ledger, now).is_some_and(Age::is_live),
        }
    }

    fn stranger(&self, ledger: LedgerId, heard: &Heard, now: Instant) -> Peer {
        Peer {
            ledger,
            id: heard.said.node_id.clone(),
            endpoint: Arc::from(heard.said.endpoint.as_str()),
            live: heard.age(now).is_live(),
        }
    }

    /// Whether it is asked although it is no member: it returns, or nobody knows yet who is one.
    fn is_asked_too(&self, ledger: &LedgerId) -> bool {
        let removed = self.kept.roster.as_ref().is_some_and(|roster| roster.is_removed(ledger));
        let extra = self.returning.contains_key(ledger) || (self.learning && !removed);
        extra && self.member(ledger).is_none()
    }

    pub(super) fn asked(&self) -> Vec<Peer> {
        let now = Instant::now();
        let mut peers: Vec<Peer> = self.members().map(|member| self.seen(member, now)).collect();
        if self.learning || !self.returning.is_empty() {
            let too = self.heard.iter().filter(|(ledger, _)| self.is_asked_too(ledger));
            peers.extend(too.map(|(ledger, heard)| self.stranger(*ledger, heard, now)));
        }
        peers
    }

    pub(super) fn is_everybody(&self, asked: &BTreeSet<LedgerId>) -> bool {
        let members = self.members().all(|member| asked.contains(&member.ledger));
        let few = !self.learning && self.returning.is_empty();
        members
            && (few || self.heard.keys().all(|ledger| asked.contains(ledger) || !self.is_asked_too(ledger)))
    }

    pub(super) fn peer(&self, ledger: &LedgerId) -> Option<Peer> {
        let now = Instant::now();
        if let Some(member) = self.member(ledger) {
            return Some(self.seen(member, now));
        }
        let heard = self.heard.get(ledger).filter(|_| self.is_asked_too(ledger))?;
        Some(self.stranger(*ledger, heard, now))
    }

    pub(super) fn has_heard(&self, ledger: &LedgerId) -> bool {
        self.heard.contains_key(ledger)
    }

    pub(super) fn is_live(&self, ledger: &LedgerId) -> bool {
        self.age(ledger, Instant::now()).is_some_and(Age::is_live)
    }

    pub(super) fn is_live_at(&self, uri: &Uri) -> bool {
        let (now, to) = (Instant::now(), uri.authority().map(Authority::as_str));
        let there = |member: &&Member| member.endpoint.split_once("://").map(|(_, at)| at) == to;
        self.members().filter(there).any(|member| self.age(&member.ledger, now).is_some_and(Age::is_live))
    }
}

fn facts(said: &CheckIn) -> Said {
    Said {
        id: said.node_id.clone(),
        endpoint: said.endpoint.clone(),
        region: said.region.clone(),
        interval_ms: said.interval_ms,
    }
}
