use std::sync::Arc;

use drowse_shared::{api::Error, name::SpaceRef};

use super::PATIENCE;
use crate::{
    node::{Node, not_found},
    space::{Space, state::Event},
};

/// Leaves a space only its disk. Stopped already is fine.
///
/// # Errors
/// As [`Node::drive`].
pub async fn stop(node: &Arc<Node>, space: &SpaceRef) -> Result<Space, Error> {
    let (slot, row) = node.hold(space, PATIENCE).await?;
    let (worker, missing) = (node.clone(), not_found(space));
    node.finish("stop", async move {
        let _slot = slot;
        worker.drive(row, Event::Stop, "stopSpace").await?.ok_or(missing)
    })
    .await
}
