//! What a daemon has open right now: counted at the seams, so that nothing it starts or opens is missed, in production
//! and in a simulation alike.

use std::{
    collections::BTreeMap,
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Accept, BoxFuture, BoxIo, Caller, Env, Net, Tasks};

/// What one daemon has open. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Counts(Arc<Table>);

#[derive(Debug, Default)]
struct Table {
    tasks: Mutex<BTreeMap<&'static str, u64>>,
    accepted: AtomicU64,
    dialled: AtomicU64,
}

impl Counts {
    /// Tasks and blocking jobs that have not ended, by name.
    pub fn tasks(&self) -> BTreeMap<&'static str, u64> {
        self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connections that others opened to us.
    pub fn accepted(&self) -> u64 {
        self.0.accepted.load(Ordering::Relaxed)
    }

    /// Connections that we opened to others, used and kept.
    pub fn dialled(&self) -> u64 {
        self.0.dialled.load(Ordering::Relaxed)
    }

    fn task(&self, name: &'static str) -> Running {
        *self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += 1;
        Running { counts: self.clone(), name }
    }

    fn open(&self, side: Side) -> Open {
        self.side(side).fetch_add(1, Ordering::Relaxed);
        Open { counts: self.clone(), side }
    }

    fn side(&self, side: Side) -> &AtomicU64 {
        match side {
            Side::Accepted => &self.0.accepted,
            Side::Dialled => &self.0.dialled,
        }
    }
}

impl Env {
    /// The same machine, and the counts of all that is started and opened through this `Env` and its clones.
    #[must_use]
    pub fn counted(&self) -> (Self, Counts) {
        let counts = Counts::default();
        let net = Arc::new(CountedNet { net: self.net.clone(), counts: counts.clone() });
        let tasks = Arc::new(CountedTasks { tasks: self.tasks.clone(), counts: counts.clone() });
        (Self { net, tasks, ..self.clone() }, counts)
    }
}

/// A task counts while this lives.
struct Running {
    counts: Counts,
    name: &'static str,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut tasks = self.counts.0.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = tasks.get_mut(self.name) {
            *count -= 1;
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Side {
    Accepted,
    Dialled,
}

/// A connection counts while this lives.
struct Open {
    counts: Counts,
    side: Side,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.counts.side(self.side).fetch_sub(1, Ordering::Relaxed);
    }
}

struct CountedTasks {
    tasks: Arc<dyn Tasks>,
    counts: Counts,
}

impl Tasks for CountedTasks {
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        let running = self.counts.task(name);
        self.tasks.spawn(
            name,
            Box::pin(async move {
                let _running = running;
                task.await;
            }),
        );
    }

    fn blocking(&self, name: &'static str, job: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        let running = self.counts.task(name);
        self.tasks.blocking(
            name,
            Box::new(move || {
                let _running = running;
                job();
            }),
        )
    }
}

struct CountedNet {
    net: Arc<dyn Net>,
    counts: Counts,
}

impl Net for CountedNet {
    fn connect(&self, to: &str) -> BoxFuture<'static, io::Result<BoxIo>> {
        let (connecting, counts) = (self.net.connect(to), self.counts.clone());
        Box::pin(async move {
            let io = connecting.await?;
            Ok(Box::new(CountedIo { io, _open: counts.open(Side::Dialled) }) as BoxIo)
        })
    }

    fn bind(&self, at: &str) -> BoxFuture<'static, io::Result<Box<dyn Accept>>> {
        let (binding, counts) = (self.net.bind(at), self.counts.clone());
        Box::pin(async move {
            let accept = binding.await?;
            Ok(Box::new(CountedAccept { accept, counts }) as Box<dyn Accept>)
        })
    }
}

struct CountedAccept {
    accept: Box<dyn Accept>,
    counts: Counts,
}

impl Accept for CountedAccept {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(BoxIo, Caller)>> {
        Box::pin(async move {
            let (io, peer) = self.accept.accept().await?;
            Ok((Box::new(CountedIo { io, _open: self.counts.open(Side::Accepted) }) as BoxIo, peer))
        })
    }

    fn local(&self) -> String {
        self.accept.local()
    }
}

struct CountedIo {
    io: BoxIo,
    _open: Open,
}

impl AsyncRead for CountedIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for CountedIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_open_is_counted_and_what_has_ended_is_not() {
        let (env, counts) = Env::real().counted();
        let mut listener = env.net.bind("127.0.0.1:0").await.expect("a free port");
        let at = listener.local();
        let (dialled, accepted) = tokio::join!(env.net.connect(&at), listener.accept());
        assert_eq!((counts.dialled(), counts.accepted()), (1, 1));
        drop(accepted);
        assert_eq!((counts.dialled(), counts.accepted()), (1, 0));
        drop(dialled);
        assert_eq!(counts.dialled(), 0);

        let (go, gate) = tokio::sync::oneshot::channel::<()>();
        let (ended, end) = tokio::sync::oneshot::channel::<()>();
        env.spawn("a", async move {
            let _ended = ended;
            let _ = gate.await;
        });
        assert_eq!(counts.tasks().get("a"), Some(&1));
        assert_eq!(env.blocking("b", || 7).await, Some(7));
        drop(go);
        assert!(end.await.is_err(), "the task has ended");
        let left: Vec<_> = counts.tasks().into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(left, []);
    }
}
