//! One request to one node: method, target, headers and body as received, the credential and our own words exchanged.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use drowse_shared::{
    api::{Code, Error},
    http::{
        deadline::{self, Keeper},
        hop,
        pace::Pace,
    },
    id::RequestId,
    name::SpaceRef,
    seams::{BoxFuture, Caller},
    select_biased,
};
use http::{Request, StatusCode, request::Parts};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};

use super::{
    headers::{self, Belief},
    peer::{Failure, Peers},
    sign::{Signs, lost},
    tunnel::{Near, Tunnel},
};
use crate::fleet::{Fleet, Peer};

/// Largest answer of a create or a destroy.
const CAPTURED_BYTES_MAX: usize = 4 << 20;
/// Longest pause inside an answer.
const PAUSE: Duration = Duration::from_secs(60);

/// What a caller asked, so that it can be sent on more than once.
#[derive(Clone)]
pub(crate) struct Head {
    method: http::Method,
    target: String,
    headers: http::HeaderMap,
    caller: Option<Caller>,
    /// Follows the request.
    pub(crate) request_id: RequestId,
    /// What it is about.
    pub(crate) space: SpaceRef,
    /// How much longer its answer may take for what it asks.
    asked: Duration,
    /// The caller's side of a tunnel, if the node may change the protocol.
    near: Option<Near>,
    pace: Pace,
}

impl Head {
    /// Takes what is needed of a request whose space is known.
    pub(crate) fn new(mut parts: Parts, request_id: RequestId, space: SpaceRef) -> Self {
        Self {
            target: parts.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned(),
            method: parts.method,
            headers: parts.headers,
            caller: parts.extensions.remove::<Caller>(),
            pace: parts.extensions.remove::<Pace>().unwrap_or_default(),
            asked: Duration::ZERO,
            near: None,
            request_id,
            space,
        }
    }

    /// Its answer may take so much longer, for what it asks.
    pub(crate) fn asking(self, asked: Duration) -> Self {
        Self { asked, ..self }
    }

    /// The node may change the protocol, if the caller asks for that: then this side is joined with the node's.
    pub(crate) fn upgrading(self, near: Near) -> Self {
        Self { near: Some(near), ..self }
    }

    /// How long a node may take nothing of the request and answer nothing.
    fn limit(&self, nodes: &Nodes) -> Duration {
        let verb = self.target.trim_start_matches('/').split('?').next().unwrap_or_default();
        deadline::of(verb, Keeper::Forward).min(nodes.answer_timeout) + self.asked
    }

