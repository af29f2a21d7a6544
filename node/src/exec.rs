//! Commands: a space that sleeps is woken for one, a body that died is started again, and a key makes one run once.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use drowse_shared::{
    api::{
        Error,
        exec::{ExecCommand, ExecResult, OutputEncoding},
        spaces::Resumed,
    },
    name::SpaceRef,
};

use crate::{
    agent_client::{
        self, Kind,
        process::{Command, Kept, Outcome, Running, begin},
    },
    door::error,
    lifecycle::wake,
    live::RunGuard,
    node::Node,
    space::Space,
};

/// Commands that run once per key.
pub mod keyed;
/// Commands whose output is handed on as it comes.
pub mod stream;

const VERB: &str = "execCommand";
/// What makes a word of a shell more than it looks.
const QUOTES: [char; 5] = ['"', '\'', '\\', '$', '`'];

/// Why there is no outcome.
enum Failed {
    /// It did not run.
    NotRun(Error),
    /// It may have run.
    Unsure(agent_client::Error),
}

impl Failed {
    fn error(self) -> Error {
        match self {
            Self::NotRun(error) => error,
            Self::Unsure(why) => error::agent(&why),
        }
    }
}

/// A fresh name by which an agent finds a command again.
fn tag(node: &Node) -> String {
    format!("exec-{:016x}", node.env.random_u64())
}

/// Runs a command. Dropping the future drops the connection that keeps the command alive, unless it is detached.
///
/// # Errors
/// Why it did not run, or that it is not known how it ended.
pub async fn exec(node: &Arc<Node>, wish: &ExecCommand) -> Result<ExecResult, Error> {
    let (outcome, resumed) = once(node, &wish.name, wish, &tag(node), |_| ()).await.map_err(Failed::error)?;
    Ok(ExecResult { resumed, ..result(outcome, wish.output_encoding, wish.detach) })
}

/// One run in a space that is made usable for it. `started` is told the pid.
async fn once(
    node: &Arc<Node>,
    name: &SpaceRef,
    wish: &ExecCommand,
    tag: &str,
    started: impl Fn(u32),
) -> Result<(Outcome, Option<Resumed>), Failed> {
    let Begun { mut running, space, resumed, guard: _guard } = begun(node, name, wish, tag, VERB).await?;
    started(running.pid);
    let place = node.place(space.id);
    let outcome = if wish.detach {
        node.env.spawn("stdin", running.feed(&place));
        Outcome { pid: running.pid, took: running.took(), ..Outcome::default() }
    } else {
        running.to_end(&place, &|| node.touch(&space, VERB)).await.map_err(Failed::Unsure)?
    };
    node.touch(&space, VERB);
    Ok((outcome, resumed))
}

/// A command that was started.
struct Begun {
    running: Running,
    space: Space,
    resumed: Option<Resumed>,
    /// The space does not sleep by itself while it is held.
    guard: RunGuard,
}

/// Starts a command in a space that is made usable for it; once more if its body had died unseen.
async fn begun(
    node: &Arc<Node>,
    name: &SpaceRef,
    wish: &ExecCommand,
    tag: &str,
    verb: &'static str,
) -> Result<Begun, Failed> {
    let command = || Command::new(wish, tag).map_err(|why| Failed::NotRun(error::agent(&why)));
    // Before anything is woken for it.
    command()?;
    let (mut space, mut resumed) = wake::used(node, name, verb).await.map_err(Failed::NotRun)?;
    let shown = shown(wish);
    let mut tries_left = 1;
    loop {
        let command = command()?;
        let guard = node.live.run(space.id, format!("exec {shown}"), node.env.clock.wall());
        match begin(&node.place(space.id), command).await {
            Err(agent_client::Error::Unreachable(why)) if tries_left > 0 => {
                tries_left -= 1;
                drop(guard);
                let revived = wake::revive(node, &space, &why, verb).await.map_err(Failed::NotRun)?;
                (space, resumed) = (revived.0, revived.1.or(resumed));
            }
            Ok(running) => {
                guard.rename(format!("exec {shown} (pid {})", running.pid));
                return Ok(Begun { running, space, resumed, guard });
            }
            Err(why) if did_not_start(&why) => return Err(Failed::NotRun(error::agent(&why))),
            Err(why) => return Err(Failed::Unsure(why)),
        }
    }
}

/// Whether an agent that says this has certainly started nothing.
fn did_not_start(why: &agent_client::Error) -> bool {
    match why {
        agent_client::Error::Unreachable(_) => true,
        // The start itself may still come to its end.
        agent_client::Error::Refused { kind, .. } => !matches!(kind, Kind::Deadline | Kind::Failed),
        _ => false,
    }
}

fn result(outcome: Outcome, encoding: OutputEncoding, detached: bool) -> ExecResult {
    let text = |kept: Kept| match encoding {
        OutputEncoding::Utf8 => String::from_utf8(kept.bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
        OutputEncoding::Base64 => STANDARD.encode(kept.bytes),
    };
    ExecResult {
        exit_code: outcome.exit_code,
        pid: outcome.pid,
        stdout_truncated: outcome.stdout.truncated,
        stderr_truncated: outcome.stderr.truncated,
        stdout: text(outcome.stdout),
        stderr: text(outcome.stderr),
        timed_out: outcome.timed_out,
        canceled: false,
        replayed: false,
        detached,
        duration_ms: u64::try_from(outcome.took.as_millis()).unwrap_or(u64::MAX),
        resumed: None,
    }
}

/// The program alone: arguments may carry secrets, and so may what is assigned before it. Where an assignment ends is the
/// shell's to say once it is quoted.
fn shown(wish: &ExecCommand) -> String {
    let words = wish.command.as_deref().unwrap_or_default().split_whitespace();
    let program = match wish.argv.as_deref() {
        Some([program, ..]) => program,
        _ => {
            let mut rest = words.skip_while(|word| word.contains('=') && !word.contains(QUOTES));
            rest.next().filter(|word| !word.contains(QUOTES)).unwrap_or("bash")
        }
    };
    program.rsplit('/').next().unwrap_or(program).chars().take(32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use drowse_shared::api::parse;

    #[test]
    fn what_is_shown_of_a_command_holds_no_secret() {
        let cases = [
            (r#"{"name":"a","command":"make -j2 all"}"#, "make"),
            (r#"{"name":"a","command":"TOKEN=secret /usr/bin/curl -u x:secret"}"#, "curl"),
            (r#"{"name":"a","argv":["/opt/bin/tool","--key=secret"]}"#, "tool"),
            (r#"{"name":"a","command":"A=secret"}"#, "bash"),
            (r#"{"name":"a","command":"A='a secret' make"}"#, "bash"),
            (r#"{"name":"a","command":"A=1 B=\"a secret\" make"}"#, "bash"),
            (r#"{"name":"a","command":"A=$(echo secret) make"}"#, "bash"),
            (r#"{"name":"a","command":"'secret' x"}"#, "bash"),
        ];
        for (body, expected) in cases {
            assert_eq!(shown(&parse(body.as_bytes()).expect("valid")), expected, "{body}");
        }
    }
}
