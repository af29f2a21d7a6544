use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use super::turn::Turn;
use crate::seams::BoxIo;

/// A connection that ends when its other side takes nothing of what is sent for too long, or begins a request and does not
/// go on.
///
/// A peer that stopped reading keeps a full window and a connection that looks alive; whoever writes into it would wait
/// for ever.
pub(super) struct Stalling {
    io: BoxIo,
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
    turn: Option<Turn>,
    /// When a head began of which the rest is not there.
    begun: Option<Instant>,
    /// Runs while the rest is waited for.
    head: Option<Pin<Box<Sleep>>>,
}

impl Stalling {
    pub(super) fn new(io: BoxIo, patience: Duration) -> Self {
        Self { io, patience, waiting: None, turn: None, begun: None, head: None }
    }

    /// The side of a server: heads are waited for no longer than answers.
    pub(super) fn in_turn(self, turn: Turn) -> Self {
        Self { turn: Some(turn), ..self }
    }

    /// Whether a head is overdue. `heard` tells that something arrived, else the rest is waited for.
    fn is_overdue(&mut self, cx: &mut Context<'_>, heard: bool) -> bool {
        let Some(turn) = &self.turn else { return false };
        let serving = turn.is_serving();
        if turn.take_complete() || serving {
            (self.begun, self.head) = (None, None);
        }
        if serving {
            return false;
        }
        if heard {
            self.begun.get_or_insert_with(Instant::now);
            return false;
        }
        let Some(begun) = self.begun else { return false };
        let ends = begun + self.patience;
        let head = self.head.get_or_insert_with(|| Box::pin(sleep_until(ends)));
        let overdue = head.as_mut().poll(cx).is_ready();
        if overdue {
            turn.be_late();
        }
        overdue
    }

    /// What a write came to, or that it has waited too long.
    fn paced<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + patience)));
        match waiting.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Stalling {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        let heard = buf.filled().len() > before;
        if (heard || read.is_pending()) && self.is_overdue(cx, heard) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Stalling {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.paced(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        // Nothing was held back, or all of it has gone: that a write waits is not forgotten by it.
        if flushed.is_ready() { flushed } else { self.paced(cx, flushed) }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.paced(cx, shut)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.paced(cx, written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_is_given_up_and_one_that_is_slow_is_not() {
        let (ours, mut theirs) = tokio::io::duplex(10);
        let patience = Duration::from_secs(60);
        let mut io = Stalling::new(Box::new(ours), patience);
        let slow = async {
            for _ in 0..10 {
                tokio::time::sleep(patience - Duration::from_secs(1)).await;
                theirs.read_exact(&mut [0; 10]).await.expect("open");
            }
        };
        let (written, ()) = tokio::join!(io.write_all(&[0; 100]), slow);
        written.expect("it is read, if slowly");

        io.write_all(&[0; 10]).await.expect("the window takes it");
        let began = Instant::now();
        let error = io.write_all(&[0; 10]).await.expect_err("nobody reads");
        assert_eq!((error.kind(), began.elapsed()), (io::ErrorKind::TimedOut, patience));
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_head_is_not_waited_for_and_nothing_else_is_taken_for_one() {
        let (ours, mut theirs) = tokio::io::duplex(100);
        let patience = Duration::from_secs(60);
        let turn = Turn::default();
        let mut io = Stalling::new(Box::new(ours), patience).in_turn(turn.clone());
        let silence = tokio::time::timeout(patience * 10, io.read(&mut [0; 10])).await;
        assert!(silence.is_err() && !turn.is_late(), "nothing was begun");

        let serving = turn.serve();
        theirs.write_all(b"a body").await.expect("open");
        io.read_exact(&mut [0; 6]).await.expect("read");
        let pause = tokio::time::timeout(patience * 10, io.read(&mut [0; 10])).await;
        assert!(pause.is_err() && !turn.is_late(), "a body is not a head");
        drop(serving);

        theirs.write_all(b"half").await.expect("open");
        io.read_exact(&mut [0; 4]).await.expect("read");
        let began = Instant::now();
        theirs.write_all(b"a").await.expect("open");
        let mut buffer = [0; 1];
        io.read_exact(&mut buffer).await.expect("read");
        let error = io.read_exact(&mut buffer).await.expect_err("no more came");
        assert_eq!(
            (error.kind(), began.elapsed(), turn.is_late()),
            (io::ErrorKind::TimedOut, patience, true)
        );
    }
}
