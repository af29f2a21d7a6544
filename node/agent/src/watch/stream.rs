use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::Watch;
use crate::connect::{self, Code, Error};
use crate::patience::Patience;

type Fetching = Pin<Box<dyn Future<Output = Result<VecDeque<Box<str>>, Error>>>>;

/// The events of one directory for one client. Dropping it is how a client's leaving is noticed.
pub(crate) struct WatchStream {
    watch: Rc<Watch>,
    ended: Rc<Notify>,
    started: bool,
    ready: VecDeque<Box<str>>,
    fetching: Option<Fetching>,
    patience: Patience,
    finished: bool,
    _place: OwnedSemaphorePermit,
}

impl WatchStream {
    /// Watches on for a client.
    pub(super) fn new(
        watch: Rc<Watch>,
        ended: Rc<Notify>,
        patience: Patience,
        place: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            watch,
            ended,
            started: false,
            ready: VecDeque::new(),
            fetching: None,
            patience,
            finished: false,
            _place: place,
        }
    }

    /// The next piece of the body.
    pub(crate) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.finished {
            return Poll::Ready(None);
        }
        if !self.started {
            self.started = true;
            return Poll::Ready(Some(Ok(connect::message(br#"{"start":{}}"#))));
        }
        if self.patience.is_over(cx) {
            return self.fail(&Error::new(Code::DeadlineExceeded, "the stream's time is up"));
        }
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.patience.said_something();
                let message = format!(r#"{{"filesystem":{event}}}"#);
                return Poll::Ready(Some(Ok(connect::message(message.as_bytes()))));
            }
            let (watch, ended) = (Rc::clone(&self.watch), Rc::clone(&self.ended));
            let fetching = self.fetching.get_or_insert_with(|| {
                Box::pin(async move {
                    tokio::select! {
                        biased;
                        happened = watch.happened() => happened?,
                        () = ended.notified() => {
                            let words = "the agent of the space is replaced: watch anew, then list the directory";
                            return Err(Error::new(Code::Unavailable, words));
                        }
                    }
                    watch.fetch().await
                })
            });
            match fetching.as_mut().poll(cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(events)) => {
                    self.fetching = None;
                    self.ready = events;
                }
                Poll::Ready(Err(error)) => return self.fail(&error),
            }
        }
        self.patience.poll_silence(cx).map(|()| Some(Ok(connect::message(br#"{"keepalive":{}}"#))))
    }

    fn fail(&mut self, error: &Error) -> Poll<Option<io::Result<Bytes>>> {
        self.finished = true;
        self.fetching = None;
        Poll::Ready(Some(Ok(error.end_stream())))
    }
}
