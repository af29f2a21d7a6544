//! `adopted-by.json`: what a state directory gave away, and to whom. A directory whose spaces were copied must not be run.

use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::{
    id::{LedgerId, SpaceId},
    name::SpaceName,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::executor::oci::carry;

const FILE: &str = "adopted-by.json";
const FORMAT: u32 = 1;

/// Why a state directory must not be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its spaces run elsewhere.
    #[error(
        "the spaces of {state} were copied to the node with ledger {by} at {at}: started here, they would run twice.\n       \
         If that copy is gone for good, remove {path} and start again"
    )]
    Copied {
        /// The directory.
        state: Utf8PathBuf,
        /// Who has the copies.
        by: LedgerId,
        /// When they were made.
        at: Timestamp,
        /// The note.
        path: Utf8PathBuf,
    },
    /// Nobody can tell what it says.
    #[error(
        "{path} cannot be read; it says who took the spaces over that lay here. Look whether they run elsewhere; if they do \
         not, remove it"
    )]
    Unreadable {
        /// The note.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// The file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Notes {
    format: u32,
    taken: Vec<Taken>,
}

/// What one node took.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Taken {
    by: LedgerId,
    at: Timestamp,
    copied: bool,
    spaces: Vec<One>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct One {
    id: SpaceId,
    name: SpaceName,
}

/// Refuses a directory whose spaces were copied by another node than `by`.
///
/// # Errors
/// That it must not be run, and what would make it right.
pub fn refuse(state: &Utf8Path, by: Option<LedgerId>) -> Result<(), Error> {
    match read(state)?.taken.into_iter().find(|taken| taken.copied && Some(taken.by) != by) {
        Some(taken) => {
            Err(Error::Copied { state: state.to_owned(), by: taken.by, at: taken.at, path: state.join(FILE) })
        }
        None => Ok(()),
    }
}

fn read(state: &Utf8Path) -> Result<Notes, Error> {
    let path = state.join(FILE);
    let text = match fs_err::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Notes::default()),
        Err(source) => return Err(Error::Unreadable { path, source }),
    };
    serde_json::from_slice(&text).map_err(|error| Error::Unreadable { path, source: error.into() })
}

/// Writes down that `by` takes these spaces.
///
/// # Errors
/// When it cannot be written.
pub(super) fn write(
    state: &Utf8Path,
    by: LedgerId,
    at: Timestamp,
    copied: bool,
    spaces: &[(SpaceId, SpaceName)],
) -> Result<(), Error> {
    let mut notes = read(state)?;
    notes.format = FORMAT;
    let same = |taken: &&mut Taken| taken.by == by && taken.copied == copied;
    let new = spaces.iter().map(|(id, name)| One { id: *id, name: name.clone() });
    match notes.taken.iter_mut().find(same) {
        Some(taken) => {
            taken.at = at;
            let new: Vec<One> = new.filter(|one| !taken.spaces.contains(one)).collect();
            taken.spaces.extend(new);
        }
        None => notes.taken.push(Taken { by, at, copied, spaces: new.collect() }),
    }
    let path = state.join(FILE);
    let written = serde_json::to_vec_pretty(&notes)
        .map_err(std::io::Error::from)
        .and_then(|text| carry::replace(&path, &text));
    written.map_err(|source| Error::Unreadable { path, source })
}
