use std::{borrow::Cow, convert::Infallible, sync::Arc, time::Duration};

use axum::body::Body;
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use drowse_shared::{
    api::exec::{ExecCommand, OUTPUT_BYTES_MAX, TIMEOUT_SECONDS},
    id::SpaceId,
    seams::Env,
};
use http::{HeaderValue, header};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::{
    ANSWER_BYTES_MAX, Error, dial, envelope::Envelopes, envelope::wrap, identify, refused, request, whole,
};
use crate::executor::Executor;

const START: &str = "/process.Process/Start";
const SEND_INPUT: &str = "/process.Process/SendInput";
const CLOSE_STDIN: &str = "/process.Process/CloseStdin";
const CONNECT: &str = "/process.Process/Connect";
const SEND_SIGNAL: &str = "/process.Process/SendSignal";
/// Seconds after which a quiet stream says that it is there.
const KEEPALIVE: &str = "keepalive-ping-interval";
/// Bytes of stdin in one message.
const STDIN_PIECE_BYTES: usize = 64 << 10;
/// How long the agent may take to kill a tree whose time is up, before nobody waits any more.
pub const KILL: Duration = Duration::from_secs(15);

/// A command as it is to run.
pub struct Command {
    message: Vec<u8>,
    user: Option<String>,
    stdin: Option<Bytes>,
    timeout: Option<Duration>,
    detach: bool,
    /// Whether it goes on when this connection ends; its tag finds it again.
    stays: bool,
}

impl Command {
    /// Reads a wish. `tag` finds a command again that is detached or has a key.
    ///
    /// # Errors
    /// When its stdin is not base64.
    pub fn new(wish: &ExecCommand, tag: &str) -> Result<Self, Error> {
        let (program, arguments) = match (&wish.command, wish.argv.as_deref()) {
            (Some(line), _) => ("/bin/bash", vec!["-c", line.as_str()]),
            (None, Some([program, arguments @ ..])) => {
                (program.as_str(), arguments.iter().map(String::as_str).collect())
            }
            // The wish was checked: it has one of the two.
            (None, _) => ("", Vec::new()),
        };
        let stdin = match (&wish.stdin, &wish.stdin_base64) {
            (Some(text), _) => Some(Bytes::copy_from_slice(text.as_bytes())),
            (None, Some(base64)) => Some(STANDARD.decode(base64).map(Bytes::from).map_err(|error| {
                Error::Refused { kind: super::Kind::Invalid, message: format!("stdinBase64: {error}") }
            })?),
            (None, None) => None,
        };
        let stays = wish.detach || wish.idempotency_key.is_some();
        let message = json!({
            "process": { "cmd": program, "args": arguments, "envs": wish.env, "cwd": wish.cwd },
            "tag": stays.then_some(tag),
            "stdin": stdin.is_some(),
        });
        // A detached command runs until it ends, unless its caller said otherwise.
        let seconds = wish.timeout_seconds.or((!wish.detach).then_some(TIMEOUT_SECONDS));
        Ok(Self {
            message: wrap(message.to_string().as_bytes()),
            user: wish.user.clone(),
            stdin,
            timeout: seconds.map(Duration::from_secs),
            detach: wish.detach,
            stays,
        })
    }
}

/// What came of a command.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Its pid inside.
    pub pid: u32,
    /// Its exit code; absent while it runs.
    pub exit_code: Option<i32>,
    /// The head of its output.
    pub stdout: Kept,
    /// The head of its errors.
    pub stderr: Kept,
    /// Whether its time was up.
    pub timed_out: bool,
    /// From start to end.
    pub took: Duration,
}

/// The head of a stream; the rest was read and dropped.
#[derive(Debug, Default)]
pub struct Kept {
    /// What was kept.
    pub bytes: Vec<u8>,
    /// Whether there was more.
    pub truncated: bool,
}

impl Kept {
    /// It was so much in all: what is missing was dropped on the way.
    fn of(&mut self, bytes: u64) {
        self.truncated |= bytes > self.bytes.len() as u64;
    }

