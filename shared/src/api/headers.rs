use std::{fmt, str::FromStr};

use http::{HeaderMap, HeaderName};

use crate::id::{Epoch, SpaceId};

/// The space of a streaming verb, by name or id (percent-encoded), when it is not in the query.
pub const SPACE: &str = "drowse-space";
/// What the sender believes about the space; see [`Expect`].
pub const EXPECT: &str = "drowse-expect";
/// The ticket a forwarded create quotes.
pub const CREATE: &str = "drowse-create";
/// Follows one request through the daemons and their logs.
pub const REQUEST_ID: &str = "drowse-request-id";
/// Set on everything a gateway sends on; stripped from what clients send.
pub const FORWARDED: &str = "drowse-forwarded";

/// The port of the space that a request is for. The rest of the request is the app's own.
pub const PORT: &str = "drowse-port";
/// The fleet token where `Authorization` is the app's own.
pub const CREDENTIAL: &str = "drowse-authorization";
/// What a caller shows for a private port: the fleet's token or that of the space's ports. It never reaches an app.
pub const TOKEN: &str = "drowse-token";
/// Set by a node on an answer to a request for a port that is its own, not the app's.
pub const ANSWER: &str = "drowse-answer";

/// Headers that only our own daemons may set.
pub const INTERNAL: [&str; 6] = [EXPECT, CREATE, FORWARDED, PORT, CREDENTIAL, ANSWER];

/// Drops every header of ours: none reaches an app, and no app's reaches a client.
pub fn strip_ours(headers: &mut HeaderMap) {
    let ours: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("drowse-")).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
}

/// "You hold this space": a node that does not answers 421 `not_mine` before it reads the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expect {
    /// The id the sender found.
    pub id: Option<SpaceId>,
    /// The least epoch the sender has seen.
    pub epoch: Option<Epoch>,
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("existing")?;
        if let Some(id) = self.id {
            write!(f, ";id={id}")?;
        }
        if let Some(epoch) = self.epoch {
            write!(f, ";epoch={epoch}")?;
        }
        Ok(())
    }
}

/// The header is not of the form `existing;id=…;epoch=…`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Drowse-Expect reads `existing`, optionally followed by `;id=…` and `;epoch=…`")]
pub struct BadExpect;

impl FromStr for Expect {
    type Err = BadExpect;
    fn from_str(text: &str) -> Result<Self, BadExpect> {
        let mut parts = text.split(';');
        if parts.next() != Some("existing") {
            return Err(BadExpect);
        }
        let mut expect = Self::default();
        for part in parts {
            match part.split_once('=') {
                Some(("id", id)) => expect.id = Some(id.parse().map_err(|_| BadExpect)?),
                Some(("epoch", epoch)) => expect.epoch = Some(Epoch(epoch.parse().map_err(|_| BadExpect)?)),
                // A newer gateway may say more.
                _ => {}
            }
        }
        Ok(expect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expectation_reads_as_it_was_written() {
        let id = "0190f0c2a4b87c3d9e0f112233445566".parse().ok();
        for expect in [Expect::default(), Expect { id, epoch: None }, Expect { id, epoch: Some(Epoch(7)) }] {
            assert_eq!(expect.to_string().parse(), Ok(expect));
        }
        for bad in ["", "new", "existing;id=x", "existing;epoch=-1"] {
            assert_eq!(bad.parse::<Expect>(), Err(BadExpect), "{bad}");
        }
    }
}
