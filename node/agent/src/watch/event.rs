use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::files::entry::Entry;
use crate::users::Names;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is there now.
    Create,
    /// It has other content.
    Write,
    /// It is gone.
    Remove,
    /// It has another name now.
    Rename,
    /// Its permissions, owner or times changed.
    Chmod,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "EVENT_TYPE_CREATE",
            Self::Write => "EVENT_TYPE_WRITE",
            Self::Remove => "EVENT_TYPE_REMOVE",
            Self::Rename => "EVENT_TYPE_RENAME",
            Self::Chmod => "EVENT_TYPE_CHMOD",
        }
    }
}

/// The protocol's FilesystemEvent; with `names`, it describes what is at `path` now, if anything is.
pub(super) fn json(root: &Path, path: &Path, kind: Kind, names: Option<&Names>) -> Box<str> {
    let mut event = json!({"name": path.to_string_lossy(), "type": kind.name()});
    if path.to_str().is_none() {
        event["nameBase64"] = STANDARD.encode(path.as_os_str().as_bytes()).into();
    }
    let gone = matches!(kind, Kind::Remove | Kind::Rename);
    let entry = names.filter(|_| !gone).and_then(|names| Entry::describe(&root.join(path), names).ok());
    if let Some(Ok(entry)) = entry.map(serde_json::to_value) {
        event["entry"] = entry;
    }
    event.to_string().into_boxed_str()
}
