use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::name::SpaceName;

/// Where the next page of a list begins: after this name. On the wire an opaque word, the same at the gateway and at a
/// node, so that a gateway can ask every node to go on at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(SpaceName);

impl Cursor {
    /// The page after this name.
    pub fn after(name: SpaceName) -> Self {
        Self(name)
    }

    /// The last name of the page before.
    pub fn name(&self) -> &SpaceName {
        &self.0
    }

    fn read(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        String::from_utf8(bytes).ok()?.parse().ok().map(Self)
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0.as_str()))
    }
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cursor {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::read(&text).ok_or_else(|| {
            serde::de::Error::custom("cursor is not the `nextCursor` of an earlier answer to this list")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_one_of_ours_or_refused() {
        let cursor = Cursor::after("Ünïcode ✓".parse().expect("a name"));
        let wire = serde_json::to_string(&cursor).expect("plain");
        assert_eq!(serde_json::from_str::<Cursor>(&wire).expect("ours"), cursor);
        for bad in ["", "!", "AAAA", "shop", &URL_SAFE_NO_PAD.encode([0xff, 0xfe])] {
            let error = serde_json::from_value::<Cursor>(bad.into()).expect_err(bad);
            assert!(error.to_string().contains("nextCursor"), "{bad:?}: {error}");
        }
    }
}
