//! The node's door: one flat router, grouped by caller. Each file of verbs only translates; deciding and doing is the
//! lifecycle's.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    middleware,
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use drowse_shared::{
    api::{Code, Error},
    nearest::nearest,
};

use crate::node::Node;

/// Who may come in.
mod auth;
/// Which status and which words a failure gets.
pub mod error;
/// `execCommand`.
mod exec;
/// What the sender believes: forwarded, expected, licensed to create.
mod expect;
/// `readFile writeFile writeFiles listFiles`.
mod files;
/// `lookup report`, and what is asked without a token.
mod fleet;
/// One log line for each request that failed.
mod log;
/// `/metrics`.
pub mod metrics;
/// Reading a request body.
mod request;
/// The verbs about spaces themselves.
mod spaces;

/// What a node serves.
const VERBS: [&str; 17] = [
    "acquireSpace",
    "destroySpace",
    "execCommand",
    "freezeSpace",
    "getSpace",
    "listFiles",
    "listSpaces",
    "lookup",
    "readFile",
    "report",
    "stopSpace",
    "touchSpace",
    "updateMetadata",
    "updatePolicy",
    "wakeSpace",
    "writeFile",
    "writeFiles",
];

/// Verbs that live at the gateway.
const GATEWAY_VERBS: [&str; 4] = ["checkIn", "listNodes", "readmitNode", "removeNode"];

/// Everything the node answers.
pub fn router(node: Arc<Node>) -> Router {
    Router::new()
        // Clients, and gateways for them.
        .route("/acquireSpace", post(spaces::acquire))
        .route("/getSpace", post(spaces::get))
        .route("/listSpaces", post(spaces::list))
        .route("/freezeSpace", post(spaces::freeze))
        .route("/stopSpace", post(spaces::stop))
        .route("/wakeSpace", post(spaces::wake))
        .route("/touchSpace", post(spaces::touch))
        .route("/updatePolicy", post(spaces::update_policy))
        .route("/updateMetadata", post(spaces::update_metadata))
        .route("/destroySpace", post(spaces::destroy))
        .route("/execCommand", post(exec::exec))
        .route("/readFile", post(files::read))
        .route("/writeFile", post(files::write))
        .route("/writeFiles", post(files::write_many))
        .route("/listFiles", post(files::list))
        // Gateways.
        .route("/lookup", post(fleet::lookup))
        .route("/report", post(fleet::report))
        // Operators and their machines.
        .route("/healthz", get(fleet::healthz))
        .route("/metrics", get(metrics::show))
        .method_not_allowed_fallback(wrong_method)
        .fallback(any(unknown))
        .layer(middleware::from_fn_with_state(node.clone(), expect::check))
        .layer(middleware::from_fn_with_state(node.clone(), auth::check))
        .layer(middleware::from_fn_with_state(node.clone(), log::watch))
        .with_state(node)
}

async fn wrong_method(request: Request) -> Response {
    let verb = request.uri().path().trim_start_matches('/');
    let wants = if VERBS.contains(&verb) { "POST" } else { "GET" };
    let message = format!("{verb} wants {wants}, not {}", request.method());
    let mut response = Error::new(Code::MethodNotAllowed, message).into_response();
    response.headers_mut().insert(http::header::ALLOW, http::HeaderValue::from_static(wants));
    response
}

async fn unknown(request: Request) -> Error {
    let verb = request.uri().path().trim_matches('/');
    if GATEWAY_VERBS.contains(&verb) {
        return Error::new(Code::UnknownVerb, format!("{verb} lives at the gateway; this is a node"));
    }
    let shown: String = verb.chars().take(64).collect();
    let message = match closest(verb) {
        Some(closest) => format!("there is no verb {shown:?}; the closest is {closest}"),
        None => format!("there is no verb {shown:?}; verbs are {}", VERBS.join(", ")),
    };
    Error::new(Code::UnknownVerb, message)
}

/// The verb that takes the fewest edits, if it takes few.
fn closest(asked: &str) -> Option<&'static str> {
    nearest(asked, VERBS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_answered_with_the_verb_that_was_meant() {
        let cases = [
            ("aquireSpace", Some("acquireSpace")),
            ("acquirespace", Some("acquireSpace")),
            ("exec", None),
            ("writefile", Some("writeFile")),
            ("list", None),
            ("listSpace", Some("listSpaces")),
            ("", None),
        ];
        for (asked, verb) in cases {
            assert_eq!(closest(asked), verb, "{asked:?}");
        }
    }
}
