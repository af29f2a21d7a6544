//! Requests for a port of a space. The node adds nothing and takes nothing away but its own headers.

use std::{io, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use drowse_shared::{
    api::{
        Code, Error,
        headers::{ANSWER, CREDENTIAL, PORT, strip_ours},
    },
    http::{
        hop,
        pace::{Pace, Paced},
        tunnel, why,
    },
    seams::BoxIo,
    select_biased,
};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::expect;
use crate::{
    lifecycle::wake::{self, Look, User},
    node::Node,
    space::Space,
};

use awake::Awake;
use knock::Knock;

/// A connection into a space that wakes it.
mod awake;
/// Who may wake it.
mod knock;

/// The word for these requests where spaces say why they are awake.
const VERB: &str = "port";
/// Longest wait for the head of an app's answer, from when the app took the last of the request.
const HEAD: Duration = Duration::from_secs(300);
/// How long a listener is waited for after its space was woken.
const LISTENER: Duration = Duration::from_secs(10);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(50);

/// Serves a request for a port; everything else goes on.
pub(super) async fn intercept(State(node): State<Arc<Node>>, request: Request, next: Next) -> Response {
    let Some(port) = request.headers().get(PORT).cloned() else { return next.run(request).await };
    let began = Instant::now();
    let response = serve(&node, request, &port).await.unwrap_or_else(|error| {
        let mut response = error.into_response();
        response.headers_mut().insert(ANSWER, HeaderValue::from_static("node"));
        response
    });
    node.metrics.answered(VERB, response.status().as_u16(), began.elapsed());
    response
}

async fn serve(node: &Arc<Node>, mut request: Request, port: &HeaderValue) -> Result<Response, Error> {
    if !node.config.token.is_in(request.headers(), CREDENTIAL) {
        return Err(Error::new(Code::Unauthenticated, "this is not the token of this fleet"));
    }
    let port = port.to_str().ok().and_then(|text| text.parse::<u16>().ok()).filter(|port| *port > 0);
    let port = port.ok_or_else(|| Error::new(Code::InvalidRequest, format!("{PORT} is a port")))?;
    let space = expect::space_held(node, request.headers()).await?;
    let knock = Knock::new(request.headers(), request.uri().path(), port, &node.config.token);
    let may = |space: &Space, look| knock.admits(space, look, &node.live);
    let (space, _) = wake::used_if(node, &space, User::Port(port), may).await?;
    let place = node.places.take(space.id)?;
    let io = dial(node, &space, port, may).await?;
    let near = hyper::upgrade::on(&mut request);
    let asks = hop::upgrade(request.headers());
    let (parts, body) = request.into_parts();
    let pace = Pace::default();
    let body = Body::new(Paced::new(body, HEAD, pace.clone()));
    let mut headers = plain(parts.headers);
    hop::set_framing(&mut headers, &body);
    let mut onward = http::Request::new(body);
    *onward.method_mut() = parts.method;
    *onward.uri_mut() = target(&parts.uri);
    *onward.headers_mut() = headers;
    if let Some(to) = asks.clone() {
        hop::set_upgrade(onward.headers_mut(), to);
    }
    let shown = format!("request for port {port}");
    let guard = node.live.run(space.id, shown, node.env.clock.wall());
    let io = TokioIo::new(Awake::new(io, node.clone(), &space, knock.of_a_tunnel(), place));
    let (mut app, connection) = http1::handshake::<_, Body>(io).await.map_err(|error| broke(port, &error))?;
    node.env.spawn("app", async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to an app ended early");
        }
    });
    let answer = select_biased! {
        answer = app.send_request(onward) => answer.map_err(|error| broke(port, &error))?,
        () = pace.quiet(HEAD) => {
            let message = format!("the app on port {port} did not answer within {} s", HEAD.as_secs());
            return Err(Error::new(Code::TimedOut, message));
        }
    };
    drop(guard);
    answered(node, answer, asks.is_some().then_some(near), port)
}

/// The app's answer as it goes back.
fn answered(
    node: &Arc<Node>,
    mut answer: Response<hyper::body::Incoming>,
    near: Option<hyper::upgrade::OnUpgrade>,
    port: u16,
) -> Result<Response, Error> {
    let granted = hop::upgrade(answer.headers());
    let switches = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
    let far = switches.then(|| hyper::upgrade::on(&mut answer));
    let (mut parts, body) = answer.into_parts();
    parts.headers = plain(parts.headers);
    let Some(far) = far else { return Ok(Response::from_parts(parts, Body::new(body))) };
    let (Some(near), Some(to)) = (near, granted) else {
        let message = format!("the app on port {port} changed the protocol without being asked");
        return Err(Error::new(Code::AppBroke, message));
    };
    hop::set_upgrade(&mut parts.headers, to.clone());
    let metered = node.clone();
    let ended = move |end: tunnel::End| metered.metrics.tunnel(end.as_str());
    tunnel::open(&node.env, &node.shutdown, near, (far, Some(&to)), std::future::pending(), ended);
    Ok(Response::from_parts(parts, Body::empty()))
}

/// Only what the two ends say to each other.
fn plain(mut headers: HeaderMap) -> HeaderMap {
    hop::strip_for_streams(&mut headers);
    strip_ours(&mut headers);
    headers
}

/// As an app gets it: path and query as they came.
fn target(uri: &Uri) -> Uri {
    let target = uri.path_and_query().cloned();
    target.map_or_else(|| Uri::from_static("/"), Uri::from)
}

/// A connection to a listener inside, which a space that was just woken may still be about to open.
async fn dial(
    node: &Arc<Node>,
    space: &Space,
    port: u16,
    may: impl Fn(&Space, Look) -> Result<(), Error>,
) -> Result<BoxIo, Error> {
    let mut revived = false;
    let began = Instant::now();
    loop {
        let why = match node.executor.dial(space.id, port).await {
            Ok(io) => return Ok(io),
            Err(why) => why,
        };
        match why.kind() {
            io::ErrorKind::NotFound if !revived => {
                revived = true;
                wake::revive_if(node, space, &why, User::Port(port), &may).await?;
            }
            io::ErrorKind::ConnectionRefused
                if began.elapsed() < LISTENER
                    && node.live.woken_for(space.id).is_some_and(|woken| woken < LISTENER) =>
            {
                tokio::time::sleep(AGAIN).await;
            }
            io::ErrorKind::ConnectionRefused => {
                let message =
                    format!("{:?} runs, and nothing listens on its port {port}", space.name.as_str());
                return Err(Error::new(Code::PortClosed, message));
            }
            _ => {
                let message = format!("port {port} of {:?} cannot be reached: {why}", space.name.as_str());
                return Err(Error::new(Code::RuntimeFailed, message));
            }
        }
    }
}

/// The app took the request and gave no answer that can be read.
fn broke(port: u16, error: &hyper::Error) -> Error {
    Error::new(Code::AppBroke, format!("the app on port {port} gave no answer: {}", why(error)))
}
