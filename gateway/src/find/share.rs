//! Who may ask the nodes. Looking for a space costs a question to every node, so how many are out at once is bounded:
//! what waits for its turn is bounded too, and the rest is refused at once. Names that were seen have a share of their own,
//! so that whoever uses spaces never waits behind those who ask for what may not exist.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use drowse_shared::api::{Code, Error};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most rounds of a share at once: no node is asked more questions of one share than this.
const ROUNDS_MAX: usize = 64;
/// Longest wait for a turn.
const PATIENCE: Duration = Duration::from_secs(2);
/// Of 2^32, so much further apart lie the ends of two waits that follow each other: the golden ratio, which leaves no
/// two of any number of them close together.
const APART: u32 = 0x9E37_79B9;
/// Seconds after which it makes sense to come again.
const RETRY_AFTER_SECONDS: u64 = 2;

/// As much as can be is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this gateway has as much under way as it can; try again")]
pub(crate) struct Busy;

impl From<Busy> for Error {
    fn from(busy: Busy) -> Self {
        Self::new(Code::GatewayBusy, busy.to_string()).retry_after(RETRY_AFTER_SECONDS)
    }
}

/// A share of the questions that may be out.
pub(crate) struct Share {
    /// Questions on the wire.
    wire: Arc<Semaphore>,
    wire_max: usize,
    queue: Semaphore,
    queue_max: usize,
    /// How many have waited.
    waits: AtomicU32,
}

/// A turn. It weighs as much of its share as there are questions out, or more while it is undecided.
pub(crate) struct Turn {
    permit: OwnedSemaphorePermit,
}

impl Share {
    /// At most `wire_max` questions out, and `queue_max` waiting to ask.
    pub(crate) fn new(wire_max: usize, queue_max: usize) -> Self {
        Self {
            wire: Arc::new(Semaphore::new(wire_max)),
            wire_max,
            queue: Semaphore::new(queue_max),
            queue_max,
            waits: AtomicU32::new(0),
        }
    }

    /// How long the next to wait does: a half of [`PATIENCE`] up to all of it. Those who came in one moment are not refused
    /// in one moment, and do not come again in one.
    fn patience(&self) -> Duration {
        let place = self.waits.fetch_add(1, Ordering::Relaxed).wrapping_mul(APART);
        PATIENCE.mul_f64(0.5 + f64::from(place) / f64::from(u32::MAX) / 2.0)
    }

    /// Who waits.
    pub(crate) fn waiting(&self) -> usize {
        self.queue_max.saturating_sub(self.queue.available_permits())
    }

    /// How much of it is out, of how much.
    pub(crate) fn out(&self) -> usize {
        self.wire_max.saturating_sub(self.wire.available_permits())
    }

    /// Waits for a turn to ask `nodes` nodes.
    pub(crate) async fn turn(&self, nodes: usize) -> Result<Turn, Busy> {
        let weight = nodes.max(self.wire_max / ROUNDS_MAX).clamp(1, self.wire_max);
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        // Nobody overtakes: while somebody waits, nothing is free.
        if let Ok(permit) = self.wire.clone().try_acquire_many_owned(weight) {
            return Ok(Turn { permit });
        }
        let _place = self.queue.try_acquire().map_err(|_| Busy)?;
        match tokio::time::timeout(self.patience(), self.wire.clone().acquire_many_owned(weight)).await {
            Ok(Ok(permit)) => Ok(Turn { permit }),
            Ok(Err(_)) | Err(_) => Err(Busy),
        }
    }
}

impl Turn {
    /// So many questions are still out, and nobody waits for their answers any more.
    pub(super) fn shrink(&mut self, open: usize) {
        let spare = self.permit.num_permits().saturating_sub(open);
        drop(self.permit.split(spare));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rounds_and_questions_are_bounded_and_the_rest_is_refused_at_once() {
        let share = Arc::new(Share::new(640, 2));
        let mut inside = Vec::new();
        for _ in 0..ROUNDS_MAX {
            inside.push(share.turn(3).await.expect("there is room"));
        }
        assert_eq!((share.out(), share.waiting()), (640, 0));
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let share = share.clone();
                tokio::task::JoinSet::from_iter([async move { share.turn(3).await.is_ok() }])
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(share.waiting(), 2);
        let begun = tokio::time::Instant::now();
        assert_eq!(share.turn(3).await.err(), Some(Busy), "the queue is full");
        assert_eq!(begun.elapsed(), Duration::ZERO);
        inside.clear();
        for waiter in waiters {
            assert_eq!(waiter.join_all().await, [true]);
        }
        assert_eq!((share.out(), share.waiting()), (0, 0));
    }

    #[test]
    fn of_a_hundred_who_come_at_once_few_are_refused_at_once() {
        let share = Share::new(1, 1);
        let mut ends: Vec<_> = (0..100).map(|_| share.patience()).collect();
        ends.sort();
        assert!(ends.iter().all(|e| (PATIENCE / 2..=PATIENCE).contains(e)), "{ends:?}");
        let crowded = ends.windows(4).filter(|w| w[3] - w[0] < PATIENCE / 200).count();
        assert_eq!(crowded, 0, "{ends:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_fleet_has_fewer_rounds_and_what_nobody_waits_for_weighs_its_questions() {
        let share = Share::new(640, 2);
        let mut first = share.turn(500).await.expect("there is room");
        assert_eq!(share.turn(500).await.err(), Some(Busy), "not within its patience");
        first.shrink(1);
        assert_eq!(share.out(), 1);
        assert_eq!(share.turn(10_000).await.err(), Some(Busy), "one question is out");
        first.shrink(0);
        assert!(share.turn(10_000).await.is_ok(), "more nodes than questions: alone");
    }
}
