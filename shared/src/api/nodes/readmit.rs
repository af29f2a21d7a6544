//! Taking a removed node back, and choosing where a name is held twice.

use std::collections::BTreeMap;

use garde::Validate;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

#[cfg(test)]
use crate::api::document::Moment;
use crate::{
    api::spaces::{Space, State},
    id::{LedgerId, NodeId, SpaceId},
    name::SpaceName,
};

/// Most names that are chosen for one by one.
const CHOICES_MAX: usize = 10_000;

/// `readmitNode`: takes a removed node back. A name that another node holds too needs a choice: the body of the node that
/// is chosen keeps the name, every other one is set aside. Without a choice for each such name nothing changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct ReadmitNode {
    /// The removed node.
    pub node_id: NodeId,
    /// Whose body keeps the name, by name.
    #[garde(length(max = CHOICES_MAX))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub keep: BTreeMap<SpaceName, NodeId>,
    /// Whose body keeps every other name that is held twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_all: Option<KeepAll>,
}

/// Whose bodies keep their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum KeepAll {
    /// Those of the node that comes back.
    Returning,
    /// Those of the node that is in the fleet.
    Member,
}

impl KeepAll {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Returning => "returning",
            Self::Member => "member",
        }
    }
}

/// What `readmitNode` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeReadmitted {
    /// Whether it serves again. It does not while a conflict is left.
    pub readmitted: bool,
    /// Names it holds that other nodes hold too and nothing was chosen for.
    pub conflicts: Vec<Conflict>,
    /// Bodies that gave up their name to another one.
    #[serde(default)]
    pub set_aside: Vec<SetAsideBody>,
}

/// One name on several nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Conflict {
    /// The name.
    pub name: SpaceName,
    /// Who holds it.
    pub nodes: Vec<NodeId>,
    /// What each of them holds, to choose by.
    #[serde(default)]
    pub bodies: Vec<Body>,
}

/// One of several bodies of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Body {
    /// Where it is.
    pub node: NodeId,
    /// Its id.
    pub id: SpaceId,
    /// What it is doing.
    pub state: State,
    /// When it was made; null when its node did not say in time.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "Option<Moment>"))]
    pub created_at: Option<Timestamp>,
    /// When it was last used; null when its node did not say in time.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "Option<Moment>"))]
    pub last_active_at: Option<Timestamp>,
    /// What its disk takes; null when it could not be measured in time.
    #[serde(default)]
    pub disk_bytes: Option<u64>,
}

/// A body that gave up its name. It keeps its data, and is used by its id or by its new name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SetAsideBody {
    /// The name it gave up.
    pub was: SpaceName,
    /// What it is called now.
    pub name: SpaceName,
    /// Where it is.
    pub node: NodeId,
    /// Its id.
    pub id: SpaceId,
}

/// `setAside`: a space gives up its name to the space of another node, and rests under a name nobody asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[garde(allow_unvalidated)]
pub struct SetAside {
    /// The space.
    pub id: SpaceId,
    /// The name it gives up. It may have done so already.
    pub name: SpaceName,
    /// Who holds the name from now on.
    pub keeper: LedgerId,
    /// Whom it asks. Whoever answers at that address now and is somebody else does nothing.
    pub ledger_id: LedgerId,
}

/// `measure`: what a space is and how much its disk takes. It is not woken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[garde(allow_unvalidated)]
pub struct Measure {
    /// The space.
    pub id: SpaceId,
}

/// What `measure` answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// The space.
    pub space: Space,
    /// What its disk takes; null when it could not be measured in time.
    #[serde(default)]
    pub disk_bytes: Option<u64>,
}
