use serde::{Deserialize, Serialize};

use crate::api::{Error, spaces::Resumed};

/// The content type of a stream of events: JSON documents, each ended by a line feed.
pub const EVENTS: &str = "application/x-ndjson";

/// One line of what `execStream` answers. The first is `started`, the last `ended` or `failed`; a stream that ends
/// otherwise was cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ExecEvent {
    /// It runs.
    Started(ExecStarted),
    /// A piece of standard output, in base64.
    Stdout(String),
    /// A piece of standard error, in base64.
    Stderr(String),
    /// It is there and says nothing; comes every few seconds.
    Alive {},
    /// It has ended.
    Ended(ExecEnded),
    /// What became of it is not known.
    Failed(Error),
}

/// The command runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExecStarted {
    /// Its pid inside the space.
    pub pid: u32,
    /// How the space came back, if it slept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Resumed>,
}

/// The command has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExecEnded {
    /// Exit code; 128 + n after signal n.
    pub exit_code: i32,
    /// Whether it was killed because its time was up.
    pub timed_out: bool,
    /// From start to end, in milliseconds.
    pub duration_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_that_says_what_it_is() {
        let ended = ExecEnded { exit_code: 3, timed_out: false, duration_ms: 12 };
        for (event, text) in [
            (ExecEvent::Started(ExecStarted { pid: 7, resumed: None }), r#"{"started":{"pid":7}}"#),
            (ExecEvent::Stdout("aGk=".to_owned()), r#"{"stdout":"aGk="}"#),
            (ExecEvent::Alive {}, r#"{"alive":{}}"#),
            (ExecEvent::Ended(ended), r#"{"ended":{"exitCode":3,"timedOut":false,"durationMs":12}}"#),
        ] {
            assert_eq!(serde_json::to_string(&event).expect("plain"), text);
            assert_eq!(serde_json::from_str::<ExecEvent>(text).expect("plain"), event);
        }
    }
}
