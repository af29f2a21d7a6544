//! What idles sleeps: an active space freezes, a frozen one stops, each step when its time has come.
//!
//! One clock for all spaces looks at memory only; the ledger is asked about those that are due. Under the slot the freshest
//! activity is looked at once more.

use std::{sync::Arc, time::Duration};

use drowse_shared::{id::SpaceId, name::SpaceRef};
use tokio::{sync::Semaphore, time::Instant};

use super::busy::{self, Verdict};
use crate::{
    node::Node,
    space::{State, state::Event},
};

/// Between two looks.
const TICK: Duration = Duration::from_secs(1);
/// Most steps under way at once: after a start a thousand spaces may be due together.
const AT_ONCE: usize = 32;
/// Longest look.
const STEP: Duration = Duration::from_secs(30);
/// After a step that failed.
const AGAIN: Duration = Duration::from_secs(60);

/// Looks until the daemon ends.
pub async fn run(node: Arc<Node>) {
    let steps = Arc::new(Semaphore::new(AT_ONCE));
    let pulse = node.watchdog.watch("idle", STEP);
    loop {
        pulse.pauses(TICK);
        drowse_shared::select_biased! {
            () = node.shutdown.stopping() => return,
            () = tokio::time::sleep(TICK) => {}
        }
        pulse.at("looking for spaces that idle");
        for id in node.live.due(Instant::now()) {
            // The rest is still due at the next look.
            let Ok(permit) = steps.clone().try_acquire_owned() else { break };
            // In its own task: one space that does not freeze holds up no other.
            let worker = node.clone();
            node.env.spawn("idle step", async move {
                let _permit = permit;
                step_down(&worker, id).await;
            });
        }
    }
}

/// Takes one space a step down, if under its slot it still is to take one.
pub async fn step_down(node: &Arc<Node>, id: SpaceId) {
    let row = match node.ledger.find(&SpaceRef::Id(id)).await {
        Ok(Some(row)) => row,
        // A verb that ended after the space did has touched it once more.
        Ok(None) => return node.live.forget(id),
        Err(_) => return,
    };
    let Some(slot) = node.slots.try_take(&row.name) else { return };
    let name = row.name;
    let Ok(Some(mut row)) = node.ledger.find(&SpaceRef::Id(id)).await else { return };
    // Set aside since: its slot is another one.
    if row.name != name {
        return;
    }
    if !node.live.is_due(id, Instant::now()) {
        return;
    }
    let idle = format!("idle for {} s", row.sleeps_after().unwrap_or_default().as_secs());
    if let (State::Active, Some(floor)) = (&row.state, row.policy.awake_cpu_percent) {
        match busy::look(node, id, floor).await {
            Verdict::Quiet => {}
            Verdict::Unknown => return,
            Verdict::Busy => return node.touch(&row, "cpu"),
        }
    }
    let event = match row.state {
        State::Active => Event::Freeze,
        State::Frozen => Event::Stop,
        // The same: else it would be due at every look from now on.
        State::Stopped => {
            node.watch(&row);
            return node.rest(&mut row).await;
        }
        _ => return node.watch(&row),
    };
    let worker = node.clone();
    let stepped = node.finish("idle step", async move {
        let _slot = slot;
        worker.drive(row, event, idle).await
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
