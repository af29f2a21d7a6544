use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, Sleep, sleep};

use super::output::Item;
use super::table::Table;
use super::{Process, events};
use crate::connect::{self, Code, Error};

const KEEPALIVE_SECONDS_DEFAULT: u64 = 90;

/// What the client asked of its stream.
pub(crate) struct Wishes {
    keepalive: Duration,
    deadline: Option<Duration>,
    /// A client that leaves takes the command with it.
    pub(crate) kill_on_leave: bool,
}

impl Wishes {
    /// From the request's headers.
    pub(crate) fn read(headers: &HeaderMap) -> Result<Self, Error> {
        let keepalive = connect::number_header(headers, "keepalive-ping-interval")?;
        let keepalive = keepalive.filter(|seconds| *seconds > 0).unwrap_or(KEEPALIVE_SECONDS_DEFAULT);
        let deadline = connect::number_header(headers, "connect-timeout-ms")?.filter(|ms| *ms > 0);
        let kill_on_leave = match headers.get("drowse-on-disconnect").map(http::HeaderValue::as_bytes) {
            None | Some(b"leave") => false,
            Some(b"kill") => true,
            Some(_) => return Err(Error::new(Code::InvalidArgument, "drowse-on-disconnect: kill or leave")),
        };
        Ok(Self {
            keepalive: Duration::from_secs(keepalive.min(86_400)),
            deadline: deadline.map(Duration::from_millis),
            kill_on_leave,
        })
    }
}

/// The events of one command for one client, from the start event to the end of the stream.
///
/// Dropping it is how a client's leaving is noticed.
pub(crate) struct EventStream {
    process: Rc<Process>,
    table: Rc<Table>,
    ready: VecDeque<Bytes>,
    live: Option<mpsc::Receiver<Item>>,
    watcher: Option<u64>,
    keepalive: Duration,
    silence: Pin<Box<Sleep>>,
    deadline: Option<Pin<Box<Sleep>>>,
    kill_on_leave: bool,
    /// The last envelope was given out.
    finished: bool,
    /// Its connection's place among all.
    _place: Option<OwnedSemaphorePermit>,
}

impl EventStream {
    /// Watches `process`, or tells how it ended.
    pub(crate) fn new(process: Rc<Process>, table: Rc<Table>, wishes: &Wishes) -> Self {
        let mut ready = VecDeque::from([events::start(process.pid())]);
        let last = process.end.borrow().as_ref().map(events::End::last_message);
        let (watcher, live) = match last {
            Some(last) => {
                ready.extend(process.output.borrow_mut().replay());
                ready.push_back(last);
                (None, None)
            }
            None => {
                let (watcher, replay, live) = process.output.borrow_mut().watch();
                ready.extend(replay);
                (Some(watcher), Some(live))
            }
        };
        Self {
            process,
            table,
            ready,
            live,
            watcher,
            keepalive: wishes.keepalive,
            silence: Box::pin(sleep(wishes.keepalive)),
            deadline: wishes.deadline.map(|deadline| Box::pin(sleep(deadline))),
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
        if let Some(event) = self.ready.pop_front() {
            self.finished = self.ready.is_empty() && self.live.is_none();
            return Poll::Ready(Some(Ok(event)));
        }
        if let Some(live) = &mut self.live {
            match live.poll_recv(cx) {
                Poll::Ready(Some(item)) => {
                    self.silence.as_mut().reset(Instant::now() + self.keepalive);
                    let event = match item {
                        Item::Event(event) => event,
                        Item::Last(event) => {
                            self.finished = true;
                            event
                        }
                    };
                    return Poll::Ready(Some(Ok(event)));
                }
                // The pump is gone without an end: the client must not take this for one.
                Poll::Ready(None) => return Poll::Ready(Some(Err(io::ErrorKind::ConnectionAborted.into()))),
                Poll::Pending => {}
            }
        }
        if self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready()) {
            self.finished = true;
            self.live = None;
            let error = Error::new(Code::DeadlineExceeded, "the stream's time is up; the command goes on");
            return Poll::Ready(Some(Ok(error.end_stream())));
        }
        if self.silence.as_mut().poll(cx).is_ready() {
            self.silence.as_mut().reset(Instant::now() + self.keepalive);
            return Poll::Ready(Some(Ok(events::keepalive())));
        }
        Poll::Pending
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher {
            self.process.output.borrow_mut().unwatch(watcher);
        }
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
