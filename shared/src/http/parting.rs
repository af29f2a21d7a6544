//! The last words of a daemon on a websocket that it carries: a close with 1012, "service restart", between two frames. What
//! is said otherwise passes untouched.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::seams::BoxFuture;

/// Close, 1012, and why, in one frame as a server sends it: not masked.
const FAREWELL: &[u8] = b"\x88\x2b\x03\xf4the daemon that carries this is restarted";

/// The kind of frame after which nothing more is said.
const CLOSE: u8 = 0x8;

/// "Service restart", as a close says why. From the registry of RFC 6455.
const RESTART: u16 = 1012;

/// Where a stream of frames stands.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Frames {
    /// How much of the next head was seen, and it.
    seen: usize,
    head: [u8; 14],
    /// How much of a frame's content follows.
    left: u64,
    /// Whether the app has said that it closes.
    closes: bool,
    /// Why, and how many of its two bytes were seen.
    why: (u16, usize),
}

impl Frames {
    fn is_between(&self) -> bool {
        self.seen == 0 && self.left == 0 && !self.closes
    }

    /// Most that may be read without missing the end of a frame.
    fn next(&self) -> usize {
        match self.left {
            0 => self.head_bytes() - self.seen,
            left => usize::try_from(left).unwrap_or(usize::MAX),
        }
    }

    /// How long the head is, as far as it is known.
    fn head_bytes(&self) -> usize {
        if self.seen < 2 {
            return 2;
        }
        let length = match self.head[1] & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        2 + length + if self.head[1] & 0x80 == 0 { 0 } else { 4 }
    }

    fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let some = self.next().min(bytes.len());
            let (now, later) = bytes.split_at(some);
            bytes = later;
            if self.left > 0 {
                self.left -= some as u64;
                if self.closes {
                    for byte in now.iter().take(2 - self.why.1) {
                        self.why = (self.why.0 << 8 | u16::from(*byte), self.why.1 + 1);
                    }
                }
                continue;
            }
            self.head[self.seen..self.seen + some].copy_from_slice(now);
            self.seen += some;
            if self.seen >= 2 && self.seen == self.head_bytes() {
                self.closes |= self.head[0] & 0x0f == CLOSE;
                self.left = match self.head[1] & 0x7f {
                    126 => u64::from(u16::from_be_bytes([self.head[2], self.head[3]])),
                    127 => u64::from_be_bytes(self.head[2..10].try_into().unwrap_or_default()),
                    short => u64::from(short),
                };
                self.seen = 0;
            }
        }
    }
}

/// What an app says on a websocket, and after that what the daemon does once it is to end.
pub(super) struct Parting<T> {
    io: T,
    frames: Frames,
    stopping: Option<BoxFuture<'static, ()>>,
    /// How much of it was said, once it is.
    said: Option<usize>,
}

impl<T> Parting<T> {
    pub(super) fn new(io: T, stopping: BoxFuture<'static, ()>) -> Self {
        Self { io, frames: Frames::default(), stopping: Some(stopping), said: None }
    }

