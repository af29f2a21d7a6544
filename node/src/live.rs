//! What only this life of the daemon knows about spaces: who uses them now, when they were last used to the millisecond,
//! and which calls into the runtime have not come back.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drowse_shared::id::SpaceId;
use jiff::Timestamp;
use tokio::time::Instant;

use wakes::Wakes;

pub use agents::OldAgent;

/// Which agents are of another build.
mod agents;
/// How often spaces were woken by their hosts.
mod wakes;

/// Something that keeps a space awake while it lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// In words: `exec make (pid 41)`.
    pub what: String,
    /// Since when.
    pub since: Timestamp,
}

/// Processor time of a space at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// When.
    pub at: Instant,
    /// Since its start, in microseconds.
    pub cpu_us: u64,
}

/// A call that is out.
#[derive(Debug, Clone, Copy)]
struct Call {
    what: &'static str,
    since: Instant,
    patience: Duration,
}

#[derive(Debug, Default)]
struct Entry {
    last_active_at: Option<Timestamp>,
    last_verb: Option<&'static str>,
    /// The same on the clock that decisions are made by.
    last_used: Option<Instant>,
    /// How long after that the next step down is due; `None` = never.
    sleeps_after: Option<Duration>,
    /// A step down that failed is not tried again before.
    not_before: Option<Instant>,
    running: BTreeMap<u64, Running>,
    calls: BTreeMap<u64, Call>,
    /// The last call that ended did not end in time.
    timed_out: bool,
    woken: Option<Instant>,
    /// How often it fell asleep.
    slept: u64,
    old_agent: Option<OldAgent>,
    /// What it had computed when it was last about to freeze.
    measured: Option<Measured>,
}

impl Entry {
    /// When the next step down is due, if nothing happens before; `None` = not by itself.
    fn due_at(&self) -> Option<Instant> {
        let idle = self.last_used?.checked_add(self.sleeps_after?)?;
        // What a call is out for is in hand; listed as due it would keep others from their turn.
        let rests = self.running.is_empty() && self.calls.is_empty();
        rests.then(|| self.not_before.map_or(idle, |at| at.max(idle)))
    }
}

/// One look at a space.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// When it was last used in this life.
    pub last_active_at: Option<Timestamp>,
    /// By which verb.
    pub last_verb: Option<&'static str>,
    /// What has run longest.
    pub running: Option<Running>,
    /// Whether a call into it is overdue.
    pub unresponsive: bool,
}

#[derive(Debug, Default)]
struct Table {
    entries: BTreeMap<SpaceId, Entry>,
    /// Every space that takes a step down by itself, by when: a look costs no more than what is due.
    due: BTreeSet<(Instant, SpaceId)>,
    /// What is newer than the ledger's.
    unwritten: BTreeMap<SpaceId, Timestamp>,
    wakes: Wakes,
    next: u64,
}

impl Table {
    fn change(&mut self, id: SpaceId, edit: impl FnOnce(&mut Entry)) {
        let entry = self.entries.entry(id).or_default();
        let was = entry.due_at();
        edit(entry);
        let is = entry.due_at();
        if was != is {
            was.map(|at| self.due.remove(&(at, id)));
            is.map(|at| self.due.insert((at, id)));
        }
    }

    /// Somebody uses the space.
    fn used(&mut self, id: SpaceId, now: Timestamp, edit: impl FnOnce(&mut Entry)) {
        let mut last = now;
        self.change(id, |entry| {
            last = entry.last_active_at.map_or(now, |at| at.max(now));
            entry.last_active_at = Some(last);
            entry.last_used = Some(Instant::now());
            entry.not_before = None;
            edit(entry);
        });
        self.unwritten.insert(id, last);
    }

    fn change_known(&mut self, id: SpaceId, edit: impl FnOnce(&mut Entry)) {
        if self.entries.contains_key(&id) {
            self.change(id, edit);
        }
    }
}

/// The table. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Live(Arc<Mutex<Table>>);

impl Live {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A verb used the space, which is active and sleeps after so long.
    pub fn touch(&self, id: SpaceId, verb: &'static str, now: Timestamp, sleeps_after: Option<Duration>) {
        let mut table = self.table();
        table.used(id, now, |entry| {
            entry.sleeps_after = sleeps_after;
            entry.last_verb = Some(verb);
        });
    }

