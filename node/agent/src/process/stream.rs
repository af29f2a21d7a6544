use std::cell::Cell;
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::table::Table;
use super::{Process, events};
use crate::connect::{Code, Error};
use crate::patience::{Limits, Patience};

/// What the client asked of its stream.
pub(crate) struct Wishes {
    limits: Limits,
    /// A client that leaves takes the command with it.
    pub(crate) kill_on_leave: bool,
    /// All that is kept, even if others watch.
    replay: bool,
}

impl Wishes {
    /// From the request's headers.
    pub(crate) fn read(headers: &HeaderMap) -> Result<Self, Error> {
        let kill_on_leave = match headers.get("drowse-on-disconnect").map(http::HeaderValue::as_bytes) {
            None | Some(b"leave") => false,
            Some(b"kill") => true,
            Some(_) => return Err(Error::new(Code::InvalidArgument, "drowse-on-disconnect: kill or leave")),
        };
        let replay = headers.get("drowse-replay").is_some_and(|value| value.as_bytes() == b"1");
        Ok(Self { limits: Limits::read(headers)?, kill_on_leave, replay })
    }
}

/// What is to be known of an open stream from outside.
pub(crate) struct Card {
    pub(super) process: Rc<Process>,
    pub(super) watcher: u64,
    pub(super) limits: Limits,
    /// When its time is up.
    pub(super) until: Option<Instant>,
    pub(super) kill_on_leave: bool,
    /// Descriptor of the connection it is sent over.
    pub(super) connection: RawFd,
    /// The start event was given out.
    pub(super) begun: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Card {
    /// Of a stream that begins now.
    pub(super) fn new(
        process: Rc<Process>,
        watcher: u64,
        limits: Limits,
        kill_on_leave: bool,
        connection: RawFd,
    ) -> Self {
        let until = limits.deadline().map(|deadline| Instant::now() + deadline);
        let (begun, waker) = (Cell::new(false), Cell::new(None));
        Self { process, watcher, limits, until, kill_on_leave, connection, begun, waker }
    }

    /// Whoever sends it is to look again.
    pub(super) fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// The events of one command for one client, from the start event to the end of the stream.
///
/// Dropping it is how a client's leaving is noticed.
pub(crate) struct EventStream {
    card: Rc<Card>,
    table: Rc<Table>,
    first: Option<Bytes>,
    patience: Patience,
    /// The last envelope was given out.
    finished: bool,
    /// Its connection's place among all.
    _place: Option<OwnedSemaphorePermit>,
}

impl EventStream {
    /// The stream of whoever started `process`.
    pub(crate) fn starting(
        process: Rc<Process>,
        table: Rc<Table>,
        wishes: &Wishes,
        connection: RawFd,
    ) -> Self {
        let watcher = process.output.borrow_mut().watch(true);
        let first = events::start(process.pid());
        let card = Card::new(process, watcher, wishes.limits, wishes.kill_on_leave, connection);
        Self::new(card, table, Some(first))
    }

    /// The stream of whoever comes later, perhaps after the end.
    pub(crate) fn joining(
        process: Rc<Process>,
        table: Rc<Table>,
        wishes: &Wishes,
        connection: RawFd,
    ) -> Self {
        let ended = process.end.borrow().is_some();
        let (watcher, from) = {
            let mut output = process.output.borrow_mut();
            let watcher = output.watch(ended || wishes.replay);
            (watcher, output.position(watcher))
        };
        let first = events::joined(process.pid(), from);
        let card = Card::new(process, watcher, wishes.limits, false, connection);
        Self::new(card, table, Some(first))
    }

    /// A stream that an earlier agent began.
    pub(super) fn resuming(card: Card, table: Rc<Table>) -> Self {
        Self::new(card, table, None)
    }

    fn new(card: Card, table: Rc<Table>, first: Option<Bytes>) -> Self {
        let (patience, card) = (card.limits.begin(), Rc::new(card));
        table.open(Rc::clone(&card));
        Self { card, table, first, patience, finished: false, _place: None }
    }

    /// Keeps a place for as long as it lasts.
    pub(crate) fn in_place(mut self, place: Option<OwnedSemaphorePermit>) -> Self {
        self._place = place;
        self
    }

    /// Descriptor of the connection it is sent over.
    pub(crate) fn connection(&self) -> RawFd {
        self.card.connection
    }

    /// The next piece of the body.
    pub(crate) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.finished {
            return Poll::Ready(None);
        }
        if let Some(event) = self.first.take() {
            self.card.begun.set(true);
            return Poll::Ready(Some(Ok(event)));
        }
        if self.table.gate.is_held() {
            // Another agent goes on from exactly here.
            self.card.waker.set(Some(cx.waker().clone()));
            return Poll::Pending;
        }
        // First: a command that never pauses has deadlines too.
        if self.patience.is_over(cx) {
            self.finished = true;
            let error = Error::new(Code::DeadlineExceeded, "the stream's time is up; the command goes on");
            return Poll::Ready(Some(Ok(error.end_stream())));
        }
        let process = &self.card.process;
        let output = process.output.borrow_mut().poll_event(self.card.watcher, cx);
        if let Poll::Ready(event) = output {
            self.patience.said_something();
            return Poll::Ready(Some(Ok(event)));
        }
        if let Some(end) = &*process.end.borrow() {
            self.finished = true;
            return Poll::Ready(Some(Ok(end.last_message())));
        }
        self.card.waker.set(Some(cx.waker().clone()));
        self.patience.poll_silence(cx).map(|()| Some(Ok(events::keepalive())))
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        let process = &self.card.process;
        self.table.close(&self.card);
        process.output.borrow_mut().unwatch(self.card.watcher);
        let ended = process.end.borrow().is_some();
        if self.finished && ended {
            self.table.heard(process);
        }
        if self.card.kill_on_leave && !self.finished && process.child.exit().is_none() {
            let process = Rc::clone(process);
            tokio::task::spawn_local(async move { process.kill_tree().await });
        }
    }
}
