//! Hints: which node was last seen to hold a space. The least recently used ones go first, and each ends after a while
//! however often it is used; what has ended is still known to exist.
//!
//! A fleet may have a million names, so an entry is small: one slot in a table, one name that both sides share, and two
//! indices of four bytes. Looking one up, writing one and dropping one take the same time however many there are.

use std::{
    hash::{DefaultHasher, Hash, Hasher as _},
    time::Duration,
};

use drowse_shared::{
    api::nodes::Held,
    id::{Epoch, LedgerId, SpaceId},
    name::{SpaceName, SpaceRef},
};
use hashbrown::HashTable;
use tokio::time::Instant;

use crate::fleet::Peer;

/// Most entries there can be: what the indices can count.
pub(super) const ENTRIES_MAX: u32 = 100_000_000;

/// No entry.
const NIL: u32 = u32::MAX;

/// A hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Who held it.
    pub(crate) ledger: LedgerId,
    /// Its id.
    pub(crate) id: SpaceId,
    /// Its name.
    pub(crate) name: SpaceName,
    /// The least epoch it can have.
    pub(crate) epoch: Epoch,
}

impl Hit {
    /// What a node's own answer says.
    pub(crate) fn of(peer: &Peer, held: &Held) -> Self {
        Self { ledger: peer.ledger, id: held.id, name: held.name.clone(), epoch: held.epoch }
    }
}

struct Entry {
    hit: Hit,
    /// When it ends, in milliseconds since the table was made; 0 = it has ended.
    ends_ms: u64,
    /// The one used next after it, or the next free place.
    newer: u32,
    /// The one used last before it.
    older: u32,
}

/// See the module.
pub(crate) struct Cache {
    entries: Vec<Option<Entry>>,
    by_id: HashTable<u32>,
    by_name: HashTable<u32>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    entries_max: usize,
    age_max: Duration,
    born: Instant,
    /// Names are chosen by callers: without a secret they could choose them to collide.
    secret: u64,
}

fn hashed(secret: u64, key: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(secret);
    key.hash(&mut hasher);
    hasher.finish()
}

impl Cache {
    /// At most so many entries, none of them good for longer than `age_max`.
    pub(crate) fn new(entries_max: usize, age_max: Duration, secret: u64) -> Self {
        Self {
            entries: Vec::new(),
            by_id: HashTable::new(),
            by_name: HashTable::new(),
            free: Vec::new(),
            newest: NIL,
            oldest: NIL,
            entries_max: entries_max.clamp(1, ENTRIES_MAX as usize),
            age_max,
            born: Instant::now(),
            secret,
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    fn entry(&self, at: u32) -> Option<&Entry> {
        self.entries.get(at as usize)?.as_ref()
    }

    fn entry_mut(&mut self, at: u32) -> Option<&mut Entry> {
        self.entries.get_mut(at as usize)?.as_mut()
    }

    fn place(&self, space: &SpaceRef) -> Option<u32> {
        let found = match space {
            SpaceRef::Id(id) => {
                let is = |at: &u32| self.entry(*at).is_some_and(|entry| entry.hit.id == *id);
                self.by_id.find(hashed(self.secret, id), is)
            }
            SpaceRef::Name(name) => {
                let is = |at: &u32| self.entry(*at).is_some_and(|entry| entry.hit.name == *name);
                self.by_name.find(hashed(self.secret, name), is)
            }
        };
        found.copied()
    }

    fn now_ms(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.born).as_millis()).unwrap_or(u64::MAX)
    }

    /// The hint, if it is still good.
    pub(crate) fn get(&mut self, space: &SpaceRef, now: Instant) -> Option<Hit> {
        let at = self.place(space)?;
        let now_ms = self.now_ms(now);
        let hit = self.entry(at).filter(|entry| now_ms < entry.ends_ms)?.hit.clone();
        self.unlink(at);
        self.link(at);
        Some(hit)
    }

    /// Whether the space was seen, however long ago.
    pub(crate) fn knows(&self, space: &SpaceRef) -> bool {
        self.place(space).is_some()
    }

    /// Writes a hint down.
    pub(crate) fn put(&mut self, hit: Hit, now: Instant) {
        // A name that has moved to a new id takes its old id along, and the other way round.
        self.forget(&SpaceRef::Name(hit.name.clone()));
        self.forget(&SpaceRef::Id(hit.id));
        if self.len() >= self.entries_max {
            self.remove(self.oldest);
        }
        let ends = now + self.age_max;
        let (id_hash, name_hash) = (hashed(self.secret, hit.id), hashed(self.secret, &hit.name));
        let entry = Entry { hit, ends_ms: self.now_ms(ends), newer: NIL, older: NIL };
        let at = if let Some(at) = self.free.pop() {
            self.entries[at as usize] = Some(entry);
            at
        } else {
            if self.entries.len() == self.entries.capacity() {
                // Doubling would leave half of it empty.
                self.entries.reserve_exact(self.entries.len() / 8 + 64);
            }
            self.entries.push(Some(entry));
            // Fewer than `ENTRIES_MAX`.
            u32::try_from(self.entries.len() - 1).unwrap_or(NIL)
        };
        self.link(at);
        let (entries, secret) = (&self.entries, self.secret);
        let hit =
            |at: &u32| entries.get(*at as usize).and_then(|entry| entry.as_ref()).map(|entry| &entry.hit);
        self.by_id.insert_unique(id_hash, at, |at| hit(at).map_or(0, |hit| hashed(secret, hit.id)));
        self.by_name.insert_unique(name_hash, at, |at| hit(at).map_or(0, |hit| hashed(secret, &hit.name)));
    }

    /// The hint was wrong. That the space exists is still known.
    pub(crate) fn doubt(&mut self, space: &SpaceRef) {
        if let Some(entry) = self.place(space).and_then(|at| self.entry_mut(at)) {
            entry.ends_ms = 0;
        }
    }

    /// The space is gone.
    pub(crate) fn forget(&mut self, space: &SpaceRef) {
        if let Some(at) = self.place(space) {
            self.remove(at);
        }
    }

    /// Everything about a node is forgotten. The only thing here that takes longer the more there is.
    pub(crate) fn forget_node(&mut self, ledger: &LedgerId) {
        for at in 0..u32::try_from(self.entries.len()).unwrap_or(NIL) {
            if self.entry(at).is_some_and(|entry| entry.hit.ledger == *ledger) {
                self.remove(at);
            }
        }
    }

    fn remove(&mut self, at: u32) {
        self.unlink(at);
        let Some(entry) = self.entries.get_mut(at as usize).and_then(Option::take) else { return };
        for (table, hash) in [
            (&mut self.by_id, hashed(self.secret, entry.hit.id)),
            (&mut self.by_name, hashed(self.secret, &entry.hit.name)),
        ] {
            if let Ok(found) = table.find_entry(hash, |is| *is == at) {
                found.remove();
            }
        }
        self.free.push(at);
    }

    /// Makes it the newest.
    fn link(&mut self, at: u32) {
        let before = self.newest;
        if let Some(entry) = self.entry_mut(at) {
            (entry.newer, entry.older) = (NIL, before);
        }
        match self.entry_mut(before) {
            Some(entry) => entry.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let Some(entry) = self.entry(at) else { return };
        let (newer, older) = (entry.newer, entry.older);
        match self.entry_mut(newer) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        match self.entry_mut(older) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests;
