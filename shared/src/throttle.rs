//! Lines that repeat: the first of a kind in each second are written, the rest is counted, and the next line that is
//! written says how many were not. A flood of refusals fills no disk.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Lines of one kind that are written within one [`WINDOW`].
const LINES_MAX: u32 = 20;
/// How long a count lasts.
const WINDOW: Duration = Duration::from_secs(1);
/// Most kinds. There are as many as there are statuses; what is beyond is one kind.
const KINDS_MAX: usize = 64;

#[derive(Debug)]
struct Kind {
    since: Instant,
    written: u32,
    untold: u64,
}

/// Counts lines by kind, such as a status.
#[derive(Debug, Default)]
pub struct Throttle(Mutex<BTreeMap<u16, Kind>>);

impl Throttle {
    /// Whether to write a line of this kind: `None` is no, else how many were left out since the last that was written.
    pub fn admit(&self, kind: u16, now: Instant) -> Option<u64> {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let full = kinds.len() >= KINDS_MAX && !kinds.contains_key(&kind);
        let kind = if full { u16::MAX } else { kind };
        let seen = kinds.entry(kind).or_insert(Kind { since: now, written: 0, untold: 0 });
        if now.saturating_duration_since(seen.since) >= WINDOW {
            (seen.since, seen.written) = (now, 0);
        }
        if seen.written >= LINES_MAX {
            seen.untold += 1;
            return None;
        }
        seen.written += 1;
        Some(std::mem::take(&mut seen.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_writes_a_few_lines_a_second_and_says_how_many_it_left_out() {
        let (throttle, start) = (Throttle::default(), Instant::now());
        let written = (0..1000).filter(|_| throttle.admit(401, start).is_some()).count();
        assert_eq!(written, 20);
        assert_eq!(throttle.admit(404, start), Some(0), "another kind");
        assert_eq!(throttle.admit(401, start + WINDOW), Some(980));
        assert_eq!(throttle.admit(401, start + WINDOW), Some(0));
    }

    #[test]
    fn kinds_are_bounded() {
        let (throttle, start) = (Throttle::default(), Instant::now());
        for kind in 0..1000 {
            throttle.admit(kind, start);
        }
        assert_eq!(throttle.0.lock().expect("unpoisoned").len(), KINDS_MAX + 1);
    }
}