    /// The space changed: from now on it takes its next step down after so long. `idle` is how long nobody used it, as
    /// far as the ledger knows.
    pub fn watch(&self, id: SpaceId, sleeps_after: Option<Duration>, idle: Duration) {
        let now = Instant::now();
        self.table().change(id, |entry| {
            entry.sleeps_after = sleeps_after;
            entry.last_used.get_or_insert_with(|| now.checked_sub(idle).unwrap_or(now));
        });
    }

    /// The space was woken: its time to sleep counts from now.
    pub fn renew(&self, id: SpaceId) {
        let now = Some(Instant::now());
        self.table().change(id, |entry| (entry.last_used, entry.woken) = (now, now));
    }

    /// The space fell asleep.
    pub fn fell_asleep(&self, id: SpaceId) {
        self.table().change(id, |entry| entry.slept += 1);
    }

    /// How often the space fell asleep in this life.
    pub fn slept(&self, id: SpaceId) -> u64 {
        self.table().entries.get(&id).map_or(0, |entry| entry.slept)
    }

    /// Counts a wake by the hosts of the space, of which there may be so many in a minute.
    ///
    /// # Errors
    /// How long it takes until the next.
    pub fn count_wake(&self, id: SpaceId, most: u32) -> Result<(), Duration> {
        self.table().wakes.count(id, most, Instant::now())
    }

    /// For how long the space has been awake since this life woke it.
    pub fn woken_for(&self, id: SpaceId) -> Option<Duration> {
        self.table().entries.get(&id)?.woken.map(|woken| woken.elapsed())
    }

    /// The space is used on by whoever used it before.
    pub fn use_again(&self, id: SpaceId, now: Timestamp) {
        let mut table = self.table();
        if table.entries.contains_key(&id) {
            table.used(id, now, |_| ());
        }
    }

    /// Spaces that are to take a step down now, the longest due first.
    pub fn due(&self, now: Instant) -> Vec<SpaceId> {
        self.table().due.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| *id).collect()
    }

    /// Whether one space is to take a step down now.
    pub fn is_due(&self, id: SpaceId, now: Instant) -> bool {
        self.table().entries.get(&id).and_then(Entry::due_at).is_some_and(|at| at <= now)
    }

    /// A step down failed: it is tried again at `then`, unless the space is used before.
    pub fn postpone(&self, id: SpaceId, then: Instant) {
        self.table().change_known(id, |entry| entry.not_before = Some(then));
    }

    /// Keeps what a space has computed, and answers what was kept before.
    pub fn measured(&self, id: SpaceId, now: Measured) -> Option<Measured> {
        self.table().entries.get_mut(&id).and_then(|entry| entry.measured.replace(now))
    }

    /// What is known now.
    pub fn seen(&self, id: SpaceId) -> Seen {
        let table = self.table();
        let Some(entry) = table.entries.get(&id) else { return Seen::default() };
        let overdue = entry.calls.values().any(|call| call.since.elapsed() > call.patience);
        Seen {
            last_active_at: entry.last_active_at,
            last_verb: entry.last_verb,
            running: entry.running.values().next().cloned(),
            unresponsive: overdue || entry.timed_out,
        }
    }

    /// Counts something as running in the space until the guard is dropped.
    pub fn run(&self, id: SpaceId, what: String, since: Timestamp) -> RunGuard {
        let mut table = self.table();
        let number = table.next;
        table.next += 1;
        table.change(id, |entry| drop(entry.running.insert(number, Running { what, since })));
        RunGuard { live: self.clone(), id, number }
    }

    /// Counts a call as out until the guard is dropped. It is overdue after `patience`.
    pub fn call(&self, id: SpaceId, what: &'static str, patience: Duration) -> CallGuard {
        let mut table = self.table();
        let number = table.next;
        table.next += 1;
        let call = Call { what, since: Instant::now(), patience };
        table.change(id, |entry| {
            entry.calls.insert(number, call);
        });
        CallGuard { live: self.clone(), id, number, in_time: false }
    }

    /// The oldest call that is out, and for how long.
    pub fn stuck(&self, id: SpaceId) -> Option<(&'static str, Duration)> {
        let table = self.table();
        let call = table.entries.get(&id)?.calls.values().next()?;
        Some((call.what, call.since.elapsed()))
    }

    /// Activity that the ledger does not have yet.
    pub fn unwritten(&self) -> BTreeMap<SpaceId, Timestamp> {
        self.table().unwritten.clone()
    }

    /// The ledger has this activity now.
    pub fn written(&self, used: &BTreeMap<SpaceId, Timestamp>) {
        self.table().unwritten.retain(|id, at| used.get(id).is_none_or(|written| written < at));
    }

    /// The space is gone, or sleeps so deep that nothing of it is kept.
    pub fn forget(&self, id: SpaceId) {
        let mut table = self.table();
        table.unwritten.remove(&id);
        if let Some(at) = table.entries.remove(&id).and_then(|entry| entry.due_at()) {
            table.due.remove(&(at, id));
        }
    }
}

