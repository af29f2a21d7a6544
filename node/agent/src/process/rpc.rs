use std::rc::{Rc, Weak};

use http::{HeaderMap, Response, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};

use super::input::{self, Typed};
use super::table::{Selector, Table};
use super::{Process, terminal};
use crate::body::Body;
use crate::connect::{self, Code, Error};

#[derive(Deserialize)]
struct Request {
    process: Option<Selector>,
    input: Option<Typed>,
    pty: Option<terminal::Request>,
    signal: Option<Value>,
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
        "SendInput" => input::send(&*table.running(selector)?, request.input).await?,
        "CloseStdin" => input::close(&*table.running(selector)?).await?,
        "SendSignal" => {
            let signal = signal_number(request.signal.as_ref())?;
            let tree = headers.get("drowse-tree").is_some_and(|value| value.as_bytes() == b"1");
            send_signal(&*table.running(selector)?, signal, tree).await?;
        }
        "Update" => resize(&*table.running(selector)?, request.pty)?,
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

fn resize(process: &Process, request: Option<terminal::Request>) -> Result<(), Error> {
    let size = request.and_then(terminal::Request::size);
    let size =
        size.ok_or_else(|| Error::new(Code::InvalidArgument, "pty.size: cols and rows are missing"))?;
    let none = || Error::new(Code::FailedPrecondition, format!("process {} has no terminal", process.pid()));
    let terminal = process.terminal.as_ref().and_then(Weak::upgrade).ok_or_else(none)?;
    terminal.resize(size).map_err(|error| Error::from_io("the terminal", &error))
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
