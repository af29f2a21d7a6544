//! Every request ends in time. One table says when; `docs/api.md` shows it.

use std::{
    future::pending,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    body::Body,
    extract::Request,
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use tokio::time::Instant;

use super::{
    Limits,
    pace::{Pace, Paced},
};
use crate::api::{Code, Error};

/// How long a gateway takes to show something.
pub const LOOK: Duration = Duration::from_secs(25);
/// How long a gateway takes to change or use something, besides what the request asks for.
pub const WORK: Duration = Duration::from_secs(120);
/// A node ends so much before its gateway gives it up, and a gateway gives it up so much before its own end.
const MARGIN: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(10)];
/// Longest that a gateway waits for a node, besides what a request asks for.
pub const FORWARD_MAX: Duration = WORK.saturating_sub(MARGIN[1]);

/// Who keeps a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeper {
    /// The gateway, to its client.
    Gateway,
    /// The gateway, of a node.
    Forward,
    /// The node, to whoever asks it.
    Node,
}

/// When a verb ends at the latest, besides what its request asks for: `waitSeconds` or `timeoutSeconds`.
pub fn of(verb: &str, keeper: Keeper) -> Duration {
    let looks = ["getSpace", "listSpaces", "listNodes", "lookup", "report", "checkIn", "healthz", "metrics"];
    let (whole, margin) = if looks.contains(&verb) { (LOOK, MARGIN[0]) } else { (WORK, MARGIN[1]) };
    match keeper {
        Keeper::Gateway => whole,
        Keeper::Forward => whole - margin,
        Keeper::Node => whole - margin * 2,
    }
}

/// The deadline of one request; its handler may move it. Clones share it.
#[derive(Debug, Clone)]
pub struct Deadline(Arc<Mutex<Option<Instant>>>);

impl Deadline {
    fn after(limit: Duration) -> Self {
        Self(Arc::new(Mutex::new(Some(Instant::now() + limit))))
    }

    fn at(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The request itself asks for so much more.
    pub fn extend(&self, by: Duration) {
        let mut at = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *at = at.map(|at| at + by);
    }

    /// A stream takes as long as it moves; its pauses are bounded instead.
    pub fn lift(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    async fn over(&self) {
        while let Some(at) = self.at() {
            if at <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(at).await;
        }
        pending::<()>().await;
    }
}

/// Around every verb of a door: the body of the request may not pause for ever, and an answer begins in time. Handlers
/// find the [`Deadline`] and the [`Pace`] of their request among its extensions.
pub async fn keep(keeper: Keeper, limits: Limits, mut request: Request, next: Next) -> Response {
    let verb = request.uri().path().trim_start_matches('/').to_owned();
    let limit = of(&verb, keeper);
    let (deadline, pace) = (Deadline::after(limit), Pace::default());
    request.extensions_mut().insert(deadline.clone());
    request.extensions_mut().insert(pace.clone());
    let request = request.map(|body| Body::new(Paced::new(body, limits.client_timeout, pace)));
    crate::select_biased! {
        response = next.run(request) => response,
        () = deadline.over() => {
            let verb: String = verb.chars().take(64).collect();
            let message = format!(
                "{verb} did not come to its end within {} s and what the request asks for; it may still be done: look before you repeat it",
                limit.as_secs()
            );
            Error::new(Code::TimedOut, message).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{Extension, Router, middleware::from_fn, routing::post};
    use tower_service::Service as _;

    #[test]
    fn a_node_ends_before_it_is_given_up() {
        for verb in ["getSpace", "execCommand", "anything"] {
            let [node, forward, gateway] =
                [Keeper::Node, Keeper::Forward, Keeper::Gateway].map(|keeper| of(verb, keeper));
            assert!(node < forward && forward < gateway, "{verb}: {node:?} {forward:?} {gateway:?}");
            assert!(forward <= FORWARD_MAX, "{verb}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_that_hangs_is_ended_and_one_that_was_given_time_is_not() {
        async fn hang() {
            pending::<()>().await;
        }
        async fn wait(Extension(deadline): Extension<Deadline>) {
            deadline.extend(Duration::from_secs(1000));
            tokio::time::sleep(Duration::from_secs(1100)).await;
        }
        async fn stream(Extension(deadline): Extension<Deadline>) {
            deadline.lift();
            tokio::time::sleep(Duration::from_secs(100_000)).await;
        }
        let mut app = Router::new()
            .route("/getSpace", post(hang))
            .route("/acquireSpace", post(wait))
            .route("/writeFile", post(stream))
            .layer(from_fn(|request, next| keep(Keeper::Gateway, Limits::default(), request, next)));
        for (verb, status, after) in
            [("getSpace", 503, 25), ("acquireSpace", 200, 1100), ("writeFile", 200, 100_000)]
        {
            let began = Instant::now();
            let request = http::Request::post(format!("/{verb}")).body(Body::empty()).expect("a request");
            let response = app.call(request).await.expect("infallible");
            assert_eq!((response.status().as_u16(), began.elapsed().as_secs()), (status, after), "{verb}");
        }
    }
}
