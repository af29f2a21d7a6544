//! Ports of spaces, by host: `<port>-<id>.<domain>` and `<name>.<domain>`. What an app says is the app's own; what is
//! ours is dressed here.

use std::sync::Arc;

use axum::{
    Json,
    body::{Body, HttpBody as _},
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use drowse_shared::{
    api::{Code, Error},
    id::RequestId,
    name::SpaceRef,
};
use http::{HeaderMap, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use serde_json::json;

use super::{
    body, host,
    spaces::{confirmed, locate, moving},
};
use crate::{
    find::{Busy, cache::Hit},
    fleet::Peer,
    forward::{
        http::{cut, unreachable},
        port::{Asked, Came},
    },
    service::Gateway,
};

/// The word for these requests in counters.
const VERB: &str = "port";

/// Sends a request where its host says; the door's own verbs go on.
pub(super) async fn by_host(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
    let asked = match authority(&request) {
        Ok(authority) => asked(&gateway, authority.unwrap_or_default(), request.headers()),
        Err(error) => return error.into_response(),
    };
    let response = match asked {
        Asks::Door => return next.run(request).await,
        Asks::Nothing => {
            let message =
                "this host names no space: it is <port>-<id> or the name of a space, before the domain";
            Error::new(Code::SpaceNotFound, message).into_response()
        }
        Asks::Port { space, port, says } => match serve(&gateway, request, &space, port).await {
            Ok(response) => response,
            Err(error) if says == Says::E2b => dressed(&space, port, error),
            Err(error) => error.into_response(),
        },
    };
    gateway.metrics.request(VERB, response.status().as_u16());
    response
}

/// What a request is for.
enum Asks {
    Door,
    Port { space: SpaceRef, port: u16, says: Says },
    Nothing,
}

/// As whom the gateway speaks to the callers of a kind of host.
#[derive(PartialEq, Eq)]
enum Says {
    /// As itself.
    Own,
    /// As the E2B protocol does.
    E2b,
}

fn asked(gateway: &Gateway, authority: &str, headers: &HeaderMap) -> Asks {
    match host::asked(authority, gateway.domain.as_deref()) {
        host::Asked::Door => Asks::Door,
        host::Asked::Nothing => Asks::Nothing,
        host::Asked::Port { space, port } => {
            let says = if matches!(space, SpaceRef::Id(_)) { Says::E2b } else { Says::Own };
            Asks::Port { space, port, says }
        }
        host::Asked::Elsewhere => match gateway.nodes.fleet.bound(&host::plain(authority)) {
            // Whoever shows the fleet's token means the fleet, and no app may see it: a domain by which nodes or operators
            // reach the gateway leads them there even if somebody bound it.
            Some(_) if gateway.token.admits(headers) => Asks::Door,
            Some(to) => Asks::Port { space: SpaceRef::Id(to.space_id), port: to.port, says: Says::Own },
            None => Asks::Door,
        },
    }
}

/// Whose request it is. A target and a `Host` that differ could be read in two ways.
pub(super) fn authority(request: &Request) -> Result<Option<&str>, Error> {
    let target = request.uri().authority().map(http::uri::Authority::as_str);
    let said = request.headers().get(header::HOST).map(|value| {
        value.to_str().map_err(|_| Error::new(Code::InvalidRequest, "the Host header is not plain text"))
    });
    let said = said.transpose()?;
    match (target, said) {
        (Some(target), Some(said)) if !target.eq_ignore_ascii_case(said) => Err(Error::new(
            Code::InvalidRequest,
            "the target and the Host header name different hosts; send one",
        )),
        (target, said) => Ok(target.or(said)),
    }
}

async fn serve(
    gateway: &Arc<Gateway>,
    mut request: Request,
    space: &SpaceRef,
    port: u16,
) -> Result<Response, Error> {
    let near = hyper::upgrade::on(&mut request);
    let (parts, stream) = request.into_parts();
    let asked = Asked::new(parts, RequestId::mint(&gateway.env), space.clone(), port);
    if !stream.is_end_stream() {
        // A body is sent once, so it goes where the space certainly is.
        let (peer, hit) = match confirmed(gateway, space).await {
            Ok(found) => found,
            Err(error) => {
                body::drain(stream).await;
                return Err(error);
            }
        };
        let answer = once(gateway, &asked, (&peer, &hit), stream, near).await?;
        return answer.map_err(|_| moving(space));
    }
    let mut near = near;
    for attempt in 0..2 {
        let (peer, hit) = locate(gateway, space, attempt == 0).await?;
        match once(gateway, &asked, (&peer, &hit), Body::empty(), near).await? {
            Ok(response) => return Ok(response),
            Err(unused) => near = unused,
        }
    }
    Err(moving(space))
}

/// One try. Gives the caller's side back if the node does not hold the space.
async fn once(
    gateway: &Arc<Gateway>,
    asked: &Asked,
    (peer, hit): (&Peer, &Hit),
    body: Body,
    near: OnUpgrade,
) -> Result<Result<Response, OnUpgrade>, Error> {
    let space = SpaceRef::Id(hit.id);
    match asked.send(&gateway.nodes, peer, hit, body).await {
        Came::Answer(response) => Ok(Ok(response)),
        Came::Tunnel(response, tunnel) => {
            let metrics = gateway.metrics.clone();
            tunnel.open(&gateway.env, &gateway.shutdown, near, move |end| metrics.tunnel(end.as_str()));
            Ok(Ok(response))
        }
        Came::NotMine => {
            gateway.finder.doubt(&space);
            Ok(Err(near))
        }
        Came::Refused(error) => Err(error),
        Came::Unreached(why) => {
            gateway.finder.doubt(&space);
            Err(unreachable(&space, peer, &why))
        }
        Came::Cut(why) => Err(cut(&space, peer, &why)),
        Came::Busy => Err(Busy.into()),
    }
}

/// What is ours, as the caller of this kind of host reads it: the E2B protocol knows two bodies, both with 502.
fn dressed(space: &SpaceRef, port: u16, error: Error) -> Response {
    let SpaceRef::Id(id) = space else { return error.into_response() };
    let gone = json!({ "sandboxId": id.to_string(), "message": "The sandbox was not found", "code": 502 });
    let closed = json!({ "sandboxId": id.to_string(), "message": "The sandbox is running but port is not open",
        "port": port, "code": 502 });
    match error.code {
        Code::SpaceNotFound => (StatusCode::BAD_GATEWAY, Json(gone)).into_response(),
        Code::PortClosed => (StatusCode::BAD_GATEWAY, Json(closed)).into_response(),
        _ => error.into_response(),
    }
}
