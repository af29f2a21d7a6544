//! A domain name, as a certificate names it: plain labels, lower case, no port.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize};

/// Longest label, RFC 1035.
pub const LABEL_MAX: usize = 63;
/// Longest name, RFC 1035.
pub const CHARACTERS_MAX: usize = 253;

/// Why a text is no domain name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Empty or too long.
    #[error("a domain has 1 to {CHARACTERS_MAX} characters, this one has {0}")]
    Length(usize),
    /// Something that is no label.
    #[error(
        "a domain is labels of letters, digits and hyphens with dots between them, such as shop.example.com, without port or \
         wildcard; international names are written as xn--…"
    )]
    Label,
    /// One label.
    #[error("a domain has at least two labels, such as example.com")]
    Single,
    /// An address.
    #[error("a domain is a name, not an address")]
    Address,
}

/// A domain name. Upper case is read as lower case: domains do not differ by it. Clones share the text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Domain(Arc<str>);

impl Domain {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is `parent`, or lies under it.
    pub fn is_within(&self, parent: &str) -> bool {
        self.0.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    }
}

impl FromStr for Domain {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.is_empty() || text.len() > CHARACTERS_MAX {
            return Err(Error::Length(text.chars().count()));
        }
        let name = text.to_ascii_lowercase();
        if !name.split('.').all(is_label) {
            return Err(Error::Label);
        }
        let Some((_, last)) = name.rsplit_once('.') else { return Err(Error::Single) };
        if last.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Error::Address);
        }
        Ok(Self(Arc::from(name)))
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::borrow::Borrow<str> for Domain {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Domain {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        text.parse().map_err(|error| serde::de::Error::custom(format!("domain: {error}")))
    }
}

/// Whether this is one label of a name, in lower case.
pub fn is_label(label: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=LABEL_MAX).contains(&label.len())
        && label.bytes().all(inside)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_labels_with_dots_between() {
        let long = format!("{}.com", "a".repeat(64));
        let longer = format!("{}com", "a1.".repeat(84));
        for (text, expected) in [
            ("example.com", Ok("example.com")),
            ("Shop.Example.COM", Ok("shop.example.com")),
            ("xn--kse-qla.example", Ok("xn--kse-qla.example")),
            ("1.2.3.com", Ok("1.2.3.com")),
            ("", Err(Error::Length(0))),
            (&longer, Err(Error::Length(255))),
            (&long, Err(Error::Label)),
            ("käse.example", Err(Error::Label)),
            ("*.example.com", Err(Error::Label)),
            ("example.com.", Err(Error::Label)),
            (".example.com", Err(Error::Label)),
            ("a..b", Err(Error::Label)),
            ("-a.example", Err(Error::Label)),
            ("a-.example", Err(Error::Label)),
            ("a_b.example", Err(Error::Label)),
            ("example.com:443", Err(Error::Label)),
            ("https://example.com", Err(Error::Label)),
            (" example.com", Err(Error::Label)),
            ("[::1]", Err(Error::Label)),
            ("localhost", Err(Error::Single)),
            ("10.0.0.7", Err(Error::Address)),
        ] {
            assert_eq!(
                text.parse::<Domain>().as_ref().map(Domain::as_str),
                expected.as_ref().copied(),
                "{text}"
            );
        }
    }

    #[test]
    fn within_is_by_whole_labels() {
        let domain: Domain = "a.example.com".parse().expect("a domain");
        for (parent, expected) in [
            ("example.com", true),
            ("a.example.com", true),
            ("com", true),
            ("ample.com", false),
            ("b.com", false),
        ] {
            assert_eq!(domain.is_within(parent), expected, "{parent}");
        }
    }
}
