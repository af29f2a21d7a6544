use std::sync::Arc;

use axum::extract::State;
use base64::{Engine, engine::general_purpose::STANDARD};
use drowse_shared::api::{
    Error,
    exec::{ExecCommand, ExecResult, OutputEncoding},
};

use super::{error, expect::Sender, request::Json};
use crate::{
    agent_client::{
        self,
        process::{Command, Kept, Outcome, run},
    },
    lifecycle::wake,
    node::Node,
};

const VERB: &str = "execCommand";
/// What makes a word of a shell more than it looks.
const QUOTES: [char; 5] = ['"', '\'', '\\', '$', '`'];

/// Runs a command. A client that leaves drops this future, and with it the connection that keeps the command alive.
pub(super) async fn exec(
    State(node): State<Arc<Node>>,
    sender: Sender,
    Json(wish): Json<ExecCommand>,
) -> Result<axum::Json<ExecResult>, Error> {
    let tag = format!("exec-{:016x}", node.env.random_u64());
    // Before anything is woken for it.
    Command::new(&wish, &tag).map_err(|why| error::agent(&why))?;
    let (mut space, mut resumed) =
        wake::used(&node, &wish.name, VERB).await.map_err(sender.misled(&wish.name))?;
    let shown = shown(&wish);
    let mut tries_left = 1;
    let outcome = loop {
        let command = Command::new(&wish, &tag).map_err(|why| error::agent(&why))?;
        let guard = node.live.run(space.id, format!("exec {shown}"), node.env.clock.wall());
        let started = |pid| guard.rename(format!("exec {shown} (pid {pid})"));
        let alive = || node.touch(&space, VERB);
        match run(&node.place(space.id), command, started, alive).await {
            Err(agent_client::Error::Unreachable(why)) if tries_left > 0 => {
                tries_left -= 1;
                drop(guard);
                let revived = wake::revive(&node, &space, &why, VERB).await?;
                (space, resumed) = (revived.0, revived.1.or(resumed));
            }
            outcome => break outcome.map_err(|why| error::agent(&why))?,
        }
    };
    node.touch(&space, VERB);
    Ok(axum::Json(ExecResult { resumed, ..result(outcome, &wish) }))
}

fn result(outcome: Outcome, wish: &ExecCommand) -> ExecResult {
    let text = |kept: Kept| match wish.output_encoding {
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
        detached: wish.detach,
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
