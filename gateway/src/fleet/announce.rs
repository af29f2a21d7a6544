//! One task that keeps the nodes up to date: whenever the roster changes it shows it at once to every live node that
//! does not echo it yet, and takes the answers as check-ins. The same call finds, after a restart, the nodes that are
//! known but not heard.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use drowse_shared::{
    api::nodes::{CheckIn, Report},
    backoff::Backoff,
    select_biased,
    shutdown::Shutdown,
    watchdog::Pulse,
};
use futures_util::{StreamExt as _, stream};

use super::{Fleet, Peer, Written};
use crate::forward::peer::Peers;

/// Longest wait for one node's report.
const DEADLINE: Duration = Duration::from_secs(2);
/// Most nodes asked at once.
const AT_ONCE: usize = 256;
/// Pause between two rounds, per node that was shown something: a fleet that joins node by node is told in few rounds.
const PAUSE_PER_NODE: Duration = Duration::from_millis(1);
/// Longest round over a thousand nodes that do not answer, with room.
pub(crate) const ROUND: Duration = Duration::from_secs(120);
/// Largest report: a reading and a roster of thousands of nodes.
const BYTES_MAX: usize = 16 << 20;
/// A node that joins opens its door a moment after it was taken in.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(5));

/// Runs until shutdown.
pub(crate) async fn run(fleet: Arc<Fleet>, peers: Arc<Peers>, shutdown: Shutdown, pulse: Pulse) {
    let mut again = AGAIN;
    loop {
        pulse.at("learning which nodes there are");
        let learning = fleet.learn().await;
        let (roster, behind) = fleet.untold();
        let told = behind.is_empty();
        let rest = PAUSE_PER_NODE.saturating_mul(u32::try_from(behind.len()).unwrap_or(u32::MAX));
        pulse.about("showing the roster to nodes", &behind.len());
        let report = written(&Report { roster: roster.clone(), want_roster: false });
        let whole = written(&Report { roster, want_roster: true });
        let asked = stream::iter(behind)
            .map(|peer| ask(&fleet, &peers, [&report, &whole], peer))
            .buffer_unordered(AT_ONCE)
            .collect::<()>();
        let round = async {
            asked.await;
            tokio::time::sleep(rest).await;
        };
        select_biased! {
            () = shutdown.stopping() => return,
            () = round => {}
        }
        let wait = match (told, learning) {
            (true, None) => None,
            (true, Some(wait)) => Some(wait),
            (false, learning) => Some(learning.map_or(Duration::MAX, |wait| wait).min(again.wait())),
        };
        wait.map_or_else(|| pulse.rests(), |wait| pulse.pauses(wait));
        let pause = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        select_biased! {
            () = shutdown.stopping() => return,
            () = fleet.announce.notified() => again.reset(),
            () = pause => {}
        }
    }
}

fn written(report: &Report<Written>) -> Bytes {
    serde_json::to_vec(report).map_or_else(
        |error| {
            tracing::error!(%error, "a report cannot be asked for");
            Bytes::new()
        },
        Bytes::from,
    )
}

async fn ask(fleet: &Arc<Fleet>, peers: &Peers, [report, whole]: [&Bytes; 2], peer: Peer) {
    if hear(fleet, peers, report, &peer).await {
        hear(fleet, peers, whole, &peer).await;
    }
}

/// Takes what a node reports. Answers whether the roster it keeps must be seen first.
async fn hear(fleet: &Arc<Fleet>, peers: &Peers, report: &Bytes, peer: &Peer) -> bool {
    let said = peers.call_written::<CheckIn>(&peer.endpoint, "report", report.clone(), DEADLINE, BYTES_MAX);
    match said.await {
        // Somebody else answers there; a check-in of its own would be judged, this is only noise.
        Ok(said) if said.ledger_id != peer.ledger => {
            tracing::debug!(node = %peer.id, endpoint = %peer.endpoint, found = %said.ledger_id, "another ledger answers there");
        }
        Ok(said) => match fleet.check_in(said).await {
            Ok(answer) => return answer.want_roster,
            Err(error) => tracing::warn!(node = %peer.id, %error, "a node's report was refused"),
        },
        Err(failure) => tracing::debug!(node = %peer.id, %failure, "a node did not report"),
    }
    false
}
