use std::{collections::BTreeMap, sync::Arc};

use garde::Validate;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    domains::Domains,
    spaces::{Policy, Spec, State},
    upgrade::{SelfUpgrade, Tell},
};
#[cfg(test)]
use crate::api::document::Moment;
use crate::{
    id::{BootId, Epoch, FleetId, LedgerId, NodeId, SpaceId, Ticket},
    name::{SpaceName, SpaceRef},
};

/// Which build a daemon is.
mod build;
/// Taking a removed node back, and choosing where a name is held twice.
mod readmit;
/// Which nodes a fleet has.
mod roster;

pub use build::{Build, RELEASE, ReleaseError};
pub use readmit::{
    Body, Conflict, KeepAll, Measure, Measured, NodeReadmitted, ReadmitNode, SetAside, SetAsideBody,
};
pub use roster::{Roster, RosterNode, RosterVersion};

/// Version of the wire between gateway and node. A node speaks a range; a gateway places only where its own fits.
pub const WIRE_VERSION: u32 = 1;

/// What a node measures of its machine and counts of its spaces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Reading {
    /// Cores of the machine.
    pub cores: u32,
    /// Used processor time since the reading before, in percent of all cores; null before the first interval.
    pub cpu_percent: Option<f64>,
    /// Memory of the machine.
    pub memory_total_bytes: u64,
    /// Memory that could be had without swapping.
    pub memory_available_bytes: u64,
    /// Swap of the machine; 0 when there is none.
    pub swap_total_bytes: u64,
    /// Swap in use.
    pub swap_used_bytes: u64,
    /// The file system the disks are on; null when it could not be read.
    pub disk: Option<Disk>,
    /// Spaces by state; a state that no space is in may be absent.
    pub spaces: BTreeMap<State, u64>,
}

/// A file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// Its size.
    pub total_bytes: u64,
    /// What may still be written.
    pub available_bytes: u64,
}

/// The fleet's configuration, as nodes hold a copy of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Bundle {
    /// Whose configuration it is.
    pub authority_id: FleetId,
    /// Grows with every change.
    pub version: u64,
    /// The settings.
    pub settings: Settings,
    /// Domains that lead to spaces.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub domains: Arc<Domains>,
}

fn is_empty(domains: &Arc<Domains>) -> bool {
    domains.is_empty()
}

/// Settings of the whole fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Settings {
    /// Policy of a new space whose caller does not say.
    pub policy: Policy,
    /// Spec of a new space whose caller does not say.
    pub spec: Spec,
    /// Template of a new space whose caller does not say.
    pub template: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self { policy: Policy::default(), spec: Spec::default(), template: "base".to_owned() }
    }
}

/// Which bundle a node holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BundleVersion {
    /// Whose configuration it is.
    pub authority_id: FleetId,
    /// Which version.
    pub version: u64,
}

/// `checkIn`: a node to a gateway, every interval; the same is the answer of `report`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[garde(allow_unvalidated)]
pub struct CheckIn {
    /// What an operator calls it.
    pub node_id: NodeId,
    /// What it really is.
    pub ledger_id: LedgerId,
    /// This life of the daemon.
    pub boot: BootId,
    /// Where the gateway may reach it: an origin, no path.
    #[garde(custom(origin))]
    pub endpoint: String,
    /// A label for placement.
    #[serde(default)]
    pub region: Option<String>,
    /// Where it comes from.
    pub build: Build,
    /// The oldest wire it speaks.
    pub wire_min: u32,
    /// The newest wire it speaks.
    pub wire_max: u32,
    /// Milliseconds between its check-ins. Two missed ones read as down.
    #[garde(range(min = 1, max = 86_400_000))]
    pub interval_ms: u64,
    /// The machine, now.
    pub reading: Option<Reading>,
    /// The configuration it holds.
    #[serde(default)]
    pub bundle: Option<BundleVersion>,
    /// Whole, when the gateway asked for it (`wantBundle`).
    #[serde(default)]
    pub bundle_copy: Option<Bundle>,
    /// Whether it takes no new spaces.
    #[serde(default)]
    pub draining: bool,
    /// The newest roster it keeps.
    #[serde(default)]
    pub roster: Option<RosterVersion>,
    /// That roster whole, when the gateway asked for it (`wantRoster`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roster_copy: Option<Roster>,
    /// Whether it serves at all: a removed node freezes its spaces and waits.
    #[serde(default)]
    pub removed: bool,
    /// What it says of its own upgrades; absent in nodes that know none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<SelfUpgrade>,
}

/// An endpoint is an origin: `http(s)://host[:port]`, nothing after it.
pub fn origin(endpoint: &str, _: &()) -> garde::Result {
    let uri: http::Uri = endpoint.parse().map_err(|_| garde::Error::new("is not a URL"))?;
    let scheme = uri.scheme_str();
    if !matches!(scheme, Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
        return Err(garde::Error::new("is not an http(s) URL with a host"));
    }
    if uri.path_and_query().is_some_and(|p| p.as_str() != "/") || endpoint.ends_with('/') {
        return Err(garde::Error::new("is an origin: no path, no query, no trailing slash"));
    }
    if uri.authority().is_some_and(|a| a.as_str().contains('@')) {
        return Err(garde::Error::new("carries no credentials"));
    }
    Ok(())
}

