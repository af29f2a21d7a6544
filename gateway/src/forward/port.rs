//! One request for a port of a space, and what the app answers: byte for byte what the other side meant, framed anew.

use std::time::Duration;

use axum::{body::Body, response::Response};
use drowse_shared::{
    api::{
        Code, Error,
        headers::{ANSWER, Expect},
    },
    http::{
        hop,
        pace::{Pace, Paced},
    },
    id::RequestId,
    name::SpaceRef,
    seams::Caller,
    select_biased,
};
use http::{HeaderValue, Request, StatusCode, header, request::Parts};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    headers,
    http::{Nodes, Watched, watch},
    peer::{Failure, Peers},
    tunnel::Tunnel,
};
use crate::{find::cache::Hit, fleet::Peer};

/// Longest wait for the head of an app's answer, its space's wake included.
const HEAD: Duration = Duration::from_secs(330);
/// Largest error of a node.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// What a caller asked of an app, so that it can be sent on more than once.
pub(crate) struct Asked {
    method: http::Method,
    target: String,
    headers: http::HeaderMap,
    host: Option<HeaderValue>,
    caller: Option<Caller>,
    request_id: RequestId,
    /// The space as the host names it: a node that gave the name up notices.
    space: SpaceRef,
    port: u16,
}

/// What came of it.
pub(crate) enum Came {
    /// The app's answer, head first.
    Answer(Response),
    /// The app changes the protocol: what comes now is a tunnel.
    Tunnel(Response, Tunnel),
    /// The node does not hold the space.
    NotMine,
    /// The node's own answer.
    Refused(Error),
    /// The node could not be reached; nothing was sent.
    Unreached(String),
    /// It was reached and gave no answer.
    Cut(String),
    /// As many requests are at nodes as may be; nothing was sent.
    Busy,
}

impl Asked {
    /// Takes what is needed of a request.
    pub(crate) fn new(mut parts: Parts, request_id: RequestId, space: SpaceRef, port: u16) -> Self {
        let target_host = parts.uri.authority().and_then(|host| host.as_str().parse().ok());
        Self {
            host: target_host.or_else(|| parts.headers.get(header::HOST).cloned()),
            target: parts.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned(),
            method: parts.method,
            headers: parts.headers,
            caller: parts.extensions.remove::<Caller>(),
            request_id,
            space,
            port,
        }
    }

    /// Whether it asks for another protocol.
    pub(crate) fn upgrades(&self) -> bool {
        hop::upgrade(&self.headers).is_some()
    }

    fn request(&self, peer: &Peer, peers: &Peers, hit: &Hit, body: Body) -> Result<Request<Body>, Failure> {
        let mut headers = self.headers.clone();
        let caller = self.caller.as_ref();
        let expect = Expect { id: Some(hit.id), epoch: Some(hit.epoch) };
        let found = (&self.space, expect);
        headers::ported(
            &mut headers,
            caller,
            peers.bearer(),
            &self.request_id,
            found,
            (self.host.as_ref(), self.port),
        );
        hop::set_framing(&mut headers, &body);
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = format!("{}{}", peer.endpoint, self.target)
            .parse()
            .map_err(|error| Failure::Nonsense(format!("its endpoint cannot be used: {error}")))?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// Sends it to the node that holds the space.
    pub(crate) async fn send(&self, nodes: &Nodes, peer: &Peer, hit: &Hit, body: Body) -> Came {
        let Ok(place) = nodes.app_places.clone().try_acquire_owned() else { return Came::Busy };
        let pace = Pace::default();
        let body = Body::new(Paced::new(body, HEAD, pace.clone()));
        let sent = async { nodes.peers.send(self.request(peer, &nodes.peers, hit, body)?).await };
        let sent = select_biased! {
            sent = sent => sent,
            () = pace.quiet(HEAD) => Err(Failure::Cut(format!("no answer within {HEAD:?}"))),
            () = watch(nodes, peer) => Err(Failure::Cut("it stopped answering".to_owned())),
        };
        match sent {
            Ok(response) if response.headers().contains_key(ANSWER) => own(response).await,
            Ok(response) => self.came(response, nodes, peer, place),
            Err(Failure::Unreached(why)) => Came::Unreached(why),
            Err(Failure::Broken(fault)) => Came::Refused(Error::new(Code::InvalidRequest, fault.to_string())),
            Err(failure) => Came::Cut(failure.to_string()),
        }
    }

    fn came(
        &self,
        mut response: Response<Incoming>,
        nodes: &Nodes,
        peer: &Peer,
        place: OwnedSemaphorePermit,
    ) -> Came {
        let lost = watch(nodes, peer);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            if !self.upgrades() {
                return Came::Cut("the app changed the protocol without being asked".to_owned());
            }
            let (response, tunnel) = Tunnel::of(response, lost, place);
            return Came::Tunnel(response, tunnel);
        }
        hop::strip_for_streams(response.headers_mut());
        Came::Answer(response.map(|body| Body::new(Watched::of_an_app(body, lost, place))))
    }
}

/// The node's own answer, and what it means.
async fn own(response: Response<Incoming>) -> Came {
    let status = response.status();
    if status == StatusCode::MISDIRECTED_REQUEST {
        return Came::NotMine;
    }
    let read = Limited::new(response.into_body(), ERROR_BYTES_MAX).collect().await;
    match read.map(|body| serde_json::from_slice::<Error>(&body.to_bytes())) {
        Ok(Ok(error)) if error.code == Code::Unauthenticated => {
            Came::Unreached("it refuses this gateway's token".to_owned())
        }
        Ok(Ok(error)) => Came::Refused(error),
        _ => Came::Cut(format!("it answered {} and nothing that can be read", status.as_u16())),
    }
}
