use std::cell::Cell;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use crate::gate::Gate;
use crate::relay::Dialled;

/// What is to be known of a connection while it is served.
pub(crate) struct Connection {
    /// Its descriptor.
    pub(crate) fd: RawFd,
    unflushed: Cell<bool>,
    /// A request on it is not answered in full.
    in_request: Cell<bool>,
    /// Some of the next request was read already.
    half_read: Cell<bool>,
    reader: Cell<Option<Waker>>,
    /// What it is to be relayed to, once its request was answered.
    dialled: Cell<Option<Dialled>>,
    gate: Rc<Gate>,
}

impl Connection {
    /// A request begins; it lasts until what this returns is dropped.
    pub(crate) fn begin(self: &Rc<Self>) -> InRequest {
        self.in_request.set(true);
        self.half_read.set(false);
        InRequest(Rc::clone(self))
    }

    /// It is to be relayed to a port.
    pub(crate) fn relay_to(&self, dialled: Dialled) {
        self.dialled.set(Some(dialled));
    }

    /// What it is to be relayed to.
    pub(crate) fn take_relay(&self) -> Option<Dialled> {
        self.dialled.take()
    }

    /// Whether another agent can go on with it: whatever its client sent next is still the kernel's.
    pub(crate) fn is_between_requests(&self) -> bool {
        !self.in_request.get() && !self.half_read.get()
    }

    /// The gate was opened again: it is read on.
    pub(crate) fn wake(&self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn set_unflushed(&self, unflushed: bool) {
        if self.unflushed.replace(unflushed) != unflushed {
            self.gate.count_unflushed(unflushed);
        }
    }
}

/// A request that is being answered.
pub(crate) struct InRequest(Rc<Connection>);

impl Drop for InRequest {
    fn drop(&mut self) {
        self.0.in_request.set(false);
        self.0.half_read.set(false);
    }
}

/// A connection's stream that keeps an eye on what is written: all of it is the kernel's once it was flushed.
pub(crate) struct Watched {
    io: TokioIo<UnixStream>,
    connection: Watch,
}

/// Counts no bytes once nobody writes them any more.
struct Watch(Rc<Connection>);

impl Deref for Watch {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.0
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.set_unflushed(false);
    }
}

impl Watched {
    /// Watches a stream.
    pub(crate) fn new(stream: UnixStream, gate: Rc<Gate>) -> (Self, Rc<Connection>) {
        let connection = Rc::new(Connection {
            fd: stream.as_raw_fd(),
            unflushed: Cell::new(false),
            in_request: Cell::new(false),
            half_read: Cell::new(false),
            reader: Cell::new(None),
            dialled: Cell::new(None),
            gate,
        });
        (Self { io: TokioIo::new(stream), connection: Watch(Rc::clone(&connection)) }, connection)
    }

    /// The stream alone.
    pub(crate) fn into_inner(self) -> UnixStream {
        self.io.into_inner()
    }
}

impl Read for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.connection.gate.is_held() && self.connection.is_between_requests() {
            self.connection.reader.set(Some(cx.waker().clone()));
            return Poll::Pending;
        }
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        if read.is_ready() {
            self.connection.half_read.set(true);
        }
        read
    }
}

impl Write for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.connection.set_unflushed(true);
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.connection.set_unflushed(true);
        Pin::new(&mut self.io).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        if flushed.is_ready() {
            self.connection.set_unflushed(false);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
