use std::process::ExitCode;

use drowse_shared::api::{Code, Error};

use crate::output::plain;

/// Most nodes whose removal is shown.
const REMOVALS_MAX: usize = 3;

/// The exit code of the whole command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

impl Exit {
    /// Done.
    pub(crate) const OK: Self = Self(0);
    /// The command failed; the error says why.
    pub(crate) const FAILED: Self = Self(1);
    /// The command line is wrong.
    pub(crate) const USAGE: Self = Self(64);
    /// `acquire`: it still wakes; ask again.
    pub(crate) const NOT_YET: Self = Self(75);
    /// `exec`: the command's time was up and it was killed.
    pub(crate) const TIMED_OUT: Self = Self(124);
    /// `exec`: drowse itself failed; the command did not run, or its answer was lost.
    pub(crate) const NOT_RUN: Self = Self(125);
    /// `exec`: there is no such program in the space.
    pub(crate) const NO_PROGRAM: Self = Self(127);
    /// Ctrl-C.
    pub(crate) const INTERRUPTED: Self = Self(130);
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.0)
    }
}

/// Why a command failed, in one sentence, and the next step if there is one.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    wire: Option<Box<Error>>,
    exit: Exit,
}

/// What commands answer.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A failure with this sentence.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, wire: None, exit: Exit::FAILED }
    }

    /// A command line that cannot be meant.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::USAGE, ..Self::new(message) }
    }

    /// What the fleet answered, with the next step an operator has.
    pub(crate) fn answered(error: Error) -> Self {
        let hint = next_step(&error);
        Self { message: error.message.clone(), hint, wire: Some(Box::new(error)), exit: Exit::FAILED }
    }

    /// Adds the next step.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Replaces the sentence; what programs read stays.
    #[must_use]
    pub(crate) fn says(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    /// Ends the command with another code.
    #[must_use]
    pub(crate) fn exit(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// The sentence.
    pub(crate) fn sentence(&self) -> &str {
        &self.message
    }

    /// The stable word, when the fleet answered with one.
    pub(crate) fn code(&self) -> Option<&Code> {
        self.wire.as_ref().map(|error| &error.code)
    }

    /// For a person. Names of files inside a space may be in it, and whoever owns the space chose them.
    fn text(&self) -> String {
        let mut text = format!("error: {}\n", plain(&self.message));
        for line in self.hint.iter().flat_map(|hint| hint.lines()) {
            text.push_str(&format!("       {}\n", plain(line)));
        }
        text
    }

    /// Says it on standard error, as a sentence or as one line of JSON.
    pub(crate) fn report(self, json: bool) -> Exit {
        if json {
            let body = match &self.wire {
                Some(error) => serde_json::json!(error),
                None => serde_json::json!({ "code": "client", "message": self.message }),
            };
            eprintln!("{body}");
        } else {
            eprint!("{}", self.text());
        }
        self.exit
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::answered(error)
    }
}

/// Of `fs_err`, whose errors name their file.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// What a person can do about an answer, unless its sentence already says so.
fn next_step(error: &Error) -> Option<String> {
    let retry = error
        .retry_after_seconds
        .filter(|_| !error.message.to_lowercase().contains("retry in"))
        .map(|seconds| format!("Retry in {seconds} s"));
    let silent = match error.code {
        Code::NodeSilent | Code::NodeUnreachable if !error.message.contains("node rm") => nodes(error),
        _ => Vec::new(),
    };
    match (retry, silent.as_slice()) {
        (Some(retry), []) => Some(format!("{retry}.")),
        // One that fell a moment ago is mostly back in another one: first comes a look, and removal last.
        (retry, [node]) => Some(format!(
            "{}, or look with: drowse node ls\nIf {node} is gone for good: drowse node rm {node}",
            retry.unwrap_or_else(|| "Retry in a moment".to_owned())
        )),
        (retry, [_, _, ..]) => Some(format!(
            "{}, or look with: drowse node ls\nIf one is gone for good: {}",
            retry.unwrap_or_else(|| "Retry in a moment".to_owned()),
            removals(&silent)
        )),
        (None, []) => match error.code {
            Code::Unauthenticated => Some(
                "Give the fleet's token in DROWSE_TOKEN or DROWSE_TOKEN_FILE, or its directory with --state."
                    .to_owned(),
            ),
            Code::TemplateNotFound => {
                Some("On that node, deploy/base/build makes the template \"base\".".to_owned())
            }
            Code::NodeRemoved => Some("Take the node back with: drowse node readmit NODE".to_owned()),
            _ => None,
        },
    }
}

/// How each of several nodes is removed.
fn removals(nodes: &[String]) -> String {
    let mut commands: Vec<String> =
        nodes.iter().take(REMOVALS_MAX).map(|node| format!("drowse node rm {node}")).collect();
    if nodes.len() > REMOVALS_MAX {
        commands.push("…".to_owned());
    }
    commands.join(", ")
}

/// The nodes an answer names in its details.
fn nodes(error: &Error) -> Vec<String> {
    let names = error.details.get("nodes").and_then(|value| value.as_array()).cloned().unwrap_or_default();
    names
        .iter()
        .filter_map(|node| node.as_str().or_else(|| node.get("node").and_then(|n| n.as_str())))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_space_calls_its_files_cannot_reach_the_terminal() {
        let named =
            Error::new(Code::PermissionDenied, "/home/user/\x1b]0;mine\x07\nerror: Permission denied");
        let failure = Failure::answered(named).hint("one\ntwo \x1b[2J");
        assert_eq!(
            failure.text(),
            "error: /home/user/\u{fffd}]0;mine\u{fffd}\u{fffd}error: Permission denied\n       one\n       two \u{fffd}[2J\n"
        );
    }

    #[test]
    fn the_next_step_is_named_once() {
        let silent = |nodes: &[&str]| {
            Error::new(Code::NodeSilent, "node-2 has not answered for 42 s").with("nodes", nodes.to_vec())
        };
        let cases: Vec<(Error, Option<&str>)> = vec![
            (
                silent(&["node-2"]),
                Some(
                    "Retry in 5 s, or look with: drowse node ls\nIf node-2 is gone for good: drowse node rm node-2",
                ),
            ),
            (
                silent(&["a", "b"]),
                Some(
                    "Retry in 5 s, or look with: drowse node ls\n\
                     If one is gone for good: drowse node rm a, drowse node rm b",
                ),
            ),
            (
                silent(&["a", "b", "c", "d"]),
                Some(
                    "Retry in 5 s, or look with: drowse node ls\n\
                     If one is gone for good: drowse node rm a, drowse node rm b, drowse node rm c, …",
                ),
            ),
            (Error::new(Code::NoCapacity, "no node can take it"), Some("Retry in 5 s.")),
            (Error::new(Code::NoCapacity, "full. Retry in 9 s."), None),
            (Error::new(Code::WrongState, "it is frozen"), None),
        ];
        for (error, hint) in cases {
            assert_eq!(next_step(&error).as_deref(), hint, "{error:?}");
        }
    }
}
