use std::ffi::OsString;
use std::io;
use std::path::Path;

use super::entry::Entry;
use crate::connect::{Code, Error};
use crate::users::Names;

/// Entries one answer may hold.
const ENTRIES_MAX: usize = 100_000;
/// How long one answer may be: it is made in memory that is charged to the space, beside its whole workload.
const ANSWER_BYTES_MAX: usize = 32 << 20;

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
    // Directories under way, the innermost last. Only names are kept: paths can be sixteen times as long.
    let mut levels = vec![children(directory).map_err(|error| refuse(&error))?];
    let mut path = directory.to_owned();
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.pop() else {
            levels.pop();
            path.pop();
            continue;
        };
        path.push(name);
        let deeper = levels.len() < depth.max(1) as usize;
        if walk.add(&path)? && deeper && std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            // Unreadable directories are listed, but not what is in them.
            levels.push(children(&path).unwrap_or_default());
        } else {
            path.pop();
        }
        if levels.iter().map(Vec::len).sum::<usize>() > ENTRIES_MAX {
            return Err(too_many());
        }
    }
    walk.json.extend_from_slice(b"]}");
    Ok(walk.json)
}

fn too_many() -> Error {
    let words =
        format!("more than {ENTRIES_MAX} entries, or too long names: list a smaller directory or less deep");
    Error::new(Code::ResourceExhausted, words)
}

/// Names in a directory, in reverse order.
fn children(directory: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        names.push(entry?.file_name());
        if names.len() > ENTRIES_MAX {
            break;
        }
    }
    names.sort_unstable_by(|first, second| second.cmp(first));
    Ok(names)
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
        if self.count > ENTRIES_MAX || self.json.len() > ANSWER_BYTES_MAX {
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
