//! `destroySpace`: in the name's slot, and to its end whatever its caller does. What is not there is no error.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    body::Body,
    extract::{Extension, Request, State},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use drowse_shared::{
    api::{
        Code, Error, JSON_BODY_BYTES_MAX, parse,
        spaces::{Destroyed, OneSpace, WAIT_SECONDS},
    },
    id::RequestId,
    name::SpaceRef,
    slots::Slot,
};

use super::{
    acquire::busy,
    body,
    spaces::{belief, locate, moving},
};
use crate::{
    find::Busy,
    fleet::torn_down,
    forward::http::{Forwarded, Head, capture, cut, forward, unreachable},
    service::Gateway,
};

/// Longest wait for a node to destroy a space.
const DEADLINE: Duration = Duration::from_secs(120);

/// The handler.
pub(super) async fn destroy(
    State(gateway): State<Arc<Gateway>>,
    Extension(request_id): Extension<RequestId>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, request_body) = request.into_parts();
    let bytes = body::read_in(&gateway.room, request_body, JSON_BODY_BYTES_MAX).await?;
    let wish: OneSpace = parse(&bytes)?;
    let head = Head::new(parts, request_id, wish.name);
    // The slot is the name's, also for who says the id.
    let key = match &head.space {
        SpaceRef::Name(_) => head.space.clone(),
        SpaceRef::Id(_) => match locate(&gateway, &head.space, true).await {
            Ok((_, hit)) => SpaceRef::Name(hit.name),
            Err(error) if error.code == Code::SpaceNotFound => return Ok(nothing()),
            Err(error) => return Err(error),
        },
    };
    let patience = Duration::from_secs(WAIT_SECONDS);
    let slot = gateway.slots.take(&key, patience).await.map_err(|error| busy(&head.space, error))?;
    let task = in_slot(gateway.clone(), head, bytes, slot);
    gateway.env.finish("destroy", task).await.unwrap_or_else(|| Err(torn_down()))
}

fn nothing() -> Response {
    Json(Destroyed { destroyed: false }).into_response()
}

async fn in_slot(
    gateway: Arc<Gateway>,
    head: Head,
    bytes: Bytes,
    slot: Slot<SpaceRef>,
) -> Result<Response, Error> {
    let _running = gateway.shutdown.running();
    let _slot = slot;
    for attempt in 0..2 {
        let (peer, hit) = match locate(&gateway, &head.space, attempt == 0).await {
            Ok(found) => found,
            Err(error) if error.code == Code::SpaceNotFound => return Ok(nothing()),
            Err(error) => return Err(error),
        };
        let sent = async {
            let body = Body::from(bytes.clone());
            match forward(&gateway.nodes, &peer, &head, belief(&hit), body).await {
                Forwarded::Answer(response) => {
                    capture(response).await.map(Some).map_err(|why| cut(&head.space, &peer, &why))
                }
                Forwarded::NotMine => Ok(None),
                Forwarded::Unreached(why) => Err(unreachable(&head.space, &peer, &why)),
                Forwarded::Cut(why) => Err(cut(&head.space, &peer, &why)),
                Forwarded::Busy => Err(Busy.into()),
            }
        };
        let answer = tokio::time::timeout(DEADLINE, sent).await;
        let answer = answer.unwrap_or_else(|_| {
            Err(cut(&head.space, &peer, &format!("nothing in {} s", DEADLINE.as_secs())))
        });
        // Destroyed, not there, or nobody knows: in no case is the hint worth keeping, unless it was refused.
        let refused = matches!(&answer, Ok(Some(captured)) if !captured.status.is_success());
        if !refused {
            gateway.finder.forget_id(&hit.id);
        }
        let Some(captured) = answer? else { continue };
        if captured.status.is_success() {
            gateway.nodes.fleet.destroyed(&peer.ledger, &hit.id);
        }
        return Ok(captured.into_response());
    }
    Err(moving(&head.space))
}
