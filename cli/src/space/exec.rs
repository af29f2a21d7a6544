use std::{collections::BTreeMap, io::IsTerminal, io::Write, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use drowse_shared::{
    api::{
        Code, JSON_BODY_BYTES_MAX,
        exec::{ExecCommand, ExecResult, OUTPUT_BYTES_MAX, OutputEncoding, TIMEOUT_SECONDS},
    },
    name::SpaceRef,
    units,
};
use tokio::io::AsyncReadExt;

use crate::{
    args::Context,
    failure::{Exit, Failure, Outcome},
    output::{self, units::bytes},
};

/// Output as it comes.
mod stream;

/// Most standard input a command gets: what fits a request in base64, with room for the rest of it.
const STDIN_BYTES_MAX: usize = (JSON_BODY_BYTES_MAX - (64 << 10)) / 4 * 3;
/// How long standard input may be silent before a person is told what is being waited for.
const STDIN_PATIENCE: Duration = Duration::from_secs(3);

/// `drowse space exec`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Standard input is passed on unless it is a terminal; it is read to its end first. Output comes as it is \
                  written, however much it is; with --key or --json what is beyond the first MiB of each stream is \
                  dropped, and that is said. Ctrl-C ends the command inside as well, unless it is detached.\n\n\
                  Exit codes: that of the command (128 + n after signal n); 124 its time was up and it was killed, \
                  125 drowse itself failed (the command did not run, or its answer was lost), 127 there is no such \
                  program, 64 wrong usage, 130 interrupted."
)]
pub(crate) struct Args {
    /// The space, by name or id
    name: SpaceRef,
    /// Who runs it [default: user]
    #[arg(long, short)]
    user: Option<String>,
    /// Where it runs [default: the user's home]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// A variable to add; may be given several times
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// After this long it is killed with everything it started [default: 300s]
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    timeout: Option<Duration>,
    /// Answer once it runs and let it run on; prints its pid
    #[arg(long, short)]
    detach: bool,
    /// Run it once: the same key in the same space answers what came of it instead of running it again
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Pass no standard input
    #[arg(long, short = 'n')]
    no_stdin: bool,
    /// The program and its arguments, after `--`
    #[arg(required = true, last = true, value_name = "ARGV")]
    argv: Vec<String>,
}

/// `KEY=VALUE`.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not KEY=VALUE")),
    }
}

/// Runs the command and becomes it, as far as a caller can see.
pub(super) async fn run(args: Args, context: &Context) -> Outcome<Exit> {
    let stdin = if args.no_stdin || std::io::stdin().is_terminal() { Vec::new() } else { stdin().await? };
    let timeout = args.timeout.map(|timeout| timeout.as_secs().max(1));
    let request = ExecCommand {
        name: args.name.clone(),
        command: None,
        argv: Some(args.argv),
        stdin: None,
        stdin_base64: (!stdin.is_empty()).then(|| BASE64.encode(&stdin)),
        env: args.env.into_iter().collect::<BTreeMap<_, _>>(),
        cwd: args.cwd,
        user: args.user,
        timeout_seconds: timeout,
        detach: args.detach,
        output_encoding: OutputEncoding::Base64,
        idempotency_key: args.key,
    };
    let wait = Duration::from_secs(timeout.unwrap_or(TIMEOUT_SECONDS));
    if !context.json && !request.detach && request.idempotency_key.is_none() {
        return match stream::run(&request, context).await {
            Ok(ended) if ended.timed_out => {
                eprintln!("drowse: the command was killed after {} s (--timeout)", wait.as_secs());
                Ok(Exit::TIMED_OUT)
            }
            Ok(ended) => {
                Ok(exit_of(&ExecResult { exit_code: Some(ended.exit_code), ..ExecResult::default() }))
            }
            Err(failure) => Err(not_run(failure, &args.name, context).await),
        };
    }
    let answer = match context.client.answer("execCommand", &request, wait).await {
        Ok(answer) => answer,
        Err(failure) => return Err(not_run(failure, &args.name, context).await),
    };
    let result: ExecResult = answer.read().map_err(|failure| failure.exit(Exit::NOT_RUN))?;
    let exit = exit_of(&result);
    if context.json {
        output::json(&answer.body)?;
        return Ok(exit);
    }
    if result.detached {
        output::line(&format!("pid {}", result.pid))?;
        return Ok(exit);
    }
    output::bytes(&decoded(&result.stdout)?)?;
    // Whoever closed standard error does not want it.
    let _ = std::io::stderr().write_all(&decoded(&result.stderr)?);
    for (cut, stream) in [(result.stdout_truncated, "stdout"), (result.stderr_truncated, "stderr")] {
        if cut {
            eprintln!(
                "drowse: {stream} was longer than {}; the rest was dropped (write it to a file and `drowse space cp` it)",
                bytes(OUTPUT_BYTES_MAX as u64)
            );
        }
    }
    if result.replayed {
        eprintln!("drowse: it ran before, under this key; this is what came of it then");
    }
    if result.canceled {
        eprintln!("drowse: it was killed because nobody waited for it any more");
    }
    if result.timed_out {
        eprintln!("drowse: the command was killed after {} s (--timeout)", wait.as_secs());
    }
    Ok(exit)
}

