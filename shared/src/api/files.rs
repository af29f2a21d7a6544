use garde::Validate;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{exec::no_nul, spaces::Resumed};
#[cfg(test)]
use crate::api::document::Moment;
use crate::name::SpaceRef;

/// Largest file that `readFile` puts into JSON, in bytes. The streaming form has no limit.
pub const JSON_FILE_BYTES_MAX: u64 = 8 << 20;

/// The query of the streaming forms, `POST /readFile?…` and `POST /writeFile?…`: raw octets of any size.
///
/// The path is percent-decoded as bytes, so that names that are not UTF-8 can be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileQuery {
    /// The space, by name or id; `Drowse-Space` may carry it instead.
    pub space: Option<SpaceRef>,
    /// Absolute, or relative to the user's home.
    pub path: String,
    /// Whose rights apply; `user` when absent.
    pub user: Option<String>,
    /// Permission bits of a new file, in octal; 0644 when absent.
    pub mode: Option<String>,
}

/// `readFile` as JSON, for small files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct ReadFile {
    /// The space, by name or id.
    pub name: SpaceRef,
    /// Absolute, or relative to the user's home.
    #[garde(length(bytes, min = 1, max = 4096), custom(no_nul))]
    pub path: String,
    /// Whose rights apply; `user` when absent.
    #[garde(length(bytes, min = 1, max = 256), inner(custom(no_nul)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// What `readFile` answers as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FileContent {
    /// As asked.
    pub path: String,
    /// The whole file.
    pub content_base64: String,
    /// Its size.
    pub size_bytes: u64,
    /// How the space came back, if it slept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Resumed>,
}

/// One file to write. Exactly one of `content` and `contentBase64`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct NewFile {
    /// Absolute, or relative to the user's home. Missing directories are made.
    #[garde(length(bytes, min = 1, max = 4096), custom(no_nul))]
    pub path: String,
    /// As text.
    #[garde(custom(one_content(&self.content_base64)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// As bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
    /// Permission bits of a new file, in octal such as `"755"`; 644 when absent.
    #[garde(inner(custom(octal)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

fn one_content<'a>(base64: &'a Option<String>) -> impl FnOnce(&Option<String>, &()) -> garde::Result + 'a {
    move |content, &()| match (content, base64) {
        (Some(_), Some(_)) => Err(garde::Error::new("give `content` or `contentBase64`, not both")),
        (None, None) => Err(garde::Error::new("give `content` or `contentBase64`")),
        _ => Ok(()),
    }
}

/// Permission bits as people write them.
pub fn octal(mode: &str, _: &()) -> garde::Result {
    match u32::from_str_radix(mode, 8) {
        Ok(bits) if bits <= 0o7777 => Ok(()),
        _ => Err(garde::Error::new("is not octal permission bits such as 755")),
    }
}

/// `writeFiles`: all of them, in order, each replaced whole or left as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct WriteFiles {
    /// The space, by name or id.
    pub name: SpaceRef,
    /// What to write.
    #[garde(length(min = 1, max = 1000), dive)]
    pub files: Vec<NewFile>,
    /// Whose files they are; `user` when absent.
    #[garde(length(bytes, min = 1, max = 256), inner(custom(no_nul)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// `writeFile` as JSON, for one small file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct WriteFile {
    /// The space, by name or id.
    pub name: SpaceRef,
    /// Absolute, or relative to the user's home. Missing directories are made.
    #[garde(length(bytes, min = 1, max = 4096), custom(no_nul))]
    pub path: String,
    /// As text.
    #[garde(custom(one_content(&self.content_base64)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// As bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
    /// Permission bits of a new file, in octal.
    #[garde(inner(custom(octal)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Whose file it is; `user` when absent.
    #[garde(length(bytes, min = 1, max = 256), inner(custom(no_nul)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Written {
    /// Absolute.
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
}

/// What `writeFiles` and `writeFile` answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FilesWritten {
    /// In the order of the request.
    pub files: Vec<Written>,
    /// How the space came back, if it slept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Resumed>,
}

/// `listFiles`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct ListFiles {
    /// The space, by name or id.
    pub name: SpaceRef,
    /// A directory; the user's home when absent.
    #[garde(length(bytes, min = 1, max = 4096), inner(custom(no_nul)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// How deep to look; 1 when absent.
    #[garde(range(min = 1, max = 64))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// Whose rights apply; `user` when absent.
    #[garde(length(bytes, min = 1, max = 256), inner(custom(no_nul)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum FileKind {
    /// A regular file, or a link to one.
    File,
    /// A directory, or a link to one.
    Directory,
    /// A link that leads nowhere.
    Symlink,
    /// A socket, a pipe, a device.
    Other,
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FileEntry {
    /// Its name.
    pub name: String,
    /// Absolute.
    pub path: String,
    /// The exact bytes of `path`, when they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// What it is.
    pub kind: FileKind,
    /// Its size.
    pub size_bytes: u64,
    /// Permission bits, in octal.
    pub mode: String,
    /// Owner's name.
    pub owner: String,
    /// Group's name.
    pub group: String,
    /// Last change of its content.
    #[cfg_attr(test, schemars(with = "Moment"))]
    pub modified_at: Timestamp,
    /// Where a link leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
}

/// What `listFiles` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FileList {
    /// Directory by directory, each in byte order of the name.
    pub entries: Vec<FileEntry>,
    /// How the space came back, if it slept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Resumed>,
}
