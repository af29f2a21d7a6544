use std::{collections::BTreeMap, time::Duration};

use garde::Validate;
use serde::{Deserialize, Serialize};

use super::spaces::Resumed;
use crate::name::SpaceRef;

pub use events::{EVENTS, ExecEnded, ExecEvent, ExecStarted};

/// What a stream of a command's output is made of.
mod events;

/// Seconds a command may take when the caller does not say.
pub const TIMEOUT_SECONDS: u64 = 300;
/// Longest a command may run, in seconds, unless it is detached.
pub const TIMEOUT_SECONDS_MAX: u64 = 86_400;
/// Bytes of each output stream that an answer carries.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Characters of an idempotency key.
pub const KEY_LENGTH_MAX: usize = 128;
/// Bytes of each output stream, as it is written in JSON, that a repeated answer carries.
pub const KEPT_OUTPUT_BYTES_MAX: usize = 32 << 10;
/// Keys that a space keeps at most; the oldest whose command has ended goes first.
pub const KEYS_MAX: usize = 256;
/// How long a key is kept after its command has ended.
pub const KEY_KEPT_SECONDS: u64 = 86_400;

/// How output is written into JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum OutputEncoding {
    /// As text; bytes that are not UTF-8 become U+FFFD.
    #[default]
    Utf8,
    /// Exactly, in base64.
    Base64,
}

/// `execCommand`. Exactly one of `command` (for a shell) and `argv`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct ExecCommand {
    /// The space, by name or id.
    pub name: SpaceRef,
    /// A line for `/bin/bash -c`.
    #[garde(length(bytes, min = 1), custom(one_of(&self.argv)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// A program and its arguments, found by `PATH`.
    #[garde(length(min = 1, max = 10_000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// What the command reads, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// What the command reads, in base64; instead of `stdin`.
    #[garde(custom(not_both(&self.stdin)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_base64: Option<String>,
    /// Variables added to the user's environment.
    #[garde(custom(env_fits))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Working directory; the user's home when absent.
    #[garde(length(bytes, min = 1, max = 4096), inner(custom(no_nul)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Who runs it; `user` when absent.
    #[garde(length(bytes, min = 1, max = 256), inner(custom(no_nul)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// After so many seconds the command and everything it started are killed. 300 when absent.
    #[garde(range(min = 1, max = TIMEOUT_SECONDS_MAX))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// Answer as soon as it runs, and let it run when the caller leaves.
    #[serde(default)]
    pub detach: bool,
    /// How `stdout` and `stderr` are written.
    #[serde(default)]
    pub output_encoding: OutputEncoding,
    /// The same key for the same space runs the command once: whoever asks again gets the same answer.
    #[garde(length(bytes, min = 1, max = KEY_LENGTH_MAX), inner(custom(visible)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

impl ExecCommand {
    /// How long its answer may take for the command's sake.
    pub fn patience(&self) -> Duration {
        if self.detach {
            return Duration::ZERO;
        }
        Duration::from_secs(self.timeout_seconds.unwrap_or(TIMEOUT_SECONDS))
    }
}

fn visible(key: &str, _: &()) -> garde::Result {
    if key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    Err(garde::Error::new("is made of visible ASCII characters, without spaces"))
}

fn one_of<'a>(argv: &'a Option<Vec<String>>) -> impl FnOnce(&Option<String>, &()) -> garde::Result + 'a {
    move |command, &()| match (command, argv) {
        (Some(_), Some(_)) => Err(garde::Error::new("give `command` or `argv`, not both")),
        (None, None) => Err(garde::Error::new("give `command` or `argv`")),
        (Some(command), None) if command.contains('\0') => Err(garde::Error::new("contains a NUL")),
        (None, Some(argv)) if argv.iter().any(|a| a.contains('\0')) => {
            Err(garde::Error::new("`argv` contains a NUL"))
        }
        _ => Ok(()),
    }
}

