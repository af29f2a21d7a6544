//! Two disks that carry one name, as a lost ledger or a disk put back may leave them. One has the name; the other is set
//! aside, broken, under a name nobody asks for: a person chooses, by id.

use std::cmp::Reverse;

use drowse_shared::{
    api::spaces::Broken,
    id::{Epoch, SpaceId},
};
use jiff::Timestamp;

use crate::{
    executor::{Card, Found},
    ledger,
    milestone::{Milestone, Row},
    node::Node,
    space::{Space, State, state::Settled},
};

/// The stable word.
pub const CAUSE: &str = "name_taken";

/// Whether another space has the name of this one.
pub fn is_set_aside(state: &State) -> bool {
    matches!(state, State::Broken(broken) if broken.cause == CAUSE)
}

/// Which of several disks of one name gets it: the one that was made last is what the name meant last.
pub(super) fn precedence(card: &Card) -> Reverse<(Epoch, Timestamp, SpaceId)> {
    Reverse((card.epoch, card.created_at, card.id))
}

/// Makes a row of a disk whose row was lost.
pub(super) fn row(card: Card, found: &Found, holder: Option<SpaceId>, since: Timestamp) -> Space {
    let mut space = Space::from_card(card, Settled::from(found.vitality).into());
    if let Some(holder) = holder {
        let message = format!(
            "its name {name:?} belongs to space {holder} on this node; destroy one of the two by its id, and restart the \
             node if this one is to have the name",
            name = space.name.as_str()
        );
        space.state = State::Broken(Broken { cause: CAUSE.to_owned(), message, since });
        space.name = space.name.aside(space.id);
    }
    space
}

/// Gives a space that was set aside its name, if nobody has it any more.
pub(super) async fn recall(node: &Node, mut space: Space, found: &Found) -> Result<(), ledger::Error> {
    let Some(card) = &found.card else { return Ok(()) };
    if node.ledger.by_name(&card.name).await?.is_some() {
        return Ok(());
    }
    space.name = card.name.clone();
    space.state = Settled::from(found.vitality).into();
    tracing::info!(space = %space.id, name = space.name.as_str(), state = %space.state.word(), "has its name again");
    node.ledger.rename(space.id, &space.name, &space.state).await?;
    node.milestones.reached(Milestone::Row(Row::Recalled));
    node.watch(&space);
    Ok(())
}
