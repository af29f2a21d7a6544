use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use drowse_node::executor::fake::{Machine, Snapshot};
use drowse_shared::id::SpaceId;

use super::Laws;
use crate::sim::{Chance, World};

/// What a call into a machine changes on its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// A disk and its card.
    Created,
    /// The card alone.
    Carded,
    /// Disk and card go.
    Destroyed,
}

type Open = BTreeMap<SpaceId, Vec<(Change, Snapshot)>>;

/// Changes whose calls have not returned: an executor syncs before it returns, and not sooner. They outlive the daemon.
#[derive(Clone, Default)]
pub(super) struct Unsynced(Arc<Mutex<Open>>);

impl Unsynced {
    fn open<T>(&self, act: impl FnOnce(&mut Open) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A change was made to a body that `was` so before.
    pub(super) fn changed(&self, id: SpaceId, change: Change, was: Snapshot) {
        self.open(|open| open.entry(id).or_default().push((change, was)));
    }

    /// The call has returned: everything about this body is on the disk.
    pub(super) fn returned(&self, id: SpaceId) {
        self.open(|open| open.remove(&id));
    }

    /// The machine lost power: of what was not synced the seed says what is left, and the laws hear of it.
    pub(super) fn power_lost(&self, host: &str, machine: &Machine, world: &World, laws: &Laws) {
        for (id, changes) in self.open(std::mem::take) {
            for (change, was) in changes.into_iter().rev() {
                let left = world.draw(Chance::Disk, host, |rng| rng.below(3));
                world.note(&format!("{host} DISK had not taken {change:?} of {id}: {left}"));
                match (change, left) {
                    (_, 0) => {}
                    // Half made: neither is it a space, nor is nothing there.
                    (Change::Created, 1) => {
                        machine.spoil_card(id);
                        laws.gone(host, id);
                    }
                    (Change::Created, _) => {
                        machine.restore(id, was);
                        laws.gone(host, id);
                    }
                    (Change::Carded, _) => machine.restore(id, was),
                    (Change::Destroyed, _) => {
                        machine.restore(id, was);
                        laws.back(host, id);
                    }
                }
            }
        }
    }
}
