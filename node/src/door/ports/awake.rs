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
    api::{Code, Error},
    id::SpaceId,
    name::SpaceRef,
    seams::{BoxFuture, BoxIo},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use super::{VERB, knock::Knock};
use crate::{lifecycle::wake, node::Node};

/// A use counts for so long: no space sleeps sooner by itself.
const FRESH: Duration = Duration::from_millis(500);

pub(super) struct Awake {
    io: BoxIo,
    node: Arc<Node>,
    id: SpaceId,
    knock: Knock,
    used: Instant,
    /// How often the space had fallen asleep then.
    slept: u64,
    waking: Option<BoxFuture<'static, io::Result<()>>>,
}

impl Awake {
    /// Over a connection into a space that was just used.
    pub(super) fn new(io: BoxIo, node: Arc<Node>, id: SpaceId, knock: Knock) -> Self {
        let slept = node.live.slept(id);
        Self { io, node, id, knock, used: Instant::now(), slept, waking: None }
    }

    fn is_fresh(&self) -> bool {
        self.used.elapsed() < FRESH && self.node.live.slept(self.id) == self.slept
    }

    /// Ready once the space is awake.
    fn poll_awake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waking.is_none() && self.is_fresh() {
            return Poll::Ready(Ok(()));
        }
        let (node, id, knock) = (&self.node, self.id, &self.knock);
        let waking = self.waking.get_or_insert_with(|| {
            let (node, knock) = (node.clone(), knock.clone());
            Box::pin(async move { used(&node, id, &knock).await.map_err(io::Error::other) })
        });
        let woken = ready!(waking.as_mut().poll(cx));
        self.waking = None;
        self.used = Instant::now();
        self.slept = self.node.live.slept(self.id);
        Poll::Ready(woken)
    }
}

/// Uses the space, when its policy lets what comes on a connection do so. Who wakes it too often waits: the bytes are kept.
async fn used(node: &Arc<Node>, id: SpaceId, knock: &Knock) -> Result<(), Error> {
    loop {
        let may = |space: &_, look| knock.admits(space, look, &node.live);
        match wake::used_if(node, &SpaceRef::Id(id), VERB, may).await {
            Err(error) if error.code == Code::TooManyWakes => {
                let seconds = error.retry_after_seconds.unwrap_or(1);
                tokio::time::sleep(Duration::from_secs(seconds)).await;
            }
            used => return used.map(drop),
        }
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
