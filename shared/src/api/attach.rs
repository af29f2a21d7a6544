//! A terminal, or a command that runs, over a websocket: `GET /attach?…`. Binary messages are bytes, either way; text messages
//! are JSON, [`AttachOrder`] to the space and [`AttachEvent`] from it.

use garde::Validate;
use serde::{Deserialize, Serialize};

use super::{
    exec::{ExecEnded, no_nul},
    spaces::Resumed,
};
use crate::{api::Error, name::SpaceRef};

/// Where it is served.
pub const ATTACH: &str = "/attach";
/// Largest message of a client, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Lines and columns a terminal has when nobody says.
pub const SIZE: (u16, u16) = (24, 80);

/// The query of `GET /attach`: what to attach to. Without `pid` it is a new terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct AttachQuery {
    /// The space, by name or id; `Drowse-Space` may carry it instead.
    pub space: Option<SpaceRef>,
    /// A command that runs, by its pid inside; nothing else but `space` goes with it.
    #[garde(custom(alone(self)))]
    pub pid: Option<u32>,
    /// Comes back to the terminal of this tag, or opens it; it goes on when its client leaves. A terminal without a tag ends
    /// with its client.
    #[garde(length(bytes, min = 1, max = 64), inner(custom(no_nul)))]
    pub tag: Option<String>,
    /// What runs in a new terminal, for `/bin/bash -c`; a login shell when absent.
    #[garde(length(bytes, min = 1, max = 8192), inner(custom(no_nul)))]
    pub command: Option<String>,
    /// Lines; 24 when absent.
    #[garde(range(min = 1, max = 1000))]
    pub rows: Option<u16>,
    /// Columns; 80 when absent.
    #[garde(range(min = 1, max = 1000))]
    pub cols: Option<u16>,
    /// Who runs it; `user` when absent.
    #[garde(length(bytes, min = 1, max = 256), inner(custom(no_nul)))]
    pub user: Option<String>,
    /// Working directory; the user's home when absent.
    #[garde(length(bytes, min = 1, max = 4096), inner(custom(no_nul)))]
    pub cwd: Option<String>,
}

fn alone<'a>(query: &'a AttachQuery) -> impl FnOnce(&Option<u32>, &()) -> garde::Result + 'a {
    move |pid, &()| {
        let new = [&query.tag, &query.command, &query.user, &query.cwd];
        if pid.is_some() && new.iter().any(|field| field.is_some()) {
            return Err(garde::Error::new(
                "a command that runs has its tag, command, user and directory already",
            ));
        }
        Ok(())
    }
}

/// What a client says in a text message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum AttachOrder {
    /// The terminal has another size.
    Resize(#[garde(dive)] Size),
    /// Sends a signal to what runs: `INT`, `TERM`, `KILL`, `HUP`, `QUIT`, `USR1`, `USR2`, with or without `SIG`.
    Signal(#[garde(custom(known_signal))] String),
    /// Closes standard input; of a terminal, types the character that means so.
    CloseStdin(#[garde(skip)] Nothing),
}

/// A size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Lines.
    #[garde(range(min = 1, max = 1000))]
    pub rows: u16,
    /// Columns.
    #[garde(range(min = 1, max = 1000))]
    pub cols: u16,
}

/// Nothing more is to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// The signals a client may send, without `SIG`.
pub const SIGNALS: [&str; 7] = ["INT", "TERM", "KILL", "HUP", "QUIT", "USR1", "USR2"];

fn known_signal(signal: &str, _: &()) -> garde::Result {
    if SIGNALS.contains(&signal.strip_prefix("SIG").unwrap_or(signal)) {
        return Ok(());
    }
    Err(garde::Error::new(format!("is one of {}", SIGNALS.join(", "))))
}

/// What the space says in a text message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum AttachEvent {
    /// Comes first: it runs.
    Started(AttachStarted),
    /// A piece of standard error of a command without a terminal, in base64.
    Stderr(String),
    /// It has ended; the connection closes with 1000.
    Ended(ExecEnded),
    /// What became of it is not known, or an order was refused; the connection closes unless it was an order.
    Failed(Error),
}

/// It runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AttachStarted {
    /// Its pid inside the space.
    pub pid: u32,
    /// Whether it ran before.
    pub joined: bool,
    /// How the space came back, if it slept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Resumed>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::parse;

    #[test]
    fn orders_are_checked_and_read_as_they_are_documented() {
        for good in [
            r#"{"resize":{"rows":40,"cols":120}}"#,
            r#"{"signal":"INT"}"#,
            r#"{"signal":"SIGTERM"}"#,
            r#"{"closeStdin":{}}"#,
        ] {
            parse::<AttachOrder>(good.as_bytes()).expect(good);
        }
        for (bad, says) in [
            (r#"{"resize":{"rows":0,"cols":120}}"#, "rows"),
            (r#"{"resize":{"rows":40}}"#, "cols"),
            (r#"{"signal":"STOP"}"#, "INT"),
            (r#"{"signal":9}"#, "string"),
            (r#"{"type":"resize"}"#, "type"),
            ("resize", "not a valid request"),
        ] {
            let error = parse::<AttachOrder>(bad.as_bytes()).expect_err(bad);
            assert!(error.message.contains(says), "{bad}: {}", error.message);
        }
    }

    #[test]
    fn a_command_that_runs_is_attached_to_as_it_is() {
        let query = AttachQuery {
            space: None,
            pid: Some(7),
            tag: None,
            command: None,
            rows: Some(40),
            cols: None,
            user: None,
            cwd: None,
        };
        query.validate().expect("valid");
        for wrong in [
            AttachQuery { tag: Some("main".to_owned()), ..query.clone() },
            AttachQuery { user: Some("root".to_owned()), ..query.clone() },
            AttachQuery { rows: Some(0), ..query.clone() },
            AttachQuery { tag: Some("a\0".to_owned()), pid: None, ..query },
        ] {
            wrong.validate().expect_err("invalid");
        }
    }
}
