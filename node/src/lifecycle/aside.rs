//! Setting a space aside: another node's space of this name is to have it, because a person chose so.
//!
//! What runs in the space is suspended, then its row and its card get a name nobody asks for; nothing else of it changes.
//! The row is written first and is what counts; a crash before the card is made good at the next boot, and by whoever
//! repeats the call, which is answered once both are durable.

use std::{sync::Arc, time::Duration};

use drowse_shared::{
    api::{
        Code, Error,
        nodes::{SetAside, SetAsideBody},
    },
    name::SpaceRef,
};

use super::{PATIENCE, refused};
use crate::{
    door::error,
    executor,
    milestone::{Milestone, Row},
    node::{Node, not_found},
    space::{
        Space, State,
        state::{Event, Refusal},
    },
};

/// Longest wait for the card.
const CARD: Duration = Duration::from_secs(10);

/// Has a space give up its name. Fine if it has.
///
/// # Errors
/// When it bears another name, is being made or removed, or what runs in it cannot be suspended.
pub async fn set_aside(node: &Arc<Node>, wish: SetAside) -> Result<SetAsideBody, Error> {
    let reference = SpaceRef::Id(wish.id);
    let (slot, row) = node.hold(&reference, PATIENCE).await?;
    let aside = wish.name.aside(row.id);
    if row.name != wish.name && row.name != aside {
        let message =
            format!("space {} is called {:?}, not {:?}", row.id, row.name.as_str(), wish.name.as_str());
        return Err(Error::new(Code::WrongState, message));
    }
    if matches!(row.state, State::Creating | State::Destroying) {
        return Err(refused(&row, Refusal::Busy));
    }
    // Whoever comes by the new name queues there, while the card is still being written.
    let next_slot = if row.name == aside { None } else { Some(node.slot(&aside, PATIENCE).await?) };
    let worker = node.clone();
    node.finish("set aside", async move {
        let _slots = (slot, next_slot);
        let mut space = quiet(&worker, row).await?;
        if space.name != aside {
            let names = (&wish.name, &aside);
            worker
                .kept
                .give_up(&worker.ledger, space.id, names, wish.keeper)
                .await
                .map_err(error::ledger)?;
            worker.milestones.reached(Milestone::Row(Row::SetAside));
            tracing::warn!(space = %space.id, was = wish.name.as_str(), name = aside.as_str(), keeper = %wish.keeper, "set aside");
            space.name = aside;
        }
        carded(&worker, &space).await?;
        Ok(SetAsideBody {
            was: wish.name,
            name: space.name,
            node: worker.config.node_id.clone(),
            id: space.id,
        })
    })
    .await
}

/// Nothing in it goes on by itself under a name that is another's.
async fn quiet(node: &Node, row: Space) -> Result<Space, Error> {
    if row.state != State::Active {
        return Ok(row);
    }
    let missing = not_found(&SpaceRef::Id(row.id));
    node.drive(row, Event::Freeze, "setAside").await?.ok_or(missing)
}

/// A lost ledger is rebuilt from the cards: this one must not bring the name back.
async fn carded(node: &Node, space: &Space) -> Result<(), Error> {
    let writing = node.executor.write_card(space.card(node.ledger_id));
    match tokio::time::timeout(CARD, writing).await {
        // Without a disk there is nothing to rebuild from; should it return, its card follows the row.
        Ok(Ok(()) | Err(executor::Error::DiskMissing { .. })) => Ok(()),
        Ok(Err(why)) => Err(error::executor(&why)),
        Err(_) => Err(error::executor(&executor::Error::Timeout { what: "write the card", after: CARD })),
    }
}
