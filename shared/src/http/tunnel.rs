//! Two connections that were upgraded, joined until either ends.

use std::{io, time::Duration};

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use crate::{seams::Env, shutdown::Shutdown};

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
/// or the daemon's grace is over. `ended` is told how.
pub fn open(
    env: &Env,
    shutdown: &Shutdown,
    near: OnUpgrade,
    far: OnUpgrade,
    lost: impl Future<Output = ()> + Send + 'static,
    ended: impl FnOnce(End) + Send + 'static,
) {
    let (shutdown, running) = (shutdown.clone(), shutdown.running());
    env.spawn("tunnel", async move {
        let _running = running;
        let end = crate::select_biased! {
            joined = join(near, far) => match joined {
                Ok(()) => End::Closed,
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
async fn join(near: OnUpgrade, far: OnUpgrade) -> io::Result<()> {
    let both = async { tokio::try_join!(near, far) };
    let (near, far) = tokio::time::timeout(HANDOVER, both)
        .await
        .map_err(|_| io::ErrorKind::TimedOut)?
        .map_err(io::Error::other)?;
    tokio::io::copy_bidirectional(&mut TokioIo::new(near), &mut TokioIo::new(far)).await.map(drop)
}
