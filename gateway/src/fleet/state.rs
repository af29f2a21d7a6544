//! What is known and heard, and what follows from it. No socket, no disk: whoever holds it reads the roster's next shape
//! here, writes it, and then puts it in place.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use drowse_shared::{
    api::{
        Code, Error,
        nodes::{CheckIn, CheckedIn, Node, NodeList, NodeState, Roster, RosterNode, Standing},
    },
    id::{FleetId, LedgerId, NodeId, SpaceId, Ticket},
};
use jiff::Timestamp;
use tokio::time::Instant;

use super::{
    NoCapacity, Peer, Pick,
    counts::{Counts, Outcome},
    judge::{self, Age, MISSED_MAX, Meaning},
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
    /// Removed nodes that are being readmitted: asked already, not yet members.
    returning: BTreeSet<LedgerId>,
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
            returning: BTreeSet::new(),
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
            let extra = self.returning.contains(ledger) || (self.learning && !removed);
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

    pub(super) fn knows_its_nodes(&self) -> Result<(), Error> {
        if !self.learning {
            return Ok(());
        }
        let wait = self.learning_left().unwrap_or_default().as_secs() + 1;
        Err(Error::new(
            Code::FleetStarting,
            "the gateway has just started with an empty database and is still learning which nodes there are; a new \
             space could exist on one it has not heard yet",
        )
        .retry_after(wait))
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

    pub(super) fn census(&self) -> Vec<(NodeState, u64)> {
        let state = |node: &RosterNode| match self.age(&node.ledger_id) {
            None => NodeState::Silent,
            Some(age) if age.is_live() => NodeState::Live,
            Some(_) => NodeState::Down,
        };
        let removed = self.kept.roster.as_ref().map_or(0, |roster| roster.removed.len() as u64);
        let count = |which| self.members().filter(|node| state(node) == which).count() as u64;
        vec![
            (NodeState::Live, count(NodeState::Live)),
            (NodeState::Down, count(NodeState::Down)),
            (NodeState::Silent, count(NodeState::Silent)),
            (NodeState::Removed, removed),
        ]
    }

    pub(super) fn list(&self, gates: &Gates) -> Result<NodeList, Error> {
        let Some(roster) = &self.kept.roster else {
            self.knows_its_nodes()?;
            return Err(Error::new(Code::Internal, "the gateway has no roster"));
        };
        let mut nodes: Vec<Node> = roster
            .nodes
            .iter()
            .map(|node| {
                let candidate = self.candidate(node, true);
                let state = match candidate.presence {
                    Presence::Silent => NodeState::Silent,
                    Presence::Down { .. } => NodeState::Down,
                    Presence::Live => NodeState::Live,
                };
                let refuses = place::refusal(&candidate, gates).map(|why| why.to_string());
                self.shown(node.ledger_id, node.id.clone(), node.endpoint.clone(), state, refuses)
            })
            .collect();
        for ledger in &roster.removed {
            if let Some(said) = self.kept.said.get(ledger) {
                let refuses = Some(Refusal::Removed.to_string());
                let (id, endpoint) = (said.id.clone(), said.endpoint.clone());
                nodes.push(self.shown(*ledger, id, endpoint, NodeState::Removed, refuses));
            }
        }
        nodes.sort_by(|a, b| (&a.id, &a.ledger_id).cmp(&(&b.id, &b.ledger_id)));
        Ok(NodeList { fleet_id: roster.fleet_id, roster_version: roster.version, nodes })
    }

    fn shown(
        &self,
        ledger_id: LedgerId,
        id: NodeId,
        endpoint: String,
        state: NodeState,
        refuses: Option<String>,
    ) -> Node {
        let heard = self.heard.get(&ledger_id);
        let said = heard.map(|heard| &heard.said);
        let kept = self.kept.said.get(&ledger_id);
        Node {
            id,
            ledger_id,
            endpoint,
            region: kept.and_then(|kept| kept.region.clone()),
            state,
            refuses,
            last_check_in_at: heard.map(|heard| heard.wall),
            interval_ms: kept.map(|kept| kept.interval_ms),
            build: said.map(|said| said.build.clone()),
            reading: said.and_then(|said| said.reading.clone()),
            bundle: said.and_then(|said| said.bundle),
        }
    }

    /// What holds once this node is removed, or nothing if there is no such node.
    pub(super) fn removal(&self, id: &NodeId) -> Result<Option<(LedgerId, Kept)>, Error> {
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

    pub(super) fn removed_peer(&self, id: &NodeId) -> Result<Peer, Error> {
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

    pub(super) fn set_returning(&mut self, ledger: LedgerId, returning: bool) {
        if returning {
            self.returning.insert(ledger);
        } else {
            self.returning.remove(&ledger);
        }
    }

    /// What holds once this removed node is back.
    pub(super) fn readmission(&self, peer: &Peer) -> Result<Kept, Error> {
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

    pub(super) fn replace(&mut self, kept: Kept) {
        self.kept = kept;
    }

    /// The newest roster and whom it must be shown: live nodes that do not echo it, and nodes not heard yet.
    pub(super) fn to_tell(&self) -> (Option<Roster>, Vec<Peer>) {
        let version = self.version().unwrap_or(0);
        let stale = |node: &&RosterNode| match self.heard.get(&node.ledger_id) {
            None => true,
            Some(heard) => heard.age().is_live() && heard.echoed < version,
        };
        let peers =
            self.members().filter(stale).map(|n| self.seen(n.ledger_id, &n.id, &n.endpoint)).collect();
        (self.kept.roster.clone().filter(|_| !self.learning), peers)
    }

    /// How long learning still takes; nothing when it may end.
    pub(super) fn learning_left(&self) -> Option<Duration> {
        if !self.learning {
            return None;
        }
        let mut roster = self.members().peekable();
        if roster.peek().is_some() && roster.all(|node| self.heard.contains_key(&node.ledger_id)) {
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
    pub(super) fn learned(&self, fresh: FleetId) -> Option<Kept> {
        let held = self.heard.values().any(|heard| heard.age().is_live() && heard.said.bundle.is_some());
        if !self.learning && (self.kept.bundle.is_some() || held) {
            return None;
        }
        // With nobody there, there is nothing to found yet.
        if self.heard.is_empty() {
            return None;
        }
        let mut kept = self.kept.clone();
        let mut roster = kept.roster.take().unwrap_or_else(|| roster::empty(fresh));
        if self.learning {
            for heard in self.heard.values() {
                if let Ok(Meaning::Joined) = judge::judge(&heard.said, &roster, |ledger| self.age(ledger)) {
                    roster = roster::with_node(&roster, member(&heard.said));
                }
                kept.said.insert(heard.said.ledger_id, facts(&heard.said));
            }
        }
        if kept.bundle.is_none() && !held {
            kept.bundle = Some(authority::first(roster.fleet_id));
        }
        kept.roster = Some(roster);
        Some(kept)
    }

    /// Puts the outcome of learning in place.
    pub(super) fn settle_learned(&mut self, kept: Kept) {
        let roster = kept.roster.as_ref();
        tracing::info!(
            fleet = roster.map(|roster| roster.fleet_id.to_string()),
            nodes = roster.map_or(0, |roster| roster.nodes.len()),
            "the fleet is known"
        );
        self.kept = kept;
        self.learning = false;
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
