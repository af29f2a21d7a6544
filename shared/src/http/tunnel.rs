//! Two connections that were upgraded, joined until either ends.

use std::{io, time::Duration};

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use crate::{seams::Env, shutdown::Shutdown};

/// Longest wait for both sides to be handed over after 101 was said.
const HANDOVER: Duration = Duration::from_secs(10);

/// Joins both sides in a task of its own: until both have ended, one has failed, `lost` says that nobody is there any more,
/// or the daemon's grace is over.
pub fn open(
    env: &Env,
    shutdown: &Shutdown,
    near: OnUpgrade,
    far: OnUpgrade,
    lost: impl Future<Output = ()> + Send + 'static,
) {
    let (shutdown, running) = (shutdown.clone(), shutdown.running());
    env.spawn("tunnel", async move {
        let _running = running;
        let broke = crate::select_biased! {
            joined = join(near, far) => joined.err(),
            () = lost => Some(io::Error::other("the other side is lost")),
            () = shutdown.cutting() => None,
        };
        if let Some(error) = broke {
            tracing::debug!(%error, "a tunnel broke");
        }
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
