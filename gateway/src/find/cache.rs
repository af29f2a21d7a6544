//! Hints: which node was last seen to hold a space. By id, with the name leading to the id; the least recently used
//! goes first, and each goes after a while however often it is used.

use std::{collections::BTreeMap, hash::BuildHasherDefault, num::NonZeroUsize, time::Duration};

use drowse_shared::{
    id::{Epoch, LedgerId, SpaceId},
    name::{SpaceName, SpaceRef},
};
use lru::LruCache;
use tokio::time::Instant;

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

struct Entry {
    hit: Hit,
    since: Instant,
}

/// A hasher without a random seed, so that two runs of one simulation are the same. The keys are ids we minted.
type Hasher = BuildHasherDefault<std::hash::DefaultHasher>;

/// See the module.
pub(crate) struct Cache {
    by_id: LruCache<SpaceId, Entry, Hasher>,
    by_name: BTreeMap<SpaceName, SpaceId>,
    age_max: Duration,
}

impl Cache {
    pub(crate) fn new(entries_max: usize, age_max: Duration) -> Self {
        let entries_max = NonZeroUsize::new(entries_max).unwrap_or(NonZeroUsize::MIN);
        Self {
            by_id: LruCache::with_hasher(entries_max, Hasher::default()),
            by_name: BTreeMap::new(),
            age_max,
        }
    }

    fn id(&self, space: &SpaceRef) -> Option<SpaceId> {
        match space {
            SpaceRef::Id(id) => Some(*id),
            SpaceRef::Name(name) => self.by_name.get(name).copied(),
        }
    }

    pub(crate) fn get(&mut self, space: &SpaceRef, now: Instant) -> Option<Hit> {
        let id = self.id(space)?;
        let entry = self.by_id.get(&id)?;
        if now.duration_since(entry.since) >= self.age_max {
            self.forget(space);
            return None;
        }
        Some(entry.hit.clone())
    }

    pub(crate) fn put(&mut self, hit: Hit, now: Instant) {
        // A name that has moved to a new id takes its old id along, and the other way round.
        self.forget(&SpaceRef::Name(hit.name.clone()));
        self.forget(&SpaceRef::Id(hit.id));
        self.by_name.insert(hit.name.clone(), hit.id);
        if let Some((_, pushed_out)) = self.by_id.push(hit.id, Entry { hit, since: now }) {
            self.by_name.remove(&pushed_out.hit.name);
        }
    }

    pub(crate) fn forget(&mut self, space: &SpaceRef) {
        let entry = self.id(space).and_then(|id| self.by_id.pop(&id));
        if let Some(entry) = entry {
            self.by_name.remove(&entry.hit.name);
        }
    }

    pub(crate) fn forget_node(&mut self, ledger: &LedgerId) {
        let ids: Vec<SpaceId> =
            self.by_id.iter().filter(|(_, entry)| entry.hit.ledger == *ledger).map(|(id, _)| *id).collect();
        for id in ids {
            self.forget(&SpaceRef::Id(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hit(name: u8, id: u8, ledger: u8) -> Hit {
        Hit {
            ledger: format!("{ledger:032x}").parse().expect("an id"),
            id: format!("{id:032x}").parse().expect("an id"),
            name: format!("n{name}").parse().expect("a name"),
            epoch: Epoch::FIRST,
        }
    }

    fn name(n: u8) -> SpaceRef {
        SpaceRef::Name(format!("n{n}").parse().expect("a name"))
    }

    #[tokio::test(start_paused = true)]
    async fn hints_end_by_age_however_often_they_are_used() {
        let mut cache = Cache::new(10, Duration::from_secs(60));
        cache.put(hit(1, 1, 1), Instant::now());
        for _ in 0..59 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(cache.get(&name(1), Instant::now()).is_some());
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(cache.get(&name(1), Instant::now()).is_none());
    }

    #[tokio::test]
    async fn a_name_and_an_id_lead_to_one_entry() {
        let now = Instant::now();
        let mut cache = Cache::new(2, Duration::from_secs(60));
        let by_id = |n| SpaceRef::Id(hit(0, n, 0).id);
        cache.put(hit(1, 1, 1), now);
        assert_eq!(cache.get(&name(1), now), cache.get(&by_id(1), now));
        cache.put(hit(1, 2, 1), now);
        assert_eq!(cache.get(&by_id(1), now), None, "the name has moved to another id");
        cache.put(hit(3, 3, 2), now);
        assert!(cache.get(&name(1), now).is_some());
        cache.put(hit(4, 4, 2), now);
        assert_eq!(cache.get(&name(3), now), None, "the least recently used one");
        cache.forget_node(&hit(0, 0, 2).ledger);
        assert!(cache.get(&name(4), now).is_none() && cache.get(&name(1), now).is_some());
        cache.forget(&by_id(2));
        assert!(cache.get(&name(1), now).is_none());
        assert!(cache.by_name.is_empty());
    }

    proptest! {
        #[test]
        fn names_and_ids_never_part(steps in proptest::collection::vec((0_u8..4, 0_u8..6, 0_u8..6), 0..100)) {
            let mut cache = Cache::new(3, Duration::from_secs(60));
            let now = Instant::now();
            for (step, a, b) in steps {
                match step {
                    0 | 1 => cache.put(hit(a, b, a % 2), now),
                    2 => cache.forget(&name(a)),
                    _ => cache.forget_node(&hit(0, 0, a % 2).ledger),
                }
                prop_assert_eq!(cache.by_id.len(), cache.by_name.len());
                prop_assert!(cache.by_name.iter().all(|(n, id)| cache.by_id.peek(id).is_some_and(|e| e.hit.name == *n)));
            }
        }
    }
}
