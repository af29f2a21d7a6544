use std::rc::Rc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, Response, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

use super::Process;
use super::table::{Selector, Table};
use crate::body::Body;
use crate::connect::{self, Code, Error};

/// How long a command may leave its stdin unread before the sender is told.
const STDIN_WAIT: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Request {
    process: Option<Selector>,
    input: Option<Input>,
    signal: Option<Value>,
}

#[derive(Deserialize)]
struct Input {
    stdin: Option<String>,
    pty: Option<String>,
}

/// Serves the unary calls of the process service.
pub(crate) async fn call(
    table: &Rc<Table>,
    method: &str,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Response<Body>, Error> {
    let request: Request = connect::unary_request(body).await?;
    let selector = request.process.as_ref();
    match method {
        "List" => return Ok(connect::json_response(StatusCode::OK, &list(table))),
        "SendInput" => send_input(&*table.running(selector)?, request.input).await?,
        "CloseStdin" => close_stdin(&*table.running(selector)?).await?,
        "SendSignal" => {
            let signal = signal_number(request.signal.as_ref())?;
            let tree = headers.get("drowse-tree").is_some_and(|value| value.as_bytes() == b"1");
            send_signal(&*table.running(selector)?, signal, tree).await?;
        }
        "Update" => return Err(Error::new(Code::Unimplemented, "this agent has no terminals to resize yet")),
        _ => {
            return Err(Error::new(Code::Unimplemented, format!("process.Process has no method {method:?}")));
        }
    }
    Ok(connect::json_response(StatusCode::OK, &json!({})))
}

fn list(table: &Table) -> Value {
    let describe = |process: &Rc<Process>| {
        let mut info = json!({"config": process.config, "pid": process.pid()});
        if let Some(tag) = &process.tag {
            info["tag"] = tag.clone().into();
        }
        info
    };
    json!({"processes": table.all().iter().map(describe).collect::<Vec<_>>()})
}

async fn send_input(process: &Process, input: Option<Input>) -> Result<(), Error> {
    let input = input.ok_or_else(|| Error::new(Code::InvalidArgument, "input is missing"))?;
    if input.pty.is_some() {
        return Err(Error::new(Code::FailedPrecondition, "the process has no terminal"));
    }
    let bytes = STANDARD
        .decode(input.stdin.unwrap_or_default())
        .map_err(|error| Error::new(Code::InvalidArgument, format!("input.stdin is not base64: {error}")))?;
    let write = async {
        let mut stdin = process.stdin.lock().await;
        let pipe = stdin.as_mut().ok_or_else(no_stdin)?;
        tokio::select! {
            biased;
            written = pipe.write_all(&bytes) => written.map_err(|_| no_stdin()),
            _ = process.child.wait() => Err(no_stdin()),
        }
    };
    let late = || Error::new(Code::DeadlineExceeded, "the process does not read its stdin");
    tokio::time::timeout(STDIN_WAIT, write).await.map_err(|_| late())?
}

async fn close_stdin(process: &Process) -> Result<(), Error> {
    let late = |_| Error::new(Code::DeadlineExceeded, "the process does not read its stdin");
    let mut stdin = tokio::time::timeout(STDIN_WAIT, process.stdin.lock()).await.map_err(late)?;
    let closed: Option<pipe::Sender> = stdin.take();
    closed.map(drop).ok_or_else(no_stdin)
}

fn no_stdin() -> Error {
    Error::new(Code::FailedPrecondition, "the process's stdin is closed")
}

fn signal_number(signal: Option<&Value>) -> Result<i32, Error> {
    let number = match signal {
        Some(Value::String(name)) => match name.as_str() {
            "SIGNAL_SIGKILL" => Some(libc::SIGKILL),
            "SIGNAL_SIGTERM" => Some(libc::SIGTERM),
            _ => None,
        },
        Some(Value::Number(number)) => number.as_i64().and_then(|number| i32::try_from(number).ok()),
        _ => None,
    };
    let known = number.filter(|number| (1..=64).contains(number));
    known.ok_or_else(|| {
        let words = "signal: SIGNAL_SIGKILL, SIGNAL_SIGTERM, or a number from 1 to 64";
        Error::new(Code::InvalidArgument, words)
    })
}

async fn send_signal(process: &Process, signal: i32, tree: bool) -> Result<(), Error> {
    if process.child.exit().is_some() {
        return Err(Error::new(Code::NotFound, format!("process {} has ended", process.pid())));
    }
    match (tree, signal) {
        (true, libc::SIGKILL) => process.kill_tree().await,
        (true, _) => super::tree::signal(process.target(), signal).await,
        (false, _) => {
            let sent = crate::sys::signal(-process.pid(), signal);
            sent.map_err(|error| Error::from_io(&format!("process {}", process.pid()), &error))?;
        }
    }
    Ok(())
}
