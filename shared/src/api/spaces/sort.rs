use std::{cmp::Ordering, fmt};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Space;
use crate::{id::SpaceId, name::SpaceName};

/// What a list is in order of. Spaces that are equal in it are in order of their id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Sort {
    /// The name, byte for byte.
    #[default]
    Name,
    /// When it was made.
    CreatedAt,
    /// When it was last used. A space that is used while a list is read moves in it.
    LastActiveAt,
}

impl Sort {
    /// Every sort.
    pub const ALL: [Self; 3] = [Self::Name, Self::CreatedAt, Self::LastActiveAt];

    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::CreatedAt => "createdAt",
            Self::LastActiveAt => "lastActiveAt",
        }
    }

    /// Reads the word back.
    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sort| sort.as_str() == word)
    }

    /// Where a space stands.
    pub fn place(self, space: &Space) -> Place {
        let key = match self {
            Self::Name => Key::Name(space.name.clone()),
            Self::CreatedAt => Key::CreatedAt(space.created_at),
            Self::LastActiveAt => Key::LastActiveAt(space.last_active_at),
        };
        Place { key, id: space.id }
    }
}

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which end of a list comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// The smallest, or the oldest.
    #[default]
    Asc,
    /// The largest, or the newest.
    Desc,
}

impl Order {
    /// Both orders.
    pub const ALL: [Self; 2] = [Self::Asc, Self::Desc];

    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Asc => "asc",
            Self::Desc => "desc",
        }
    }

    /// Reads the word back.
    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|order| order.as_str() == word)
    }

    /// How two places of one sort follow each other.
    pub fn compare(self, a: &Place, b: &Place) -> Ordering {
        match self {
            Self::Asc => a.cmp(b),
            Self::Desc => b.cmp(a),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a space is sorted by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Its name.
    Name(SpaceName),
    /// When it was made.
    CreatedAt(Timestamp),
    /// When it was last used.
    LastActiveAt(Timestamp),
}

impl Key {
    /// The sort it belongs to.
    pub fn sort(&self) -> Sort {
        match self {
            Self::Name(_) => Sort::Name,
            Self::CreatedAt(_) => Sort::CreatedAt,
            Self::LastActiveAt(_) => Sort::LastActiveAt,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::CreatedAt(at) | Self::LastActiveAt(at) => at.fmt(f),
        }
    }
}

/// Where a space stands in a list. No two spaces stand at one place, also where two nodes hold one name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// By what.
    pub key: Key,
    /// Which comes first among equals.
    pub id: SpaceId,
}
