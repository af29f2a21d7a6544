//! Keyed slots: what happens under one key happens one after another, first come first served, and different keys
//! never wait for each other. Where a few may go at a time, slots are *wide*.
//!
//! Invariant: a slot's entry exists exactly while somebody holds it or waits for it, so the map is as large as the
//! work in flight.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most waiters for one key, when nothing else is said.
pub const QUEUE_MAX: usize = 256;

/// Why a slot was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Too many wait already.
    #[error("{0} requests already wait for it")]
    Full(usize),
    /// The wait took too long.
    #[error("it was busy for {0:?}")]
    Busy(Duration),
}

struct Entry {
    semaphore: Arc<Semaphore>,
    interested: usize,
}

type Map<K> = Arc<Mutex<BTreeMap<K, Entry>>>;

/// Slots by key.
pub struct Slots<K: Ord + Clone> {
    map: Map<K>,
    width: usize,
    queue_max: usize,
}

/// A held slot, given back when dropped.
pub struct Slot<K: Ord + Clone> {
    // Released before the interest is, so that the next holder finds the entry.
    _permit: OwnedSemaphorePermit,
    _interest: Interest<K>,
}

/// Keeps a key's entry alive.
struct Interest<K: Ord + Clone> {
    map: Map<K>,
    key: K,
}

impl<K: Ord + Clone> Drop for Interest<K> {
    fn drop(&mut self) {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = map.get_mut(&self.key) {
            entry.interested -= 1;
            if entry.interested == 0 {
                map.remove(&self.key);
            }
        }
    }
}

impl<K: Ord + Clone> Slots<K> {
    /// Slots whose queues hold at most `queue_max` waiters each.
    pub fn new(queue_max: usize) -> Self {
        Self::wide(1, queue_max)
    }

    /// Slots that `width` may hold at a time, and whose queues hold at most `queue_max` waiters each.
    pub fn wide(width: usize, queue_max: usize) -> Self {
        Self { map: Map::default(), width, queue_max }
    }

    /// Keys that somebody holds or waits for.
    pub fn len(&self) -> usize {
        self.map.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Who waits, over all keys.
    pub fn waiting(&self) -> usize {
        let map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        map.values().map(|entry| entry.interested.saturating_sub(self.width)).sum()
    }

    /// Whether nobody holds or waits for anything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for the slot of `key`, at most `patience`.
    ///
    /// # Errors
    /// When the queue is full or patience ends.
    pub async fn take(&self, key: &K, patience: Duration) -> Result<Slot<K>, Error> {
        let (semaphore, interest) = self.join(key)?;
        match tokio::time::timeout(patience, semaphore.acquire_owned()).await {
            Ok(Ok(permit)) => Ok(Slot { _permit: permit, _interest: interest }),
            Ok(Err(_)) | Err(_) => Err(Error::Busy(patience)),
        }
    }

    /// Takes the slot only if nobody holds it or waits for it.
    pub fn try_take(&self, key: &K) -> Option<Slot<K>> {
        let (semaphore, interest) = self.join(key).ok()?;
        let permit = semaphore.try_acquire_owned().ok()?;
        Some(Slot { _permit: permit, _interest: interest })
    }

    /// Whether somebody holds the slot or waits for it.
    pub fn is_busy(&self, key: &K) -> bool {
        self.map.lock().unwrap_or_else(PoisonError::into_inner).contains_key(key)
    }

    fn join(&self, key: &K) -> Result<(Arc<Semaphore>, Interest<K>), Error> {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = map
            .entry(key.clone())
            .or_insert_with(|| Entry { semaphore: Arc::new(Semaphore::new(self.width)), interested: 0 });
        // Who holds it is interested too.
        if entry.interested >= self.width + self.queue_max {
            return Err(Error::Full(entry.interested - self.width));
        }
        entry.interested += 1;
        Ok((entry.semaphore.clone(), Interest { map: self.map.clone(), key: key.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn one_key_is_first_come_first_served() {
        let slots = Arc::new(Slots::new(8));
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = slots.take(&"a", LONG).await.expect("free");
        let mut waiters = tokio::task::JoinSet::new();
        for n in 0..5 {
            let (slots, order) = (slots.clone(), order.clone());
            waiters.spawn(async move {
                let _slot = slots.take(&"a", LONG).await.expect("patient");
                order.lock().expect("unpoisoned").push(n);
            });
            tokio::task::yield_now().await;
        }
        assert!(slots.try_take(&"a").is_none(), "busy");
        assert!(slots.try_take(&"b").is_some(), "another key never waits");
        drop(first);
        waiters.join_all().await;
        assert_eq!(*order.lock().expect("unpoisoned"), [0, 1, 2, 3, 4]);
        assert!(slots.map.lock().expect("unpoisoned").is_empty(), "nothing is left behind");
    }

    #[tokio::test(start_paused = true)]
    async fn queues_and_patience_end() {
        let slots = Arc::new(Slots::new(1));
        let held = slots.take(&1, LONG).await.expect("free");
        let waiting = slots.clone();
        let waiter =
            tokio::task::JoinSet::from_iter([
                async move { waiting.take(&1, Duration::from_secs(9)).await.err() },
            ]);
        tokio::task::yield_now().await;
        assert_eq!(slots.take(&1, LONG).await.err(), Some(Error::Full(1)));
        assert_eq!(waiter.join_all().await, [Some(Error::Busy(Duration::from_secs(9)))]);
        drop(held);
        assert!(!slots.is_busy(&1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wide_slot_lets_so_many_in_and_no_more() {
        let slots = Slots::wide(2, 1);
        let first = slots.take(&1, LONG).await.expect("free");
        let _second = slots.take(&1, LONG).await.expect("free");
        assert!(slots.try_take(&1).is_none(), "two are inside");
        let third = slots.take(&1, LONG);
        let mut third = std::pin::pin!(third);
        assert!(tokio::time::timeout(Duration::from_secs(1), third.as_mut()).await.is_err());
        assert_eq!(slots.take(&1, LONG).await.err(), Some(Error::Full(1)));
        assert_eq!((slots.len(), slots.waiting()), (1, 1));
        drop(first);
        assert!(third.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_leaves_gives_up_its_place() {
        let slots = Slots::new(8);
        let held = slots.take(&1, LONG).await.expect("free");
        assert!(tokio::time::timeout(Duration::from_secs(1), slots.take(&1, LONG)).await.is_err());
        drop(held);
        assert!(slots.try_take(&1).is_some());
        assert!(!slots.is_busy(&1));
    }
}
