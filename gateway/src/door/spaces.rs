//! Verbs about a space that exists: found by hint or by asking, sent to its node, and found once more if the hint was
//! wrong. A reader's or streamer's request ends with its caller.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Extension, Request, State},
    response::Response,
};
use bytes::Bytes;
use drowse_shared::{
    api::{
        Code, Error, JSON_BODY_BYTES_MAX, WRITE_FILES_BODY_BYTES_MAX,
        headers::{Expect, SPACE},
        nodes::Silent,
    },
    http::deadline::Deadline,
    id::{NodeId, RequestId},
    name::SpaceRef,
};
use http::request::Parts;
use percent_encoding::percent_decode_str;

use super::{body, room::Room};
use crate::{
    find::{
        Busy,
        cache::Hit,
        verdict::{self, Answer, Verdict},
    },
    fleet::Peer,
    forward::{
        Belief,
        http::{Forwarded, Head, cut, forward, unreachable},
        tunnel::Near,
    },
    service::Gateway,
};

/// A streamed body up to this size is kept, so that it can be sent again.
const KEPT_BYTES_MAX: u64 = 64 << 10;

/// A body on its way to a node.
pub(super) enum Load {
    /// All of it is here, so a wrong hint costs a second try.
    Kept(Bytes),
    /// It comes as it is sent on, so the hint must be right.
    Streamed(Body),
}

/// The handler.
pub(super) async fn use_space(
    State(gateway): State<Arc<Gateway>>,
    Extension(request_id): Extension<RequestId>,
    Extension(deadline): Extension<Deadline>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, request_body) = request.into_parts();
    let mut asked = Duration::ZERO;
    let (space, load) = match streamed_space(&parts)? {
        Some(space) => {
            let load = load(&gateway.room, request_body).await?;
            if matches!(load, Load::Streamed(_)) {
                deadline.lift();
            }
            (space, load)
        }
        None => {
            let writes = matches!(parts.uri.path(), "/writeFiles" | "/writeFile");
            let most = if writes { WRITE_FILES_BODY_BYTES_MAX } else { JSON_BODY_BYTES_MAX };
            let bytes = body::read_in(&gateway.room, request_body, most).await?;
            if parts.uri.path() == "/execCommand" {
                asked = body::runs_for(&bytes);
            }
            (body::space(&bytes)?, Load::Kept(bytes))
        }
    };
    deadline.extend(asked);
    let head = Head::new(parts, request_id, space).asking(asked);
    send(&gateway, &head, load).await
}

/// Attaches to a terminal or a command: the node answers, and what comes after is a tunnel.
pub(super) async fn attach(
    State(gateway): State<Arc<Gateway>>,
    Extension(request_id): Extension<RequestId>,
    mut request: Request,
) -> Result<Response, Error> {
    let near = Near::of(&mut request, &gateway);
    let (parts, _) = request.into_parts();
    let space = streamed_space(&parts)?.ok_or_else(|| {
        Error::new(Code::InvalidRequest, "space: attach names its space: ?space=… or the header Drowse-Space")
    })?;
    send(&gateway, &Head::new(parts, request_id, space).upgrading(near), Load::Kept(Bytes::new())).await
}

async fn load(room: &Room, body: Body) -> Result<Load, Error> {
    match http_body::Body::size_hint(&body).exact() {
        Some(length) if length <= KEPT_BYTES_MAX => {
            let most = usize::try_from(KEPT_BYTES_MAX).unwrap_or(usize::MAX);
            Ok(Load::Kept(body::read_in(room, body, most).await?))
        }
        _ => Ok(Load::Streamed(body)),
    }
}