    fn add(&mut self, base64: &str) -> Result<(), Error> {
        if self.truncated {
            return Ok(());
        }
        let piece = STANDARD.decode(base64).map_err(|error| Error::Nonsense(error.to_string()))?;
        let room = OUTPUT_BYTES_MAX - self.bytes.len();
        self.truncated = piece.len() > room;
        self.bytes.extend_from_slice(&piece[..piece.len().min(room)]);
        Ok(())
    }
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    event: Event<'a>,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(default)]
    start: Option<Start>,
    #[serde(borrow, default)]
    data: Option<Data<'a>>,
    #[serde(default)]
    end: Option<End>,
}

#[derive(Deserialize)]
struct Start {
    pid: u32,
}

#[derive(Deserialize)]
struct Data<'a> {
    #[serde(borrow, default)]
    stdout: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    stderr: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct End {
    #[serde(default)]
    exit_code: i32,
    #[serde(default)]
    status: String,
    /// How much it wrote in all, if the agent says so.
    #[serde(default)]
    output_bytes: Option<Written>,
}

#[derive(Deserialize)]
struct Written {
    stdout: u64,
    stderr: u64,
}

/// Where a command runs.
#[derive(Clone)]
pub struct Place {
    /// The seams.
    pub env: Env,
    /// The way in.
    pub executor: Arc<dyn Executor>,
    /// The space.
    pub id: SpaceId,
    /// Longest wait for whatever its agent does.
    pub patience: Duration,
}

impl Place {
    /// How often the agent is asked to say that it is there while a command is quiet: a few times before it is given up.
    fn keepalive(&self) -> HeaderValue {
        HeaderValue::from((self.patience / 4).as_secs().max(1))
    }
}

/// Runs a command to its end, or, detached, to its start. Dropping the future kills what is not detached.
///
/// `started` is told the pid, `alive` that something came out.
///
/// # Errors
/// Why it could not be run, or that the agent went silent.
pub async fn run(
    place: &Place,
    command: Command,
    started: impl FnOnce(u32),
    alive: impl Fn(),
) -> Result<Outcome, Error> {
    let line = dial(place).await?;
    let mut request = request("POST", START.to_owned(), Body::from(command.message))?;
    identify(&mut request, command.user.as_deref());
    let headers = request.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/connect+json"));
    headers.insert(KEEPALIVE, place.keepalive());
    if !command.stays {
        headers.insert("drowse-on-disconnect", HeaderValue::from_static("kill"));
    }
    if let Some(timeout) = command.timeout {
        let ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        headers.insert("drowse-timeout-ms", HeaderValue::from(ms));
    }
    let began = Instant::now();
    let reply = line.send(request).await?;
    let mut events = Envelopes::new(reply.response.into_body(), place.patience);
    let mut outcome = Outcome { pid: start(&mut events, place.patience).await?, ..Outcome::default() };
    started(outcome.pid);
    if command.detach {
        if let Some(stdin) = command.stdin {
            let (place, pid) = (place.clone(), outcome.pid);
            place.env.clone().spawn("stdin", async move { feed(&place, pid, stdin).await });
        }
        outcome.took = began.elapsed();
        return Ok(outcome);
    }
    let pid = outcome.pid;
    let ends = read(&mut events, &mut outcome, &alive);
    let feeding = async {
        if let Some(stdin) = command.stdin {
            feed(place, pid, stdin).await;
        }
        std::future::pending::<Infallible>().await
    };
    let limit = command.timeout.unwrap_or(Duration::from_secs(TIMEOUT_SECONDS)) + KILL;
    tokio::time::timeout(limit, async {
        drowse_shared::select_biased! {
            ended = ends => ended,
            never = feeding => match never {},
        }
    })
    .await
    .map_err(|_| Error::Late { what: "end the command", after: limit })??;
    outcome.took = began.elapsed();
    drop(reply.cut);
    Ok(outcome)
}

