use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

use super::Policy;
use crate::token::{CHARACTERS_MIN, is_strong};

/// Most entries of `ports` and of `neverWakePaths`.
const ENTRIES_MAX: usize = 64;
/// Longest path of `neverWakePaths`.
const PATH_BYTES_MAX: usize = 256;
/// Longest token of a space's ports.
const TOKEN_CHARACTERS_MAX: usize = 512;
/// Wakes by its hosts that a space bears in a minute, if nobody says otherwise.
pub(super) const WAKES_PER_MINUTE: u32 = 30;

/// Who may wake a sleeping space by its hosts. The verbs of the API always do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WakeOn {
    /// Whoever asks for one of its ports.
    #[default]
    Any,
    /// Who shows the fleet's token or the token of its ports.
    Authenticated,
    /// Nobody.
    None,
}

impl WakeOn {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Authenticated => "authenticated",
            Self::None => "none",
        }
    }
}

/// Who reaches a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Exposure {
    /// Whoever reaches the gateway.
    Public,
    /// Who shows the fleet's token or the token of the space's ports.
    Private,
}

/// Which port an entry of `ports` is about: `8080`, or `*` for every port that has no entry of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum PortKey {
    /// Every other one.
    Every,
    /// This one.
    One(u16),
}

/// It is neither a port nor `*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a port is 1 to 65535, or * for every other one")]
pub struct BadPortKey;

impl FromStr for PortKey {
    type Err = BadPortKey;
    fn from_str(text: &str) -> Result<Self, BadPortKey> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
        match text {
            "*" => Ok(Self::Every),
            _ if is_plain => text.parse().map(Self::One).map_err(|_| BadPortKey),
            _ => Err(BadPortKey),
        }
    }
}

impl TryFrom<String> for PortKey {
    type Error = BadPortKey;
    fn try_from(text: String) -> Result<Self, BadPortKey> {
        text.parse()
    }
}

impl fmt::Display for PortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every => f.write_str("*"),
            Self::One(port) => port.fmt(f),
        }
    }
}

impl From<PortKey> for String {
    fn from(key: PortKey) -> Self {
        key.to_string()
    }
}

/// Which ports are private.
pub type Ports = BTreeMap<PortKey, Exposure>;

/// The token of a space's ports, as a caller sets it. Only its digest is kept and shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PortToken(String);

/// It is too short, too long, or not printable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a port token has {CHARACTERS_MIN} to {TOKEN_CHARACTERS_MAX} printable characters without spaces")]
pub struct BadPortToken;

impl TryFrom<String> for PortToken {
    type Error = BadPortToken;
    fn try_from(text: String) -> Result<Self, BadPortToken> {
        if is_strong(&text) && text.len() <= TOKEN_CHARACTERS_MAX {
            Ok(Self(text))
        } else {
            Err(BadPortToken)
        }
    }
}

impl From<PortToken> for String {
    fn from(token: PortToken) -> Self {
        token.0
    }
}

impl fmt::Debug for PortToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PortToken(…)")
    }
}

impl PortToken {
    /// What is kept of it, as `blake3:<64 hex digits>`.
    pub fn digest(&self) -> String {
        digest(&self.0)
    }
}

fn digest(token: &str) -> String {
    format!("blake3:{}", blake3::hash(token.as_bytes()).to_hex())
}

impl Policy {
    /// Whether a port is for those alone who show a token.
    pub fn is_private(&self, port: u16) -> bool {
        let entry = self.ports.get(&PortKey::One(port)).or_else(|| self.ports.get(&PortKey::Every));
        entry == Some(&Exposure::Private)
    }

    /// Whether this is the token of the space's ports, in time that does not depend on where they differ.
    pub fn is_port_token(&self, candidate: &str) -> bool {
        let known = self.port_token_digest.as_deref();
        known.is_some_and(|known| known.as_bytes().ct_eq(digest(candidate).as_bytes()).into())
    }

    /// Whether a request for this path, without its query, lets a sleeping space sleep.
    pub fn never_wakes(&self, path: &str) -> bool {
        self.never_wake_paths.iter().any(|known| match known.strip_suffix('*') {
            Some(start) => path.starts_with(start),
            None => path == known,
        })
    }
}

/// What browsers and crawlers ask for by themselves.
pub(super) fn never_wake_paths() -> Vec<String> {
    ["/favicon.ico", "/robots.txt"].map(str::to_owned).into()
}

pub(super) fn wakes_per_minute() -> u32 {
    WAKES_PER_MINUTE
}

pub(super) fn ports_fit(ports: &Ports, &(): &()) -> garde::Result {
    if ports.len() > ENTRIES_MAX {
        return Err(garde::Error::new(format!("has {} entries, at most {ENTRIES_MAX}", ports.len())));
    }
    Ok(())
}

#[expect(clippy::ptr_arg, reason = "garde hands over the field as it is")]
pub(super) fn paths_fit(paths: &Vec<String>, &(): &()) -> garde::Result {
    if paths.len() > ENTRIES_MAX {
        return Err(garde::Error::new(format!("has {} entries, at most {ENTRIES_MAX}", paths.len())));
    }
    let is_path = |path: &&String| {
        let start = path.strip_suffix('*').unwrap_or(path);
        let plain = start.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#*".contains(&byte));
        path.starts_with('/') && path.len() <= PATH_BYTES_MAX && plain
    };
    match paths.iter().find(|path| !is_path(path)) {
        Some(path) => Err(garde::Error::new(format!(
            "{path:?} is no path: it begins with / and has at most {PATH_BYTES_MAX} printable characters, neither ? nor #; \
             a * at its end stands for whatever follows"
        ))),
        None => Ok(()),
    }
}

