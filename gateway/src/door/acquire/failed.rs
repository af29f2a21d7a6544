//! Creates that failed a moment ago, for those who waited for them: they get the same answer instead of asking a fleet
//! that just could not, one after another.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use drowse_shared::{
    api::{Error, spaces::WAIT_SECONDS},
    name::SpaceRef,
};
use tokio::time::Instant;

/// How long a failure is kept: nobody waits longer unless they say so, and then they ask again.
const LIFE: Duration = Duration::from_secs(WAIT_SECONDS);
/// Most failures kept. A name beyond them costs its waiters a round each.
const FAILURES_MAX: usize = 1024;

/// The newest failure of each name.
#[derive(Debug, Default)]
pub(crate) struct Failed(Mutex<BTreeMap<SpaceRef, (Instant, Error)>>);

impl Failed {
    /// Tells whoever waits now.
    pub(super) fn record(&self, space: &SpaceRef, error: &Error, now: Instant) {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.retain(|_, (at, _)| now.saturating_duration_since(*at) < LIFE);
        if map.len() < FAILURES_MAX {
            map.insert(space.clone(), (now, error.clone()));
        }
    }

    /// What the create answered that somebody waits for since `since`.
    pub(super) fn of(&self, space: &SpaceRef, since: Instant) -> Option<Error> {
        let map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.get(space).filter(|(at, _)| *at > since).map(|(_, error)| error.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drowse_shared::api::Code;

    #[test]
    fn only_who_waited_before_it_failed_shares_the_answer() {
        let (failed, start) = (Failed::default(), Instant::now());
        let (a, b): (SpaceRef, SpaceRef) = ("a".parse().expect("a name"), "b".parse().expect("a name"));
        let second = |n| start + Duration::from_secs(n);
        failed.record(&a, &Error::new(Code::NoCapacity, "full"), second(2));
        assert_eq!(failed.of(&a, second(1)).map(|e| e.code), Some(Code::NoCapacity));
        assert_eq!(failed.of(&a, second(2)), None, "came after it");
        assert_eq!(failed.of(&b, second(1)), None, "another name");
        failed.record(&b, &Error::new(Code::NoCapacity, "full"), second(2) + LIFE);
        assert_eq!(failed.of(&a, second(1)), None, "long ago");
    }
}