    /// Whether a daemon had the last word: this one, or one behind it.
    pub(super) fn is_restart(&self) -> bool {
        self.said.is_some() || self.frames.why == (RESTART, 2)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Parting<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.stopping.as_mut().is_some_and(|stopping| stopping.as_mut().poll(cx).is_ready()) {
            self.stopping = None;
        }
        let ends = self.stopping.is_none();
        if ends && (self.frames.is_between() || self.said.is_some()) {
            let said = self.said.unwrap_or(0);
            let rest = &FAREWELL[said..];
            let some = rest.len().min(out.remaining());
            out.put_slice(&rest[..some]);
            self.said = Some(said + some);
            return Poll::Ready(Ok(()));
        }
        // Once it is to end, nothing of the next frame is begun.
        let most = if ends && !self.frames.closes {
            self.frames.next().min(out.remaining())
        } else {
            out.remaining()
        };
        let mut part = ReadBuf::new(out.initialize_unfilled_to(most));
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut part))?;
        let filled = part.filled().len();
        self.frames.pass(part.filled());
        out.advance(filled);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Parting<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn frame(first: u8, content: &[u8]) -> Vec<u8> {
        let length = content.len();
        let mut bytes = vec![first];
        match length {
            0..126 => bytes.push(u8::try_from(length).expect("small")),
            126..65_536 => {
                bytes.push(126);
                bytes.extend(u16::try_from(length).expect("it fits").to_be_bytes());
            }
            _ => {
                bytes.push(127);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        bytes.extend(content);
        bytes
    }

    #[test]
    fn the_end_of_a_frame_is_known_however_the_bytes_are_cut() {
        let sizes = [0, 1, 125, 126, 1000, 70_000];
        let all: Vec<u8> = sizes.iter().flat_map(|size| frame(0x82, &vec![7; *size])).collect();
        let mut ends = Vec::new();
        for size in sizes {
            ends.push(ends.last().unwrap_or(&0) + frame(0x82, &vec![7; size]).len());
        }
        for step in [1, 2, 3, 7, 130, 4096] {
            let (mut frames, mut passed, mut between) = (Frames::default(), 0, Vec::new());
            for piece in all.chunks(step) {
                frames.pass(piece);
                passed += piece.len();
                assert!(frames.seen < 14);
                if frames.is_between() {
                    between.push(passed);
                }
            }
            let expected: Vec<_> =
                ends.iter().filter(|end| *end % step == 0 || **end == all.len()).copied().collect();
            assert_eq!(between, expected, "in steps of {step}");
        }
    }

    #[tokio::test]
    async fn the_last_word_is_said_between_two_frames() {
        let (mut app, io) = tokio::io::duplex(1 << 16);
        let stop = CancellationToken::new();
        let told = stop.clone();
        let mut parting = Parting::new(io, Box::pin(async move { told.cancelled().await }));
        let (first, second) = (frame(0x81, b"hello"), frame(0x82, &[9; 300]));
        app.write_all(&first).await.expect("room");
        let mut heard = vec![0; first.len()];
        parting.read_exact(&mut heard).await.expect("heard");
        app.write_all(&second[..100]).await.expect("room");
        let mut half = vec![0; 50];
        parting.read_exact(&mut half).await.expect("heard");
        stop.cancel();
        app.write_all(&second[100..]).await.expect("room");
        app.write_all(&frame(0x81, b"too late")).await.expect("room");
        let mut rest = Vec::new();
        parting.read_to_end(&mut rest).await.expect("it ends");
        assert_eq!([half, rest].concat(), [&second, FAREWELL].concat());
        assert!(parting.is_restart());
        assert_eq!(usize::from(FAREWELL[1]), FAREWELL.len() - 2);
        assert_eq!(u16::from_be_bytes([FAREWELL[2], FAREWELL[3]]), RESTART);
    }

    #[tokio::test]
    async fn who_closes_by_itself_is_not_talked_over() {
        let (mut app, io) = tokio::io::duplex(1024);
        let mut parting = Parting::new(io, Box::pin(std::future::ready(())));
        // It has begun before the daemon ends.
        let close = frame(0x88, &[3, 232]);
        parting.frames.pass(&close[..1]);
        app.write_all(&close[1..]).await.expect("room");
        drop(app);
        let mut rest = Vec::new();
        parting.read_to_end(&mut rest).await.expect("it ends");
        assert_eq!(rest, &close[1..]);
        assert!(!parting.is_restart());
    }

    #[test]
    fn a_restart_of_the_daemon_behind_is_known_by_its_last_word() {
        let hello = frame(0x82, &1012_u16.to_be_bytes());
        for (last, expected) in [
            (FAREWELL.to_vec(), true),
            (frame(0x88, &[3, 0xf4]), true),
            (frame(0x88, &[3]), false),
            (frame(0x88, &[]), false),
            (frame(0x88, &[3, 232]), false),
            (Vec::new(), false),
        ] {
            for step in [1, 2, 3, 4096] {
                let mut parting = Parting::new((), Box::pin(std::future::pending()));
                [hello.clone(), last.clone()]
                    .concat()
                    .chunks(step)
                    .for_each(|piece| parting.frames.pass(piece));
                assert_eq!(parting.is_restart(), expected, "{last:?} in steps of {step}");
            }
        }
    }
}
