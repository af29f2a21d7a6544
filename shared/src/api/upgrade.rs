//! Rolling a fleet to another build: the gateway first, then one node after another.
//!
//! A gateway hands out the release it was started from (`GET /release`). A node that is told to takes it, and has the
//! installer in it do the work.

use garde::Validate;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::nodes::Build;
#[cfg(test)]
use crate::api::document::Moment;
use crate::id::NodeId;

/// Where a gateway hands out its release, to whoever shows the fleet's token.
pub const PATH: &str = "/release";

/// Which build that is, in JSON: the gateway may have been exchanged since it told a node to take another one.
pub const BUILD_HEADER: &str = "drowse-build";

/// What a gateway tells a node when its turn has come; said once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Tell {
    /// The build that the gateway hands out.
    pub build: Build,
    /// When it was said, by the gateway's clock. The node gives it back as it is: that is how the gateway knows of which
    /// tell the node speaks.
    #[cfg_attr(test, schemars(with = "Moment"))]
    pub at: Timestamp,
}

/// What a node says of its own upgrades.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SelfUpgrade {
    /// Which kind of processor it has, such as `x86_64`; empty when it does not say.
    #[serde(default)]
    pub arch: String,
    /// Why it cannot take another build by itself; absent when it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// The last one, or the one that is at work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastUpgrade>,
}

/// An upgrade that a node was told of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LastUpgrade {
    /// What it was told.
    pub tell: Tell,
    /// What became of it.
    pub state: Progress,
    /// Why it came to nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What became of an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Progress {
    /// The release is being fetched, or its installer is at work.
    Running,
    /// The new build serves.
    Succeeded,
    /// Nothing was changed, or the machine needs a person.
    Failed,
    /// The new build did not come up; the one before serves again.
    RolledBack,
}

/// `upgradeFleet`, `stopUpgrade` and `getUpgrade` need nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct Everybody {}

/// What every verb about upgrades answers: how far the fleet is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FleetUpgrade {
    /// The gateway's build, which nodes are rolled to.
    pub build: Build,
    /// Whether nodes that are behind are told, one at a time. Over when all of them are there.
    pub rolling: bool,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<Moment>"))]
    pub started_at: Option<Timestamp>,
    /// Why a node whose turn has come is not told; absent when nothing is in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Every node of the fleet, in order of id, which is the order of the roll.
    pub nodes: Vec<NodeUpgrade>,
}

/// How far one node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeUpgrade {
    /// Which.
    pub id: NodeId,
    /// The build it last said it runs; absent when it was not heard since this gateway started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<Build>,
    /// How far it is.
    pub state: UpgradeState,
    /// When it was told, if it still runs what it ran then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<Moment>"))]
    pub told_at: Option<Timestamp>,
    /// Why it is in that state, where the state alone does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How far a node is, beside its gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum UpgradeState {
    /// It runs the gateway's build.
    Current,
    /// It runs a newer one.
    Ahead,
    /// It runs an older one, and its turn comes.
    Behind,
    /// It was told, and is at it.
    Upgrading,
    /// It was told and did not get there. The roll waits for a person.
    Stuck,
    /// It does not check in.
    Unreachable,
    /// It is behind, and cannot take another build by itself.
    Unavailable,
    /// Nobody can say which of the two builds is newer.
    Unknown,
}

impl UpgradeState {
    /// Whether it needs no upgrade to be at the gateway's build or beyond.
    pub const fn is_there(self) -> bool {
        matches!(self, Self::Current | Self::Ahead)
    }

    /// As it stands on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Ahead => "ahead",
            Self::Behind => "behind",
            Self::Upgrading => "upgrading",
            Self::Stuck => "stuck",
            Self::Unreachable => "unreachable",
            Self::Unavailable => "unavailable",
            Self::Unknown => "unknown",
        }
    }
}
