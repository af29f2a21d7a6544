#![expect(clippy::disallowed_methods, reason = "a black-box test measures real time")]

use std::{
    future::Future,
    time::{Duration, Instant},
};

/// Between two looks.
const POLL: Duration = Duration::from_millis(20);

/// Looks again and again until `probe` finds something.
///
/// # Panics
/// When it has found nothing within `within`; `promise` says what was waited for.
#[track_caller]
pub fn eventually<T, F, P>(promise: &str, within: Duration, mut probe: P) -> impl Future<Output = T>
where
    F: Future<Output = Option<T>>,
    P: FnMut() -> F,
{
    let place = std::panic::Location::caller();
    async move {
        let started = Instant::now();
        loop {
            if let Ok(Some(found)) = tokio::time::timeout(within, probe()).await {
                return found;
            }
            assert!(started.elapsed() < within, "{place}: not within {within:?}: {promise}");
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Looks again and again for `during`, and expects the same every time: for promises that something does not happen.
///
/// # Panics
/// As soon as `probe` says that it did.
pub async fn throughout<F: Future<Output = bool>>(
    promise: &str,
    during: Duration,
    mut probe: impl FnMut() -> F,
) {
    let started = Instant::now();
    while started.elapsed() < during {
        assert!(probe().await, "after {:?} no longer true: {promise}", started.elapsed());
        tokio::time::sleep(POLL).await;
    }
}

/// Runs `work` and tells how long it took.
pub async fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let started = Instant::now();
    let value = work.await;
    (value, started.elapsed())
}

/// Seconds, as a duration.
pub fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}
