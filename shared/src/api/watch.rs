use garde::Validate;
use serde::{Deserialize, Serialize};

use super::{exec::no_nul, spaces::Resumed};
use crate::{api::Error, name::SpaceRef};

/// `watchFiles`: tells what changes in a directory, from its first line on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct WatchFiles {
    /// The space, by name or id.
    pub name: SpaceRef,
    /// A directory: absolute, or relative to the user's home; that home when absent.
    #[garde(length(bytes, min = 1, max = 4096), inner(custom(no_nul)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Also in all directories below, those included that are made later.
    #[serde(default)]
    pub recursive: bool,
    /// Whose rights apply; `user` when absent.
    #[garde(length(bytes, min = 1, max = 256), inner(custom(no_nul)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// One line of what `watchFiles` answers. The first is `started`, the last `overflow` or `failed`; a stream that ends
/// otherwise was cut. What happened after `started` was written is told, or one of the two last lines comes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WatchEvent {
    /// From here on nothing is missed.
    Started(WatchStarted),
    /// Something changed.
    Changed(FileChange),
    /// It is there and nothing happens; comes every few seconds.
    Alive {},
    /// More happened than could be told, and nobody knows what: watch anew, then list the directory.
    Overflow(WatchOverflow),
    /// It cannot go on.
    Failed(Error),
}

/// The directory is under watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WatchStarted {
    /// How the space came back, if it slept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Resumed>,
}

/// What became of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FileChange {
    /// What happened.
    pub change: Change,
    /// Relative to the directory that is watched, which is `.` itself; bytes that are not UTF-8 are shown as U+FFFD.
    pub path: String,
    /// The same exactly, where it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
}

/// What happened to a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Change {
    /// It is there now: made, or moved here.
    Create,
    /// Its content is another.
    Write,
    /// It is gone.
    Remove,
    /// It has another name now, here or elsewhere.
    Rename,
    /// Its rights, owner or times are others.
    Chmod,
}

/// Why nobody knows what happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WatchOverflow {
    /// In words.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_that_says_what_it_is() {
        let change = |path: &str, path_base64: Option<&str>| {
            let path_base64 = path_base64.map(str::to_owned);
            WatchEvent::Changed(FileChange { change: Change::Create, path: path.to_owned(), path_base64 })
        };
        for (event, text) in [
            (WatchEvent::Started(WatchStarted { resumed: None }), r#"{"started":{}}"#),
            (change("a/f", None), r#"{"changed":{"change":"create","path":"a/f"}}"#),
            (
                change("\u{fffd}", Some("/w==")),
                "{\"changed\":{\"change\":\"create\",\"path\":\"\u{fffd}\",\"pathBase64\":\"/w==\"}}",
            ),
            (WatchEvent::Alive {}, r#"{"alive":{}}"#),
            (
                WatchEvent::Overflow(WatchOverflow { message: "m".to_owned() }),
                r#"{"overflow":{"message":"m"}}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&event).expect("plain"), text);
            assert_eq!(serde_json::from_str::<WatchEvent>(text).expect("plain"), event);
        }
    }
}
