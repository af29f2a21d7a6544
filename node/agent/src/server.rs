use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::fd::RawFd;
use std::rc::Rc;

use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;

use crate::body::{Answer, Body};
use crate::connect::{Code, Error};
use crate::connection::Connection;
use crate::gate::{Gate, Pass};
use crate::launcher::control::Control;
use crate::metrics::Metrics;
use crate::process::table::Table;
use crate::relay::Relays;
use crate::watch::Watchers;
use crate::{files, metrics, process, relay, replace, watch};

/// What every request may reach.
pub(crate) struct Agent {
    /// All commands.
    pub(crate) table: Rc<Table>,
    /// Pid 1's hold on the launcher.
    pub(crate) control: Rc<Control>,
    /// All watchers of directories.
    pub(crate) watchers: Rc<Watchers>,
    /// Connections to ports.
    pub(crate) relays: Relays,
    /// What the space uses, if it was told.
    pub(crate) metrics: Option<Metrics>,
    /// Where requests pass.
    pub(crate) gate: Rc<Gate>,
    /// The listening socket.
    pub(crate) listener: RawFd,
    /// Held by the one replacement there may be.
    pub(crate) replacing: tokio::sync::Mutex<()>,
    /// Every connection there is.
    pub(crate) connections: RefCell<BTreeMap<RawFd, Rc<Connection>>>,
}

/// Answers one request.
pub(crate) async fn handle(
    agent: Rc<Agent>,
    connection: Rc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    let begun = connection.begin();
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    if (&head.method, path.as_str()) == (&Method::POST, "/replace") {
        // It is what holds the gate.
        let response = replace::serve(&agent, connection.fd, body).await;
        return Ok(response.unwrap_or_else(|error| error.unary()).map(|body| Answer::new(body, None, begun)));
    }
    let mut pass = Some(agent.gate.pass().await);
    let response = match (&head.method, path.as_str()) {
        (&Method::CONNECT, _) => match agent.relays.serve(&head.uri, &head.headers).await {
            Ok(dialled) => {
                connection.relay_to(dialled);
                relay::connected()
            }
            Err(refusal) => refusal,
        },
        (&Method::GET, "/health") => no_content(),
        (&Method::GET, "/metrics") => {
            let answer = agent.metrics.as_ref().map_or_else(|| Err(metrics::unknown()), Metrics::serve);
            answer.unwrap_or_else(files::http::Refusal::respond)
        }
        (&Method::GET | &Method::HEAD, "/files") => {
            files::read::serve(&head.uri, &head.headers).await.unwrap_or_else(files::http::Refusal::respond)
        }
        (&Method::POST, "/files") => files::write::serve(&head.uri, &head.headers, body)
            .await
            .unwrap_or_else(files::http::Refusal::respond),
        (&Method::POST, path) => match path.strip_prefix('/').and_then(|path| path.split_once('/')) {
            Some((service, method)) => {
                call(&agent, (service, method), &head.headers, body, (connection.fd, &mut pass)).await
            }
            None => unknown(path),
        },
        (_, path) => unknown(path),
    };
    Ok(response.map(|body| Answer::new(body, pass, begun)))
}

async fn call(
    agent: &Agent,
    (service, method): (&str, &str),
    headers: &HeaderMap,
    body: Incoming,
    (connection, pass): (RawFd, &mut Option<Pass>),
) -> Response<Body> {
    let streaming = is_streaming(service, method);
    if let Err(error) = check_content_type(headers, streaming) {
        return error.unary();
    }
    let table = &agent.table;
    let answer = match (service, method) {
        // Boxed: the largest futures by far, and streams live long.
        ("process.Process", "Start") => {
            Box::pin(process::start::start(table, headers, body, connection)).await
        }
        ("process.Process", "Connect") => {
            Box::pin(process::start::join(table, headers, body, connection)).await
        }
        ("process.Process", "StreamInput") => {
            Box::pin(process::input::stream(table, headers, body, pass.take())).await
        }
        ("process.Process", method) => process::rpc::call(table, method, headers, body).await,
        ("filesystem.Filesystem", "WatchDir") => {
            Box::pin(watch::stream(&agent.watchers, headers, body)).await
        }
        ("filesystem.Filesystem", "CreateWatcher" | "GetWatcherEvents" | "RemoveWatcher") => {
            Box::pin(watch::call(&agent.watchers, method, headers, body)).await
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
