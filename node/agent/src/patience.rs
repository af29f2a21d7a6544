use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::HeaderMap;
use tokio::time::{Instant, Sleep, sleep};

use crate::connect::{self, Error};

const KEEPALIVE_SECONDS_DEFAULT: u64 = 90;
const KEEPALIVE_SECONDS_MAX: u64 = 86_400;

/// How long a stream may be silent, and how long it may last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    keepalive: Duration,
    deadline: Option<Duration>,
}

impl Limits {
    /// From the request's headers.
    pub(crate) fn read(headers: &HeaderMap) -> Result<Self, Error> {
        let keepalive = connect::number_header(headers, "keepalive-ping-interval")?;
        let keepalive = keepalive.filter(|seconds| *seconds > 0).unwrap_or(KEEPALIVE_SECONDS_DEFAULT);
        let deadline = connect::number_header(headers, "connect-timeout-ms")?.filter(|ms| *ms > 0);
        Ok(Self {
            keepalive: Duration::from_secs(keepalive.min(KEEPALIVE_SECONDS_MAX)),
            deadline: deadline.map(Duration::from_millis),
        })
    }

    /// As another agent noted them; the deadline is what is left of it.
    pub(crate) fn of_ms(keepalive: u64, deadline: Option<u64>) -> Self {
        Self { keepalive: Duration::from_millis(keepalive), deadline: deadline.map(Duration::from_millis) }
    }

    /// How long it may be silent.
    pub(crate) fn keepalive(self) -> Duration {
        self.keepalive
    }

    /// How long the whole may last, if that is limited.
    pub(crate) fn deadline(self) -> Option<Duration> {
        self.deadline
    }

    /// The clocks of a stream that begins now.
    pub(crate) fn begin(self) -> Patience {
        Patience {
            keepalive: self.keepalive,
            silence: Box::pin(sleep(self.keepalive)),
            deadline: self.deadline.map(|deadline| Box::pin(sleep(deadline))),
        }
    }
}

/// The clocks of one stream.
pub(crate) struct Patience {
    keepalive: Duration,
    silence: Pin<Box<Sleep>>,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    /// Something was said.
    pub(crate) fn said_something(&mut self) {
        self.silence.as_mut().reset(Instant::now() + self.keepalive);
    }

    /// Whether the stream's time is up.
    pub(crate) fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready())
    }

    /// Ready when a keepalive is due; the silence then begins anew.
    pub(crate) fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.silence.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.said_something();
        // Polled once more, so that the next silence has a waker.
        let _pending = self.silence.as_mut().poll(cx);
        Poll::Ready(())
    }
}
