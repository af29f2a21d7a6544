//! Ending in bounded time: stop taking work, let what runs finish within a grace, cut the rest.

use std::{future::Future, time::Duration};

use tokio_util::{sync::CancellationToken, task::TaskTracker, task::task_tracker::TaskTrackerToken};

/// How long running requests may take once a daemon was told to stop.
pub const GRACE: Duration = Duration::from_secs(10);

/// Tells every part of a daemon to stop, and knows what still runs.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    stop: CancellationToken,
    cut: CancellationToken,
    running: TaskTracker,
}

impl Shutdown {
    /// A daemon that runs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells everybody to stop taking work.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Whether it was told to stop.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Resolves when it is told to stop.
    pub async fn stopping(&self) {
        self.stop.cancelled().await;
    }

    /// Resolves when the grace is over: what still runs is cut now.
    pub async fn cutting(&self) {
        self.cut.cancelled().await;
    }

    /// Counts something as running until the guard is dropped.
    pub fn running(&self) -> TaskTrackerToken {
        self.running.token()
    }

    /// Runs `work` until it ends or the grace is over. `None` when it was cut.
    pub async fn bounded<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let _guard = self.running();
        crate::select_biased! {
            value = work => Some(value),
            () = self.cut.cancelled() => None,
        }
    }

    /// Stops, waits for what runs at most `grace`, then cuts it. Answers whether everything ended by itself.
    pub async fn finish(&self, grace: Duration) -> bool {
        self.stop.cancel();
        self.running.close();
        let clean = tokio::time::timeout(grace, self.running.wait()).await.is_ok();
        self.cut.cancel();
        clean
    }
}

/// Resolves at SIGINT or SIGTERM.
pub async fn signalled() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).ok();
    let mut interrupt = signal(SignalKind::interrupt()).ok();
    let never = std::future::pending::<Option<()>>;
    crate::select_biased! {
        _ = async { match &mut terminate { Some(s) => s.recv().await, None => never().await } } => {},
        _ = async { match &mut interrupt { Some(s) => s.recv().await, None => never().await } } => {},
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_ends_in_time_ends_by_itself_and_the_rest_is_cut() {
        let shutdown = Shutdown::new();
        let worker = shutdown.clone();
        let quick = tokio::task::JoinSet::from_iter([async move {
            worker.bounded(tokio::time::sleep(Duration::from_secs(1))).await.is_some()
        }]);
        tokio::task::yield_now().await;
        assert!(shutdown.finish(GRACE).await);
        assert_eq!(quick.join_all().await, [true]);

        let shutdown = Shutdown::new();
        let worker = shutdown.clone();
        let endless = tokio::task::JoinSet::from_iter([async move {
            worker.bounded(std::future::pending::<()>()).await.is_some()
        }]);
        tokio::task::yield_now().await;
        assert!(!shutdown.finish(GRACE).await);
        assert_eq!(endless.join_all().await, [false]);
    }
}
