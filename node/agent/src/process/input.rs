use std::rc::Rc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, Response};
use hyper::body::Incoming;
use serde::Deserialize;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

use super::Process;
use super::table::{Selector, Table};
use super::terminal::Terminal;
use crate::body::Body;
use crate::connect::{self, Code, Error, Messages};
use crate::gate::Pass;
use crate::patience::Limits;

/// How long a command may leave its stdin unread before the sender is told.
const INPUT_WAIT: Duration = Duration::from_secs(60);

/// Where a command's input goes.
pub(super) enum Input {
    /// Nowhere (any more).
    Closed,
    /// Its standard input.
    Pipe(pipe::Sender),
    /// Its terminal.
    Terminal(Rc<Terminal>),
}

/// Input as it comes over the wire.
#[derive(Deserialize)]
pub(super) struct Typed {
    stdin: Option<String>,
    pty: Option<String>,
}

#[derive(Deserialize)]
struct Message {
    start: Option<StartMessage>,
    data: Option<DataMessage>,
}

#[derive(Deserialize)]
struct StartMessage {
    process: Option<Selector>,
}

#[derive(Deserialize)]
struct DataMessage {
    input: Option<Typed>,
}

/// Serves StreamInput: first whose input it is, then pieces of it, each written before the next is read.
pub(crate) async fn stream(
    table: &Rc<Table>,
    headers: &HeaderMap,
    body: Incoming,
    pass: Option<Pass>,
) -> Result<Response<Body>, Error> {
    let deadline = Limits::read(headers)?.deadline();
    let place = table.open_stream().await?;
    // Between two pieces nothing is under way.
    drop(pass);
    let taken = take(table, Messages::new(body));
    match deadline {
        None => taken.await?,
        Some(deadline) => tokio::time::timeout(deadline, taken)
            .await
            .map_err(|_| Error::new(Code::DeadlineExceeded, "the stream's time is up"))??,
    }
    drop(place);
    Ok(connect::stream_response(Body::full(connect::last_message(b"{}"))))
}

async fn take(table: &Table, mut messages: Messages) -> Result<(), Error> {
    let first: Option<Message> = messages.next().await?;
    let start = first.and_then(|message| message.start);
    let start = start.ok_or_else(|| Error::new(Code::InvalidArgument, "the first message is start"))?;
    let process = table.running(start.process.as_ref())?;
    loop {
        let next = tokio::select! {
            biased;
            _ = process.child.wait() => {
                let words = format!("process {} has ended", process.pid());
                return Err(Error::new(Code::NotFound, words));
            }
            next = messages.next::<Message>() => next?,
        };
        match next {
            None => return Ok(()),
            Some(Message { data: Some(data), .. }) => {
                let _pass = table.gate.pass().await;
                send(&process, data.input).await?;
            }
            // A keepalive.
            Some(Message { data: None, .. }) => {}
        }
    }
}

/// Writes input whole; waits while the command does not read.
pub(super) async fn send(process: &Process, typed: Option<Typed>) -> Result<(), Error> {
    let typed = typed.ok_or_else(|| Error::new(Code::InvalidArgument, "input is missing"))?;
    let (text, to_terminal) = match (typed.stdin, typed.pty) {
        (stdin, None) => (stdin.unwrap_or_default(), false),
        (None, Some(pty)) => (pty, true),
        (Some(_), Some(_)) => {
            return Err(Error::new(Code::InvalidArgument, "input: either stdin or pty"));
        }
    };
    let bytes = STANDARD
        .decode(text)
        .map_err(|error| Error::new(Code::InvalidArgument, format!("input is not base64: {error}")))?;
    let write = async {
        let mut input = process.input.lock().await;
        let written = tokio::select! {
            biased;
            written = write(&mut input, &bytes, to_terminal) => written,
            _ = process.child.wait() => Err(closed()),
        };
        if process.child.exit().is_some() {
            *input = Input::Closed;
        }
        written
    };
    tokio::time::timeout(INPUT_WAIT, write).await.map_err(|_| unread())?
}

async fn write(input: &mut Input, bytes: &[u8], to_terminal: bool) -> Result<(), Error> {
    match input {
        Input::Pipe(pipe) if !to_terminal => pipe.write_all(bytes).await.map_err(|_| closed()),
        Input::Terminal(terminal) if to_terminal => terminal.write_all(bytes).await.map_err(|_| closed()),
        Input::Terminal(_) => {
            Err(Error::new(Code::FailedPrecondition, "the process has a terminal: send pty"))
        }
        Input::Pipe(_) => {
            Err(Error::new(Code::FailedPrecondition, "the process has no terminal: send stdin"))
        }
        Input::Closed => Err(closed()),
    }
}

/// Closes standard input.
pub(super) async fn close(process: &Process) -> Result<(), Error> {
    let input = tokio::time::timeout(INPUT_WAIT, process.input.lock());
    let mut input = input.await.map_err(|_| unread())?;
    match &*input {
        Input::Pipe(_) => {
            *input = Input::Closed;
            Ok(())
        }
        Input::Terminal(_) => {
            let words = "a terminal has no end of its own: send it 0x04";
            Err(Error::new(Code::FailedPrecondition, words))
        }
        Input::Closed => Err(closed()),
    }
}

fn closed() -> Error {
    Error::new(Code::FailedPrecondition, "the process's stdin is closed")
}

fn unread() -> Error {
    Error::new(Code::DeadlineExceeded, "the process does not read its stdin")
}
