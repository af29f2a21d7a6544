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
    name::{SpaceName, SpaceRef},
    seams::{BoxFuture, BoxIo},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::knock::Knock;
use crate::{
    lifecycle::{
        usage::{self, Usage},
        wake::{self, User},
    },
    node::Node,
    places::Place,
    space::Space,
};

pub(super) struct Awake {
    io: BoxIo,
    node: Arc<Node>,
    id: SpaceId,
    name: SpaceName,
    knock: Knock,
    usage: Usage,
    waking: Option<BoxFuture<'static, io::Result<()>>>,
    _place: Place,
}

impl Awake {
    /// Over a connection into a space that was just used.
    pub(super) fn new(io: BoxIo, node: Arc<Node>, space: &Space, knock: Knock, place: Place) -> Self {
        let usage = Usage::now(&node, space.id);
        Self { io, node, id: space.id, name: space.name.clone(), knock, usage, waking: None, _place: place }
    }

    /// Ready once the space is awake.
    fn poll_awake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waking.is_none() && self.usage.is_fresh(&self.node, self.id) {
            return Poll::Ready(Ok(()));
        }
        let (node, id, knock) = (&self.node, self.id, &self.knock);
        let waking = self.waking.get_or_insert_with(|| {
            let (node, name, knock) = (node.clone(), self.name.clone(), knock.clone());
            Box::pin(async move { used(&node, (id, &name), &knock).await.map_err(io::Error::other) })
        });
        let woken = ready!(waking.as_mut().poll(cx));
        self.waking = None;
        self.usage = Usage::now(&self.node, self.id);
        Poll::Ready(woken)
    }
}

/// Uses the space, when its policy lets what comes on a connection do so. Who wakes it too often waits: the bytes are kept.
async fn used(node: &Arc<Node>, (id, name): (SpaceId, &SpaceName), knock: &Knock) -> Result<(), Error> {
    loop {
        usage::is_called(node, id, name).await?;
        let may = |space: &_, look| knock.admits(space, look, &node.live);
        match wake::used_if(node, &SpaceRef::Id(id), User::Port(knock.port), may).await {
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
        if buf.filled().len() > before {
            let (node, id) = (self.node.clone(), self.id);
            self.usage.heard(&node, id);
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
