use std::{cmp::Ordering, fmt, io};

use camino::Utf8Path;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

#[cfg(test)]
use crate::api::document::Moment;

/// The file beside the programs of a release that says which one it is.
pub const RELEASE: &str = "release.json";

/// Which build a daemon is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Build {
    /// Of the crate.
    pub version: String,
    /// Of the source, when it was known.
    #[serde(default)]
    pub commit: Option<String>,
    /// When that source was committed: which of two builds is the newer one. Absent in a build that is no release.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "Option<Moment>"))]
    pub committed_at: Option<Timestamp>,
}

/// Why what a release says of itself cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// It cannot be read.
    #[error("{path} cannot be read")]
    Unreadable {
        /// Which file.
        path: camino::Utf8PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It says nothing that is understood.
    #[error("{path} is not what a release says of itself")]
    Malformed {
        /// Which file.
        path: camino::Utf8PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

impl Build {
    /// A program that was built and not released: nothing but the version is known of it.
    pub fn unreleased() -> Self {
        Self { version: env!("CARGO_PKG_VERSION").to_owned(), commit: None, committed_at: None }
    }

    /// The build whose programs are in `directory`. The stamp lies beside them and not in them, so that a commit alone is
    /// no reason to compile anything anew.
    ///
    /// # Errors
    /// When there is a stamp and it cannot be read.
    pub fn beside(directory: &Utf8Path) -> Result<Self, ReleaseError> {
        let path = directory.join(RELEASE);
        match std::fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map_err(|source| ReleaseError::Malformed { path, source })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::unreleased()),
            Err(source) => Err(ReleaseError::Unreadable { path, source }),
        }
    }

    /// Whether this one is older or newer; nothing where nobody can say.
    pub fn order(&self, other: &Self) -> Option<Ordering> {
        let (mine, theirs) = (self.committed_at?, other.committed_at?);
        match mine.cmp(&theirs) {
            Ordering::Equal if self != other => None,
            order => Some(order),
        }
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.version)?;
        match &self.commit {
            Some(commit) => write!(f, " ({})", commit.get(..12).unwrap_or(commit)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(commit: &str, at: Option<i64>) -> Build {
        Build {
            version: "1.2.3".to_owned(),
            commit: Some(commit.to_owned()),
            committed_at: at.map(|second| Timestamp::from_second(second).expect("a time")),
        }
    }

    #[test]
    fn builds_have_an_order_where_both_are_known() {
        let (older, newer) = (build("a", Some(1)), build("b", Some(2)));
        for (one, other, order) in [
            (&older, &newer, Some(Ordering::Less)),
            (&newer, &older, Some(Ordering::Greater)),
            (&older, &older, Some(Ordering::Equal)),
            (&older, &build("c", Some(1)), None),
            (&older, &build("a", None), None),
            (&Build::unreleased(), &Build::unreleased(), None),
        ] {
            assert_eq!(one.order(other), order, "{one} {other}");
        }
    }

    #[test]
    fn a_release_says_what_it_is_beside_its_programs() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = Utf8Path::from_path(dir.path()).expect("UTF-8");
        assert_eq!(Build::beside(path).expect("no release"), Build::unreleased());
        let stamp = r#"{"version":"9.9.9","commit":"0123456789abcdef","committedAt":"2026-11-30T12:00:00Z"}"#;
        std::fs::write(path.join(RELEASE), stamp).expect("written");
        assert_eq!(Build::beside(path).expect("a release").to_string(), "9.9.9 (0123456789ab)");
        std::fs::write(path.join(RELEASE), "{").expect("written");
        assert!(Build::beside(path).expect_err("half of one").to_string().contains(RELEASE));
    }
}
