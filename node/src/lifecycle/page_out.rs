//! What sleeps gives its memory back, where the machine has swap: in the background, a few at a time, and no longer than it
//! sleeps.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drowse_shared::{id::SpaceId, slots::Slots};
use tokio_util::sync::CancellationToken;

use crate::{door::error::chain, node::Node};

/// Most spaces whose memory is written out at once: they share the disk under the swap.
const AT_ONCE: usize = 2;
/// Most that wait for it. The memory of the others stays until the kernel wants it.
const WAITING_MAX: usize = 1024;
/// Longest wait for a turn.
const PATIENCE: Duration = Duration::from_secs(120);

/// Who is being paged out.
pub struct PageOuts {
    under_way: Mutex<BTreeMap<SpaceId, CancellationToken>>,
    turns: Slots<()>,
}

impl Default for PageOuts {
    fn default() -> Self {
        Self { under_way: Mutex::default(), turns: Slots::wide(AT_ONCE, WAITING_MAX) }
    }
}

impl PageOuts {
    fn under_way(&self) -> MutexGuard<'_, BTreeMap<SpaceId, CancellationToken>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The space is about to run, or to end.
    pub fn cancel(&self, id: SpaceId) {
        if let Some(enough) = self.under_way().remove(&id) {
            enough.cancel();
        }
    }

    fn begin(&self, id: SpaceId) -> CancellationToken {
        let enough = CancellationToken::new();
        if let Some(before) = self.under_way().insert(id, enough.clone()) {
            before.cancel();
        }
        enough
    }

    /// It has ended by itself.
    fn end(&self, id: SpaceId, enough: &CancellationToken) {
        let mut under_way = self.under_way();
        if !enough.is_cancelled() {
            under_way.remove(&id);
        }
    }
}

impl Node {
    /// A space fell asleep.
    pub(super) fn page_out(&self, id: SpaceId) {
        if !self.executor.has_swap() {
            return;
        }
        let enough = self.page_outs.begin(id);
        let (executor, outs) = (self.executor.clone(), self.page_outs.clone());
        let bytes = self.metrics.paged_out();
        self.env.spawn("page out", async move {
            let work = async {
                let Ok(_turn) = outs.turns.take(&(), PATIENCE).await else { return };
                match executor.page_out(id, enough.clone()).await {
                    Ok(went) => {
                        bytes.inc_by(went);
                    }
                    Err(why) => {
                        tracing::debug!(space = %id, error = %chain(&why), "its memory was not written out");
                    }
                }
            };
            drowse_shared::select_biased! {
                () = enough.cancelled() => {}
                () = work => {}
            }
            outs.end(id, &enough);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_sleep_of_a_space_is_written_out() {
        let (outs, id) = (PageOuts::default(), "0190f0c2a4b87c3d9e0f112233445566".parse().expect("an id"));
        let first = outs.begin(id);
        let second = outs.begin(id);
        assert!(first.is_cancelled() && !second.is_cancelled());
        outs.end(id, &first);
        outs.cancel(id);
        assert!(second.is_cancelled() && outs.under_way().is_empty());
        let third = outs.begin(id);
        outs.end(id, &third);
        assert!(!third.is_cancelled() && outs.under_way().is_empty());
    }
}
