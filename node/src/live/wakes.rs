//! How often spaces were woken by their hosts of late. It outlives their stops, and costs nothing a minute later.

use std::{collections::BTreeMap, time::Duration};

use drowse_shared::id::SpaceId;
use tokio::time::Instant;

/// Wakes are counted over so long.
const OVER: Duration = Duration::from_secs(60);
/// With so many spaces, those whose time is over are looked for.
const PRUNED_AT: usize = 64;

#[derive(Debug)]
pub(super) struct Wakes {
    counted: BTreeMap<SpaceId, (Instant, u32)>,
    prune_at: usize,
}

impl Default for Wakes {
    fn default() -> Self {
        Self { counted: BTreeMap::new(), prune_at: PRUNED_AT }
    }
}

impl Wakes {
    /// Counts one, or says how long it takes until the next may be.
    pub(super) fn count(&mut self, id: SpaceId, most: u32, now: Instant) -> Result<(), Duration> {
        let is_fresh = |since: &Instant| now.duration_since(*since) < OVER;
        if self.counted.len() >= self.prune_at {
            self.counted.retain(|_, (since, _)| is_fresh(since));
            self.prune_at = (self.counted.len() * 2).max(PRUNED_AT);
        }
        let (since, wakes) = self.counted.entry(id).or_insert((now, 0));
        if !is_fresh(since) {
            (*since, *wakes) = (now, 0);
        }
        if *wakes >= most {
            return Err(OVER.saturating_sub(now.duration_since(*since)));
        }
        *wakes += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drowse_shared::seams::Env;

    #[tokio::test(start_paused = true)]
    async fn what_is_over_is_not_kept() {
        let (mut wakes, env) = (Wakes::default(), Env::real());
        for _ in 0..10 {
            for _ in 0..50 {
                assert_eq!(wakes.count(SpaceId::mint(&env), 1, Instant::now()), Ok(()));
            }
            tokio::time::advance(OVER).await;
        }
        assert!(wakes.counted.len() <= 128, "{} are kept", wakes.counted.len());
    }
}
