use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use crate::connection::InRequest;
use crate::files::gzip::GzipStream;
use crate::files::read::FileStream;
use crate::gate::Pass;
use crate::process::stream::EventStream;
use crate::watch::stream::WatchStream;

/// What an answer consists of.
pub(crate) enum Body {
    /// One piece, given out once.
    Full(Option<Bytes>),
    /// A file or a part of one.
    File(Box<FileStream>),
    /// A file, compressed.
    Gzip(Box<GzipStream>),
    /// Process events until the end of the command.
    Events(Box<EventStream>),
    /// File system events for as long as the client stays.
    Watch(Box<WatchStream>),
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
            Self::Gzip(file) => file.poll_chunk(cx).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data))),
            Self::Events(events) => {
                events.poll_event(cx).map(|event| event.map(|event| event.map(Frame::data)))
            }
            Self::Watch(watch) => watch.poll_event(cx).map(|event| event.map(|event| event.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::File(file) => file.remaining().map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Gzip(_) | Self::Events(_) | Self::Watch(_) => SizeHint::default(),
        }
    }
}

/// A body that is under way until it is sent or given up.
pub(crate) struct Answer {
    body: Body,
    _pass: Option<Pass>,
    _request: InRequest,
}

impl Answer {
    /// The body of a request that passed the gate. A stream is not waited for: another agent can go on with it.
    pub(crate) fn new(body: Body, pass: Option<Pass>, request: InRequest) -> Self {
        let endless = matches!(body, Body::Events(_) | Body::Watch(_));
        Self { body, _pass: pass.filter(|_| !endless), _request: request }
    }
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
