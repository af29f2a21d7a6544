//! What nodes are told of the roster, and what they tell of it.
//!
//! The roster grows with the fleet, so it is written down once for all who are told, and not more often than its size
//! allows; and which rosters are this gateway's own is remembered by digest, so that a node need only name the one it
//! keeps.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drowse_shared::api::nodes::RosterVersion;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::State;
use crate::fleet::Peer;

/// A roster as it is sent.
pub(crate) type Written = Arc<RawValue>;

/// Between two versions that are written down for answers to check-ins, per node of the fleet: a thousand nodes that
/// join at once cost a few pages, not a thousand.
const PAUSE_PER_NODE: Duration = Duration::from_micros(100);
/// Most versions remembered. A node that keeps an older one brings it whole, once.
const OWN_MAX: usize = 1024;

/// What was shown to nodes.
#[derive(Default)]
pub(super) struct Told {
    /// The last roster that was written down.
    last: Option<Page>,
    /// Digests of the rosters that were this gateway's own, by version.
    own: BTreeMap<u64, String>,
}

struct Page {
    at: Instant,
    version: u64,
    text: Option<Written>,
}

impl State {
    /// Writes the newest roster down.
    fn write_down(&mut self) {
        let Some(members) = &self.kept.roster else { return };
        if self.told.last.as_ref().is_some_and(|page| page.version == members.version) {
            return;
        }
        let roster = members.roster();
        let identity = roster.identity();
        let text = serde_json::value::to_raw_value(&roster)
            .inspect_err(|error| tracing::error!(%error, "the roster cannot be written down"));
        self.told.last =
            Some(Page { at: Instant::now(), version: identity.version, text: text.ok().map(Arc::from) });
        self.told.own.insert(identity.version, identity.digest);
        if self.told.own.len() > OWN_MAX {
            self.told.own.pop_first();
        }
    }

    /// Whether a roster that a node keeps is one of this gateway's.
    pub(super) fn is_ours(&mut self, theirs: &RosterVersion) -> bool {
        let Some(members) = &self.kept.roster else { return false };
        if members.version == theirs.version {
            self.write_down();
        }
        self.told.own.get(&theirs.version).is_some_and(|digest| *digest == theirs.digest)
    }

    /// The roster of ours that a node showed that it keeps. Another gateway's may lack whom we have in mind.
    pub(super) fn echo(&mut self, keeps: Option<&RosterVersion>) -> u64 {
        keeps.filter(|keeps| self.is_ours(keeps)).map_or(0, |keeps| keeps.version)
    }

    /// For a node whose own is older. Right after a change it may not be the newest; then it is shown to it in a moment.
    pub(super) fn newer_than(&mut self, keeps: u64) -> Option<Written> {
        let nodes = u32::try_from(self.kept.roster.as_ref()?.len()).unwrap_or(u32::MAX);
        let pause = PAUSE_PER_NODE.saturating_mul(nodes);
        if self.told.last.as_ref().is_none_or(|page| page.at.elapsed() >= pause) {
            self.write_down();
        }
        self.told.last.as_ref().filter(|page| page.version > keeps).and_then(|page| page.text.clone())
    }

    /// The newest roster and whom it must be shown: live nodes that do not echo it, and nodes not heard yet. While it is
    /// being learned there is none to show; who was heard has said what it knows.
    pub(in crate::fleet) fn untold(&mut self) -> (Option<Written>, Vec<Peer>) {
        let (version, now) = (self.version().unwrap_or(0), Instant::now());
        let peers: Vec<Peer> = self
            .members()
            .filter(|member| match self.heard.get(&member.ledger) {
                None => true,
                Some(heard) => !self.learning && heard.age(now).is_live() && heard.echoed < version,
            })
            .map(|member| self.seen(member, now))
            .collect();
        if peers.is_empty() || self.learning {
            return (None, peers);
        }
        self.write_down();
        (self.told.last.as_ref().and_then(|page| page.text.clone()), peers)
    }
}