/// The space of a streaming request: in the query, or in the header.
fn streamed_space(parts: &Parts) -> Result<Option<SpaceRef>, Error> {
    if !matches!(parts.uri.path(), "/readFile" | "/writeFile" | "/attach") {
        return Ok(None);
    }
    // Without a query the body is JSON and names the space, as the node reads it.
    let Some(query) = parts.uri.query().filter(|query| !query.is_empty()) else { return Ok(None) };
    let field = |name: &str| {
        query.split('&').find_map(|pair| match pair.split_once('=') {
            Some((key, value)) => (key == name).then_some(value),
            None => (pair == name).then_some(""),
        })
    };
    // In a query a plus is a space; in the header it is itself.
    let in_query = field("space").map(|text| text.replace('+', " "));
    let in_header = parts.headers.get(SPACE).map(|value| value.to_str().unwrap_or("\u{0}").to_owned());
    let Some(text) = in_query.or(in_header) else {
        if field("path").is_some() {
            return Err(Error::new(
                Code::InvalidRequest,
                "a streaming request names its space: ?space=… or the header Drowse-Space",
            ));
        }
        return Ok(None);
    };
    let space = percent_decode_str(&text)
        .decode_utf8()
        .map_err(|_| Error::new(Code::InvalidRequest, "space: is not UTF-8"))?
        .parse()
        .map_err(|error| Error::new(Code::InvalidRequest, format!("space: {error}")))?;
    Ok(Some(space))
}

/// Where the space is by hint. A node that does not check in is asked first, so that a caller learns within the deadline
/// of a lookup, not of a connection, that it is not there.
pub(super) async fn hinted(gateway: &Gateway, space: &SpaceRef) -> Result<Option<(Peer, Hit)>, Error> {
    match gateway.finder.hint(space) {
        Some((peer, _)) if !peer.live => confirm(gateway, peer, space).await,
        found => Ok(found),
    }
}

/// Asks the node of a hint whether it is right.
async fn confirm(gateway: &Gateway, peer: Peer, space: &SpaceRef) -> Result<Option<(Peer, Hit)>, Error> {
    match gateway.finder.confirm(&peer, space).await? {
        Answer::Yes(held) => {
            let hit = Hit::of(&peer, &held);
            Ok(Some((peer, hit)))
        }
        Answer::No { .. } => Ok(None),
        Answer::Silent(why) => Err(unreachable(space, &peer, &why)),
    }
}

/// Where the space is, by hint or by asking.
pub(super) async fn locate(gateway: &Gateway, space: &SpaceRef, hint: bool) -> Result<(Peer, Hit), Error> {
    if hint && let Some(found) = hinted(gateway, space).await? {
        return Ok(found);
    }
    match gateway.finder.find(space).await? {
        Verdict::Holder { peer, held } => {
            let hit = Hit::of(&peer, &held);
            Ok((peer, hit))
        }
        Verdict::Conflict { nodes, one_endpoint } => {
            Err(conflict(gateway, space, &nodes, one_endpoint.as_deref()))
        }
        Verdict::Unsure(silent) => Err(unsure(gateway, space, &silent)),
        Verdict::Contested => Err(moving(space)),
        Verdict::Nobody { .. } => {
            gateway.nodes.fleet.knows_its_nodes()?;
            Err(verdict::not_found(space))
        }
    }
}

/// Several nodes hold it, in words. Not while it is being learned who is of the fleet: one of them may have been removed,
/// and nobody is to destroy the copy that counts.
pub(super) fn conflict(
    gateway: &Gateway,
    space: &SpaceRef,
    nodes: &[NodeId],
    one_endpoint: Option<&str>,
) -> Error {
    let learning = gateway.nodes.fleet.knows_its_nodes().err();
    learning.unwrap_or_else(|| verdict::conflict(space, nodes, one_endpoint))
}

/// Somebody who may hold it is silent, in words; in others where all wait for the fleet to be founded.
pub(super) fn unsure(gateway: &Gateway, space: &SpaceRef, silent: &[Silent]) -> Error {
    gateway.nodes.fleet.is_founded().err().unwrap_or_else(|| verdict::unsure(space, silent))
}

/// What the gateway believes of a space it found.
pub(super) fn belief(hit: &Hit) -> Belief {
    Belief::Existing(Expect { id: Some(hit.id), epoch: Some(hit.epoch) })
}

