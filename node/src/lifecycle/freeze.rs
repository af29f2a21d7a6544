use std::sync::Arc;

use drowse_shared::{api::Error, name::SpaceRef};

use super::PATIENCE;
use crate::{
    node::{Node, not_found},
    space::{Space, state::Event},
};

/// Suspends a space, whatever runs in it. Frozen already is fine.
///
/// # Errors
/// As [`Node::drive`].
pub async fn freeze(node: &Arc<Node>, space: &SpaceRef, because: &'static str) -> Result<Space, Error> {
    let (slot, row) = node.hold(space, PATIENCE).await?;
    let (worker, missing) = (node.clone(), not_found(space));
    node.finish("freeze", async move {
        let _slot = slot;
        worker.drive(row, Event::Freeze, because).await?.ok_or(missing)
    })
    .await
}
