use std::time::Duration;

use garde::Validate;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

#[cfg(test)]
use crate::api::document::Moment;
use crate::{
    id::{Epoch, NodeId, SpaceId},
    name::{SpaceName, SpaceRef},
};

/// What happened to a space.
mod events;
/// Asking for spaces page by page.
mod list;
/// The caller's notes.
mod metadata;
/// When a space sleeps.
mod policy;
/// Who reaches and wakes a space by its hosts.
mod ports;
/// What a list is in order of.
mod sort;
/// What a space may use.
mod spec;

use metadata::{metadata_fits, optional_metadata_fits};

pub use events::{
    EVENTS_PAGE_DEFAULT, EVENTS_PAGE_MAX, EventCursor, EventList, Happened, ListEvents, SpaceEvent,
};
pub use list::{ListSpaces, PAGE_DEFAULT, PAGE_MAX, PAGE_METADATA_BYTES_MAX, SpaceList};
pub use metadata::{
    METADATA_ENTRIES_MAX, METADATA_KEY_CHARACTERS_MAX, METADATA_VALUE_BYTES_MAX, Metadata, metadata_bytes,
};
pub use policy::{Policy, PolicyPatch};
pub use ports::{BadPortKey, BadPortToken, Exposure, PortKey, PortToken, Ports, WakeOn};
pub use sort::{Key, Order, Place, Sort};
pub use spec::{Spec, SpecPatch};

/// Longest wait for a wake, in seconds, and the default of `waitSeconds`.
pub const WAIT_SECONDS: u64 = 30;

/// What a space is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Being built.
    Creating,
    /// Its processes run.
    Active,
    /// Its processes are suspended in memory.
    Frozen,
    /// Only its disk is left, on the node.
    Stopped,
    /// Being started again.
    Waking,
    /// Being moved into the bucket.
    Hibernating,
    /// Its data is in the bucket.
    Hibernated,
    /// Being destroyed.
    Destroying,
    /// Something a person must look at; the space says what.
    Broken,
}

impl State {
    /// Every state, in the order of a space's life.
    pub const ALL: [Self; 9] = [
        Self::Creating,
        Self::Active,
        Self::Frozen,
        Self::Stopped,
        Self::Waking,
        Self::Hibernating,
        Self::Hibernated,
        Self::Destroying,
        Self::Broken,
    ];

    /// The word on the wire, in the ledger and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Active => "active",
            Self::Frozen => "frozen",
            Self::Stopped => "stopped",
            Self::Waking => "waking",
            Self::Hibernating => "hibernating",
            Self::Hibernated => "hibernated",
            Self::Destroying => "destroying",
            Self::Broken => "broken",
        }
    }

    /// Reads the word back.
    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a space came back for the caller of this verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Resumed {
    /// Its processes went on where they were.
    Thawed,
    /// It was started again from its disk; its processes are new.
    Restarted,
    /// Its data came back from the bucket; its processes are new.
    Restored,
}

/// A template as a space pins it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// What it was called when the space was made.
    pub name: String,
    /// Its content, as `blake3:<64 hex digits>`. The space keeps running over exactly this.
    pub digest: String,
}

/// Why a space does not sleep, and what comes next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Awake {
    /// What keeps it awake, or what happened last: `exec make (pid 41)`, `acquireSpace`.
    pub because: String,
    /// Since when.
    #[cfg_attr(test, schemars(with = "Moment"))]
    pub since: Timestamp,
    /// The next step down, unless something happens first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<State>,
    /// When that is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<Moment>"))]
    pub at: Option<Timestamp>,
}

/// Why a space is broken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Broken {
    /// A stable word: `disk_missing`, `template_missing`, `disk_damaged`, `name_taken`.
    pub cause: String,
    /// What happened, and what a person can do.
    pub message: String,
    /// Since when.
    #[cfg_attr(test, schemars(with = "Moment"))]
    pub since: Timestamp,
}

