use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use drowse_shared::{
    api::nodes::{CheckIn, Report},
    id::LedgerId,
    select_biased,
};
use tokio::time::Instant;

use super::{
    http::Nodes,
    peer::{Failure, Peers},
};
use crate::fleet::Peer;

/// How often a node that keeps a request waiting is checked to be there at all.
const WATCH: Duration = Duration::from_secs(2);
/// Longest wait for a sign of life.
const SIGN: Duration = Duration::from_secs(2);
/// Largest sign of life.
const SIGN_BYTES_MAX: usize = 16 << 20;

/// What a node that is down was last seen to do, and when.
type Seen = Arc<tokio::sync::Mutex<Option<(Instant, bool)>>>;

/// Signs of life of nodes that are down. Each node is asked once for all who wait for it: ten thousand streams at a node
/// that stands still cost one connection.
#[derive(Clone, Default)]
pub(crate) struct Signs(Arc<Mutex<BTreeMap<LedgerId, Seen>>>);

impl Signs {
    /// Whether the node gave one within the last [`WATCH`].
    async fn is_there(&self, peers: &Peers, peer: &Peer) -> bool {
        let seen =
            self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(peer.ledger).or_default().clone();
        let mut last = seen.lock().await;
        if let Some((at, sign)) = *last
            && at.elapsed() < WATCH
        {
            return sign;
        }
        let sign = !matches!(report(peers, peer).await, Err(Failure::Unreached(_) | Failure::Cut(_)));
        *last = Some((Instant::now(), sign));
        sign
    }
}

async fn report(peers: &Peers, peer: &Peer) -> Result<CheckIn, Failure> {
    peers.call(&peer.endpoint, "report", &Report::default(), SIGN, SIGN_BYTES_MAX).await
}

/// Whether the node itself, and nobody who has its address now, answers when it is asked.
pub(crate) async fn answers(peers: &Peers, peer: &Peer) -> bool {
    report(peers, peer).await.is_ok_and(|said| said.ledger_id == peer.ledger)
}

/// Resolves when the node was removed, or when one that is down gives no sign of life either: a machine that vanished never
/// closes a connection.
pub(super) async fn lost(nodes: &Nodes, peer: &Peer) {
    let mute = async {
        let mut missed = 0;
        while missed < 2 {
            tokio::time::sleep(WATCH).await;
            let there = nodes.fleet.is_live(&peer.ledger) || nodes.signs.is_there(&nodes.peers, peer).await;
            missed = if there { 0 } else { missed + 1 };
        }
    };
    select_biased! {
        () = nodes.fleet.gone(&peer.ledger) => {}
        () = mute => {}
    }
}
