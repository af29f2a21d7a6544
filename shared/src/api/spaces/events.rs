use std::fmt;

use garde::Validate;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[cfg(test)]
use crate::api::document::Moment;
use crate::{id::SpaceId, name::SpaceRef};

/// Most events in one answer.
pub const EVENTS_PAGE_MAX: u32 = 1000;
/// Events in one answer when the caller does not say.
pub const EVENTS_PAGE_DEFAULT: u32 = 100;

/// `listEvents`: what happened to a space, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct ListEvents {
    /// The space, by name or id.
    pub name: SpaceRef,
    /// Most events in the answer.
    #[garde(range(min = 1, max = EVENTS_PAGE_MAX))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `nextCursor` of the answer before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<EventCursor>,
}

/// What `listEvents` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EventList {
    /// The newest first. The oldest are forgotten: of each space so many are kept, and so many of all.
    pub events: Vec<SpaceEvent>,
    /// Absent when nothing older is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<EventCursor>,
}

/// One thing that happened to a space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SpaceEvent {
    /// When, by the clock of the node.
    #[cfg_attr(test, schemars(with = "Moment"))]
    pub at: Timestamp,
    /// To which space: one that was destroyed had the name before.
    pub id: SpaceId,
    /// What.
    pub what: Happened,
    /// Why: the verb that asked for it, `request for port 8080`, `idle for 600 s`, or what was found.
    pub because: String,
    /// How long the runtime took for it, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_us: Option<u64>,
}

/// What can happen to a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Happened {
    /// It was made.
    Created,
    /// Its processes go on where they were.
    Thawed,
    /// It was started from its disk; its processes are new.
    Restarted,
    /// Its processes were suspended.
    Frozen,
    /// Its processes were ended; its disk stays.
    Stopped,
    /// Its processes ended by themselves; its disk stays.
    Died,
    /// A person must look at it.
    Broke,
    /// It was taken over from the disks of another node.
    Adopted,
    /// The node's ledger was lost, and its disk brought it back.
    Rebuilt,
    /// It was removed with everything in it.
    Destroyed,
}

impl Happened {
    /// Every one.
    pub const ALL: [Self; 10] = [
        Self::Created,
        Self::Thawed,
        Self::Restarted,
        Self::Frozen,
        Self::Stopped,
        Self::Died,
        Self::Broke,
        Self::Adopted,
        Self::Rebuilt,
        Self::Destroyed,
    ];

    /// The word on the wire and in the ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Thawed => "thawed",
            Self::Restarted => "restarted",
            Self::Frozen => "frozen",
            Self::Stopped => "stopped",
            Self::Died => "died",
            Self::Broke => "broke",
            Self::Adopted => "adopted",
            Self::Rebuilt => "rebuilt",
            Self::Destroyed => "destroyed",
        }
    }

    /// Reads the word back.
    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|happened| happened.as_str() == word)
    }
}

/// Where the next events of a list begin: before this one. On the wire an opaque word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventCursor(pub u64);

impl fmt::Display for EventCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{:x}", self.0)
    }
}

impl Serialize for EventCursor {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EventCursor {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let number = text.strip_prefix('e').and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.map(Self).filter(|cursor| cursor.to_string() == text).ok_or_else(|| {
            serde::de::Error::custom("cursor is not the `nextCursor` of an earlier answer to `listEvents`")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::parse;

    #[test]
    fn words_and_cursors_are_ours_or_refused() {
        for happened in Happened::ALL {
            assert_eq!(Happened::read(happened.as_str()), Some(happened));
            assert_eq!(
                serde_json::to_string(&happened).expect("plain"),
                format!("\"{}\"", happened.as_str())
            );
        }
        let request =
            |cursor: &str| parse::<ListEvents>(format!(r#"{{"name":"a","cursor":{cursor}}}"#).as_bytes());
        let wire = serde_json::to_string(&EventCursor(77)).expect("plain");
        assert_eq!(request(&wire).expect("ours").cursor, Some(EventCursor(77)));
        for bad in [r#""""#, r#""77""#, r#""e+4d""#, r#""e04d""#, r#""e4D""#, r#""eü""#, "77"] {
            let error = request(bad).expect_err(bad).message;
            assert!(error.contains("cursor") || error.contains("a string"), "{bad}: {error}");
        }
        for limit in [0, 1001] {
            let body = format!(r#"{{"name":"a","limit":{limit}}}"#);
            let error = parse::<ListEvents>(body.as_bytes()).expect_err("out of range").message;
            assert!(error.contains("limit"), "{error}");
        }
    }
}
