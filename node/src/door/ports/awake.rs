//! A connection into a space. Bytes from outside wake the space before they reach it; bytes either way keep it awake. A
//! connection on which nothing happens does neither: it waits, parked, while the space sleeps.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use drowse_shared::{
    id::SpaceId,
    name::SpaceName,
    seams::{BoxFuture, BoxIo},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::VERB;
use crate::{lifecycle::usage::Usage, node::Node, space::Space};

pub(super) struct Awake {
    io: BoxIo,
    node: Arc<Node>,
    id: SpaceId,
    name: SpaceName,
    usage: Usage,
    waking: Option<BoxFuture<'static, io::Result<()>>>,
}

impl Awake {
    /// Over a connection into a space that was just used.
    pub(super) fn new(io: BoxIo, node: Arc<Node>, space: &Space) -> Self {
        let usage = Usage::now(&node, space.id);
        Self { io, node, id: space.id, name: space.name.clone(), usage, waking: None }
    }

    /// Ready once the space is awake.
    fn poll_awake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waking.is_none() && self.usage.is_fresh(&self.node, self.id) {
            return Poll::Ready(Ok(()));
        }
        let (node, id) = (&self.node, self.id);
        let waking = self.waking.get_or_insert_with(|| {
            let (node, name) = (node.clone(), self.name.clone());
            Box::pin(async move {
                Usage::again(&node, (id, &name), VERB).await.map(drop).map_err(io::Error::other)
            })
        });
        let woken = ready!(waking.as_mut().poll(cx));
        self.waking = None;
        self.usage = Usage::now(&self.node, self.id);
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
