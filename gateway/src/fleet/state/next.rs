//! What is kept, thought further: changed on a copy, then written, then put in place. Many check-ins form one version,
//! so that a fleet that joins all at once is not a version per node.

use std::{collections::BTreeSet, sync::Arc};

use drowse_shared::{
    api::nodes::{Bundle, CheckIn},
    id::LedgerId,
};

use crate::{
    db::{Changes, Kept, Said},
    fleet::{Roll, roster::Members},
};

/// See the module.
pub(in crate::fleet) struct Next {
    kept: Arc<Kept>,
    changes: Option<Changes>,
    /// A gateway that is learning writes nothing: if it dies, it learns again.
    durable: bool,
    /// The version these changes form, once there is one.
    version: Option<u64>,
}

impl Next {
    pub(super) fn of(kept: Arc<Kept>, durable: bool) -> Self {
        Self { kept, changes: None, durable, version: None }
    }

    /// Everything, anew; written in any case.
    pub(super) fn anew(kept: Kept) -> Self {
        Self { kept: Arc::new(kept), changes: Some(Changes::Whole), durable: true, version: None }
    }

    pub(super) fn roster(&self) -> Option<&Members> {
        self.kept.roster.as_ref()
    }

    pub(super) fn bundle(&self) -> Option<&Bundle> {
        self.kept.bundle.as_ref()
    }

    /// To change what is known of a ledger, or the configuration.
    pub(super) fn change(&mut self, ledger: LedgerId) -> &mut Kept {
        match self.changes.get_or_insert_with(|| Changes::Of(BTreeSet::new())) {
            Changes::Whole => {}
            Changes::Of(ledgers) => drop(ledgers.insert(ledger)),
        }
        Arc::make_mut(&mut self.kept)
    }

    /// To change the configuration, which is of another version from now on.
    pub(in crate::fleet) fn change_bundle(&mut self) -> Option<&mut Bundle> {
        self.changes.get_or_insert_with(|| Changes::Of(BTreeSet::new()));
        let bundle = Arc::make_mut(&mut self.kept).bundle.as_mut()?;
        bundle.version += 1;
        Some(bundle)
    }

    /// To change what is kept of a roll.
    pub(super) fn change_roll(&mut self) -> &mut Roll {
        self.changes.get_or_insert_with(|| Changes::Of(BTreeSet::new()));
        &mut Arc::make_mut(&mut self.kept).roll
    }

    /// The roster, and the version that it has from now on.
    fn change_roster(&mut self, ledger: LedgerId) -> Option<(u64, &mut Members)> {
        let version = self.version.or_else(|| self.roster().map(|roster| roster.version + 1))?;
        self.version = Some(version);
        self.change(ledger).roster.as_mut().map(|roster| (version, roster))
    }

    /// Another roster instead. What joins after it forms the next version.
    pub(super) fn take_over(&mut self, roster: Members) {
        self.changes = Some(Changes::Whole);
        self.version = None;
        let kept = Arc::make_mut(&mut self.kept);
        // What a node was told that is no member any more is over, as with one that is removed here.
        kept.roll.told.retain(|ledger, _| roster.get(ledger).is_some());
        kept.roster = Some(roster);
    }

    /// A node joins, moves or is renamed.
    pub(super) fn put(&mut self, said: &CheckIn) {
        if let Some((version, roster)) = self.change_roster(said.ledger_id) {
            roster.put(version, said.node_id.clone(), said.ledger_id, &said.endpoint);
        }
    }

    /// A removed node is back.
    pub(super) fn put_back(&mut self, peer: &crate::fleet::Peer) {
        if let Some((version, roster)) = self.change_roster(peer.ledger) {
            roster.put(version, peer.id.clone(), peer.ledger, &peer.endpoint);
        }
    }

    /// A node is removed.
    pub(super) fn remove(&mut self, ledger: LedgerId) {
        if let Some((version, roster)) = self.change_roster(ledger) {
            roster.remove(version, ledger);
        }
        // What it was told is over: if it comes back, it is in line like any other.
        if self.kept.roll.told.contains_key(&ledger) {
            self.change_roll().told.remove(&ledger);
        }
    }

    /// What a node says of itself.
    pub(super) fn note(&mut self, ledger: LedgerId, said: Said) {
        if self.kept.said.get(&ledger).is_none_or(|before| **before != said) {
            self.change(ledger).said.insert(ledger, Arc::new(said));
        }
    }

    /// Whether it differs from what is kept.
    pub(in crate::fleet) fn is_changed(&self) -> bool {
        self.changes.is_some()
    }

    /// What has to be written before any of it counts.
    pub(in crate::fleet) fn to_write(&self) -> Option<(Arc<Kept>, Changes)> {
        let changes = self.changes.clone().filter(|_| self.durable)?;
        Some((self.kept.clone(), changes))
    }

    pub(super) fn into_kept(self) -> Arc<Kept> {
        self.kept
    }
}
