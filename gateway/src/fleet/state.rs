//! What is known and heard, and what follows from it. No socket, no disk: whoever holds it reads the roster's next shape
//! here, writes it, and then puts it in place.

/// A gateway with an empty database.
mod learn;
/// Taking a node out of the roster, and back.
mod remove;
/// The nodes as people see them.
mod show;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drowse_shared::{
    api::{
        Code, Error,
        nodes::{CheckIn, CheckedIn, Roster, RosterNode, Standing},
    },
    id::{LedgerId, NodeId, SpaceId, Ticket},
};
use jiff::Timestamp;
use tokio::time::Instant;

use super::{
    NoCapacity, Peer, Pick,
    counts::{Counts, Outcome},
    judge::{self, Age, Meaning},
    roster,
};
use crate::{
    authority,
    db::{Kept, Said},
    place::{self, Candidate, Gates, Presence, Refusal},
};

/// Between check-ins, as long as no node has said.
const INTERVAL: Duration = Duration::from_secs(5);

/// What a node last said, and when.
struct Heard {
    at: Instant,
    wall: Timestamp,
    /// Without the roster and the bundle it brought.
    said: CheckIn,
    /// The roster it showed that it keeps.
    echoed: u64,
}

impl Heard {
    fn age(&self) -> Age {
        Age { since: self.at.elapsed(), interval: Duration::from_millis(self.said.interval_ms) }
    }
}

/// A check-in thought through, before anything is written.
pub(super) struct Draft {
    /// What changes, and must be written first if it is `durable`.
    pub(super) kept: Option<Kept>,
    /// A gateway that is learning writes nothing: if it dies, it learns again.
    pub(super) durable: bool,
    standing: Standing,
    exchange: authority::Exchange,
}

/// See the module.
pub(super) struct State {
    kept: Kept,
    learning: bool,
    started: Instant,
    first_heard: Option<Instant>,
    heard: BTreeMap<LedgerId, Heard>,
    counts: BTreeMap<LedgerId, Counts>,
    /// Removed nodes that are being readmitted: asked already, not yet members. With how many comparisons are under way:
    /// one that ends must not keep a create from asking while another one still counts on it.
    returning: BTreeMap<LedgerId, usize>,
}

impl State {
    pub(super) fn new(kept: Kept) -> Self {
        Self {
            learning: kept.roster.is_none(),
            kept,
            started: Instant::now(),
            first_heard: None,
            heard: BTreeMap::new(),
            counts: BTreeMap::new(),
            returning: BTreeMap::new(),
        }
    }

    fn age(&self, ledger: &LedgerId) -> Option<Age> {
        self.heard.get(ledger).map(Heard::age)
    }

    fn members(&self) -> impl Iterator<Item = &RosterNode> {
        self.kept.roster.iter().flat_map(|roster| &roster.nodes)
    }