/// What the gateway answers to a check-in. `R` is a roster, or one that is written down already.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", bound(deserialize = "R: Deserialize<'de>"))]
pub struct CheckedIn<R = Roster> {
    /// Whether the node is taken; `removed` means: freeze your spaces and wait to be readmitted.
    pub standing: Standing,
    /// The newest roster, when the node's was older.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roster: Option<R>,
    /// The node keeps a roster that the gateway does not know: nothing was taken yet, check in again at once with
    /// `rosterCopy`.
    #[serde(default)]
    pub want_roster: bool,
    /// The configuration, when the node's was older.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<Bundle>,
    /// The gateway lost its configuration: send yours next time.
    #[serde(default)]
    pub want_bundle: bool,
    /// Its turn has come to take another build. Said once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<Tell>,
}

/// What a gateway thinks of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Standing {
    /// A node of the fleet.
    Member,
    /// Removed; it may come back by `readmitNode` only.
    Removed,
    /// The gateway does not know yet; ask again at the next interval.
    Waiting,
}

/// `report`: the gateway asks a node to check in now, and shows it the newest roster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", bound(deserialize = "R: Deserialize<'de>"))]
#[garde(allow_unvalidated)]
pub struct Report<R = Roster> {
    /// The newest roster the gateway has.
    #[serde(default)]
    pub roster: Option<R>,
    /// Whether the answer shall bring the node's own whole, as `rosterCopy`.
    #[serde(default)]
    pub want_roster: bool,
}

impl Default for Report {
    fn default() -> Self {
        Self { roster: None, want_roster: false }
    }
}

/// Why a lookup asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Intent {
    /// To read or use; a "no" promises nothing.
    #[default]
    Read,
    /// To create if all say no; a "no" comes with a ticket.
    Create,
    /// To compare with what a node that comes back holds. A "no" voids every ticket that is out and gives none, and is
    /// also given of a name that is kept for that node.
    Compare,
}

/// `lookup`: does this node hold the space?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[garde(allow_unvalidated)]
pub struct Lookup {
    /// The space, by name or id.
    pub space: SpaceRef,
    /// Why it asks.
    #[serde(default)]
    pub intent: Intent,
    /// Asks again, with the ticket of the first time: the "no" repeats it while nobody else has asked since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<Ticket>,
    /// Whom it asks. Whoever answers at that address now and is somebody else has no "no" to give.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger_id: Option<LedgerId>,
}

/// What `lookup` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", tag = "answer")]
pub enum LookupAnswer {
    /// This node holds it.
    Yes(Held),
    /// It does not, and never starts to behind the asker's back: a create must quote the ticket.
    #[serde(rename_all = "camelCase")]
    No {
        /// Only for [`Intent::Create`] by name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ticket: Option<Ticket>,
    },
}

/// A space as its node knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// Its id.
    pub id: SpaceId,
    /// Its name.
    pub name: SpaceName,
    /// What it is doing.
    pub state: State,
    /// How often it has changed hands.
    pub epoch: Epoch,
    /// How it is held.
    pub holding: Holding,
}

/// How a node holds a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Holding {
    /// It lives on this node for good.
    Home,
}

/// A node that did not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Silent {
    /// Which.
    pub node: NodeId,
    /// Why: refused, timed out, answered nonsense.
    pub reason: String,
}

/// `listNodes` needs nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct ListNodes {}

/// A node, as the gateway shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// What an operator calls it.
    pub id: NodeId,
    /// What it really is.
    pub ledger_id: LedgerId,
    /// Where it is reached.
    pub endpoint: String,
    /// A label.
    #[serde(default)]
    pub region: Option<String>,
    /// `live`, `down` (two missed intervals), `silent` (not heard since this gateway started), `removed`.
    pub state: NodeState,
    /// Why a new space would not be placed there; absent when one would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refuses: Option<String>,
    /// When it last checked in.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "Option<Moment>"))]
    pub last_check_in_at: Option<Timestamp>,
    /// Its interval.
    #[serde(default)]
    pub interval_ms: Option<u64>,
    /// Where it comes from.
    #[serde(default)]
    pub build: Option<Build>,
    /// Its last reading.
    #[serde(default)]
    pub reading: Option<Reading>,
    /// The configuration it holds.
    #[serde(default)]
    pub bundle: Option<BundleVersion>,
}

/// Whether a node is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum NodeState {
    /// It checks in.
    Live,
    /// It missed two intervals.
    Down,
    /// This gateway knows of it and has not heard it yet.
    Silent,
    /// It was removed.
    Removed,
}

/// What `listNodes` answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeList {
    /// Whose nodes.
    pub fleet_id: FleetId,
    /// The roster's version.
    pub roster_version: u64,
    /// In order of id.
    pub nodes: Vec<Node>,
}

/// `removeNode`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct OneNode {
    /// Which.
    pub node_id: NodeId,
}

/// What `removeNode` answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeRemoved {
    /// Whether there was such a node.
    pub removed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_an_origin() {
        for good in
            ["http://10.0.0.7", "http://10.0.0.7:80", "https://node.example:8443", "http://[::1]:4676"]
        {
            assert!(origin(good, &()).is_ok(), "{good}");
        }
        for bad in
            ["", "10.0.0.7:80", "ftp://a", "http://a/", "http://a/b", "http://a?b", "http://u:p@a", "http://"]
        {
            assert!(origin(bad, &()).is_err(), "{bad}");
        }
    }

    #[test]
    fn daemons_ignore_what_a_newer_one_adds() {
        let lookup: Lookup =
            serde_json::from_str(r#"{"space":"a","intent":"create","new":1}"#).expect("ignored");
        assert_eq!(lookup.intent, Intent::Create);
    }
}
