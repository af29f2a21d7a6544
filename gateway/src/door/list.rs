//! `listSpaces` over all nodes: each answers its own pages in one order, and who did not answer is named.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Request, State},
};
use drowse_shared::api::{
    Error, JSON_BODY_BYTES_MAX,
    nodes::Silent,
    parse,
    spaces::{ListSpaces, SpaceList},
};
use futures_util::{StreamExt as _, stream};
use tokio::time::Instant;

use super::body;
use crate::{fleet::Peer, forward::peer::LIST_BYTES_MAX, service::Gateway};

/// Pages of many nodes become one.
mod merge;

use merge::{Merge, Wanted};

/// Longest wait for a live node's page.
const LIVE: Duration = Duration::from_secs(10);
/// Longest wait for a node that does not check in.
const OTHERS: Duration = Duration::from_secs(2);
/// Longest wait for all of it: whoever has not answered then is named.
const OVERALL: Duration = Duration::from_secs(20);
/// Most nodes asked at once.
const AT_ONCE: usize = 64;

/// The handler.
pub(super) async fn list(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Json<SpaceList>, Error> {
    let bytes = body::read_in(&gateway.room, request.into_body(), JSON_BODY_BYTES_MAX).await?;
    let wish: ListSpaces = parse(&bytes)?;
    let _turn = gateway.lists.turn(1).await?;
    // Who does not know which nodes there are cannot say who is silent.
    gateway.nodes.fleet.knows_its_nodes()?;
    let fleet = &gateway.nodes.fleet;
    let peers: Vec<Peer> =
        fleet.asked().into_iter().filter(|peer| !fleet.is_returning(&peer.ledger)).collect();
    let until = Instant::now() + OVERALL;
    let mut merge = Merge::new(&wish, peers.iter().map(|peer| peer.id.clone()));
    while let Some(wanted) = merge.wants() {
        let mut pages = stream::iter(wanted)
            .map(|wanted| page(&gateway, &peers, &wish, wanted, until))
            .buffer_unordered(AT_ONCE);
        while let Some((node, page)) = pages.next().await {
            merge.take(node, page);
        }
    }
    Ok(Json(merge.end()))
}

/// One page of one node.
async fn page(
    gateway: &Gateway,
    peers: &[Peer],
    wish: &ListSpaces,
    wanted: Wanted,
    until: Instant,
) -> (usize, Result<SpaceList, Silent>) {
    let peer = &peers[wanted.node];
    let left = until.saturating_duration_since(Instant::now());
    let silent = |reason: String| Silent { node: peer.id.clone(), reason };
    if left.is_zero() {
        let why = format!("not asked: others took the {} s of the whole list", OVERALL.as_secs());
        return (wanted.node, Err(silent(why)));
    }
    let live = LIVE.min(gateway.nodes.answer_timeout);
    let deadline = if peer.live { live } else { OTHERS }.min(left);
    let ask = ListSpaces { limit: Some(wanted.limit), cursor: wanted.cursor, ..wish.clone() };
    let answer = gateway.nodes.peers.call(&peer.endpoint, "listSpaces", &ask, deadline, LIST_BYTES_MAX).await;
    (wanted.node, answer.map_err(|failure| silent(failure.to_string())))
}
