use std::{future::Future, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use drowse_shared::{
    api::{
        exec::{ExecCommand, ExecResult, OutputEncoding},
        spaces::{AcquireSpace, Acquired, OneSpace, Resumed, SpaceAnswer, State},
    },
    name::SpaceRef,
};
use tokio::time::Instant;

use crate::{
    args::Context,
    failure::{Exit, Failure, Outcome},
    output::{self, units::took},
};

/// `drowse demo`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The space to show it on
    #[arg(default_value = "hello")]
    name: SpaceRef,
}

/// What the command inside is asked, and what it must say.
const PYTHON: &str = "print(6*7)";

/// Acquires, runs, freezes, and runs again, and says what each took as a caller sees it.
pub(crate) async fn run(args: &Args, context: &Context) -> Outcome<Exit> {
    let (client, name) = (&context.client, &args.name);
    let wish = AcquireSpace {
        name: name.clone(),
        template: None,
        spec: None,
        policy: None,
        metadata: None,
        wait_seconds: None,
    };
    let (acquired, elapsed) = timed(client.call::<Acquired>("acquireSpace", &wish)).await?;
    let how = if acquired.created { "created" } else { "found" };
    say("acquire", name, &format!("{how} on {}", acquired.space.node), elapsed)?;

    let (result, elapsed) = timed(python(context, name)).await?;
    say("exec", name, &format!("python3 -c '{PYTHON}'  {}", answer(&result)?), elapsed)?;

    let one = OneSpace { name: name.clone() };
    let (frozen, elapsed) = timed(client.call::<SpaceAnswer>("freezeSpace", &one)).await?;
    say("freeze", name, &format!("its processes are {}", suspended(frozen.space.state)), elapsed)?;

    let (woken, elapsed) = timed(client.call::<SpaceAnswer>("wakeSpace", &one)).await?;
    say("wake", name, resumed(woken.resumed), elapsed)?;

    client.call::<SpaceAnswer>("freezeSpace", &one).await?;
    let (result, elapsed) = timed(python(context, name)).await?;
    say("exec", name, &format!("{}, then  {}", resumed(result.resumed), answer(&result)?), elapsed)?;
    Ok(Exit::OK)
}

async fn python(context: &Context, name: &SpaceRef) -> Outcome<ExecResult> {
    let request = ExecCommand {
        name: name.clone(),
        command: None,
        argv: Some(["python3", "-c", PYTHON].map(str::to_owned).to_vec()),
        stdin: None,
        stdin_base64: None,
        env: std::collections::BTreeMap::new(),
        cwd: None,
        user: None,
        timeout_seconds: Some(60),
        detach: false,
        output_encoding: OutputEncoding::Base64,
        idempotency_key: None,
    };
    context.client.call("execCommand", &request).await
}

/// What the command said, when it did what it should.
fn answer(result: &ExecResult) -> Outcome<String> {
    let stdout = BASE64.decode(&result.stdout).unwrap_or_default();
    if result.exit_code == Some(0) {
        return Ok(output::plain(String::from_utf8_lossy(&stdout).trim()));
    }
    let stderr = BASE64.decode(&result.stderr).unwrap_or_default();
    Err(Failure::new(format!("python3 inside failed: {}", String::from_utf8_lossy(&stderr).trim())))
}

fn suspended(state: State) -> &'static str {
    if state == State::Frozen { "suspended" } else { state.as_str() }
}

fn resumed(how: Option<Resumed>) -> &'static str {
    match how {
        Some(Resumed::Thawed) => "thawed",
        Some(Resumed::Restarted) => "restarted",
        Some(Resumed::Restored) => "restored",
        None => "was awake",
    }
}

async fn timed<T>(work: impl Future<Output = Outcome<T>>) -> Outcome<(T, Duration)> {
    let started = Instant::now();
    Ok((work.await?, started.elapsed()))
}

fn say(verb: &str, name: &SpaceRef, what: &str, elapsed: Duration) -> Outcome<()> {
    let name = name.to_string();
    output::line(&format!("  {verb:<8} {name:<10} {what:<38} {}", took(elapsed)))
}
