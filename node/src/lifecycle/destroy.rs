use std::sync::Arc;

use drowse_shared::{
    api::{Code, Error},
    name::SpaceRef,
};

use super::PATIENCE;
use crate::{door::error, node::Node, space::state::Event};

/// Removes a space with all its data, from any state. Answers whether there was one.
///
/// Once it was begun it is never taken back: what a crash or a failure leaves is removed in the background.
///
/// # Errors
/// When the removal did not come to its end in time; the space is `destroying` then.
pub async fn destroy(node: &Arc<Node>, space: &SpaceRef) -> Result<bool, Error> {
    let (slot, row) = match node.hold(space, PATIENCE).await {
        Ok(held) => held,
        Err(missing) if missing.code == Code::SpaceNotFound => return Ok(false),
        // A verb that is wedged holds the slot. It ends by its own deadlines; the caller comes again.
        Err(busy) => return gone_meanwhile(node, space, busy).await,
    };
    let worker = node.clone();
    node.finish("destroy", async move {
        let _slot = slot;
        worker.drive(row, Event::Destroy, "destroySpace").await.map(|_| true)
    })
    .await
}

/// Whoever held the slot may have been removing it.
async fn gone_meanwhile(node: &Arc<Node>, space: &SpaceRef, busy: Error) -> Result<bool, Error> {
    let known = node.ledger.find(space).await.map_err(error::ledger)?;
    if known.is_none() { Ok(false) } else { Err(busy) }
}
