use drowse_shared::api::{
    Code,
    files::{FileEntry, FileList, ListFiles},
};

use super::There;
use crate::{
    client::{Client, query_value},
    failure::Outcome,
};

/// What a path in a space is.
pub(super) enum Remote {
    /// A directory, with what is in it.
    Directory(Vec<FileEntry>),
    /// Something else that is there.
    File,
    /// Nothing.
    Absent,
}

/// Looks. This wakes the space, as the copy would.
pub(super) async fn look(there: &There, client: &Client) -> Outcome<Remote> {
    match list(there, client).await {
        Ok(entries) => Ok(Remote::Directory(entries)),
        Err(failure) => match failure.code() {
            Some(Code::FileNotFound) => Ok(Remote::Absent),
            // The path is there and no directory.
            Some(Code::NotAFile | Code::InvalidRequest) => Ok(Remote::File),
            _ => Err(failure),
        },
    }
}

/// What is in a directory.
pub(super) async fn list(there: &There, client: &Client) -> Outcome<Vec<FileEntry>> {
    let request = ListFiles {
        name: there.space.clone(),
        path: (!there.path.is_empty()).then(|| there.path.clone()),
        depth: Some(1),
        user: there.user.clone(),
    };
    client.call::<FileList>("listFiles", &request).await.map(|list| list.entries)
}

/// A streaming verb with its query. The path goes byte for byte.
pub(super) fn streaming(verb: &str, there: &There, path: &[u8], mode: Option<u32>) -> String {
    let mut url = format!(
        "{verb}?space={}&path={}",
        query_value(there.space.to_string().as_bytes()),
        query_value(path)
    );
    if let Some(user) = &there.user {
        url.push_str(&format!("&user={}", query_value(user.as_bytes())));
    }
    if let Some(mode) = mode {
        url.push_str(&format!("&mode={mode:o}"));
    }
    url
}

/// `name` in `directory`; the user's home when that is empty.
pub(super) fn join(directory: &str, name: &str) -> String {
    match directory {
        "" => name.to_owned(),
        directory if directory.ends_with('/') => format!("{directory}{name}"),
        directory => format!("{directory}/{name}"),
    }
}

/// The last part of a path, when it has one that names something.
pub(super) fn base_name(path: &str) -> Option<&str> {
    let name = path.trim_end_matches('/').rsplit('/').next()?;
    (!matches!(name, "" | "." | "..")).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart_and_put_together() {
        assert_eq!(join("", "a"), "a");
        assert_eq!(join("/", "a"), "/a");
        assert_eq!(join("/x", "a"), "/x/a");
        let names = [("/x/a", Some("a")), ("a/", Some("a")), ("/", None), ("", None), ("x/..", None)];
        for (path, name) in names {
            assert_eq!(base_name(path), name, "{path}");
        }
    }

    #[test]
    fn a_streaming_verb_carries_everything_in_its_query() {
        let there = There {
            space: "a b".parse().expect("a name"),
            path: String::new(),
            user: Some("root".to_owned()),
        };
        assert_eq!(
            streaming("writeFile", &there, b"/x/\xff", Some(0o755)),
            "writeFile?space=a%20b&path=/x/%FF&user=root&mode=755"
        );
    }
}
