//! Choosing a node for a new space.

use std::{
    collections::{BTreeMap, btree_map},
    iter::Peekable,
};

use drowse_shared::{
    api::{Code, Error},
    id::{LedgerId, NodeId, SpaceId, Ticket},
};
use tokio::time::Instant;

use super::State;
use crate::{
    fleet::{
        NoCapacity, Pick,
        counts::{Counts, Outcome},
        roster::Member,
    },
    place::{self, Candidate, Gates, Presence, Refusal},
    several::{named, several},
};

/// Who keeps a roster of ours, among live nodes.
struct Echoes {
    /// The newest that any of them keeps, and who.
    newest: Option<(u64, LedgerId)>,
    /// The newest that any other one keeps.
    another: u64,
}

impl Echoes {
    /// Whether another live node keeps a roster with this one in it, so that a lost database does not lose it.
    fn have(&self, node: &Member) -> bool {
        let newest = match self.newest {
            Some((version, ledger)) if ledger != node.ledger => version,
            _ => self.another,
        };
        newest >= node.since_version
    }
}

/// Values by ledger, looked up in the order of ledgers: one walk beside the roster instead of a search per node.
struct Along<'a, V>(Peekable<btree_map::Iter<'a, LedgerId, V>>);

impl<'a, V> Along<'a, V> {
    fn new(all: &'a BTreeMap<LedgerId, V>) -> Self {
        Self(all.iter().peekable())
    }

    fn at(&mut self, ledger: &LedgerId) -> Option<&'a V> {
        while self.0.next_if(|(before, _)| *before < ledger).is_some() {}
        self.0.next_if(|(found, _)| *found == ledger).map(|(_, value)| value)
    }
}

impl State {
    fn echoes(&self, now: Instant) -> Echoes {
        let mut echoes = Echoes { newest: None, another: 0 };
        let mut heard = Along::new(&self.heard);
        for member in self.members() {
            let Some(heard) = heard.at(&member.ledger).filter(|heard| heard.age(now).is_live()) else {
                continue;
            };
            match echoes.newest {
                Some((version, _)) if heard.echoed <= version => {
                    echoes.another = echoes.another.max(heard.echoed);
                }
                before => {
                    echoes.another = before.map_or(0, |(version, _)| version);
                    echoes.newest = Some((heard.echoed, member.ledger));
                }
            }
        }
        echoes
    }

    /// Every member as placement sees it, in order of ledger. Without tickets, as if all had given one.
    pub(super) fn candidates<'a>(
        &'a self,
        tickets: Option<&'a BTreeMap<LedgerId, Ticket>>,
        now: Instant,
    ) -> impl Iterator<Item = (&'a Member, Candidate<'a>)> {
        let echoes = self.echoes(now);
        let roster = self.kept.roster.as_ref();
        let fleet = roster.map(|roster| roster.fleet_id);
        let alone = roster.is_some_and(|roster| roster.len() < 2);
        let (mut heard, mut counts) = (Along::new(&self.heard), Along::new(&self.counts));
        let mut tickets = tickets.map(Along::new);
        self.members().map(move |node| {
            let heard = heard.at(&node.ledger);
            let presence = match heard.map(|heard| heard.age(now)) {
                None => Presence::Silent,
                Some(age) if age.is_live() => Presence::Live,
                Some(age) => Presence::Down { seconds: age.since.as_secs() },
            };
            let said = heard.map(|heard| &heard.said);
            let bundle = said.and_then(|said| said.bundle);
            let candidate = Candidate {
                id: &node.id,
                presence,
                removed: said.is_some_and(|said| said.removed),
                reading: heard.and_then(|heard| heard.measured),
                configured: bundle.is_some_and(|bundle| Some(bundle.authority_id) == fleet),
                wire: said.map_or((0, 0), |said| (said.wire_min, said.wire_max)),
                draining: said.is_some_and(|said| said.draining),
                announced: alone || echoes.have(node),
                ticket: tickets.as_mut().is_none_or(|tickets| tickets.at(&node.ledger).is_some()),
                placed: counts.at(&node.ledger).map_or(0, Counts::placed),
            };
            (node, candidate)
        })
    }

    pub(in crate::fleet) fn pick(
        &mut self,
        tickets: &BTreeMap<LedgerId, Ticket>,
        gates: &Gates,
    ) -> Result<Pick, NoCapacity> {
        let now = Instant::now();
        let candidates = || self.candidates(Some(tickets), now).map(|(_, candidate)| candidate);
        let chosen = place::choose(candidates(), gates).and_then(|chosen| self.called(chosen.id));
        let found = chosen.and_then(|node| Some((self.seen(node, now), *tickets.get(&node.ledger)?)));
        match found {
            Some((peer, ticket)) => {
                self.counts.entry(peer.ledger).or_default().pick();
                Ok(Pick { peer, ticket })
            }
            None => Err(no_capacity(place::refusals(candidates(), gates))),
        }
    }

    pub(in crate::fleet) fn settle(&mut self, ledger: &LedgerId, outcome: Outcome) {
        self.counts.entry(*ledger).or_default().settle(outcome);
    }

    pub(in crate::fleet) fn destroyed(&mut self, ledger: &LedgerId, id: &SpaceId) {
        if let Some(counts) = self.counts.get_mut(ledger) {
            counts.destroyed(id);
        }
    }
}

/// Nobody takes it, in words: the first few of many, whose ids come first.
fn no_capacity(mut refused: Vec<(NodeId, Refusal)>) -> NoCapacity {
    let passing = refused.iter().any(|(_, why)| *why == Refusal::NotAnnounced);
    if refused.is_empty() {
        let message = "no node can take a new space: no node has checked in with this gateway yet";
        return NoCapacity { error: Error::new(Code::NoCapacity, message), passing };
    }
    refused.sort_by(|(a, _), (b, _)| a.cmp(b));
    let reasons = several(refused.iter().map(|(id, why)| format!("{id}: {why}")), "; ");
    let message = format!("no node can take a new space right now: {reasons}");
    let nodes = refused.iter().map(|(id, why)| (id.to_string(), why.to_string().into()));
    let nodes: serde_json::Map<String, serde_json::Value> = nodes.take(named(refused.len())).collect();
    let error = Error::new(Code::NoCapacity, message).with("nodes", nodes);
    NoCapacity { error: crate::several::and_more(error, refused.len()), passing }
}