async fn not_run(failure: Failure, name: &SpaceRef, context: &Context) -> Failure {
    let exit = match failure.code() {
        Some(Code::CommandNotFound) => Exit::NO_PROGRAM,
        _ => Exit::NOT_RUN,
    };
    super::nearest::named(failure, name, &context.client).await.exit(exit)
}

pub(super) fn decoded(text: &str) -> Outcome<Vec<u8>> {
    BASE64
        .decode(text)
        .map_err(|error| Failure::new(format!("the output came damaged: {error}")).exit(Exit::NOT_RUN))
}

fn exit_of(result: &ExecResult) -> Exit {
    if result.timed_out {
        return Exit::TIMED_OUT;
    }
    match result.exit_code {
        Some(code) => Exit(u8::try_from(code).unwrap_or(u8::MAX)),
        None => Exit::OK,
    }
}

/// All of standard input, within what a request can carry.
async fn stdin() -> Outcome<Vec<u8>> {
    let mut input = Vec::new();
    let most = STDIN_BYTES_MAX as u64 + 1;
    let mut reader = tokio::io::stdin().take(most);
    let reading = reader.read_to_end(&mut input);
    let mut reading = std::pin::pin!(reading);
    let read = match tokio::time::timeout(STDIN_PATIENCE, reading.as_mut()).await {
        Ok(read) => read,
        Err(_) => {
            eprintln!("drowse: waiting for the end of standard input (-n passes none)");
            reading.await
        }
    };
    read.map_err(|error| {
        Failure::new(format!("standard input cannot be read: {error}")).exit(Exit::NOT_RUN)
    })?;
    if input.len() > STDIN_BYTES_MAX {
        return Err(Failure::new(format!("standard input is longer than {}", bytes(STDIN_BYTES_MAX as u64)))
            .hint("Copy it in first with: drowse space cp - NAME:PATH")
            .exit(Exit::NOT_RUN));
    }
    Ok(input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_the_commands_own() {
        let result = |exit_code, timed_out| ExecResult { exit_code, timed_out, ..ExecResult::default() };
        let cases = [
            (result(Some(0), false), 0),
            (result(Some(3), false), 3),
            (result(Some(137), false), 137),
            (result(Some(137), true), 124),
            (result(Some(999), false), 255),
            (result(None, false), 0),
        ];
        for (result, code) in cases {
            assert_eq!(exit_of(&result), Exit(code), "{result:?}");
        }
    }

    #[test]
    fn a_pair_has_a_key() {
        assert_eq!(pair("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert_eq!(pair("A="), Ok(("A".to_owned(), String::new())));
        assert!(pair("=b").is_err() && pair("A").is_err());
    }
}
