//! Choosing a node for a new space.

use std::collections::BTreeMap;

use drowse_shared::{
    api::{Code, Error},
    id::{LedgerId, NodeId, SpaceId, Ticket},
};
use tokio::time::Instant;

use super::{Heard, State};
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
pub(super) struct Echoes {
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

impl State {
    pub(super) fn echoes(&self, now: Instant) -> Echoes {
        let mut echoes = Echoes { newest: None, another: 0 };
        for member in self.members() {
            let Some(heard) = self.heard.get(&member.ledger) else { continue };
            if !heard.age(now).is_live() {
                continue;
            }
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

    pub(super) fn candidate(&self, node: &Member, ticket: bool, echoes: &Echoes, now: Instant) -> Candidate {
        let heard = self.heard.get(&node.ledger);
        let presence = match heard.map(|heard| heard.age(now)) {
            None => Presence::Silent,
            Some(age) if age.is_live() => Presence::Live,
            Some(age) => Presence::Down { seconds: age.since.as_secs() },
        };
        let roster = self.kept.roster.as_ref();
        let fleet = roster.map(|roster| roster.fleet_id);
        let alone = roster.is_some_and(|roster| roster.len() < 2);
        let said = heard.map(|heard| &heard.said);
        Candidate {
            id: node.id.clone(),
            presence,
            removed: said.is_some_and(|said| said.removed),
            reading: heard.and_then(|heard: &Heard| heard.reading.clone()),
            configured: said
                .and_then(|said| said.bundle)
                .is_some_and(|bundle| Some(bundle.authority_id) == fleet),
            wire: said.map_or((0, 0), |said| (said.wire_min, said.wire_max)),
            draining: said.is_some_and(|said| said.draining),
            announced: alone || echoes.have(node),
            ticket,
            placed: self.counts.get(&node.ledger).map_or(0, Counts::placed),
        }
    }

    pub(in crate::fleet) fn pick(
        &mut self,
        tickets: &BTreeMap<LedgerId, Ticket>,
        gates: &Gates,
    ) -> Result<Pick, NoCapacity> {
        let now = Instant::now();
        let echoes = self.echoes(now);
        let nodes: Vec<&Member> = self.members().collect();
        let candidates: Vec<Candidate> = nodes
            .iter()
            .map(|node| self.candidate(node, tickets.contains_key(&node.ledger), &echoes, now))
            .collect();
        let refused = match place::choose(&candidates, gates) {
            Ok(chosen) => {
                let found = self.called(&chosen.id).map(|node| self.seen(node, now));
                let ticket = found.as_ref().and_then(|peer| tickets.get(&peer.ledger).copied());
                if let (Some(peer), Some(ticket)) = (found, ticket) {
                    self.counts.entry(peer.ledger).or_default().pick();
                    return Ok(Pick { peer, ticket });
                }
                Vec::new()
            }
            Err(refused) => refused,
        };
        Err(no_capacity(refused))
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
