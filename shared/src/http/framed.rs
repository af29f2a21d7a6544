use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    framing::{Fault, Framing},
    turn::Turn,
};

/// The connection of a server from which nothing is read that has not exactly one reading.
pub(super) struct Framed<I> {
    io: I,
    turn: Turn,
    framing: Framing,
}

impl<I> Framed<I> {
    pub(super) fn new(io: I, turn: Turn) -> Self {
        Self { io, turn, framing: Framing::new() }
    }

    pub(super) fn into_inner(self) -> I {
        self.io
    }

    /// What is read of what has no one reading.
    fn broken(&self, fault: Fault) -> Poll<io::Result<()>> {
        // Whoever came before is answered first. The server reads again when it has done so.
        if self.turn.is_serving() && !self.framing.is_in_body() {
            return Poll::Pending;
        }
        Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, fault)))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Framed<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(granted) = this.turn.take_settled() {
            this.framing.settle(granted);
        }
        if let Some(fault) = this.turn.fault() {
            return this.broken(fault);
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        let Err((sound, fault)) = this.framing.read(&buf.filled()[before..]) else {
            return Poll::Ready(Ok(()));
        };
        this.turn.fail(fault, this.framing.is_in_body());
        buf.set_filled(before + sound);
        if sound > 0 { Poll::Ready(Ok(())) } else { this.broken(fault) }
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Framed<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The client is still to be told.
        if self.turn.is_untold() && !self.turn.is_serving() {
            return Poll::Ready(Ok(()));
        }
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
