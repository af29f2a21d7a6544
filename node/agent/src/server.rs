use std::convert::Infallible;
use std::rc::Rc;

use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;

use crate::body::Body;
use crate::connect::{Code, Error};
use crate::launcher::control::Control;
use crate::process::table::Table;
use crate::{files, process};

/// What every request may reach.
pub(crate) struct Agent {
    /// All commands.
    pub(crate) table: Rc<Table>,
    /// Pid 1's hold on the launcher.
    pub(crate) control: Rc<Control>,
}

/// Answers one request.
pub(crate) async fn handle(
    agent: Rc<Agent>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let response = match (&head.method, path.as_str()) {
        (&Method::GET, "/health") => no_content(),
        (&Method::GET | &Method::HEAD, "/files") => {
            files::read::serve(&head.uri, &head.headers).await.unwrap_or_else(files::http::Refusal::respond)
        }
        (&Method::POST, "/files") => files::write::serve(&head.uri, &head.headers, body)
            .await
            .unwrap_or_else(files::http::Refusal::respond),
        (&Method::POST, path) => match path.strip_prefix('/').and_then(|path| path.split_once('/')) {
            Some((service, method)) => call(&agent, service, method, &head.headers, body).await,
            None => unknown(path),
        },
        (_, path) => unknown(path),
    };
    Ok(response)
}

async fn call(
    agent: &Agent,
    service: &str,
    method: &str,
    headers: &HeaderMap,
    body: Incoming,
) -> Response<Body> {
    let streaming = is_streaming(service, method);
    if let Err(error) = check_content_type(headers, streaming) {
        return error.unary();
    }
    let table = &agent.table;
    let answer = match (service, method) {
        // Boxed: the largest futures by far, and streams live long.
        ("process.Process", "Start") => Box::pin(process::start::start(table, headers, body)).await,
        ("process.Process", "Connect") => Box::pin(process::start::join(table, headers, body)).await,
        ("process.Process", "StreamInput") => Err(unimplemented("streamed input: use SendInput")),
        ("process.Process", method) => process::rpc::call(table, method, headers, body).await,
        ("filesystem.Filesystem", "WatchDir" | "CreateWatcher" | "GetWatcherEvents" | "RemoveWatcher") => {
            Err(unimplemented("watching directories"))
        }
        ("filesystem.Filesystem", method) => files::rpc::call(method, headers, body).await,
        _ => Err(unimplemented(&format!("a service {service:?}"))),
    };
    match answer {
        Ok(response) => response,
        Err(error) if streaming => error.stream(),
        Err(error) => error.unary(),
    }
}

fn is_streaming(service: &str, method: &str) -> bool {
    matches!(
        (service, method),
        ("process.Process", "Start" | "Connect" | "StreamInput") | ("filesystem.Filesystem", "WatchDir")
    )
}

fn unimplemented(what: &str) -> Error {
    Error::new(Code::Unimplemented, format!("this agent does not serve {what} yet"))
}

fn check_content_type(headers: &HeaderMap, streaming: bool) -> Result<(), Error> {
    let wanted = if streaming { "application/connect+json" } else { "application/json" };
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if given.split(';').next().is_some_and(|given| given.trim().eq_ignore_ascii_case(wanted)) {
        return Ok(());
    }
    Err(Error::new(Code::InvalidArgument, format!("content-type must be {wanted}, not {given:?}")))
}

fn no_content() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

fn unknown(path: &str) -> Response<Body> {
    let message = format!("nothing is served at {path:?}");
    files::http::Refusal::new(StatusCode::NOT_FOUND, message).respond()
}
