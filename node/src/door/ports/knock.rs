//! Who reaches a port, and whose request wakes a space: its policy over what the request shows.

use std::time::Duration;

use drowse_shared::{
    api::{
        Code, Error,
        headers::TOKEN,
        spaces::{State as Word, WakeOn},
    },
    token::Token,
};
use http::HeaderMap;

use crate::{lifecycle::wake::Look, live::Live, space::Space};

/// What a request shows at the door.
#[derive(Debug, Clone)]
pub(super) struct Knock {
    /// The port it is for.
    pub(super) port: u16,
    /// The path it asks for; none, once it has become a tunnel.
    pub(super) path: Option<String>,
    /// Whether it shows the fleet's token.
    is_ours: bool,
    shown: Option<String>,
}

impl Knock {
    /// Of a request.
    pub(super) fn new(headers: &HeaderMap, path: &str, port: u16, token: &Token) -> Self {
        let mut lines = headers.get_all(TOKEN).iter();
        let shown = lines.next().filter(|_| lines.next().is_none());
        let shown = shown.and_then(|value| value.to_str().ok()).map(str::to_owned);
        let is_ours = shown.as_deref().is_some_and(|shown| token.matches(shown));
        Self { port, path: Some(path.to_owned()), is_ours, shown: shown.filter(|_| !is_ours) }
    }

    /// The same, of what comes on the connection later.
    pub(super) fn of_a_tunnel(&self) -> Self {
        Self { path: None, ..self.clone() }
    }

    /// Whether it may go on, to a space that is looked at or is about to be woken for it.
    pub(super) fn admits(&self, space: &Space, look: Look, live: &Live) -> Result<(), Error> {
        let policy = &space.policy;
        let name = space.name.as_str();
        let trusted = self.is_ours || self.shown.as_deref().is_some_and(|shown| policy.is_port_token(shown));
        if policy.is_private(self.port) && !trusted {
            let message = format!(
                "port {} of {name:?} is private; send the fleet's token or the token of the space's ports in `Drowse-Token`",
                self.port
            );
            return Err(Error::new(Code::PortPrivate, message));
        }
        let is = space.state.word();
        if !matches!(is, Word::Frozen | Word::Stopped | Word::Hibernated) {
            return Ok(());
        }
        let asleep = |why: &str| {
            let message = format!("{name:?} is {is}, and {why}; `wakeSpace` does");
            let error = Error::new(Code::SpaceAsleep, message).with("state", is.as_str());
            Err(error.with("wakeOn", policy.wake_on.as_str()))
        };
        match policy.wake_on {
            WakeOn::None => return asleep("requests for its ports do not wake it"),
            WakeOn::Authenticated if !trusted => {
                return asleep("only requests with a token in `Drowse-Token` wake it");
            }
            _ => {}
        }
        if let Some(path) = self.path.as_deref().filter(|path| policy.never_wakes(path)) {
            return asleep(&format!("requests for {path} do not wake it"));
        }
        // Until its turn comes, another may wake it for all.
        if look == Look::First {
            return Ok(());
        }
        let most = policy.wakes_per_minute_max;
        live.count_wake(space.id, most).map_err(|left| {
            let seconds = left.as_secs() + u64::from(left > Duration::from_secs(left.as_secs()));
            let message = format!(
                "requests for its ports woke {name:?} {most} times within a minute, as often as its policy allows"
            );
            Error::new(Code::TooManyWakes, message).retry_after(seconds.max(1))
        })
    }
}

#[cfg(test)]
mod tests;
