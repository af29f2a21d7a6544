use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use crate::files::read::FileStream;
use crate::process::stream::EventStream;

/// What an answer consists of.
pub(crate) enum Body {
    /// One piece, given out once.
    Full(Option<Bytes>),
    /// A file or a part of one.
    File(Box<FileStream>),
    /// Process events until the end of the command.
    Events(Box<EventStream>),
}

impl Body {
    /// A body known in full.
    pub(crate) fn full(bytes: Bytes) -> Self {
        Self::Full(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }

    /// No body.
    pub(crate) fn empty() -> Self {
        Self::Full(None)
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::File(file) => file.poll_chunk(cx).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data))),
            Self::Events(events) => {
                events.poll_event(cx).map(|event| event.map(|event| event.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::File(file) => file.remaining().map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Events(_) => SizeHint::default(),
        }
    }
}
