use std::{
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use crate::sim::Run;

/// Runs every seed of a range on so many threads, stops once `failures_max` have failed, and answers which. The lowest
/// failing seed is always among them.
pub fn failing_seeds(
    seeds: Range<u64>,
    threads: usize,
    failures_max: usize,
    run: impl Fn(u64) -> Run<()> + Sync,
) -> Vec<u64> {
    let next = AtomicU64::new(seeds.start);
    let enough = AtomicBool::new(false);
    let failing = Mutex::new(Vec::new());
    let work = || {
        while !enough.load(Relaxed) {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= seeds.end {
                break;
            }
            if !run(seed).failures.is_empty() {
                let mut failing = failing.lock().unwrap_or_else(PoisonError::into_inner);
                failing.push(seed);
                if failing.len() >= failures_max {
                    enough.store(true, Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let mut failing = failing.into_inner().unwrap_or_else(PoisonError::into_inner);
    failing.sort_unstable();
    failing
}
