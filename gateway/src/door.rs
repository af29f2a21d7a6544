//! What is answered where. Each module below only translates: it reads what a caller said, lets the rest of the gateway
//! act, and says what came of it.

/// `acquireSpace`: the only verb that creates.
pub(crate) mod acquire;
/// Reading bodies within bounds.
mod body;
/// `destroySpace`.
mod destroy;
/// Credentials, request ids, one log line per refusal: around every verb.
mod front;
/// `listSpaces` over all nodes.
mod list;
/// Verbs about nodes.
mod nodes;
/// Verbs about a space that exists.
mod spaces;

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Request, State},
    middleware::from_fn_with_state,
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use drowse_shared::{
    api::{Code, Error, nodes::Build},
    nearest::nearest,
};
use http::header;
use serde_json::json;

use crate::service::Gateway;

/// Verbs about one space that exists, in a JSON body or, for the streaming ones, in the query.
const SPACE_VERBS: [&str; 12] = [
    "getSpace",
    "execCommand",
    "writeFiles",
    "readFile",
    "writeFile",
    "listFiles",
    "freezeSpace",
    "stopSpace",
    "wakeSpace",
    "touchSpace",
    "updatePolicy",
    "updateMetadata",
];
/// The rest.
const OTHER_VERBS: [&str; 7] =
    ["acquireSpace", "destroySpace", "listSpaces", "checkIn", "listNodes", "removeNode", "readmitNode"];

/// Every route.
pub(crate) fn router(gateway: Arc<Gateway>) -> Router {
    let mut router = Router::new();
    for verb in SPACE_VERBS {
        router = router.route(&format!("/{verb}"), post(spaces::use_space));
    }
    router
        .route("/acquireSpace", post(acquire::acquire))
        .route("/destroySpace", post(destroy::destroy))
        .route("/listSpaces", post(list::list))
        .route("/checkIn", post(nodes::check_in))
        .route("/listNodes", post(nodes::list))
        .route("/removeNode", post(nodes::remove))
        .route("/readmitNode", post(nodes::readmit))
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics))
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown)
        // Every body is read within a bound of its own.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(gateway.clone(), front::front))
        .with_state(gateway)
}

/// The verb as one of a fixed set of words, for counters.
fn verb(path: &str) -> &'static str {
    let name = path.trim_start_matches('/');
    let known = SPACE_VERBS.into_iter().chain(OTHER_VERBS).chain(["healthz", "metrics"]);
    known.into_iter().find(|verb| *verb == name).unwrap_or("unknown")
}

async fn healthz() -> Json<serde_json::Value> {
    Json(json!({ "status": "ok", "build": Build::this() }))
}

async fn metrics(State(gateway): State<Arc<Gateway>>) -> Result<Response, Error> {
    let text = gateway.metrics.text(&gateway.nodes.fleet);
    let text = text.map_err(|_| Error::new(Code::Internal, "the metrics cannot be written"))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

async fn wrong_method(request: Request) -> Response {
    let path = request.uri().path();
    let wants = if matches!(path, "/healthz" | "/metrics") { "GET" } else { "POST" };
    let message = format!("{path} wants {wants}, this was {}", request.method());
    let mut response = Error::new(Code::MethodNotAllowed, message).into_response();
    response.headers_mut().insert(header::ALLOW, http::HeaderValue::from_static(wants));
    response
}

async fn unknown(request: Request) -> Error {
    let path = request.uri().path();
    let name = path.trim_start_matches('/');
    if matches!(name, "lookup" | "report") {
        return Error::new(
            Code::UnknownVerb,
            format!("{name} is a verb of nodes; a gateway does not answer it"),
        );
    }
    let shown: String = path.chars().take(100).collect();
    let message = match closest(name) {
        Some(verb) => format!("there is no verb {shown}; the closest is POST /{verb}"),
        None => format!("there is no verb {shown}"),
    };
    Error::new(Code::UnknownVerb, message)
}

/// A verb so near that it was probably meant.
fn closest(name: &str) -> Option<&'static str> {
    nearest(name, SPACE_VERBS.into_iter().chain(OTHER_VERBS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_verb_is_recognised() {
        for (said, meant) in [
            ("acquirespace", Some("acquireSpace")),
            ("getSpaces", Some("getSpace")),
            ("exec", None),
            ("execComand", Some("execCommand")),
            ("deleteSpace", Some("updateSpace")),
            ("", None),
            ("zzzzzzzzzzzzzzzzzzzzzz", None),
        ] {
            // Any near verb will do where two are equally near.
            assert_eq!(closest(said).is_some(), meant.is_some(), "{said} {:?}", closest(said));
        }
        assert_eq!(closest("acquirespace"), Some("acquireSpace"));
        assert_eq!(closest("execComand"), Some("execCommand"));
    }

    #[test]
    fn verbs_are_counted_under_a_fixed_set_of_words() {
        assert_eq!(verb("/acquireSpace"), "acquireSpace");
        assert_eq!(verb("/../../etc"), "unknown");
    }
}
