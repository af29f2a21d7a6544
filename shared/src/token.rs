//! The fleet token: one secret between callers, gateway and nodes.

use std::{fmt, io};

use camino::{Utf8Path, Utf8PathBuf};
use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;

/// Shortest token, in characters.
pub const CHARACTERS_MIN: usize = 32;

/// Whether a text is long enough and plain enough to be a token.
pub(crate) fn is_strong(text: &str) -> bool {
    text.len() >= CHARACTERS_MIN && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Why there is no usable token.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither variable is set.
    #[error(
        "no token: set DROWSE_TOKEN_FILE to a file that holds it, or DROWSE_TOKEN to the token itself \
         (make one with `openssl rand -hex 32`)"
    )]
    Missing,
    /// Both are set.
    #[error("DROWSE_TOKEN and DROWSE_TOKEN_FILE are both set; keep one of them")]
    Both,
    /// Too short or not printable.
    #[error(
        "the token from {from} has {length} characters; it needs at least {CHARACTERS_MIN} printable ones without spaces"
    )]
    Weak {
        /// Which variable.
        from: &'static str,
        /// How long it was.
        length: usize,
    },
    /// The file cannot be read.
    #[error("the token file {path} cannot be read")]
    File {
        /// Which file.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The secret. Never printed, never compared byte by byte.
#[derive(Clone)]
pub struct Token(SecretString);

impl Token {
    /// Takes the token from the values of `DROWSE_TOKEN` and `DROWSE_TOKEN_FILE`.
    ///
    /// # Errors
    /// When neither or both are set, the file cannot be read, or the token is weak.
    pub fn load(value: Option<&str>, file: Option<&Utf8Path>) -> Result<Self, Error> {
        match (value.filter(|v| !v.is_empty()), file) {
            (Some(_), Some(_)) => Err(Error::Both),
            (None, None) => Err(Error::Missing),
            (Some(value), None) => Self::checked(value, "DROWSE_TOKEN"),
            (None, Some(path)) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|source| Error::File { path: path.to_owned(), source })?;
                Self::checked(text.trim(), "DROWSE_TOKEN_FILE")
            }
        }
    }

    /// Takes a token that is already at hand.
    ///
    /// # Errors
    /// When it is weak.
    pub fn checked(text: &str, from: &'static str) -> Result<Self, Error> {
        if !is_strong(text) {
            return Err(Error::Weak { from, length: text.chars().count() });
        }
        Ok(Self(SecretString::from(text)))
    }

    /// Whether `candidate` is the token, in time that does not depend on where they differ.
    pub fn matches(&self, candidate: &str) -> bool {
        self.0.expose_secret().as_bytes().ct_eq(candidate.as_bytes()).into()
    }

    /// The value of an `Authorization` header.
    pub fn bearer(&self) -> http::HeaderValue {
        let text = format!("Bearer {}", self.0.expose_secret());
        let mut value =
            http::HeaderValue::from_str(&text).unwrap_or_else(|_| http::HeaderValue::from_static("Bearer"));
        value.set_sensitive(true);
        value
    }

    /// Whether these headers carry the token as `Authorization: Bearer …`.
    pub fn admits(&self, headers: &http::HeaderMap) -> bool {
        self.is_in(headers, http::header::AUTHORIZATION.as_str())
    }

    /// Whether one header carries the token as `Bearer …`.
    pub fn is_in(&self, headers: &http::HeaderMap, header: &str) -> bool {
        headers
            .get(header)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "))
            .is_some_and(|candidate| self.matches(candidate))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_long_printable_and_from_one_place() {
        let good = "0123456789abcdef0123456789abcdef";
        let token = Token::load(Some(good), None).expect("fine");
        assert!(token.matches(good) && !token.matches("x") && !token.matches(&good[1..]));
        assert_eq!(format!("{token:?}"), "Token(…)");
        assert!(matches!(Token::load(None, None), Err(Error::Missing)));
        assert!(matches!(Token::load(Some(""), None), Err(Error::Missing)));
        assert!(matches!(Token::load(Some("short"), None), Err(Error::Weak { length: 5, .. })));
        assert!(matches!(Token::load(Some(&format!("{good} x")), None), Err(Error::Weak { .. })));
        assert!(matches!(Token::load(Some(good), Some("f".into())), Err(Error::Both)));
        assert!(matches!(Token::load(None, Some("/nonexistent".into())), Err(Error::File { .. })));
    }
}
