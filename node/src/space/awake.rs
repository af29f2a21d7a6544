use drowse_shared::api::spaces::{Awake, Policy, State};
use jiff::{SignedDuration, Timestamp};

use crate::live::Seen;

/// Why an active space is awake, and when it would be put to sleep. What runs keeps it awake; otherwise the last use
/// counts.
pub fn awake(policy: &Policy, seen: &Seen, last_active_at: Timestamp) -> Awake {
    if let Some(running) = &seen.running {
        return Awake { because: running.what.clone(), since: running.since, next_step: None, at: None };
    }
    let (next_step, after) = match policy.freeze_after_seconds {
        Some(after) => (Some(State::Frozen), Some(after)),
        None => (None, None),
    };
    let at = after
        .and_then(|seconds| i64::try_from(seconds).ok())
        .and_then(|seconds| last_active_at.checked_add(SignedDuration::from_secs(seconds)).ok());
    let because = seen.last_verb.map_or_else(|| "started before this daemon".to_owned(), str::to_owned);
    Awake { because, since: last_active_at, next_step: next_step.filter(|_| at.is_some()), at }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Running;

    #[test]
    fn what_runs_comes_before_what_was() {
        let t0 = Timestamp::UNIX_EPOCH;
        let later = Timestamp::from_second(50).expect("in range");
        let policy = Policy::default();
        let mut seen = Seen { last_verb: Some("acquireSpace"), ..Seen::default() };
        let idle = awake(&policy, &seen, t0);
        assert_eq!((idle.because.as_str(), idle.next_step), ("acquireSpace", Some(State::Frozen)));
        assert_eq!(idle.at, Timestamp::from_second(600).ok());

        seen.running = Some(Running { what: "exec make (pid 41)".to_owned(), since: later });
        let busy = awake(&policy, &seen, t0);
        assert_eq!((busy.because.as_str(), busy.since, busy.next_step), ("exec make (pid 41)", later, None));

        let never = Policy {
            freeze_after_seconds: None,
            stop_after_seconds: None,
            hibernate_after_seconds: None,
            ..policy
        };
        assert_eq!(awake(&never, &Seen::default(), t0).next_step, None);
    }
}
