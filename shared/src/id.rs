//! Identities. Each is a newtype, so that one can never be passed for another.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize};
use uuid::Uuid;

use crate::seams::Env;

/// Why a text is not an identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not 32 lower-case hexadecimal digits.
    #[error("an id is 32 lower-case hexadecimal digits")]
    NotHex,
    /// Not a node id.
    #[error("a node id is 1 to 63 lower-case letters, digits and hyphens, and starts with a letter or digit")]
    NotNodeId,
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(into = "String")]
        pub struct $name(Uuid);

        impl $name {
            /// Mints a new one, sortable by time.
            pub fn mint(env: &Env) -> Self {
                Self(env.uuid_v7())
            }

            /// Whether `text` has the shape of an id, whatever it is an id of.
            pub fn is_shape_of(text: &str) -> bool {
                text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            }
        }

        impl FromStr for $name {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self, Error> {
                if !Self::is_shape_of(text) {
                    return Err(Error::NotHex);
                }
                Uuid::try_parse(text).map(Self).map_err(|_| Error::NotHex)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.simple().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.simple().fmt(f)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.to_string()
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

hex_id!(
    /// A space: minted once, never used again. A DNS label without hyphens.
    SpaceId
);
hex_id!(
    /// A ledger: the real identity of a node. The same ledger under a node id is a restart, another one is a twin.
    LedgerId
);
hex_id!(
    /// A fleet: what a roster is a roster of.
    FleetId
);
hex_id!(
    /// One life of a daemon, from start to end.
    BootId
);
hex_id!(
    /// Permission to build one name on one node, good once and for a minute.
    Ticket
);
hex_id!(
    /// One request, followed from the gateway to the node.
    RequestId
);

/// How many times a space has changed hands. Only grows. A space that never left its node stays at 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch a space is born with.
    pub const FIRST: Self = Self(1);
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What an operator calls a node: `^[a-z0-9][a-z0-9-]{0,62}$`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct NodeId(Arc<str>);

impl NodeId {
    /// The id a node takes when nobody named it; refused once the gateway is on another machine.
    pub const DEFAULT: &'static str = "node-1";

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeId {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let fits = (1..=63).contains(&text.len())
            && text.bytes().all(|b| plain(b) || b == b'-')
            && text.bytes().next().is_some_and(plain);
        if fits { Ok(Self(text.into())) } else { Err(Error::NotNodeId) }
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for NodeId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ids_follow_one_pattern() {
        for good in ["a", "node-1", "0", "a-", &"x".repeat(63)] {
            assert!(good.parse::<NodeId>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "A", "a_b", "a.b", "ä", &"x".repeat(64)] {
            assert_eq!(bad.parse::<NodeId>(), Err(Error::NotNodeId), "{bad}");
        }
    }

    #[test]
    fn ids_are_32_lower_case_hex_digits() {
        let text = "0190f0c2a4b87c3d9e0f112233445566";
        assert_eq!(text.parse::<SpaceId>().expect("well formed").to_string(), text);
        for bad in ["", "0190F0C2A4B87C3D9E0F112233445566", "0190f0c2-a4b8-7c3d-9e0f-112233445566", "0190"] {
            assert_eq!(bad.parse::<SpaceId>(), Err(Error::NotHex), "{bad}");
        }
    }
}
