use std::{
    error::Error as StdError,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

type BoxError = Box<dyn StdError + Send + Sync>;

/// A body whose sender paused for too long. Found among the sources of whatever it led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body paused for more than {0:?}")]
pub struct Paused(pub Duration);

impl Paused {
    /// Whether a failure was caused by a pause.
    pub fn caused(error: &(dyn StdError + 'static)) -> Option<Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(paused) = error.downcast_ref::<Self>() {
                return Some(*paused);
            }
            cause = error.source();
        }
        None
    }
}

/// When a body last moved, and whether its sender is waited for. Clones share it.
#[derive(Debug, Clone)]
pub struct Pace(Arc<Mutex<Moved>>);

#[derive(Debug, Clone, Copy)]
struct Moved {
    last: Instant,
    /// Its sender is to send; nobody else is to blame for the silence.
    awaited: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Moved { last: Instant::now(), awaited: false })))
    }
}

impl Pace {
    fn moved(&self) -> Moved {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, awaited: bool) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Moved { last: Instant::now(), awaited };
    }

    /// Resolves when whoever takes the body has neither taken more of it nor answered for `limit`, from now on.
    pub async fn quiet(&self, limit: Duration) {
        let began = Instant::now();
        loop {
            let Moved { last, awaited } = self.moved();
            let since = if awaited { Instant::now() } else { last.max(began) };
            if since + limit <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(since + limit).await;
        }
    }
}

/// A body that may pause for so long, and no longer.
pub struct Paced<B> {
    body: B,
    patience: Duration,
    pace: Pace,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<B> Paced<B> {
    /// Ends `body` with [`Paused`] when its sender pauses for longer than `patience`, and marks `pace` as it moves.
    pub fn new(body: B, patience: Duration, pace: Pace) -> Self {
        Self { body, patience, pace, waiting: None }
    }
}

impl<B> Body for Paced<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.waiting = None;
            self.pace.set(false);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if self.waiting.is_none() {
            self.pace.set(true);
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + patience)));
        match waiting.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Some(Err(Paused(patience).into()))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body as AnyBody;
    use http_body_util::BodyExt as _;
    use tokio::io::AsyncWriteExt as _;
    use tokio_util::io::ReaderStream;

    #[tokio::test(start_paused = true)]
    async fn a_body_may_be_slow_and_may_not_stop() {
        let patience = Duration::from_secs(60);
        let (mut sender, receiver) = tokio::io::duplex(64);
        let pace = Pace::default();
        let body = AnyBody::from_stream(ReaderStream::new(receiver));
        let mut body = Paced::new(body, patience, pace.clone());
        let sending = async {
            for _ in 0..5 {
                tokio::time::sleep(patience - Duration::from_secs(1)).await;
                sender.write_all(b"x").await.expect("open");
            }
        };
        let reading = async {
            for _ in 0..5 {
                body.frame().await.expect("more").expect("in time");
            }
        };
        tokio::join!(sending, reading);
        let began = Instant::now();
        let error = body.frame().await.expect("an end").expect_err("it stopped");
        assert_eq!(Paused::caused(&*error), Some(Paused(patience)));
        assert_eq!(began.elapsed(), patience);
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_a_body_is_not_blamed_for_its_sender() {
        let (patience, limit) = (Duration::from_secs(60), Duration::from_secs(10));
        let (mut sender, receiver) = tokio::io::duplex(64);
        let pace = Pace::default();
        let mut body = Paced::new(AnyBody::from_stream(ReaderStream::new(receiver)), patience, pace.clone());
        let began = Instant::now();
        let taking = async {
            body.frame().await.expect("more").expect("in time");
            // From here on nobody takes it.
            std::future::pending::<()>().await;
        };
        let sending = async {
            tokio::time::sleep(Duration::from_secs(30)).await;
            sender.write_all(b"x").await.expect("open");
            std::future::pending::<()>().await;
        };
        crate::select_biased! {
            () = taking => {}
            () = sending => {}
            () = pace.quiet(limit) => {}
        }
        assert_eq!(began.elapsed(), Duration::from_secs(40), "ten seconds after the sender sent");
    }
}
