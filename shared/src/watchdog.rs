//! Notices a loop that makes no progress, and says where it stands.
//!
//! Whoever loops for the life of a daemon holds a `Pulse` and says at each step where it is, or that it rests. A loop that stays at
//! one step longer than it said it may is reported once, with the step and what it was about, and once more when it goes
//! on. Nothing is restarted from here: a loop that is cut at an unknown place would be a second fault. A supervisor that waits for
//! signs of life gets none meanwhile, and may start the daemon anew, as after any crash.

use std::{
    collections::BTreeMap,
    fmt::Display,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::shutdown::Shutdown;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// A look that comes this much late means that every task was late: something blocked the threads they run on.
const LATE: Duration = Duration::from_secs(2);

/// A loop at a step for longer than it may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stalled {
    /// Which loop.
    pub what: &'static str,
    /// Where it stands.
    pub step: &'static str,
    /// What the step is about, a space or a node; empty where there is nothing to name.
    pub about: String,
    /// For how long.
    pub since: Duration,
}

struct Watched {
    what: &'static str,
    step: &'static str,
    about: String,
    /// When the step began.
    began: Instant,
    /// When it should have ended; `None` while the loop waits for something that may never come.
    due: Option<Instant>,
    reported: bool,
}

#[derive(Default)]
struct Kennel {
    numbers: u64,
    watched: BTreeMap<u64, Watched>,
}

/// Watches the loops of one daemon.
#[derive(Clone, Default)]
pub struct Watchdog(Arc<Mutex<Kennel>>);

/// A loop's voice. Dropped, the loop is watched no more.
pub struct Pulse {
    dog: Watchdog,
    number: u64,
    within: Duration,
}

impl Watchdog {
    fn lock(&self) -> MutexGuard<'_, Kennel> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a loop that should take no longer than `within` for any one step. It rests at first.
    pub fn watch(&self, what: &'static str, within: Duration) -> Pulse {
        let mut kennel = self.lock();
        kennel.numbers += 1;
        let number = kennel.numbers;
        let watched = Watched {
            what,
            step: "starting",
            about: String::new(),
            began: Instant::now(),
            due: None,
            reported: false,
        };
        kennel.watched.insert(number, watched);
        Pulse { dog: self.clone(), number, within }
    }

    /// The loops that stand still at `now`.
    pub fn stalled(&self, now: Instant) -> Vec<Stalled> {
        self.lock().watched.values().filter(|watched| watched.is_late(now)).map(|w| w.shown(now)).collect()
    }

    /// What is new since the last look: loops that stand still, and loops that go on again.
    fn news(&self, now: Instant) -> (Vec<Stalled>, Vec<&'static str>) {
        let (mut stalled, mut moving) = (Vec::new(), Vec::new());
        for watched in self.lock().watched.values_mut() {
            match (watched.is_late(now), watched.reported) {
                (true, false) => stalled.push(watched.shown(now)),
                (false, true) => moving.push(watched.what),
                _ => continue,
            }
            watched.reported = !watched.reported;
        }
        (stalled, moving)
    }

    /// Looks until the daemon ends.
    pub async fn run(self, shutdown: Shutdown) {
        loop {
            let expected = Instant::now() + LOOK;
            crate::select_biased! {
                () = shutdown.stopping() => return,
                () = tokio::time::sleep_until(expected) => {}
            }
            let now = Instant::now();
            let late = now.saturating_duration_since(expected);
            if late > LATE {
                tracing::error!(
                    late_ms = u64::try_from(late.as_millis()).unwrap_or(u64::MAX),
                    "every task of this daemon stood still: the machine was suspended or out of processor time, or something blocked its threads"
                );
                // What waited with everything else is given time to go on first.
                continue;
            }
            let (stalled, moving) = self.news(now);
            for Stalled { what, step, about, since } in stalled {
                tracing::error!(
                    r#loop = what,
                    step,
                    about,
                    since_seconds = since.as_secs(),
                    "a loop makes no progress; a restart of the daemon is safe and starts it anew"
                );
            }
            for what in moving {
                tracing::info!(r#loop = what, "a loop that stood still goes on");
            }
        }
    }
}

impl Watched {
    fn is_late(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| now > due)
    }

    fn shown(&self, now: Instant) -> Stalled {
        let since = now.saturating_duration_since(self.began);
        Stalled { what: self.what, step: self.step, about: self.about.clone(), since }
    }
}

impl Pulse {
    fn set(&self, step: &'static str, about: String, within: Option<Duration>) {
        let now = Instant::now();
        if let Some(watched) = self.dog.lock().watched.get_mut(&self.number) {
            (watched.step, watched.about, watched.began) = (step, about, now);
            watched.due = within.map(|within| now + within);
        }
    }

    /// The loop is at this step now.
    pub fn at(&self, step: &'static str) {
        self.set(step, String::new(), Some(self.within));
    }

    /// The loop is at this step now, with this.
    pub fn about(&self, step: &'static str, about: &impl Display) {
        self.set(step, about.to_string(), Some(self.within));
    }

    /// The loop sleeps for `pause` and should be back soon after.
    pub fn pauses(&self, pause: Duration) {
        self.set("pausing", String::new(), Some(pause + self.within));
    }

    /// The loop waits for something that may never come.
    pub fn rests(&self) {
        self.set("resting", String::new(), None);
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.dog.lock().watched.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_stays_at_one_step_is_named_with_the_step_and_what_it_is_about() {
        let dog = Watchdog::default();
        let (idle, tend) = (dog.watch("idle", WITHIN), dog.watch("tend", WITHIN));
        tend.rests();
        idle.about("freezing", &"ada");
        advance(WITHIN).await;
        assert_eq!(dog.stalled(Instant::now()), [], "it may take as long as it said");
        advance(Duration::from_secs(1)).await;
        let stalled = dog.stalled(Instant::now());
        let since = WITHIN + Duration::from_secs(1);
        assert_eq!(stalled, [Stalled { what: "idle", step: "freezing", about: "ada".to_owned(), since }]);
        idle.at("looking");
        assert_eq!(dog.stalled(Instant::now()), [], "it goes on");
        drop(idle);
        advance(WITHIN * 2).await;
        assert_eq!(dog.stalled(Instant::now()), [], "a loop that ended is not missed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_progress_until_it_is_over() {
        let dog = Watchdog::default();
        let idle = dog.watch("idle", WITHIN);
        idle.pauses(Duration::from_secs(60));
        advance(Duration::from_secs(69)).await;
        assert_eq!(dog.stalled(Instant::now()), []);
        advance(Duration::from_secs(2)).await;
        assert_eq!(dog.stalled(Instant::now()).len(), 1, "it did not come back");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stall_is_told_once_and_so_is_its_end() {
        let dog = Watchdog::default();
        let idle = dog.watch("idle", WITHIN);
        idle.at("looking");
        advance(WITHIN * 2).await;
        let now = Instant::now();
        assert_eq!(dog.news(now).0.len(), 1);
        assert_eq!(dog.news(now), (vec![], vec![]), "told already");
        idle.at("looking");
        assert_eq!(dog.news(now), (vec![], vec!["idle"]));
        assert_eq!(dog.news(now), (vec![], vec![]));
    }
}
