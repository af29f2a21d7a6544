//! Two connections that were upgraded, joined until either ends.

use std::{io, time::Duration};

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

/// Longest wait for both sides to be handed over after 101 was said.
const HANDOVER: Duration = Duration::from_secs(10);

/// Copies both ways until both sides have ended or one has failed. An end of one side is passed on to the other, which may
/// still speak.
///
/// # Errors
/// When a side was not handed over, or broke.
pub async fn join(one: OnUpgrade, other: OnUpgrade) -> io::Result<(u64, u64)> {
    let both = async { tokio::try_join!(one, other) };
    let (one, other) = tokio::time::timeout(HANDOVER, both)
        .await
        .map_err(|_| io::ErrorKind::TimedOut)?
        .map_err(io::Error::other)?;
    tokio::io::copy_bidirectional(&mut TokioIo::new(one), &mut TokioIo::new(other)).await
}
