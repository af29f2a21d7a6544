//! The name of a space: the caller's own key, such as a user or agent id.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize};

use crate::id::SpaceId;

/// Longest name, in characters.
pub const CHARACTERS_MAX: usize = 128;

/// Why a text cannot name a space.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Empty or too long.
    #[error("a name has 1 to {CHARACTERS_MAX} characters, this one has {0}")]
    Length(usize),
    /// A control character.
    #[error("a name has no control characters")]
    Control,
    /// White space at an end.
    #[error("a name neither begins nor ends with white space")]
    WhiteSpace,
    /// Looks like an id.
    #[error("a name must not look like an id (32 lower-case hexadecimal digits)")]
    ShapedLikeAnId,
    /// Not normalised.
    #[error("a name is in Unicode normalisation form C; send the composed form")]
    NotNormalised,
}

/// A space's name. Compared byte for byte. Clones share the text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct SpaceName(Arc<str>);

impl SpaceName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name a space bears once it was set aside from this one: the old one as far as it fits, and its id. Nobody else
    /// has it.
    pub fn aside(&self, id: SpaceId) -> Self {
        let id = format!("~{id}");
        let kept: String = self.as_str().chars().take(CHARACTERS_MAX - id.len()).collect();
        // A cut between characters leaves a text normalised, and the end is no white space.
        format!("{kept}{id}").parse().unwrap_or_else(|_| self.clone())
    }
}

impl FromStr for SpaceName {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        let length = text.chars().count();
        if !(1..=CHARACTERS_MAX).contains(&length) {
            return Err(Error::Length(length));
        }
        if text.chars().any(char::is_control) {
            return Err(Error::Control);
        }
        if text.trim() != text {
            return Err(Error::WhiteSpace);
        }
        if SpaceId::is_shape_of(text) {
            return Err(Error::ShapedLikeAnId);
        }
        if !unicode_normalization::is_nfc(text) {
            return Err(Error::NotNormalised);
        }
        Ok(Self(Arc::from(text)))
    }
}

impl fmt::Display for SpaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SpaceName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// How a request points at a space: by name, or by id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpaceRef {
    /// By the caller's name.
    Name(SpaceName),
    /// By the minted id.
    Id(SpaceId),
}

impl FromStr for SpaceRef {
    type Err = Error;
    /// A name is never shaped like an id, so one text can be either without doubt.
    fn from_str(text: &str) -> Result<Self, Error> {
        match text.parse() {
            Ok(id) => Ok(Self::Id(id)),
            Err(_) => text.parse().map(Self::Name),
        }
    }
}

impl fmt::Display for SpaceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Id(id) => id.fmt(f),
        }
    }
}

impl Serialize for SpaceRef {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SpaceRef {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_judged_one_rule_at_a_time() {
        let long = "ä".repeat(128);
        for good in ["a", "user 42", "Ünïcode ✓", "../etc", "a\u{200d}b", &long] {
            assert!(good.parse::<SpaceName>().is_ok(), "{good:?}");
        }
        let cases = [
            ("", Error::Length(0)),
            (&*"a".repeat(129), Error::Length(129)),
            ("a\nb", Error::Control),
            ("a\u{0}", Error::Control),
            (" a", Error::WhiteSpace),
            ("a\u{3000}", Error::WhiteSpace),
            ("0190f0c2a4b87c3d9e0f112233445566", Error::ShapedLikeAnId),
            ("e\u{301}", Error::NotNormalised),
        ];
        for (bad, why) in cases {
            assert_eq!(bad.parse::<SpaceName>(), Err(why), "{bad:?}");
        }
    }

    #[test]
    fn a_name_set_aside_is_a_name_and_nobody_elses() {
        let id: SpaceId = "0190f0c2a4b87c3d9e0f112233445566".parse().expect("an id");
        for name in ["a", &"x".repeat(CHARACTERS_MAX), "é ".repeat(60).trim()] {
            let name: SpaceName = name.parse().expect("a name");
            let aside = name.aside(id);
            assert!(aside.as_str().ends_with(&format!("~{id}")), "{aside}");
            assert!(aside.as_str().chars().count() <= CHARACTERS_MAX);
        }
    }

    #[test]
    fn one_text_is_a_name_or_an_id_never_both() {
        assert!(matches!("shop".parse(), Ok(SpaceRef::Name(_))));
        assert!(matches!("0190f0c2a4b87c3d9e0f112233445566".parse(), Ok(SpaceRef::Id(_))));
        assert_eq!("".parse::<SpaceRef>(), Err(Error::Length(0)));
    }
}