pub(super) fn optional_ports_fit(ports: &Option<Ports>, context: &()) -> garde::Result {
    ports.as_ref().map_or(Ok(()), |ports| ports_fit(ports, context))
}

pub(super) fn optional_paths_fit(paths: &Option<Vec<String>>, context: &()) -> garde::Result {
    paths.as_ref().map_or(Ok(()), |paths| paths_fit(paths, context))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{parse, spaces::UpdatePolicy};

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn patched(patch: &str) -> Result<Policy, String> {
        let body = format!(r#"{{"name":"a","policy":{patch}}}"#);
        let wish: UpdatePolicy = parse(body.as_bytes()).map_err(|error| error.message)?;
        assert!(!format!("{wish:?}").contains(TOKEN), "a secret is never printed");
        Ok(wish.policy.apply(Policy::default()))
    }

    #[test]
    fn who_reaches_a_port_and_who_wakes_is_said_per_space() {
        let policy = Policy::default();
        assert!(
            !policy.is_private(8080) && policy.wake_on == WakeOn::Any && policy.wakes_per_minute_max == 30
        );
        let policy =
            patched(r#"{"ports":{"*":"private","8080":"public"},"wakeOn":"authenticated"}"#).expect("valid");
        assert!(!policy.is_private(8080) && policy.is_private(3000));
        assert_eq!(policy.wake_on, WakeOn::Authenticated);
        let policy = patched(r#"{"ports":{"8080":"private"}}"#).expect("valid");
        assert!(policy.is_private(8080) && !policy.is_private(3000));
        assert_eq!(
            serde_json::to_value(&policy.ports).expect("plain"),
            serde_json::json!({ "8080": "private" })
        );
    }

    #[test]
    fn paths_that_never_wake_are_whole_or_the_start_of_one() {
        let policy = Policy::default();
        for (path, quiet) in
            [("/favicon.ico", true), ("/robots.txt", true), ("/", false), ("/favicon.ico/a", false)]
        {
            assert_eq!(policy.never_wakes(path), quiet, "{path}");
        }
        let policy = patched(r#"{"neverWakePaths":["/health","/static/*"]}"#).expect("valid");
        for (path, quiet) in
            [("/health", true), ("/static/a/b", true), ("/favicon.ico", false), ("/statics", false)]
        {
            assert_eq!(policy.never_wakes(path), quiet, "{path}");
        }
    }

    #[test]
    fn of_a_token_only_a_digest_is_kept() {
        let policy = patched(&format!(r#"{{"portToken":"{TOKEN}"}}"#)).expect("valid");
        assert!(
            policy.is_port_token(TOKEN) && !policy.is_port_token(&TOKEN[1..]) && !policy.is_port_token("")
        );
        let shown = serde_json::to_string(&policy).expect("plain");
        assert!(!shown.contains(TOKEN) && shown.contains("blake3:"), "{shown}");
        let gone = super::super::PolicyPatch { port_token: Some(None), ..Default::default() }.apply(policy);
        assert!(!gone.is_port_token(TOKEN) && gone.port_token_digest.is_none());
        assert!(!Policy::default().is_port_token(""), "no token is no empty token");
    }

    #[test]
    fn what_cannot_be_meant_is_refused_in_words() {
        let many: Vec<String> = (1..=65).map(|port| format!(r#""{port}":"private""#)).collect();
        for (patch, says) in [
            (r#"{"ports":{"0":"private"}}"#.to_owned(), "1 to 65535"),
            (r#"{"ports":{"65536":"private"}}"#.to_owned(), "1 to 65535"),
            (r#"{"ports":{"+80":"private"}}"#.to_owned(), "1 to 65535"),
            (r#"{"ports":{"80":"secret"}}"#.to_owned(), "public"),
            (format!(r#"{{"ports":{{{}}}}}"#, many.join(",")), "at most 64"),
            (r#"{"wakeOn":"never"}"#.to_owned(), "authenticated"),
            (r#"{"neverWakePaths":["health"]}"#.to_owned(), "begins with /"),
            (r#"{"neverWakePaths":["/a?b"]}"#.to_owned(), "neither ?"),
            (r#"{"wakesPerMinuteMax":0}"#.to_owned(), "wakesPerMinuteMax"),
            (r#"{"portToken":"short"}"#.to_owned(), "32 to 512"),
            (format!(r#"{{"portToken":"{TOKEN} x"}}"#), "without spaces"),
            (r#"{"portTokenDigest":"blake3:00"}"#.to_owned(), "portTokenDigest"),
        ] {
            let error = patched(&patch).expect_err(&patch);
            assert!(error.contains(says), "{patch}: {error}");
            assert!(!error.contains(TOKEN), "{error}");
        }
    }

    #[test]
    fn a_policy_that_was_written_before_reads_on() {
        let old = r#"{"freezeAfterSeconds":1,"stopAfterSeconds":2,"hibernateAfterSeconds":null}"#;
        let read: Policy = serde_json::from_str(old).expect("readable");
        let steps = |policy: &Policy| (policy.freeze_after_seconds, policy.stop_after_seconds);
        assert_eq!(steps(&read), (Some(1), Some(2)));
        assert_eq!((read.wake_on, read.wakes_per_minute_max), (WakeOn::Any, 30));
        assert_eq!(read.never_wake_paths, Policy::default().never_wake_paths);
    }
}