fn not_both<'a>(stdin: &'a Option<String>) -> impl FnOnce(&Option<String>, &()) -> garde::Result + 'a {
    move |base64, &()| {
        if base64.is_some() && stdin.is_some() {
            return Err(garde::Error::new("give `stdin` or `stdinBase64`, not both"));
        }
        Ok(())
    }
}

fn env_fits(env: &BTreeMap<String, String>, _: &()) -> garde::Result {
    for (key, value) in env {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            // Only the name: what comes after the `=` is somebody's value.
            let name: String = key.chars().take_while(|c| *c != '=').take(64).collect();
            return Err(garde::Error::new(format!("{name:?} is no variable: no `=`, no NUL, not empty")));
        }
    }
    Ok(())
}

/// Paths, users and directories reach system calls.
pub(super) fn no_nul(text: &str, _: &()) -> garde::Result {
    if text.contains('\0') { Err(garde::Error::new("contains a NUL")) } else { Ok(()) }
}

/// What `execCommand` answers when the command has ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExecResult {
    /// Exit code; 128 + n after signal n; absent for a detached command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Its pid inside the space.
    pub pid: u32,
    /// The first MiB of standard output.
    #[serde(default)]
    pub stdout: String,
    /// The first MiB of standard error.
    #[serde(default)]
    pub stderr: String,
    /// Whether output beyond the first MiB was dropped.
    #[serde(default)]
    pub stdout_truncated: bool,
    /// Whether output beyond the first MiB was dropped.
    #[serde(default)]
    pub stderr_truncated: bool,
    /// Whether it was killed because its time was up.
    #[serde(default)]
    pub timed_out: bool,
    /// Whether it was killed because everybody who asked for it had left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub canceled: bool,
    /// Whether this is what an earlier request with the same idempotency key came to: nothing was run for this one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
    /// Whether it runs on by itself.
    #[serde(default)]
    pub detached: bool,
    /// From start to end, in milliseconds.
    #[serde(default)]
    pub duration_ms: u64,
    /// How the space came back, if it slept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Resumed>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::parse;

    #[test]
    fn a_command_is_one_line_or_one_argv() {
        let good = [r#"{"name":"a","command":"ls"}"#, r#"{"name":"a","argv":["ls","-l"],"detach":true}"#];
        let longest =
            format!(r#"{{"name":"a","command":"ls","idempotencyKey":"{}"}}"#, "~".repeat(KEY_LENGTH_MAX));
        parse::<ExecCommand>(longest.as_bytes()).expect("the longest key");
        let longer = longest.replace("~~", "~~~");
        assert!(parse::<ExecCommand>(longer.as_bytes()).is_err(), "a key has a limit");
        for body in good {
            parse::<ExecCommand>(body.as_bytes()).expect(body);
        }
        let bad: &[(&str, &str)] = &[
            (r#"{"name":"a"}"#, "`command` or `argv`"),
            (r#"{"name":"a","command":"ls","argv":["ls"]}"#, "not both"),
            (r#"{"name":"a","argv":[]}"#, "argv"),
            (r#"{"name":"a","command":""}"#, "command"),
            (r#"{"name":"a","command":"ls","timeoutSeconds":0}"#, "timeoutSeconds"),
            (r#"{"name":"a","command":"ls","env":{"A=B":"1"}}"#, "env"),
            (r#"{"name":"a","command":"ls","cwd":"/a\u0000b"}"#, "cwd"),
            (r#"{"name":"a","command":"ls","stdin":"a","stdinBase64":"YQ=="}"#, "not both"),
            (r#"{"name":"a","command":"ls","tty":true}"#, "tty"),
            (r#"{"name":"a","command":"ls","idempotencyKey":""}"#, "idempotencyKey"),
            (r#"{"name":"a","command":"ls","idempotencyKey":"a b"}"#, "visible"),
            (r#"{"name":"a","command":"ls","idempotencyKey":"ü"}"#, "visible"),
        ];
        for (body, says) in bad {
            let error = parse::<ExecCommand>(body.as_bytes()).expect_err(body);
            assert!(error.message.contains(says), "{body}: {}", error.message);
        }
    }
}