    /// Thinks a check-in through.
    pub(super) fn draft(&self, said: &CheckIn) -> Result<Draft, Error> {
        let mut kept = None;
        if let Some(ours) = &self.kept.roster {
            judge::foreign(said, ours)?;
        }
        let merged = match (&self.kept.roster, &said.roster) {
            (Some(ours), Some(theirs)) => roster::merge(ours, theirs),
            (None, Some(theirs)) => Some(theirs.clone()),
            (_, None) => None,
        };
        if let Some(merged) = merged {
            tracing::info!(node = %said.node_id, version = merged.version, "a node knew more of the roster");
            kept.get_or_insert_with(|| self.kept.clone()).roster = Some(merged);
        }
        let ours = kept.as_ref().unwrap_or(&self.kept).roster.as_ref();
        let meaning = match ours {
            Some(ours) => judge::judge(said, ours, |ledger| self.age(ledger))?,
            None => Meaning::Joined,
        };
        let standing = match &meaning {
            Meaning::Removed => Standing::Removed,
            _ if self.learning => Standing::Waiting,
            _ => Standing::Member,
        };
        let mut exchange = authority::exchange(self.kept.bundle.as_ref(), said);
        if let Some(bundle) = exchange.adopt.clone() {
            tracing::info!(node = %said.node_id, version = bundle.version, "a node held newer configuration");
            kept.get_or_insert_with(|| self.kept.clone()).bundle = Some(bundle);
        }
        exchange.hand_out &= standing == Standing::Member;
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
                let kept = kept.get_or_insert_with(|| self.kept.clone());
                kept.roster = kept.roster.as_ref().map(|ours| roster::with_node(ours, member(said)));
            }
            let facts = facts(said);
            if self.kept.said.get(&said.ledger_id) != Some(&facts) {
                kept.get_or_insert_with(|| self.kept.clone()).said.insert(said.ledger_id, facts);
            }
        }
        Ok(Draft { kept, durable: !self.learning, standing, exchange })
    }

    /// Puts a thought-through check-in in place. Answers it, and whether other nodes should hear of it now.
    pub(super) fn commit(&mut self, draft: Draft, mut said: CheckIn, wall: Timestamp) -> (CheckedIn, bool) {
        let before = self.version();
        if let Some(kept) = draft.kept {
            self.kept = kept;
        }
        let brought = said.roster.take().map_or(0, |roster| roster.version);
        said.bundle_copy = None;
        let now = Instant::now();
        self.first_heard.get_or_insert(now);
        if said.reading.is_some() {
            self.counts.entry(said.ledger_id).or_default().read();
        }
        self.warn_of_shared_endpoint(&said);
        let back = !self.is_live(&said.ledger_id);
        let ledger = said.ledger_id;
        let mut echoed = brought;
        // A report and a check-in of one life may overtake each other; what a node has kept it does not lose.
        if let Some(before) = self.heard.get(&ledger).filter(|before| before.said.boot == said.boot) {
            echoed = echoed.max(before.echoed);
            if before.said.bundle.map(|bundle| bundle.version) > said.bundle.map(|bundle| bundle.version) {
                said.bundle = before.said.bundle;
            }
        }
        self.heard.insert(ledger, Heard { at: now, wall, said, echoed });
        let member = draft.standing != Standing::Waiting;
        let answer = CheckedIn {
            standing: draft.standing,
            roster: self.kept.roster.as_ref().filter(|ours| member && ours.version > brought).cloned(),
            bundle: self.kept.bundle.as_ref().filter(|_| draft.exchange.hand_out).cloned(),
            want_bundle: draft.exchange.want,
        };
        (answer, back || self.learning || self.version() != before)
    }

    fn version(&self) -> Option<u64> {
        self.kept.roster.as_ref().map(|roster| roster.version)
    }

    /// Two ids at one address are two names for one daemon, or a wrong setting. Said when it becomes so.
    fn warn_of_shared_endpoint(&self, said: &CheckIn) {
        if self.heard.get(&said.ledger_id).is_some_and(|before| before.said.endpoint == said.endpoint) {
            return;
        }
        for other in self.members().filter(|n| n.ledger_id != said.ledger_id && n.endpoint == said.endpoint) {
            tracing::warn!(node = %said.node_id, other = %other.id, endpoint = said.endpoint,
                "two nodes give one endpoint; set DROWSE_NODE_ENDPOINT of each to its own");
        }
    }

    fn seen(&self, ledger: LedgerId, id: &NodeId, endpoint: &str) -> Peer {
        Peer { ledger, id: id.clone(), endpoint: Arc::from(endpoint), live: self.is_live(&ledger) }
    }

    pub(super) fn asked(&self) -> Vec<Peer> {
        let mut peers: Vec<Peer> =
            self.members().map(|n| self.seen(n.ledger_id, &n.id, &n.endpoint)).collect();
        for (ledger, heard) in &self.heard {
            let removed = self.kept.roster.as_ref().is_some_and(|roster| roster.removed.contains(ledger));
            let extra = self.returning.contains_key(ledger) || (self.learning && !removed);
            if extra && !peers.iter().any(|peer| peer.ledger == *ledger) {
                peers.push(self.seen(*ledger, &heard.said.node_id, &heard.said.endpoint));
            }
        }
        peers
    }

    pub(super) fn peer(&self, ledger: &LedgerId) -> Option<Peer> {
        if let Some(node) = self.members().find(|node| node.ledger_id == *ledger) {
            return Some(self.seen(node.ledger_id, &node.id, &node.endpoint));
        }
        self.asked().into_iter().find(|peer| peer.ledger == *ledger)
    }

    pub(super) fn has_heard(&self, ledger: &LedgerId) -> bool {
        self.heard.contains_key(ledger)
    }

    pub(super) fn is_live(&self, ledger: &LedgerId) -> bool {
        self.age(ledger).is_some_and(Age::is_live)
    }

    fn candidate(&self, node: &RosterNode, ticket: bool) -> Candidate {
        let heard = self.heard.get(&node.ledger_id);
        let presence = match heard.map(Heard::age) {
            None => Presence::Silent,
            Some(age) if age.is_live() => Presence::Live,
            Some(age) => Presence::Down { seconds: age.since.as_secs() },
        };
        let fleet = self.kept.roster.as_ref().map(|roster| roster.fleet_id);
        let said = heard.map(|heard| &heard.said);
        let alone = self.members().take(2).count() < 2;
        Candidate {
            id: node.id.clone(),
            presence,
            removed: said.is_some_and(|said| said.removed),
            reading: said.and_then(|said| said.reading.clone()),
            configured: said
                .and_then(|said| said.bundle)
                .is_some_and(|bundle| Some(bundle.authority_id) == fleet),
            wire: said.map_or((0, 0), |said| (said.wire_min, said.wire_max)),
            draining: said.is_some_and(|said| said.draining),
            announced: alone || self.is_known_elsewhere(node),
            ticket,
            placed: self.counts.get(&node.ledger_id).map_or(0, Counts::placed),
        }
    }

    /// Whether another live node keeps a roster with this one in it, so that a lost database does not lose it.
    fn is_known_elsewhere(&self, node: &RosterNode) -> bool {
        self.members().filter(|other| other.ledger_id != node.ledger_id).any(|other| {
            self.heard
                .get(&other.ledger_id)
                .is_some_and(|heard| heard.age().is_live() && heard.echoed >= node.since_version)
        })
    }

    pub(super) fn pick(
        &mut self,
        tickets: &BTreeMap<LedgerId, Ticket>,
        gates: &Gates,
    ) -> Result<Pick, NoCapacity> {
        let nodes: Vec<&RosterNode> = self.members().collect();
        let candidates: Vec<Candidate> =
            nodes.iter().map(|node| self.candidate(node, tickets.contains_key(&node.ledger_id))).collect();
        let refused = match place::choose(&candidates, gates) {
            Ok(chosen) => {
                let found = nodes.iter().find(|node| node.id == chosen.id).map(|node| node.ledger_id);
                let peer = found.and_then(|ledger| self.peer(&ledger));
                let ticket = found.and_then(|ledger| tickets.get(&ledger).copied());
                if let (Some(peer), Some(ticket)) = (peer, ticket) {
                    self.counts.entry(peer.ledger).or_default().pick();
                    return Ok(Pick { peer, ticket });
                }
                Vec::new()
            }
            Err(refused) => refused,
        };
        let passing = refused.iter().any(|(_, why)| *why == Refusal::NotAnnounced);
        let reasons: Vec<String> = refused.iter().map(|(id, why)| format!("{id}: {why}")).collect();
        let message = if reasons.is_empty() {
            "no node can take a new space: no node has checked in with this gateway yet".to_owned()
        } else {
            format!("no node can take a new space right now: {}", reasons.join("; "))
        };
        let nodes: serde_json::Map<String, serde_json::Value> =
            refused.iter().map(|(id, why)| (id.to_string(), why.to_string().into())).collect();
        Err(NoCapacity { error: Error::new(Code::NoCapacity, message).with("nodes", nodes), passing })
    }

    pub(super) fn settle(&mut self, ledger: &LedgerId, outcome: Outcome) {
        self.counts.entry(*ledger).or_default().settle(outcome);
    }

    pub(super) fn destroyed(&mut self, ledger: &LedgerId, id: &SpaceId) {
        if let Some(counts) = self.counts.get_mut(ledger) {
            counts.destroyed(id);
        }
    }

    pub(super) fn replace(&mut self, kept: Kept) {
        self.kept = kept;
    }

    /// The newest roster and whom it must be shown: live nodes that do not echo it, and nodes not heard yet. While it is
    /// being learned there is none to show; who was heard has said what it knows.
    pub(super) fn to_tell(&self) -> (Option<Roster>, Vec<Peer>) {
        let version = self.version().unwrap_or(0);
        let stale = |node: &&RosterNode| match self.heard.get(&node.ledger_id) {
            None => true,
            Some(heard) => !self.learning && heard.age().is_live() && heard.echoed < version,
        };
        let peers =
            self.members().filter(stale).map(|n| self.seen(n.ledger_id, &n.id, &n.endpoint)).collect();
        (self.kept.roster.clone().filter(|_| !self.learning), peers)
    }
}

fn member(said: &CheckIn) -> RosterNode {
    RosterNode {
        id: said.node_id.clone(),
        ledger_id: said.ledger_id,
        endpoint: said.endpoint.clone(),
        since_version: 0,
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
