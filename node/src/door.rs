//! The node's door: one flat router, grouped by caller. Each file of verbs only translates; deciding and doing is the
//! lifecycle's.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{MethodRouter, any, get, post},
};
use drowse_shared::{
    api::{
        Code, Error,
        attach::ATTACH,
        document,
        verbs::{Door, OPENAPI, PAGES, Verb},
    },
    http::deadline::{Keeper, keep},
    nearest::nearest,
};

use crate::node::Node;

/// `attach`.
mod attach;
/// Who may come in.
mod auth;
/// Which status and which words a failure gets.
pub mod error;
/// `execCommand execStream`.
mod exec;
/// What the sender believes: forwarded, expected, licensed to create.
mod expect;
/// `readFile writeFile writeFiles listFiles`.
mod files;
/// `lookup report measure setAside`, and what is asked without a token.
mod fleet;
/// One log line for each request that failed.
mod log;
/// `/metrics`.
pub mod metrics;
/// Ports of spaces.
mod ports;
/// Reading a request body.
mod request;
/// The verbs about spaces themselves.
mod spaces;
/// `watchFiles`.
mod watch;

/// Everything the node answers.
pub fn router(node: Arc<Node>) -> Router {
    let routed = |router: Router<_>, verb: &Verb| match handler(*verb) {
        Some(route) => router.route(verb.path(), route),
        None => router,
    };
    let router = Verb::ALL.iter().fold(Router::new(), routed);
    router
        .route("/healthz", get(fleet::healthz))
        .route("/metrics", get(metrics::show))
        .route(OPENAPI, get(document::serve))
        .route(ATTACH, get(attach::attach))
        .method_not_allowed_fallback(wrong_method)
        .fallback(any(unknown))
        .layer(middleware::from_fn_with_state(node.clone(), expect::check))
        .layer(middleware::from_fn_with_state(node.clone(), in_time))
        .layer(middleware::from_fn_with_state(node.clone(), auth::check))
        .layer(middleware::from_fn_with_state(node.clone(), log::watch))
        // What an app is asked is no verb of ours, and nothing to write down.
        .layer(middleware::from_fn_with_state(node.clone(), ports::intercept))
        .with_state(node)
}

/// Who answers a verb here; nobody, if it lives at the gateway.
fn handler(verb: Verb) -> Option<MethodRouter<Arc<Node>>> {
    Some(match verb {
        // Clients, and gateways for them.
        Verb::AcquireSpace => post(spaces::acquire),
        Verb::GetSpace => post(spaces::get),
        Verb::ListSpaces => post(spaces::list),
        Verb::ListEvents => post(spaces::events),
        Verb::FreezeSpace => post(spaces::freeze),
        Verb::StopSpace => post(spaces::stop),
        Verb::WakeSpace => post(spaces::wake),
        Verb::TouchSpace => post(spaces::touch),
        Verb::UpdatePolicy => post(spaces::update_policy),
        Verb::UpdateMetadata => post(spaces::update_metadata),
        Verb::DestroySpace => post(spaces::destroy),
        Verb::ExecCommand => post(exec::exec),
        Verb::ExecStream => post(exec::stream),
        Verb::ReadFile => post(files::read),
        Verb::WriteFile => post(files::write),
        Verb::WriteFiles => post(files::write_many),
        Verb::ListFiles => post(files::list),
        Verb::WatchFiles => post(watch::watch),
        // Gateways.
        Verb::Lookup => post(fleet::lookup),
        Verb::Report => post(fleet::report),
        Verb::Measure => post(fleet::measure),
        Verb::SetAside => post(fleet::set_aside),
        Verb::BindDomain
        | Verb::ListDomains
        | Verb::UnbindDomain
        | Verb::CheckIn
        | Verb::ListNodes
        | Verb::RemoveNode
        | Verb::ReadmitNode
        | Verb::UpgradeFleet
        | Verb::GetUpgrade
        | Verb::RetryUpgrade
        | Verb::StopUpgrade => return None,
    })
}

async fn in_time(State(node): State<Arc<Node>>, request: Request, next: Next) -> Response {
    keep(Keeper::Node, node.config.limits, request, next).await
}

async fn wrong_method(request: Request) -> Response {
    let path = request.uri().path();
    let wants = if PAGES.contains(&path) { "GET" } else { "POST" };
    let message = format!("{path} wants {wants}, not {}", request.method());
    let mut response = Error::new(Code::MethodNotAllowed, message).into_response();
    response.headers_mut().insert(http::header::ALLOW, http::HeaderValue::from_static(wants));
    response
}

async fn unknown(request: Request) -> Error {
    let verb = request.uri().path().trim_matches('/');
    if Verb::read(verb).is_some_and(|verb| !verb.is_at(Door::Node)) {
        return Error::new(Code::UnknownVerb, format!("{verb} lives at the gateway; this is a node"));
    }
    let shown: String = verb.chars().take(64).collect();
    let message = match closest(verb) {
        Some(closest) => format!("there is no verb {shown:?}; the closest is {closest}"),
        None => {
            let verbs: Vec<_> = Verb::words(Door::Node).collect();
            format!("there is no verb {shown:?}; verbs are {}", verbs.join(", "))
        }
    };
    Error::new(Code::UnknownVerb, message)
}

/// The verb that takes the fewest edits, if it takes few.
fn closest(asked: &str) -> Option<&'static str> {
    nearest(asked, Verb::words(Door::Node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_router_answers_what_the_list_of_verbs_says() {
        for verb in Verb::ALL {
            assert_eq!(handler(*verb).is_some(), verb.is_at(Door::Node), "{verb:?}");
        }
    }

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
