//! What a space computes keeps it awake, if its policy says so. It is measured twice, right before the space would freeze:
//! nothing is measured while it is used anyway, and a space whose policy does not ask costs nothing.

use std::time::Duration;

use drowse_shared::id::SpaceId;
use tokio::time::Instant;

use crate::{live::Measured, node::Node};

/// Between two measurements.
pub const SAMPLE: Duration = Duration::from_secs(2);
/// After so long a first measurement says nothing any more about what goes on now.
const STALE: Duration = Duration::from_secs(10);

/// What there is to do with a space that would freeze now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Its processes do enough to keep it.
    Busy,
    /// They do not.
    Quiet,
    /// Too early to say: it is measured once more after [`SAMPLE`].
    Unknown,
}

/// Compares two measurements.
pub fn judge(before: Option<Measured>, now: Measured, floor_percent: u32) -> Verdict {
    let Some(before) = before else { return Verdict::Unknown };
    let passed = now.at.saturating_duration_since(before.at);
    // Started anew since, it counts from 0.
    if passed < SAMPLE || passed > STALE || now.cpu_us < before.cpu_us {
        return Verdict::Unknown;
    }
    let used = u128::from(now.cpu_us - before.cpu_us) * 100;
    if used >= passed.as_micros() * u128::from(floor_percent) { Verdict::Busy } else { Verdict::Quiet }
}

/// Measures a space that would freeze now. One that cannot be measured is quiet.
pub async fn look(node: &Node, id: SpaceId, floor_percent: u32) -> Verdict {
    let stats = match node.executor.stats(id).await {
        Ok(stats) => stats,
        Err(error) => {
            tracing::warn!(space = %id, %error, "what a space computes cannot be measured");
            return Verdict::Quiet;
        }
    };
    let now = Measured { at: Instant::now(), cpu_us: stats.cpu_us };
    let before = node.live.measured(id, now);
    let verdict = judge(before, now, floor_percent);
    if verdict == Verdict::Unknown {
        node.live.postpone(id, now.at + SAMPLE);
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_far_enough_apart_say_whether_it_computes() {
        let start = Instant::now();
        let at = |seconds: u64, cpu_ms: u64| Measured {
            at: start + Duration::from_secs(seconds),
            cpu_us: cpu_ms * 1000,
        };
        for (before, now, floor, verdict) in [
            (None, at(0, 500), 10, Verdict::Unknown),
            (Some(at(0, 500)), at(1, 1500), 10, Verdict::Unknown),
            (Some(at(0, 500)), at(2, 700), 10, Verdict::Busy),
            (Some(at(0, 500)), at(2, 699), 10, Verdict::Quiet),
            (Some(at(0, 500)), at(2, 500), 1, Verdict::Quiet),
            // Four cores.
            (Some(at(0, 500)), at(2, 8500), 400, Verdict::Busy),
            (Some(at(0, 500)), at(2, 8499), 400, Verdict::Quiet),
            (Some(at(0, 500)), at(11, 90_000), 10, Verdict::Unknown),
            // Started anew.
            (Some(at(0, 500)), at(2, 400), 10, Verdict::Unknown),
        ] {
            assert_eq!(judge(before, now, floor), verdict, "{before:?} {now:?} {floor}");
        }
    }
}