/// Something runs in a space while this lives.
#[derive(Debug)]
pub struct RunGuard {
    live: Live,
    id: SpaceId,
    number: u64,
}

impl RunGuard {
    /// Says better what runs, once it is known.
    pub fn rename(&self, what: String) {
        let mut table = self.live.table();
        let running = table.entries.get_mut(&self.id).and_then(|entry| entry.running.get_mut(&self.number));
        if let Some(running) = running {
            running.what = what;
        }
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.live.table().change_known(self.id, |entry| drop(entry.running.remove(&self.number)));
    }
}

/// A call is out while this lives.
#[derive(Debug)]
pub struct CallGuard {
    live: Live,
    id: SpaceId,
    number: u64,
    in_time: bool,
}

impl CallGuard {
    /// The call answered. A guard dropped without this leaves the space marked until another call answers.
    pub fn answered(mut self, in_time: bool) {
        self.in_time = in_time;
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        let (number, in_time) = (self.number, self.in_time);
        self.live.table().change_known(self.id, |entry| {
            entry.calls.remove(&number);
            entry.timed_out = !in_time;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_overdue_marks_its_space_until_one_answers() {
        let live = Live::default();
        let id: SpaceId = "0190f0c2a4b87c3d9e0f112233445566".parse().expect("an id");
        let call = live.call(id, "freeze", Duration::from_secs(2));
        assert!(!live.seen(id).unresponsive);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!(live.seen(id).unresponsive);
        assert_eq!(live.stuck(id).map(|(what, for_)| (what, for_.as_secs())), Some(("freeze", 3)));
        call.answered(false);
        assert!(live.seen(id).unresponsive && live.stuck(id).is_none());
        live.call(id, "freeze", Duration::from_secs(2)).answered(true);
        assert!(!live.seen(id).unresponsive);
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_down_is_due_when_nothing_runs_and_nobody_came() {
        let live = Live::default();
        let id: SpaceId = "0190f0c2a4b87c3d9e0f112233445566".parse().expect("an id");
        let (after, later) = (Some(Duration::from_secs(10)), Duration::from_secs(10));
        live.touch(id, "execCommand", Timestamp::UNIX_EPOCH, after);
        assert!(!live.is_due(id, Instant::now()));
        let running = live.run(id, "exec".to_owned(), Timestamp::UNIX_EPOCH);
        tokio::time::advance(later).await;
        assert_eq!(live.due(Instant::now()), [], "something runs");
        drop(running);
        assert_eq!(live.due(Instant::now()), [id]);
        live.postpone(id, Instant::now() + later);
        assert!(!live.is_due(id, Instant::now()), "it failed a moment ago");
        tokio::time::advance(later).await;
        assert!(live.is_due(id, Instant::now()));
        live.touch(id, "readFile", Timestamp::UNIX_EPOCH, after);
        assert!(!live.is_due(id, Instant::now()), "somebody came");
        live.watch(id, None, Duration::ZERO);
        tokio::time::advance(later).await;
        assert!(!live.is_due(id, Instant::now()), "never");
    }

    #[test]
    fn activity_only_grows_and_is_written_once() {
        let live = Live::default();
        let id: SpaceId = "0190f0c2a4b87c3d9e0f112233445566".parse().expect("an id");
        let at = |s| Timestamp::from_second(s).expect("in range");
        live.touch(id, "execCommand", at(9), None);
        live.touch(id, "readFile", at(7), None);
        assert_eq!(live.seen(id).last_active_at, Some(at(9)));
        let used = live.unwritten();
        assert_eq!(used, BTreeMap::from([(id, at(9))]), "until it is written");
        live.touch(id, "readFile", at(10), None);
        live.written(&used);
        assert_eq!(live.unwritten(), BTreeMap::from([(id, at(10))]), "what came since is not");
        live.written(&live.unwritten());
        assert_eq!(live.unwritten(), BTreeMap::new());
        let guard = live.run(id, "exec".to_owned(), at(9));
        guard.rename("exec make (pid 41)".to_owned());
        assert_eq!(live.seen(id).running.map(|r| r.what).as_deref(), Some("exec make (pid 41)"));
        drop(guard);
        assert_eq!(live.seen(id).running, None);
    }
}
