//! Enough of envd for tests: a handful of commands, files in memory.

use std::{convert::Infallible, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use drowse_shared::id::SpaceId;
use futures_util::StreamExt;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Frame, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::io::DuplexStream;

use super::{
    Machine,
    process::{self, Order},
};

pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Users of every fake space.
const USERS: [&str; 2] = ["user", "root"];
const HOME: &str = "/home/user";

/// A no: status, Connect's word, what it says.
pub(super) type No = (u16, &'static str, String);

/// Answers one connection until its client leaves.
pub(super) async fn serve(machine: Machine, id: SpaceId, io: DuplexStream) {
    let answer = service_fn(move |request| {
        let machine = machine.clone();
        async move { Ok::<_, Infallible>(route(machine, id, request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .auto_date_header(false)
        .serve_connection(TokioIo::new(io), answer);
    if let Err(error) = served.await {
        tracing::trace!(%error, "a connection to a fake agent ended early");
    }
}

async fn route(machine: Machine, id: SpaceId, request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    // A body that breaks off changes nothing.
    let Ok(body) = body.collect().await.map(http_body_util::Collected::to_bytes) else {
        return no((400, "invalid_argument", "the upload ended early; nothing was changed".to_owned()), true);
    };
    let stream = path == "/process.Process/Start";
    let answered = match path.as_str() {
        "/process.Process/Start" => start(&machine, id, &parts.headers, &body),
        "/process.Process/SendInput" | "/process.Process/CloseStdin" => input(&machine, id, &body).await,
        "/process.Process/SendSignal" => signal(&machine, id, &body),
        "/files" if parts.method == "GET" => read(&machine, id, parts.uri.query()),
        "/files" => write(&machine, id, parts.uri.query(), body),
        "/filesystem.Filesystem/ListDir" => list(&machine, id, &parts.headers, &body),
        _ => Err((501, "unimplemented", format!("the fake agent has no {path}"))),
    };
    answered
        .unwrap_or_else(|refusal| if stream { no_stream(&refusal) } else { no(refusal, path == "/files") })
}

pub(super) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

fn json_answer(value: &Value) -> Response<Body> {
    Response::new(full(value.to_string()))
}

fn no((status, word, message): No, plain: bool) -> Response<Body> {
    let code = if plain { json!(status) } else { json!(word) };
    let mut response = json_answer(&json!({ "code": code, "message": message }));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

fn no_stream((_, word, message): &No) -> Response<Body> {
    let end = json!({ "error": { "code": word, "message": message } }).to_string();
    Response::new(full(process::envelope(2, end.as_bytes())))
}

fn message(body: &[u8]) -> Result<Value, No> {
    serde_json::from_slice(body).map_err(|error| (400, "invalid_argument", error.to_string()))
}

fn user(name: Option<&str>) -> Result<(), No> {
    let name = name.unwrap_or("user");
    if USERS.contains(&name) {
        Ok(())
    } else {
        Err((401, "unauthenticated", format!("unknown user {name:?}")))
    }
}

fn caller(headers: &HeaderMap) -> Result<(), No> {
    let basic = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()?.strip_prefix("Basic "));
    let name = basic.and_then(|b| STANDARD.decode(b).ok()).and_then(|b| String::from_utf8(b).ok());
    user(name.as_deref().map(|name| name.trim_end_matches(':')))
}

fn start(machine: &Machine, id: SpaceId, headers: &HeaderMap, body: &[u8]) -> Result<Response<Body>, No> {
    caller(headers)?;
    let order = message(body.get(5..).unwrap_or_default())?;
    let timeout_ms = headers.get("drowse-timeout-ms").and_then(|v| v.to_str().ok()?.parse().ok());
    let tag = order["tag"].as_str().map(str::to_owned);
    let mut order = Order::read(&order["process"], order["stdin"] == true, timeout_ms)?;
    let keepalive = headers.get("keepalive-ping-interval").and_then(|v| v.to_str().ok()?.parse().ok());
    order.keepalive = keepalive.map_or(order.keepalive, Duration::from_secs);
    let events = process::run(machine.clone(), id, order, tag).map(|event| Ok(Frame::data(event)));
    Ok(Response::new(StreamBody::new(events).boxed_unsync()))
}

async fn input(machine: &Machine, id: SpaceId, body: &[u8]) -> Result<Response<Body>, No> {
    let message = message(body)?;
    let pid = message["process"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
    let piece =
        message["input"]["stdin"].as_str().and_then(|text| STANDARD.decode(text).ok()).map(Bytes::from);
    let closed = || (400, "failed_precondition", "the process's stdin is closed".to_owned());
    let stdin = machine.stdin(id, pid, piece.is_none()).ok_or_else(closed)?;
    match piece {
        Some(piece) => stdin.send(piece).await.map_err(|_| closed())?,
        None => drop(stdin),
    }
    Ok(json_answer(&json!({})))
}

fn signal(machine: &Machine, id: SpaceId, body: &[u8]) -> Result<Response<Body>, No> {
    let tag = message(body)?["process"]["tag"].as_str().unwrap_or_default().to_owned();
    match machine.kill_tagged(id, &tag) {
        true => Ok(json_answer(&json!({}))),
        false => Err((404, "not_found", format!("there is no process with tag {tag:?}"))),
    }
}

/// A path as the agent reads it: relative ones start at home.
fn absolute(path: &str) -> String {
    match path {
        "" | "~" => HOME.to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("{HOME}/{path}"),
    }
}

fn target(query: Option<&str>) -> Result<String, No> {
    let mut path = None;
    for (key, value) in query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')) {
        let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
        match key {
            "path" => path = Some(absolute(&value)),
            "username" => user(Some(&value))?,
            _ => {}
        }
    }
    path.ok_or_else(|| (400, "invalid_argument", "path is missing".to_owned()))
}

fn read(machine: &Machine, id: SpaceId, query: Option<&str>) -> Result<Response<Body>, No> {
    let path = target(query)?;
    let files = machine.files(id);
    match files.get(&path) {
        Some(content) => Ok(Response::new(full(content.clone()))),
        None if path == HOME || files.keys().any(|file| file.starts_with(&format!("{path}/"))) => {
            Err((400, "invalid_argument", format!("{path} is a directory")))
        }
        None => Err((404, "not_found", format!("{path}: No such file or directory"))),
    }
}

fn write(machine: &Machine, id: SpaceId, query: Option<&str>, body: Bytes) -> Result<Response<Body>, No> {
    let path = target(query)?;
    let size = body.len();
    machine.write(id, path.clone(), body);
    let name = path.rsplit('/').next().unwrap_or_default();
    Ok(json_answer(&json!([{ "path": path, "name": name, "type": "file", "size": size.to_string() }])))
}

fn list(machine: &Machine, id: SpaceId, headers: &HeaderMap, body: &[u8]) -> Result<Response<Body>, No> {
    caller(headers)?;
    let directory = absolute(message(body)?["path"].as_str().unwrap_or_default());
    let files = machine.files(id);
    let inside = |path: &str| path.strip_prefix(&format!("{directory}/")).map(str::to_owned);
    let entries: Vec<Value> = files
        .iter()
        .filter_map(|(path, content)| Some((inside(path)?, path, content)))
        .map(|(name, path, content)| {
            json!({
                "name": name, "path": path, "type": "FILE_TYPE_FILE", "size": content.len().to_string(),
                "mode": 0o644, "owner": "user", "group": "user", "modifiedTime": "2026-01-01T00:00:00Z",
            })
        })
        .collect();
    if entries.is_empty() && directory != HOME {
        return Err((404, "not_found", format!("{directory}: No such file or directory")));
    }
    Ok(json_answer(&json!({ "entries": entries })))
}
