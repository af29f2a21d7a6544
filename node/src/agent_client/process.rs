use std::{sync::Arc, time::Duration};

use axum::body::Body;
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use drowse_shared::{
    api::{
        attach::Size,
        exec::{ExecCommand, OUTPUT_BYTES_MAX, TIMEOUT_SECONDS},
    },
    id::SpaceId,
    seams::Env,
};
use http::{HeaderValue, header};
use serde_json::json;
use tokio::time::Instant;

use super::{ANSWER_BYTES_MAX, Error, dial, envelope::wrap, identify, refused, request, whole};
use crate::executor::Executor;

pub use running::{Channel, Ended, Running, Said};
pub use typist::Typist;

/// A command that runs.
mod running;
/// What is typed into a command.
mod typist;

const START: &str = "/process.Process/Start";
const SEND_INPUT: &str = "/process.Process/SendInput";
const CLOSE_STDIN: &str = "/process.Process/CloseStdin";
const CONNECT: &str = "/process.Process/Connect";
const SEND_SIGNAL: &str = "/process.Process/SendSignal";
const UPDATE: &str = "/process.Process/Update";
/// Seconds after which a quiet stream says that it is there.
pub(super) const KEEPALIVE: &str = "keepalive-ping-interval";
/// How long the agent may take to kill a tree whose time is up, before nobody waits any more.
pub const KILL: Duration = Duration::from_secs(15);

/// A command as it is to run.
pub struct Command {
    message: Vec<u8>,
    user: Option<String>,
    stdin: Option<Bytes>,
    timeout: Option<Duration>,
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
            stays,
        })
    }
}

/// A terminal as it is to be opened.
pub struct Terminal<'a> {
    /// For `/bin/bash -c`; a login shell when absent.
    pub command: Option<&'a str>,
    /// Lines and columns.
    pub size: Size,
    /// Who runs it.
    pub user: Option<&'a str>,
    /// Working directory.
    pub cwd: Option<&'a str>,
    /// Finds it again; without one it ends with its client.
    pub tag: Option<&'a str>,
}

impl From<Terminal<'_>> for Command {
    fn from(wish: Terminal<'_>) -> Self {
        let arguments = wish.command.map_or_else(|| vec!["-il"], |line| vec!["-c", line]);
        let message = json!({
            "process": { "cmd": "/bin/bash", "args": arguments, "cwd": wish.cwd },
            "pty": { "size": { "rows": wish.size.rows, "cols": wish.size.cols } },
            "tag": wish.tag,
        });
        Self {
            message: wrap(message.to_string().as_bytes()),
            user: wish.user.map(str::to_owned),
            stdin: None,
            timeout: None,
            stays: wish.tag.is_some(),
        }
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
    pub(super) fn keepalive(&self) -> HeaderValue {
        HeaderValue::from((self.patience / 4).as_secs().max(1))
    }
}

/// Starts a command. Dropping what it answers kills the command, unless it stays.
///
/// # Errors
/// Why it could not be started, or that the agent went silent.
pub async fn begin(place: &Place, command: Command) -> Result<Running, Error> {
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
    let running = Running::of(line.send(request).await?, place).await?;
    let limit = command.timeout.map(|timeout| timeout + KILL);
    Ok(running.since(began).within(limit).fed(command.stdin))
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
    let running = connect(place, json!({ "tag": tag }), false).await?;
    started(running.pid);
    if detached {
        return Ok(Outcome { pid: running.pid, ..Outcome::default() });
    }
    running.within(Some(limit)).to_end(place, &alive).await
}

/// Joins a command that was started before; `replay` asks for what is kept of its output. Dropping what it answers leaves the command as it is.
///
/// # Errors
/// Why it could not be found, or that the agent went silent.
pub async fn connect(place: &Place, which: serde_json::Value, replay: bool) -> Result<Running, Error> {
    let line = dial(place).await?;
    let message = wrap(json!({ "process": which }).to_string().as_bytes());
    let mut request = request("POST", CONNECT.to_owned(), Body::from(message))?;
    let json = HeaderValue::from_static("application/connect+json");
    let headers = request.headers_mut();
    headers.insert(header::CONTENT_TYPE, json);
    headers.insert(KEEPALIVE, place.keepalive());
    if replay {
        headers.insert("drowse-replay", HeaderValue::from_static("1"));
    }
    Running::of(line.send(request).await?, place).await
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
