use std::time::Duration;

use drowse_shared::api::nodes::{Body, Conflict, Held, Measure, Measured};
use futures_util::{StreamExt as _, future::join_all, stream};

use super::{AT_ONCE, Clash, SPACE_BYTES_MAX};
use crate::{fleet::Peer, forward::peer::Peers};

/// Longest wait for what one space is. Who is slow leaves it out.
const DEADLINE: Duration = Duration::from_secs(4);
/// Most names whose bodies are looked at; of further ones only the nodes are told.
const NAMES_MAX: usize = 200;

/// Names that are held twice, with what a person needs to choose.
pub(super) async fn conflicts(peers: &Peers, clashes: Vec<Clash>) -> Vec<Conflict> {
    let described = stream::iter(clashes.into_iter().enumerate()).map(|(n, clash)| async move {
        let nodes = clash.holders.iter().map(|(peer, _)| peer.id.clone()).collect();
        let looks = n < NAMES_MAX;
        let bodies = clash.holders.into_iter().map(|(peer, held)| describe(peers, peer, held, looks));
        Conflict { name: clash.name, nodes, bodies: join_all(bodies).await }
    });
    described.buffered(AT_ONCE).collect().await
}

async fn describe(peers: &Peers, peer: Peer, held: Held, looks: bool) -> Body {
    let asked = Measure { id: held.id };
    let measured: Option<Measured> = if looks {
        peers.call(&peer.endpoint, "measure", &asked, DEADLINE, SPACE_BYTES_MAX).await.ok()
    } else {
        None
    };
    let space = measured.as_ref().map(|measured| &measured.space);
    Body {
        node: peer.id,
        id: held.id,
        state: space.map_or(held.state, |space| space.state),
        created_at: space.map(|space| space.created_at),
        last_active_at: space.map(|space| space.last_active_at),
        disk_bytes: measured.as_ref().and_then(|measured| measured.disk_bytes),
    }
}
