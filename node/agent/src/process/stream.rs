use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::OwnedSemaphorePermit;

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

/// The events of one command for one client, from the start event to the end of the stream.
///
/// Dropping it is how a client's leaving is noticed.
pub(crate) struct EventStream {
    process: Rc<Process>,
    table: Rc<Table>,
    first: Option<Bytes>,
    watcher: u64,
    patience: Patience,
    kill_on_leave: bool,
    /// The last envelope was given out.
    finished: bool,
    /// Its connection's place among all.
    _place: Option<OwnedSemaphorePermit>,
}

impl EventStream {
    /// The stream of whoever started `process`.
    pub(crate) fn starting(process: Rc<Process>, table: Rc<Table>, wishes: &Wishes) -> Self {
        let watcher = process.output.borrow_mut().watch(true);
        let first = events::start(process.pid());
        Self::new(process, table, wishes, watcher, first)
    }

    /// The stream of whoever comes later, perhaps after the end.
    pub(crate) fn joining(process: Rc<Process>, table: Rc<Table>, wishes: &Wishes) -> Self {
        let ended = process.end.borrow().is_some();
        let (watcher, from) = {
            let mut output = process.output.borrow_mut();
            let watcher = output.watch(ended || wishes.replay);
            (watcher, output.position(watcher))
        };
        let first = events::joined(process.pid(), from);
        Self::new(process, table, wishes, watcher, first)
    }

    fn new(process: Rc<Process>, table: Rc<Table>, wishes: &Wishes, watcher: u64, first: Bytes) -> Self {
        Self {
            process,
            table,
            first: Some(first),
            watcher,
            patience: wishes.limits.begin(),
            kill_on_leave: wishes.kill_on_leave,
            finished: false,
            _place: None,
        }
    }

    /// Keeps a place for as long as it lasts.
    pub(crate) fn in_place(mut self, place: OwnedSemaphorePermit) -> Self {
        self._place = Some(place);
        self
    }

    /// The next piece of the body.
    pub(crate) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.finished {
            return Poll::Ready(None);
        }
        if let Some(event) = self.first.take() {
            return Poll::Ready(Some(Ok(event)));
        }
        // First: a command that never pauses has deadlines too.
        if self.patience.is_over(cx) {
            self.finished = true;
            let error = Error::new(Code::DeadlineExceeded, "the stream's time is up; the command goes on");
            return Poll::Ready(Some(Ok(error.end_stream())));
        }
        let output = self.process.output.borrow_mut().poll_event(self.watcher, cx);
        if let Poll::Ready(event) = output {
            self.patience.said_something();
            return Poll::Ready(Some(Ok(event)));
        }
        if let Some(end) = &*self.process.end.borrow() {
            self.finished = true;
            return Poll::Ready(Some(Ok(end.last_message())));
        }
        self.patience.poll_silence(cx).map(|()| Some(Ok(events::keepalive())))
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.process.output.borrow_mut().unwatch(self.watcher);
        let ended = self.process.end.borrow().is_some();
        if self.finished && ended {
            self.table.heard(&self.process);
        }
        if self.kill_on_leave && !self.finished && self.process.child.exit().is_none() {
            let process = Rc::clone(&self.process);
            tokio::task::spawn_local(async move { process.kill_tree().await });
        }
    }
}