    fn request(
        &self,
        peer: &Peer,
        peers: &Peers,
        belief: Belief,
        body: Body,
    ) -> Result<Request<Body>, Failure> {
        let mut headers = self.headers.clone();
        let upgrade = self.near.as_ref().and_then(|_| hop::upgrade(&headers));
        let caller = self.caller.as_ref();
        headers::forwarded(&mut headers, caller, peers.bearer(), &self.request_id, &self.space, belief);
        if let Some(to) = upgrade {
            hop::set_upgrade(&mut headers, to);
        }
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = format!("{}{}", peer.endpoint, self.target)
            .parse()
            .map_err(|error| Failure::Nonsense(format!("its endpoint cannot be used: {error}")))?;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

/// What came of a forward.
pub(crate) enum Forwarded {
    /// Its answer, head first, body as it comes.
    Answer(Response),
    /// The node does not hold the space. Never relayed.
    NotMine,
    /// It could not be reached; nothing was sent.
    Unreached(String),
    /// It was reached and gave no answer; what was asked may have been done.
    Cut(String),
    /// As many requests are at nodes as may be; nothing was sent.
    Busy,
}

/// Sends a request on and answers as soon as the head of the answer is there.
pub(crate) async fn forward(
    nodes: &Nodes,
    peer: &Peer,
    head: &Head,
    belief: Belief,
    body: Body,
) -> Forwarded {
    let peers = &nodes.peers;
    let Ok(place) = nodes.places.clone().try_acquire_owned() else { return Forwarded::Busy };
    let limit = head.limit(nodes);
    let sent = async { peers.send(head.request(peer, peers, belief, body)?).await };
    let sent = select_biased! {
        sent = sent => sent,
        () = head.pace.quiet(limit) => Err(Failure::Cut(format!("no answer within {limit:?}"))),
        () = lost(nodes, peer) => Err(Failure::Cut("it stopped answering, or was removed".to_owned())),
    };
    let response = match sent {
        Ok(response) => response,
        Err(Failure::Unreached(why)) => return Forwarded::Unreached(why),
        Err(Failure::Paused(paused)) => {
            let message = format!("{paused}; nothing was changed");
            return Forwarded::Answer(Error::new(Code::RequestTimeout, message).into_response());
        }
        Err(Failure::Broken(fault)) => {
            return Forwarded::Answer(Error::new(Code::InvalidRequest, fault.to_string()).into_response());
        }
        Err(failure) => return Forwarded::Cut(failure.to_string()),
    };
    match response.status() {
        StatusCode::MISDIRECTED_REQUEST => Forwarded::NotMine,
        // The caller's credential was good; this one is ours.
        StatusCode::UNAUTHORIZED => Forwarded::Unreached("it refuses this gateway's token".to_owned()),
        status => {
            if let Some(near) = &head.near
                && status == StatusCode::SWITCHING_PROTOCOLS
            {
                let (response, tunnel) = Tunnel::of(response, watch(nodes, peer), place);
                near.join(tunnel);
                return Forwarded::Answer(response);
            }
            let (mut parts, body) = response.into_parts();
            hop::strip(&mut parts.headers);
            let patience = nodes.answer_timeout.min(PAUSE);
            let body = Watched {
                body,
                lost: watch(nodes, peer),
                patience: Some(patience),
                pause: None,
                _place: place,
            };
            Forwarded::Answer(Response::from_parts(parts, Body::new(body)))
        }
    }
}

/// Who the nodes are and how they are reached.
#[derive(Clone)]
pub(crate) struct Nodes {
    /// Who they are.
    pub(crate) fleet: Arc<Fleet>,
    /// Their doors.
    pub(crate) peers: Arc<Peers>,
    /// Longest wait for an answer, besides what a request asks for.
    pub(crate) answer_timeout: Duration,
    /// Requests that may be at nodes, until the last of their answers.
    pub(crate) places: Arc<Semaphore>,
    /// Requests and tunnels that may be at apps: strangers fill these, and never those.
    pub(crate) app_places: Arc<Semaphore>,
    /// Signs of life.
    pub(crate) signs: Signs,
}

/// Ends when the node is lost.
pub(super) fn watch(nodes: &Nodes, peer: &Peer) -> BoxFuture<'static, ()> {
    let (nodes, peer) = (nodes.clone(), peer.clone());
    Box::pin(async move { lost(&nodes, &peer).await })
}

/// An answer's body, cut when its node is lost or says nothing for too long.
pub(super) struct Watched {
    body: Incoming,
    lost: BoxFuture<'static, ()>,
    /// Longest pause; as long as the app likes, if it is an app's.
    patience: Option<Duration>,
    pause: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl Watched {
    /// The body of an app's answer.
    pub(super) fn of_an_app(
        body: Incoming,
        lost: BoxFuture<'static, ()>,
        place: OwnedSemaphorePermit,
    ) -> Self {
        Self { body, lost, patience: None, pause: None, _place: place }
    }
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.pause = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)));
        }
        let pause = self.patience.map(|patience| {
            self.pause.get_or_insert_with(|| Box::pin(sleep(patience))).as_mut().poll(cx).is_ready()
        });
        if pause == Some(true) || self.lost.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer that was read to its end.
#[derive(Debug, Clone)]
pub(crate) struct Captured {
    /// As the node gave it.
    pub(crate) status: StatusCode,
    headers: http::HeaderMap,
    /// All of it.
    pub(crate) body: Bytes,
}

impl Captured {
    /// The error it says, if it is one.
    pub(crate) fn error(&self) -> Option<Error> {
        (!self.status.is_success()).then(|| serde_json::from_slice(&self.body).ok()).flatten()
    }

    /// For the caller, as it was.
    pub(crate) fn into_response(self) -> Response {
        let mut response = (self.status, self.body).into_response();
        *response.headers_mut() = self.headers;
        response
    }
}

/// Reads an answer to its end. A body that ends early is no answer.
pub(crate) async fn capture(response: Response) -> Result<Captured, String> {
    let (parts, body) = response.into_parts();
    let read = Limited::new(body, CAPTURED_BYTES_MAX).collect().await;
    let body = read
        .map_err(|error| format!("its answer ended early: {}", drowse_shared::http::why(&*error)))?
        .to_bytes();
    let mut headers = parts.headers;
    headers.remove(http::header::CONTENT_LENGTH);
    Ok(Captured { status: parts.status, headers, body })
}

/// The node that holds the space cannot be reached.
pub(crate) fn unreachable(space: &SpaceRef, peer: &Peer, why: &str) -> Error {
    Error::new(
        Code::NodeUnreachable,
        format!(
            "\"{}\" is on node {}, which cannot be reached: {why}. Its data is there; try again",
            space, peer.id
        ),
    )
    .with("nodes", vec![peer.id.to_string()])
}

/// The node took the request and gave no answer.
pub(crate) fn cut(space: &SpaceRef, peer: &Peer, why: &str) -> Error {
    Error::new(
        Code::NodeUnreachable,
        format!(
            "node {} took the request for \"{}\" and gave no answer: {why}. It may have been done; look before you repeat it",
            peer.id, space
        ),
    )
    .with("nodes", vec![peer.id.to_string()])
}
