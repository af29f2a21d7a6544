use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::{HeaderValue, header};
use http_body::{Frame, SizeHint};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

use super::{
    Limits, farewell,
    framed::Framed,
    framing::Fault,
    stall::Stalling,
    turn::{Serving, Turn},
};
use crate::{
    api::{Code, Error},
    seams::{Accept, BoxIo, Caller, Env},
    shutdown::Shutdown,
};

/// Most connections that are refused in words at the same time; further ones are closed.
const REFUSALS_MAX: usize = 64;
/// Largest head of a request, and most that is read ahead of one: what a connection holds of a client that nobody knows yet.
pub(super) const HEAD_BYTES_MAX: usize = 64 << 10;
/// How long a connection that was accepted just before the end may take to say what it wants.
const FIRST_WORD: Duration = Duration::from_secs(1);
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
            Ok((io, caller)) => match room.clone().try_acquire_owned() {
                Ok(place) => {
                    let served = Served { app: app.clone(), limits, shutdown: shutdown.clone(), place };
                    env.spawn("connection", connection(io, served, caller));
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

/// Whoever opened it is an extension of every request.
async fn connection(io: BoxIo, served: Served, caller: Caller) {
    let Served { app, limits, shutdown, place: _place } = served;
    let _running = shutdown.running();
    let turn = Turn::default();
    let turns = turn.clone();
    let begun = CancellationToken::new();
    let begins = begun.clone();
    let service = hyper::service::service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
        let serving = turns.serve();
        begins.cancel();
        request.extensions_mut().insert(caller.clone());
        // An upgrade is none in HTTP/1.0.
        let asks = request.headers().contains_key(header::UPGRADE);
        if asks && request.version() < http::Version::HTTP_11 {
            request.headers_mut().remove(header::UPGRADE);
        }
        let mut app = app.clone();
        let turn = turns.clone();
        async move {
            let mut response = app.call(request).await?;
            let mut upgraded = response.status() == http::StatusCode::SWITCHING_PROTOCOLS;
            if upgraded && let Some(fault) = turn.take_untold() {
                // It was granted to a client that did not wait for it.
                (response, upgraded) = (last(fault), false);
            }
            if asks {
                turn.settle(upgraded);
            }
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
    let io = Stalling::new(io, limits.client_timeout).in_turn(turn.clone());
    let io = TokioIo::new(Framed::new(io, turn.clone()));
    let mut served = builder.serve_connection(io, service).with_upgrades();
    let ended = crate::select_biased! {
        ended = &mut served => ended,
        () = shutdown.stopping() => {
            // Who has only just come would be left without a word.
            let first = crate::select_biased! {
                ended = &mut served => Some(ended),
                () = begun.cancelled() => None,
                () = tokio::time::sleep(FIRST_WORD) => None,
            };
            match first {
                Some(ended) => ended,
                None => {
                    Pin::new(&mut served).graceful_shutdown();
                    crate::select_biased! {
                        ended = &mut served => ended,
                        () = shutdown.cutting() => return,
                    }
                }
            }
        }
    };
    if let Err(error) = &ended {
        tracing::debug!(%error, "a connection ended early");
    }
    // A connection that only waits for its next request is closed without a word; half a head deserves one.
    let said = if ended.is_err() && turn.is_late() {
        let message = format!("the head of the request did not arrive within {:?}", limits.client_timeout);
        Error::new(Code::RequestTimeout, message)
    } else if !turn.is_serving()
        && let Some(fault) = turn.take_untold()
    {
        tracing::debug!(%fault, "a request has no one reading");
        refusal(fault)
    } else {
        return;
    };
    if let Some(parts) = served.into_parts() {
        farewell::refuse(parts.io.into_inner().into_inner(), &said).await;
    }
}

/// Whatever has no one reading is refused.
fn refusal(fault: Fault) -> Error {
    Error::new(Code::InvalidRequest, fault.to_string())
}

/// The same, as the last answer of a connection.
fn last(fault: Fault) -> Response {
    let mut response = refusal(fault).into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
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

#[cfg(test)]
mod tests;
