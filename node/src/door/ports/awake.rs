//! A connection into a space. Bytes from outside wake the space before they reach it; bytes either way keep it awake. A
//! connection on which nothing happens does neither: it waits, parked, while the space sleeps.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use drowse_shared::{
    id::SpaceId,
    name::SpaceRef,
    seams::{BoxFuture, BoxIo},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use super::VERB;
use crate::{lifecycle::wake, node::Node};

/// A use counts for so long: no space sleeps sooner by itself.
const FRESH: Duration = Duration::from_millis(500);

pub(super) struct Awake {
    io: BoxIo,
    node: Arc<Node>,
    id: SpaceId,
    used: Instant,
    /// How often the space had fallen asleep then.
    slept: u64,
    waking: Option<BoxFuture<'static, io::Result<()>>>,
}

impl Awake {
    /// Over a connection into a space that was just used.
    pub(super) fn new(io: BoxIo, node: Arc<Node>, id: SpaceId) -> Self {
        let slept = node.live.slept(id);
        Self { io, node, id, used: Instant::now(), slept, waking: None }
    }

    fn is_fresh(&self) -> bool {
        self.used.elapsed() < FRESH && self.node.live.slept(self.id) == self.slept
    }

    /// Ready once the space is awake.
    fn poll_awake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waking.is_none() && self.is_fresh() {
            return Poll::Ready(Ok(()));
        }
        let (node, id) = (&self.node, self.id);
        let waking = self.waking.get_or_insert_with(|| {
            let node = node.clone();
            Box::pin(async move {
                wake::used(&node, &SpaceRef::Id(id), VERB).await.map(drop).map_err(io::Error::other)
            })
        });
        let woken = ready!(waking.as_mut().poll(cx));
        self.waking = None;
        self.used = Instant::now();
        self.slept = self.node.live.slept(self.id);
        Poll::Ready(woken)
    }
}

impl AsyncRead for Awake {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        // Only who is awake sends.
        if buf.filled().len() > before && self.used.elapsed() >= FRESH {
            self.used = Instant::now();
            self.node.live.use_again(self.id, self.node.env.clock.wall());
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Awake {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_awake(cx))?;
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
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_awake(cx))?;
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }
}
