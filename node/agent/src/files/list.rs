use std::io;
use std::path::{Path, PathBuf};

use super::entry::Entry;
use crate::connect::{Code, Error};
use crate::users::Names;

/// Entries one answer may hold.
const ENTRIES_MAX: usize = 100_000;

/// Lists `directory` down to `depth` levels: each directory before what is in it, names sorted byte by byte.
///
/// The entries are written as JSON at once, for that takes a third of the memory.
pub(super) fn list(directory: &Path, depth: u32, names: &Names) -> Result<Vec<u8>, Error> {
    let refuse = |error: &io::Error| Error::from_io(&directory.display().to_string(), error);
    if !std::fs::metadata(directory).map_err(|error| refuse(&error))?.is_dir() {
        let words = format!("{} is not a directory", directory.display());
        return Err(Error::new(Code::InvalidArgument, words));
    }
    let mut walk = Walk { json: br#"{"entries":["#.to_vec(), count: 0, names };
    // What is still to be described, the next last.
    let mut stack = children(directory, 1).map_err(|error| refuse(&error))?;
    while let Some((path, level)) = stack.pop() {
        if !walk.add(&path)? {
            continue;
        }
        if level < depth.max(1) && std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            // Unreadable directories are listed, but not what is in them.
            stack.extend(children(&path, level + 1).unwrap_or_default());
        }
        if stack.len() > ENTRIES_MAX {
            return Err(too_many());
        }
    }
    walk.json.extend_from_slice(b"]}");
    Ok(walk.json)
}

fn too_many() -> Error {
    let words = format!("more than {ENTRIES_MAX} entries: list a smaller directory or less deep");
    Error::new(Code::ResourceExhausted, words)
}

/// What is in a directory, in reverse order.
fn children(directory: &Path, level: u32) -> io::Result<Vec<(PathBuf, u32)>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        paths.push((entry?.path(), level));
        if paths.len() > ENTRIES_MAX {
            break;
        }
    }
    paths.sort_unstable_by(|(first, _), (second, _)| second.file_name().cmp(&first.file_name()));
    Ok(paths)
}

struct Walk<'a> {
    json: Vec<u8>,
    count: usize,
    names: &'a Names,
}

impl Walk<'_> {
    /// False when it is gone meanwhile.
    fn add(&mut self, path: &Path) -> Result<bool, Error> {
        let entry = match Entry::describe(path, self.names) {
            Ok(entry) => entry,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(Error::from_io(&path.display().to_string(), &error)),
        };
        self.count += 1;
        if self.count > ENTRIES_MAX {
            return Err(too_many());
        }
        if self.count > 1 {
            self.json.push(b',');
        }
        serde_json::to_writer(&mut self.json, &entry)
            .map_err(|error| Error::new(Code::Internal, error.to_string()))?;
        Ok(true)
    }
}
