//! Two connections that were upgraded, joined until either ends.

use std::{io, time::Duration};

use http::HeaderValue;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::parting::Parting;
use crate::{
    seams::{BoxFuture, Env},
    shutdown::Shutdown,
};

/// Longest wait for both sides to be handed over after 101 was said.
const HANDOVER: Duration = Duration::from_secs(10);

/// How a tunnel ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Both sides had said all.
    Closed,
    /// One side gave no sign of life for too long, or took nothing.
    Vanished,
    /// One side broke it off.
    Broken,
    /// The node at its other end is lost.
    Lost,
    /// The daemon ends, or the one behind it, and the websocket was told so.
    Restarted,
    /// The daemon ends.
    Cut,
}

impl End {
    /// The word in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Vanished => "vanished",
            Self::Broken => "broken",
            Self::Lost => "lost",
            Self::Restarted => "restarted",
            Self::Cut => "cut",
        }
    }

    fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                Self::Vanished
            }
            _ => Self::Broken,
        }
    }
}

/// Joins both sides in a task of its own: until both have ended, one has failed, `lost` says that nobody is there any more,
/// or the daemon's grace is over. A websocket is told as soon as the daemon is to end. `ended` is told how.
pub fn open(
    env: &Env,
    shutdown: &Shutdown,
    near: OnUpgrade,
    (far, to): (OnUpgrade, Option<&HeaderValue>),
    lost: impl Future<Output = ()> + Send + 'static,
    ended: impl FnOnce(End) + Send + 'static,
) {
    let (shutdown, running) = (shutdown.clone(), shutdown.running());
    let websocket = to.is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let told = shutdown.clone();
    let stopping =
        websocket.then(|| Box::pin(async move { told.stopping().await }) as BoxFuture<'static, ()>);
    env.spawn("tunnel", async move {
        let _running = running;
        let end = crate::select_biased! {
            joined = join(near, far, stopping) => match joined {
                Ok(end) => end,
                Err(error) => {
                    let end = End::of(&error);
                    tracing::debug!(%error, end = end.as_str(), "a tunnel broke");
                    end
                }
            },
            () = lost => End::Lost,
            () = shutdown.cutting() => End::Cut,
        };
        ended(end);
    });
}

/// Copies both ways. An end of one side is passed on to the other, which may still speak.
async fn join(near: OnUpgrade, far: OnUpgrade, stopping: Option<BoxFuture<'static, ()>>) -> io::Result<End> {
    let both = async { tokio::try_join!(near, far) };
    let (near, far) = tokio::time::timeout(HANDOVER, both)
        .await
        .map_err(|_| io::ErrorKind::TimedOut)?
        .map_err(io::Error::other)?;
    let (mut near, mut far) = (TokioIo::new(near), TokioIo::new(far));
    let Some(stopping) = stopping else {
        return tokio::io::copy_bidirectional(&mut near, &mut far).await.map(|_| End::Closed);
    };
    let mut far = Parting::new(far, stopping);
    let copied = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    // Whoever was told may break it off.
    if far.is_restart() { Ok(End::Restarted) } else { copied.map(|_| End::Closed) }
}