/// A hint was wrong twice: the space is on the move.
pub(super) fn moving(space: &SpaceRef) -> Error {
    Error::new(Code::SpaceBusy, format!("\"{space}\" moved while this request was looking for it; try again"))
        .retry_after(1)
}

/// Sends a request to the node that holds its space.
pub(super) async fn send(gateway: &Arc<Gateway>, head: &Head, load: Load) -> Result<Response, Error> {
    match load {
        Load::Kept(bytes) => {
            for attempt in 0..2 {
                let (peer, hit) = locate(gateway, &head.space, attempt == 0).await?;
                match once(gateway, head, &peer, &hit, Body::from(bytes.clone())).await {
                    Ok(Some(response)) => return Ok(response),
                    Ok(None) => {}
                    Err(error) => return Err(error),
                }
            }
            Err(moving(&head.space))
        }
        Load::Streamed(stream) => {
            let (peer, hit) = match confirmed(gateway, &head.space).await {
                Ok(found) => found,
                Err(error) => {
                    body::drain(stream).await;
                    return Err(error);
                }
            };
            let answer = once(gateway, head, &peer, &hit, stream).await?;
            answer.ok_or_else(|| moving(&head.space))
        }
    }
}

/// A place that was asked just now.
pub(super) async fn confirmed(gateway: &Arc<Gateway>, space: &SpaceRef) -> Result<(Peer, Hit), Error> {
    if let Some((peer, _)) = gateway.finder.hint(space)
        && let Some(found) = confirm(gateway, peer, space).await?
    {
        return Ok(found);
    }
    locate(gateway, space, false).await
}

/// One try; nothing if the node does not hold the space.
pub(super) async fn once(
    gateway: &Gateway,
    head: &Head,
    peer: &Peer,
    hit: &Hit,
    body: Body,
) -> Result<Option<Response>, Error> {
    match forward(&gateway.nodes, peer, head, belief(hit), body).await {
        Forwarded::Answer(response) => Ok(Some(response)),
        Forwarded::NotMine => {
            gateway.finder.doubt(&SpaceRef::Id(hit.id));
            Ok(None)
        }
        Forwarded::Unreached(why) => {
            gateway.finder.doubt(&SpaceRef::Id(hit.id));
            Err(unreachable(&head.space, peer, &why))
        }
        Forwarded::Cut(why) => Err(cut(&head.space, peer, &why)),
        Forwarded::Busy => Err(Busy.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(target: &str, header: Option<&str>) -> Parts {
        let mut request = http::Request::post(target);
        if let Some(value) = header {
            request = request.header(SPACE, value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    #[test]
    fn the_space_of_a_stream_is_in_the_query_or_the_header() {
        let cases = [
            ("/readFile?space=a&path=/x", None, Ok(Some("a"))),
            ("/readFile?path=/x&space=a%20b+c", None, Ok(Some("a b c"))),
            ("/writeFile?path=/x", Some("k%C3%A4se"), Ok(Some("käse"))),
            ("/writeFile?path=/x", Some("a+b"), Ok(Some("a+b"))),
            ("/writeFile?space=a&path=/x", Some("b"), Ok(Some("a"))),
            ("/readFile", None, Ok(None)),
            ("/readFile", Some("another"), Ok(None)),
            ("/writeFile?", Some("another"), Ok(None)),
            ("/execCommand?space=a", None, Ok(None)),
            ("/readFile?path=/x", None, Err("names its space")),
            ("/readFile?space=&path=/x", None, Err("1 to 128 characters")),
            ("/readFile?space=%ff&path=/x", None, Err("not UTF-8")),
            ("/readFile?space=a%0Ab&path=/x", None, Err("control")),
        ];
        for (target, header, expected) in cases {
            let got = streamed_space(&parts(target, header));
            match expected {
                Ok(space) => {
                    assert_eq!(
                        got.map(|s| s.map(|s| s.to_string())),
                        Ok(space.map(str::to_owned)),
                        "{target}"
                    );
                }
                Err(says) => {
                    let error = got.expect_err(target);
                    assert!(error.message.contains(says), "{target}: {error}");
                }
            }
        }
    }
}
