use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body, response::IntoResponse as _};
use bytes::Bytes;
use http::header;
use http_body::{Frame, SizeHint};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_service::Service as _;

use super::{
    Limits, Peer, farewell,
    stall::{Serving, Stalling, Turn},
};
use crate::{
    api::{Code, Error},
    seams::{Accept, BoxIo, Env},
    shutdown::Shutdown,
};

/// Most connections that are refused in words at the same time; further ones are closed.
const REFUSALS_MAX: usize = 64;
/// Largest head of a request, and most that is read ahead of one: what a connection holds of a client that nobody knows yet.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Pause after an accept that failed, as when descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `app` on a bound listener until `shutdown` says stop; open connections then finish their request.
///
/// A handler's future is dropped as soon as its caller leaves, so whatever must finish runs in a task of its own.
pub async fn serve(env: Env, mut listener: Box<dyn Accept>, app: Router, limits: Limits, shutdown: Shutdown) {
    let room = Arc::new(Semaphore::new(limits.connections_max));
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    loop {
        let accepted = crate::select_biased! {
            () = shutdown.stopping() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((io, peer)) => match room.clone().try_acquire_owned() {
                Ok(place) => {
                    let served = Served { app: app.clone(), limits, shutdown: shutdown.clone(), place };
                    env.spawn("connection", connection(io, served, peer));
                }
                Err(_) => refuse(&env, io, &refusals, limits, &shutdown),
            },
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Says that there is no room, to as many as can be told.
fn refuse(env: &Env, io: BoxIo, refusals: &Arc<Semaphore>, limits: Limits, shutdown: &Shutdown) {
    let Ok(turn) = refusals.clone().try_acquire_owned() else { return };
    let most = limits.connections_max;
    tracing::debug!(connections_max = most, "a connection was refused");
    let running = shutdown.running();
    env.spawn("refusal", async move {
        let (_turn, _running) = (turn, running);
        let message = format!(
            "this daemon has {most} connections open, as many as it may; close some, or raise DROWSE_CONNECTIONS_MAX"
        );
        farewell::refuse(io, &Error::new(Code::TooManyConnections, message)).await;
    });
}

/// What a connection is served with.
struct Served {
    app: Router,
    limits: Limits,
    shutdown: Shutdown,
    place: OwnedSemaphorePermit,
}

async fn connection(io: BoxIo, served: Served, peer: String) {
    let Served { app, limits, shutdown, place: _place } = served;
    let _running = shutdown.running();
    let peer = Peer(peer);
    let turn = Turn::default();
    let turns = turn.clone();
    let service = hyper::service::service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
        let serving = turns.serve();
        request.extensions_mut().insert(peer.clone());
        let refused = ambiguous(request.headers()).map(|why| Error::new(Code::InvalidRequest, why));
        let mut app = app.clone();
        async move {
            let response = match refused {
                Some(error) => error.into_response(),
                None => app.call(request).await?,
            };
            let upgraded = response.status() == http::StatusCode::SWITCHING_PROTOCOLS;
            let serving = if upgraded { serving.for_good() } else { serving };
            Ok::<_, Infallible>(response.map(|body| Answer { body, _serving: serving }))
        }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    // The date header would differ between two runs of one seed.
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .auto_date_header(false);
    let io = TokioIo::new(Stalling::new(io, limits.client_timeout).in_turn(turn.clone()));
    let mut served = builder.serve_connection(io, service).with_upgrades();
    let ended = crate::select_biased! {
        ended = &mut served => ended,
        () = shutdown.stopping() => {
            Pin::new(&mut served).graceful_shutdown();
            crate::select_biased! {
                ended = &mut served => ended,
                () = shutdown.cutting() => return,
            }
        }
    };
    let Err(error) = ended else { return };
    tracing::debug!(%error, "a connection ended early");
    // A connection that only waits for its next request is closed without a word; half a head deserves one.
    if turn.is_late()
        && let Some(parts) = served.into_parts()
    {
        let message = format!("the head of the request did not arrive within {:?}", limits.client_timeout);
        farewell::refuse(parts.io.into_inner(), &Error::new(Code::RequestTimeout, message)).await;
    }
}

/// The body of an answer; its request is being served until the last of it was taken.
struct Answer {
    body: Body,
    _serving: Serving,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Why a request could be read in two ways, if it could: by us in one, by a proxy before us in the other.
fn ambiguous(headers: &http::HeaderMap) -> Option<&'static str> {
    if headers.get_all(header::HOST).iter().nth(1).is_some() {
        return Some("the request has two Host headers; send one");
    }
    let measured = headers.contains_key(header::CONTENT_LENGTH);
    if measured && headers.contains_key(header::TRANSFER_ENCODING) {
        return Some("the request has both Content-Length and Transfer-Encoding; send one of them");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_reads_in_two_ways_is_refused() {
        let cases: [(&[(&str, &str)], bool); 5] = [
            (&[("host", "a"), ("content-length", "5")], false),
            (&[("host", "a"), ("transfer-encoding", "chunked")], false),
            (&[], false),
            (&[("host", "a"), ("host", "b")], true),
            (&[("host", "a"), ("content-length", "5"), ("transfer-encoding", "chunked")], true),
        ];
        for (pairs, expected) in cases {
            let mut headers = http::HeaderMap::new();
            for (name, value) in pairs {
                let name: http::HeaderName = name.parse().expect("a name");
                headers.append(name, value.parse().expect("a value"));
            }
            assert_eq!(ambiguous(&headers).is_some(), expected, "{pairs:?}");
        }
    }
}
