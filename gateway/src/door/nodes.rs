//! Verbs about nodes.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
};
use drowse_shared::api::{
    Code, Error, JSON_BODY_BYTES_MAX,
    nodes::{
        CheckIn, CheckedIn, ListNodes, NodeList, NodeReadmitted, NodeRemoved, OneNode, ReadmitNode, Standing,
    },
    parse,
};

use super::body;
use crate::{
    fleet::{Written, readmit as back, torn_down},
    forward::sign::answers,
    service::Gateway,
};

/// Largest check-in that was asked for: a roster of thousands of nodes and a copy of the configuration.
const CHECK_IN_BYTES_MAX: usize = 16 << 20;

/// `checkIn`, from nodes.
pub(super) async fn check_in(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Json<CheckedIn<Written>>, Error> {
    let bytes = body::read(request.into_body(), CHECK_IN_BYTES_MAX).await?;
    let said: CheckIn = parse(&bytes)?;
    let (ledger, fleet) = (said.ledger_id, &gateway.nodes.fleet);
    let mut answer = fleet.check_in(said).await?;
    // One that is to bring something comes again at once.
    if answer.standing == Standing::Member && !answer.want_bundle {
        answer.upgrade = fleet.turn(ledger).await;
    }
    Ok(Json(answer))
}

/// `listNodes`.
pub(super) async fn list(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Json<NodeList>, Error> {
    let bytes = body::read(request.into_body(), JSON_BODY_BYTES_MAX).await?;
    let ListNodes {} = parse(&bytes)?;
    gateway.nodes.fleet.list().map(Json)
}

/// `removeNode`.
pub(super) async fn remove(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Json<NodeRemoved>, Error> {
    let bytes = body::read(request.into_body(), JSON_BODY_BYTES_MAX).await?;
    let wish: OneNode = parse(&bytes)?;
    // One that does not check in may serve all the same, and others would be given its names.
    if let Some(peer) = gateway.nodes.fleet.called(&wish.node_id)
        && answers(&gateway.nodes.peers, &peer).await
    {
        return Err(Error::new(
            Code::NodeLive,
            format!(
                "node {} answers at {}; stop its daemon, or cut it off, before it is removed",
                peer.id, peer.endpoint
            ),
        ));
    }
    let (removed, ledger) = gateway.nodes.fleet.remove(wish.node_id).await?;
    if let Some(ledger) = ledger {
        gateway.finder.forget_node(&ledger);
    }
    Ok(Json(removed))
}

/// `readmitNode`.
pub(super) async fn readmit(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Json<NodeReadmitted>, Error> {
    let bytes = body::read(request.into_body(), JSON_BODY_BYTES_MAX).await?;
    let wish: ReadmitNode = parse(&bytes)?;
    let task =
        back::readmit(gateway.nodes.fleet.clone(), gateway.finder.clone(), gateway.nodes.peers.clone(), wish);
    gateway.env.finish("readmit", task).await.unwrap_or_else(|| Err(torn_down())).map(Json)
}