/// Waits for a command that was started before, found by its tag, until it ends or `limit` has passed; a detached one only
/// until it is found. Of its output the newest part is left.
///
/// # Errors
/// Why it could not be found, or that the agent went silent.
pub async fn join(
    place: &Place,
    tag: &str,
    detached: bool,
    limit: Duration,
    started: impl FnOnce(u32),
    alive: impl Fn(),
) -> Result<Outcome, Error> {
    let line = dial(place).await?;
    let message = wrap(json!({ "process": { "tag": tag } }).to_string().as_bytes());
    let mut request = request("POST", CONNECT.to_owned(), Body::from(message))?;
    let json = HeaderValue::from_static("application/connect+json");
    request.headers_mut().insert(header::CONTENT_TYPE, json);
    request.headers_mut().insert(KEEPALIVE, place.keepalive());
    let reply = line.send(request).await?;
    let mut events = Envelopes::new(reply.response.into_body(), place.patience);
    let mut outcome = Outcome { pid: start(&mut events, place.patience).await?, ..Outcome::default() };
    started(outcome.pid);
    if !detached {
        tokio::time::timeout(limit, read(&mut events, &mut outcome, &alive))
            .await
            .map_err(|_| Error::Late { what: "end the command", after: limit })??;
    }
    drop(reply.cut);
    Ok(outcome)
}

/// Kills a command that was started with a tag, and everything it started.
///
/// # Errors
/// That it is not there any more, or why it could not be done.
pub async fn kill(place: &Place, tag: &str) -> Result<(), Error> {
    let mut line = dial(place).await?;
    let message = json!({ "process": { "tag": tag }, "signal": "SIGNAL_SIGKILL" });
    let mut request = request("POST", SEND_SIGNAL.to_owned(), Body::from(message.to_string()))?;
    let headers = request.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert("drowse-tree", HeaderValue::from_static("1"));
    let response = line.ask(request).await?;
    let status = response.status();
    let body = whole(response.into_body(), ANSWER_BYTES_MAX, place.patience).await?;
    if status.is_success() { Ok(()) } else { Err(refused(status, &body)) }
}

/// The first event is the start.
async fn start(events: &mut Envelopes, patience: Duration) -> Result<u32, Error> {
    let message = tokio::time::timeout(patience, events.next())
        .await
        .map_err(|_| Error::Late { what: "start the command", after: patience })??
        .ok_or_else(|| Error::Nonsense("a stream without a start".to_owned()))?;
    let message: Message<'_> = serde_json::from_slice(&message).map_err(nonsense)?;
    message
        .event
        .start
        .map(|start| start.pid)
        .ok_or_else(|| Error::Nonsense("the first event is no start".to_owned()))
}

async fn read(events: &mut Envelopes, outcome: &mut Outcome, alive: &impl Fn()) -> Result<(), Error> {
    while let Some(message) = events.next().await? {
        let message: Message<'_> = serde_json::from_slice(&message).map_err(nonsense)?;
        if let Some(data) = message.event.data {
            alive();
            data.stdout.map_or(Ok(()), |text| outcome.stdout.add(&text))?;
            data.stderr.map_or(Ok(()), |text| outcome.stderr.add(&text))?;
        }
        if let Some(end) = message.event.end {
            outcome.exit_code = Some(end.exit_code);
            outcome.timed_out = end.status == "timeout";
            if let Some(Written { stdout, stderr }) = end.output_bytes {
                outcome.stdout.of(stdout);
                outcome.stderr.of(stderr);
            }
            return Ok(());
        }
    }
    Err(Error::Nonsense("the command's stream ended before the command".to_owned()))
}

#[expect(clippy::needless_pass_by_value, reason = "the shape `map_err` takes")]
fn nonsense(error: serde_json::Error) -> Error {
    Error::Nonsense(error.to_string())
}

/// Writes stdin piece by piece, then closes it. A command that does not read it, or has ended, is no error.
async fn feed(place: &Place, pid: u32, mut stdin: Bytes) {
    let fed = async {
        let mut line = dial(place).await?;
        let process = json!({ "pid": pid });
        while !stdin.is_empty() {
            let piece = stdin.split_to(stdin.len().min(STDIN_PIECE_BYTES));
            let message = json!({ "process": process, "input": { "stdin": STANDARD.encode(&piece) } });
            let _: serde_json::Value = line.call(SEND_INPUT, None, &message).await?;
        }
        let _: serde_json::Value = line.call(CLOSE_STDIN, None, &json!({ "process": process })).await?;
        Ok::<(), Error>(())
    };
    if let Err(error) = fed.await {
        tracing::debug!(%error, pid, "a command did not take its whole stdin");
    }
}