/// A space, as every answer shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Space {
    /// Minted once.
    pub id: SpaceId,
    /// The caller's name. A space whose name another one holds has none.
    pub name: SpaceName,
    /// What it is doing.
    pub state: State,
    /// Which node runs it.
    pub node: NodeId,
    /// How often it has changed hands.
    pub epoch: Epoch,
    /// When it was made.
    #[cfg_attr(test, schemars(with = "Moment"))]
    pub created_at: Timestamp,
    /// When it was last used.
    #[cfg_attr(test, schemars(with = "Moment"))]
    pub last_active_at: Timestamp,
    /// When it sleeps.
    pub policy: Policy,
    /// What it may use.
    pub spec: Spec,
    /// What it runs over.
    pub template: Template,
    /// The caller's notes.
    pub metadata: Metadata,
    /// Why it is awake; absent while it sleeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awake: Option<Awake>,
    /// Why it is broken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<Broken>,
    /// The node could not look inside in time; the rest is what the ledger knows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unresponsive: bool,
}

/// `acquireSpace`: the space of this name, whatever state it was in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct AcquireSpace {
    /// The space, by name; by id only if it exists.
    pub name: SpaceRef,
    /// A template by name; the fleet's default when absent.
    #[garde(length(chars, min = 1, max = 128))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// What it may use.
    #[garde(dive)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<SpecPatch>,
    /// When it sleeps.
    #[garde(dive)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyPatch>,
    /// The caller's notes.
    #[garde(custom(optional_metadata_fits))]
    #[cfg_attr(test, schemars(transform = metadata::limits))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// How long the answer may wait for the space, in seconds.
    #[garde(range(max = 3600))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<u64>,
}

impl AcquireSpace {
    /// How long its answer may wait for the space.
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.wait_seconds.unwrap_or(WAIT_SECONDS))
    }
}

/// What `acquireSpace` answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Acquired {
    /// The space.
    pub space: Space,
    /// Whether this call made it.
    pub created: bool,
    /// How it came back, if it slept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Resumed>,
    /// The state its data is from, if that is not now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<Moment>"))]
    pub as_of: Option<Timestamp>,
    /// Wishes that differ from what the space already is, and were not applied: `template`, `spec`, `policy`, `metadata`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unchanged: Vec<String>,
}

/// What `acquireSpace` answers with status 202 when the space needs longer than the caller waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Waking {
    /// `creating` or `waking`.
    pub state: State,
    /// What is being done.
    pub phase: String,
    /// How far it is, 0 to 100.
    pub percent: u8,
}

/// A verb that needs nothing but the space: `getSpace freezeSpace stopSpace wakeSpace touchSpace destroySpace`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct OneSpace {
    /// The space, by name or id.
    pub name: SpaceRef,
}

/// What the verbs about one space answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SpaceAnswer {
    /// The space after the verb.
    pub space: Space,
    /// How it came back, if the verb woke it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Resumed>,
}

/// `updatePolicy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct UpdatePolicy {
    /// The space, by name or id.
    pub name: SpaceRef,
    /// What changes.
    #[garde(dive)]
    pub policy: PolicyPatch,
}

/// `updateMetadata`: replaces the whole of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct UpdateMetadata {
    /// The space, by name or id.
    pub name: SpaceRef,
    /// The notes from now on.
    #[garde(custom(metadata_fits))]
    #[cfg_attr(test, schemars(transform = metadata::limits))]
    pub metadata: Metadata,
}

/// What `destroySpace` answers. Destroying what is not there is no error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Destroyed {
    /// Whether there was something to destroy.
    pub destroyed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::parse;

    #[test]
    fn requests_say_which_field_is_wrong() {
        let cases: &[(&str, &str)] = &[
            (r"{}", "name"),
            (r#"{"name":5}"#, "expected"),
            (r#"{"name":""}"#, "1 to 128 characters"),
            (r#"{"name":"a","colour":"red"}"#, "colour"),
            (r#"{"name":"a","spec":{"cpus":0}}"#, "spec.cpus"),
            (r#"{"name":"a","spec":{"memoryGb":1}}"#, "memoryGb"),
            (r#"{"name":"a","metadata":{"":"x"}}"#, "metadata"),
            ("{", "EOF"),
            ("[]", "invalid"),
        ];
        for (body, says) in cases {
            let error = parse::<AcquireSpace>(body.as_bytes()).expect_err(body);
            assert!(error.message.contains(says), "{body}: {}", error.message);
        }
        assert!(parse::<ListSpaces>(b"").is_ok(), "a list needs no body");
    }

    #[test]
    fn states_are_one_word_everywhere() {
        for state in State::ALL {
            assert_eq!(State::read(state.as_str()), Some(state));
            assert_eq!(serde_json::to_string(&state).expect("plain"), format!("\"{state}\""));
        }
    }
}
