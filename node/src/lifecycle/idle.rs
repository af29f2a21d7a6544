//! What idles sleeps: an active space freezes, a frozen one stops, each step when its time has come.
//!
//! One clock for all spaces looks at memory only; the ledger is asked about those that are due. Under the slot the freshest
//! activity is looked at once more.

use std::{sync::Arc, time::Duration};

use drowse_shared::{id::SpaceId, name::SpaceRef};
use tokio::time::Instant;

use crate::{
    node::Node,
    space::{State, state::Event},
};

/// Between two looks.
const TICK: Duration = Duration::from_secs(1);
/// After a step that failed.
const AGAIN: Duration = Duration::from_secs(60);

/// Looks until the daemon ends.
pub async fn run(node: Arc<Node>) {
    loop {
        drowse_shared::select_biased! {
            () = node.shutdown.stopping() => return,
            () = tokio::time::sleep(TICK) => {}
        }
        for id in node.live.due(Instant::now()) {
            // In its own task: one space that does not freeze holds up no other.
            let worker = node.clone();
            node.env.spawn("idle step", async move { step_down(&worker, id).await });
        }
    }
}

async fn step_down(node: &Arc<Node>, id: SpaceId) {
    let Ok(Some(row)) = node.ledger.find(&SpaceRef::Id(id)).await else { return };
    let Some(slot) = node.slots.try_take(&row.name) else { return };
    let Ok(Some(row)) = node.ledger.find(&SpaceRef::Id(id)).await else { return };
    if !node.live.is_due(id, Instant::now()) {
        return;
    }
    let event = match row.state {
        State::Active => Event::Freeze,
        State::Frozen => Event::Stop,
        _ => return,
    };
    let worker = node.clone();
    let name = row.name.clone();
    let stepped = node.finish("idle step", async move {
        let _slot = slot;
        worker.drive(row, event).await
    });
    match stepped.await {
        Ok(Some(space)) => {
            tracing::info!(space = %id, name = name.as_str(), is = %space.state.word(), "idle");
        }
        Ok(None) => {}
        Err(error) => {
            node.live.postpone(id, Instant::now() + AGAIN);
            tracing::warn!(space = %id, name = name.as_str(), %error, "an idle space could not be put to sleep");
        }
    }
}
