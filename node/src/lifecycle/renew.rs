//! Spaces that outlived an update of this daemon run the agent of the earlier build. Each becomes this build's, in place:
//! those that run soon after the start, those that are frozen when they are woken.

use std::{sync::Arc, time::Duration};

use drowse_shared::{id::SpaceId, name::SpaceRef};
use futures_util::{StreamExt as _, stream};

use super::LOOK;
use crate::{
    door::error::chain,
    executor::Renewal,
    live::OldAgent,
    node::Node,
    space::{Space, State},
};

/// Between two rounds over agents that were busy.
const PAUSE: Duration = Duration::from_secs(5);
/// Longest round: every call into the executor has an end of its own.
const ROUND: Duration = Duration::from_secs(180);
/// Most agents that are replaced at once.
const AT_ONCE: usize = 8;

/// Replaces what is due until nothing is: no space of this life starts with another agent.
pub async fn run(node: Arc<Node>) {
    let pulse = node.watchdog.watch("agents", ROUND);
    let work = async {
        pulse.at("replacing agents of an earlier build");
        let mut cleared = None;
        while !round(&node, &mut cleared).await {
            pulse.pauses(PAUSE);
            tokio::time::sleep(PAUSE).await;
            pulse.at("replacing agents of an earlier build");
        }
    };
    drowse_shared::select_biased! {
        () = node.shutdown.stopping() => {}
        () = work => {}
    }
}

/// Tries each, and removes what is used no more: `cleared` is who had an agent of another build when that was last done.
/// Answers whether nothing is left to do.
async fn round(node: &Arc<Node>, cleared: &mut Option<Vec<SpaceId>>) -> bool {
    // Beside each other: one that is wedged holds up no other.
    stream::iter(node.live.replaceable_agents()).for_each_concurrent(AT_ONCE, |id| attempt(node, id)).await;
    let old = node.live.old_agents();
    if cleared.as_ref() == Some(&old) {
        return false;
    }
    match tokio::time::timeout(LOOK, node.executor.clear_agents()).await {
        Ok(Ok(())) => {
            let done = old.is_empty();
            *cleared = Some(old);
            done
        }
        Ok(Err(error)) => {
            tracing::warn!(error = %chain(&error), "old agents could not be removed");
            false
        }
        Err(_) => {
            tracing::warn!("old agents could not be removed within {LOOK:?}");
            false
        }
    }
}

/// Tries one, unless somebody else is at its space.
async fn attempt(node: &Arc<Node>, id: SpaceId) {
    let reference = SpaceRef::Id(id);
    let Ok(Some(row)) = node.ledger.find(&reference).await else { return };
    let Some(slot) = node.slots.try_take(&row.name) else { return };
    // It may have gone to sleep meanwhile.
    let Ok(Some(row)) = node.ledger.find(&reference).await else { return };
    if row.state != State::Active {
        return node.live.falls_asleep_with_its_agent(id);
    }
    let worker = node.clone();
    let work = node.finish("replace the agent", async move {
        let _slot = slot;
        worker.renew_agent(&row).await;
        Ok(())
    });
    // A daemon that ends leaves it to the next.
    let _ended = work.await;
}

impl Node {
    /// Has the agent of an active space become this daemon's own, if it is not. The caller holds the slot. One that stays
    /// is as good as it was.
    pub(super) async fn renew_agent(&self, space: &Space) {
        let Some(before) = self.live.old_agent(space.id) else { return };
        if before == OldAgent::Refused {
            return;
        }
        let said = match tokio::time::timeout(LOOK, self.executor.renew_agent(space.id)).await {
            Ok(Ok(Renewal::Renewed | Renewal::Current)) => None,
            Ok(Ok(Renewal::Refused(why))) => Some((OldAgent::Refused, why)),
            Ok(Ok(Renewal::Busy(why))) => Some((OldAgent::Busy, why)),
            Ok(Err(error)) => Some((OldAgent::Busy, chain(&error))),
            Err(_) => Some((OldAgent::Busy, format!("it was not replaced within {LOOK:?}"))),
        };
        self.live.set_old_agent(space.id, said.as_ref().map(|(standing, _)| *standing));
        let (id, name) = (space.id, space.name.as_str());
        match said {
            None => tracing::info!(space = %id, name, "its agent is of this build now"),
            Some((now, why)) if now != before => {
                tracing::warn!(space = %id, name, why, tried_again = now == OldAgent::Busy, "it keeps the agent of another build");
            }
            Some(_) => {}
        }
    }
}
