//! A connection into a space is used now and then: bytes to the space wake it first, bytes either way keep it awake, and
//! one on which nothing happens does neither.

use std::{sync::Arc, time::Duration};

use drowse_shared::{
    api::{Code, Error},
    id::SpaceId,
    name::{SpaceName, SpaceRef},
};
use tokio::time::Instant;

use super::wake;
use crate::node::Node;

/// A use counts for so long: no space sleeps sooner by itself.
const FRESH: Duration = Duration::from_millis(500);

/// When a connection was used last.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    used: Instant,
    /// How often the space had fallen asleep then.
    slept: u64,
}

impl Usage {
    /// The space was just used.
    pub fn now(node: &Node, id: SpaceId) -> Self {
        Self { used: Instant::now(), slept: node.live.slept(id) }
    }

    /// Whether the space is certainly awake from that use.
    pub fn is_fresh(&self, node: &Node, id: SpaceId) -> bool {
        self.used.elapsed() < FRESH && node.live.slept(id) == self.slept
    }

    /// Uses the space again, and wakes it for that. Whoever came to it by a name that it gave up since does not stay.
    ///
    /// # Errors
    /// As [`wake::used`], or that the space is set aside.
    pub async fn again(
        node: &Arc<Node>,
        (id, name): (SpaceId, &SpaceName),
        verb: &'static str,
    ) -> Result<Self, Error> {
        is_called(node, id, name).await?;
        wake::used(node, &SpaceRef::Id(id), verb).await?;
        Ok(Self::now(node, id))
    }

    /// Something came from the space: only who is awake sends.
    pub fn heard(&mut self, node: &Node, id: SpaceId) {
        if self.used.elapsed() >= FRESH {
            self.used = Instant::now();
            node.live.use_again(id, node.env.clock.wall());
        }
    }
}

/// Whoever came to a space by a name that it gave up since does not stay.
///
/// # Errors
/// That it has another name.
pub async fn is_called(node: &Node, id: SpaceId, name: &SpaceName) -> Result<(), Error> {
    let row = node.known(&SpaceRef::Id(id)).await?;
    if row.name == *name {
        return Ok(());
    }
    let message =
        format!("the space gave up the name {:?}; it is {:?} now", name.as_str(), row.name.as_str());
    Err(Error::new(Code::SpaceNotFound, message))
}
