//! The seams: everything a daemon asks of the machine it runs on.
//!
//! A daemon is a function of an `Env`. In production `Env::real` reaches the kernel; in a simulation a whole
//! fleet of daemons shares one thread, one seed and simulated time. Monotonic time and sleeps are plain
//! `tokio::time`, which a simulation pauses.

use std::{future::Future, io, pin::Pin, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite};
use uuid::{NoContext, Uuid};

/// What a daemon has open.
mod counted;
/// A listening socket that was handed over.
mod inherited;
/// The seams of the machine itself.
mod real;

pub use counted::Counts;
pub use inherited::{Error as InheritedError, inherited};
pub use real::PEER_TIMEOUT;

/// A boxed future, as seams return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A byte stream in both directions: a TCP connection, a Unix socket, or a simulated one.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// A boxed [`Io`].
pub type BoxIo = Box<dyn Io>;

/// Reaches and offers addresses. An address is `host:port`.
pub trait Net: Send + Sync {
    /// Connects; has no deadline of its own, callers bring one.
    fn connect(&self, to: &str) -> BoxFuture<'static, io::Result<BoxIo>>;
    /// Listens. Port 0 takes a free one; the answer says which.
    fn bind(&self, at: &str) -> BoxFuture<'static, io::Result<Box<dyn Accept>>>;
}

/// Who opened a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// As `host:port`.
    pub address: String,
    /// Whether it is on this machine: at loopback, or at the very address that it reached.
    pub is_near: bool,
}

/// A listening socket.
pub trait Accept: Send {
    /// The next connection and who opened it.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(BoxIo, Caller)>>;
    /// The address that was bound, as `host:port`.
    fn local(&self) -> String;
}

/// Wall-clock time, for people and records only. Decisions use `tokio::time::Instant`.
pub trait Clock: Send + Sync {
    /// Now, as this machine believes it.
    fn wall(&self) -> Timestamp;
}

/// Randomness.
pub trait Entropy: Send + Sync {
    /// Fills `out` with random bytes.
    fn fill(&self, out: &mut [u8]);
}

/// Runs what must outlive the caller, and what would block it.
pub trait Tasks: Send + Sync {
    /// Starts a task that no caller can cancel.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>);
    /// Runs a blocking closure off the async threads. The closure runs to its end even if the future is dropped.
    fn blocking(&self, name: &'static str, job: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()>;
}

/// Everything a daemon may ask of its machine.
#[derive(Clone)]
pub struct Env {
    /// Network.
    pub net: Arc<dyn Net>,
    /// Wall clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
    /// Tasks and blocking work.
    pub tasks: Arc<dyn Tasks>,
}

impl Env {
    /// The machine itself, on the current tokio runtime.
    pub fn real() -> Self {
        let machine = Arc::new(real::Machine::default());
        Self { net: machine.clone(), clock: machine.clone(), entropy: machine.clone(), tasks: machine }
    }

    /// The machine itself, which gives up who gave no sign of life for so long.
    pub fn with_patience(peer_timeout: Duration) -> Self {
        Self { net: Arc::new(real::Machine { peer_timeout }), ..Self::real() }
    }

    /// Starts a task that outlives its caller.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(name, Box::pin(task));
    }

    /// Runs `task` to its end whatever happens to the caller, and waits for its value.
    ///
    /// `None` means the task was torn down with the process it ran in, or panicked.
    pub async fn finish<T: Send + 'static>(
        &self,
        name: &'static str,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (send, receive) = tokio::sync::oneshot::channel();
        self.spawn(name, async move {
            // The caller may be gone; the work is done all the same.
            let _ = send.send(task.await);
        });
        receive.await.ok()
    }

    /// Runs a blocking closure and waits for its value. `None` only if the closure panicked.
    pub async fn blocking<T: Send + 'static>(
        &self,
        name: &'static str,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (send, receive) = tokio::sync::oneshot::channel();
        self.tasks
            .blocking(
                name,
                Box::new(move || {
                    let _ = send.send(job());
                }),
            )
            .await;
        receive.await.ok()
    }

    /// A random number.
    pub fn random_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.entropy.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A fresh UUID v7: sortable by the time of its making, random otherwise.
    pub fn uuid_v7(&self) -> Uuid {
        let mut random = [0; 10];
        self.entropy.fill(&mut random);
        let now = self.clock.wall();
        let seconds = u64::try_from(now.as_second()).unwrap_or(0);
        let nanoseconds = u32::try_from(now.subsec_nanosecond()).unwrap_or(0);
        let time = uuid::Timestamp::from_unix(NoContext, seconds, nanoseconds);
        let (seconds, nanoseconds) = time.to_unix();
        let millis = seconds * 1000 + u64::from(nanoseconds) / 1_000_000;
        uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
    }
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Env")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ids_are_sortable_and_differ() {
        let env = Env::real();
        let (first, second) = (env.uuid_v7(), env.uuid_v7());
        assert_ne!(first, second);
        assert_eq!(first.get_version_num(), 7);
    }

    #[tokio::test]
    async fn what_must_finish_finishes_when_its_caller_leaves() {
        let env = Env::real();
        let (send, receive) = tokio::sync::oneshot::channel();
        let (go, gate) = tokio::sync::oneshot::channel::<()>();
        let caller = env.finish("test", async move {
            let _ = gate.await;
            let _ = send.send(7);
        });
        drop(Box::pin(tokio::time::timeout(std::time::Duration::ZERO, caller)).await);
        go.send(()).expect("the task is alive");
        assert_eq!(receive.await, Ok(7));
    }
}
