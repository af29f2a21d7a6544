//! What is answered where. Each module below only translates: it reads what a caller said, lets the rest of the gateway
//! act, and says what came of it.

/// `acquireSpace`: the only verb that creates.
pub(crate) mod acquire;
/// Whether a name leads anywhere, for a proxy that is about to get a certificate for it.
pub(crate) mod ask;
/// Reading bodies within bounds.
mod body;
/// `destroySpace`.
mod destroy;
/// Domains that lead to spaces.
mod domains;
/// Credentials, request ids, one log line per refusal: around every verb.
mod front;
/// What a `Host` asks for.
pub(crate) mod host;
/// `listSpaces` over all nodes.
mod list;
/// Verbs about nodes.
mod nodes;
/// Ports of spaces, by host.
mod ports;
/// Room for what callers send.
pub(crate) mod room;
/// Verbs about a space that exists.
mod spaces;
/// Rolling the fleet to another build.
mod upgrade;

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Request, State},
    middleware::from_fn_with_state,
    response::{IntoResponse as _, Response},
    routing::{MethodRouter, get, post},
};
use drowse_shared::{
    api::{
        Code, Error,
        attach::ATTACH,
        document,
        health::Health,
        upgrade::PATH as RELEASE,
        verbs::{Door, OPENAPI, PAGES, Verb, counted},
    },
    nearest::nearest,
};
use http::header;

use crate::service::Gateway;

/// Every route.
pub(crate) fn router(gateway: Arc<Gateway>) -> Router {
    let routed = |router: Router<_>, verb: &Verb| match handler(*verb) {
        Some(route) => router.route(verb.path(), route),
        None => router,
    };
    let router = Verb::ALL.iter().fold(Router::new(), routed);
    router
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics))
        .route(OPENAPI, get(document::serve))
        .route(ATTACH, get(spaces::attach))
        .route(ask::PATH, get(ask::ask))
        .route(RELEASE, get(upgrade::release))
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown)
        // Every body is read within a bound of its own.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(gateway.clone(), front::in_time))
        .layer(from_fn_with_state(gateway.clone(), front::front))
        // What an app is asked is no verb of ours: its credentials and its deadlines are its own.
        .layer(from_fn_with_state(gateway.clone(), ports::by_host))
        .with_state(gateway)
}

/// Who answers a verb here; nobody, if it lives at nodes.
fn handler(verb: Verb) -> Option<MethodRouter<Arc<Gateway>>> {
    Some(match verb {
        Verb::AcquireSpace => post(acquire::acquire),
        Verb::DestroySpace => post(destroy::destroy),
        Verb::ListSpaces => post(list::list),
        // About one space that exists, in a JSON body or, for the streaming ones, in the query.
        Verb::GetSpace
        | Verb::ExecCommand
        | Verb::ExecStream
        | Verb::WriteFiles
        | Verb::ReadFile
        | Verb::WriteFile
        | Verb::ListFiles
        | Verb::WatchFiles
        | Verb::ListEvents
        | Verb::FreezeSpace
        | Verb::StopSpace
        | Verb::WakeSpace
        | Verb::TouchSpace
        | Verb::UpdatePolicy
        | Verb::UpdateMetadata => post(spaces::use_space),
        Verb::BindDomain => post(domains::bind),
        Verb::ListDomains => post(domains::list),
        Verb::UnbindDomain => post(domains::unbind),
        Verb::UpgradeFleet => post(upgrade::begin),
        Verb::GetUpgrade => post(upgrade::show),
        Verb::RetryUpgrade => post(upgrade::retry),
        Verb::StopUpgrade => post(upgrade::halt),
        Verb::CheckIn => post(nodes::check_in),
        Verb::ListNodes => post(nodes::list),
        Verb::RemoveNode => post(nodes::remove),
        Verb::ReadmitNode => post(nodes::readmit),
        Verb::Report | Verb::Lookup | Verb::Measure | Verb::SetAside => return None,
    })
}

/// The verb as one of a fixed set of words, for counters.
fn verb(path: &str) -> &'static str {
    match path {
        ask::PATH => "ask",
        RELEASE => "release",
        _ => counted(path).unwrap_or("unknown"),
    }
}

async fn healthz(State(gateway): State<Arc<Gateway>>) -> Json<Health> {
    Json(Health::of(&gateway.watchdog, &gateway.build))
}

async fn metrics(State(gateway): State<Arc<Gateway>>) -> Result<Response, Error> {
    let text =
        gateway.metrics.text(&gateway.nodes.fleet, &gateway.watchdog, gateway.tables(), &gateway.counts);
    let text = text.map_err(|_| Error::new(Code::Internal, "the metrics cannot be written"))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

async fn wrong_method(request: Request) -> Response {
    let path = request.uri().path();
    let wants = if PAGES.contains(&path) || [ask::PATH, RELEASE].contains(&path) { "GET" } else { "POST" };
    let message = format!("{path} wants {wants}, this was {}", request.method());
    let mut response = Error::new(Code::MethodNotAllowed, message).into_response();
    response.headers_mut().insert(header::ALLOW, http::HeaderValue::from_static(wants));
    response
}

async fn unknown(request: Request) -> Error {
    let path = request.uri().path();
    let name = path.trim_start_matches('/');
    if Verb::read(path).is_some_and(|verb| !verb.is_at(Door::Gateway)) {
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
    nearest(name, Verb::words(Door::Gateway))
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
    fn the_router_answers_what_the_list_of_verbs_says() {
        for verb in Verb::ALL {
            assert_eq!(handler(*verb).is_some(), verb.is_at(Door::Gateway), "{verb:?}");
        }
    }

    #[test]
    fn verbs_are_counted_under_a_fixed_set_of_words() {
        assert_eq!(verb("/acquireSpace"), "acquireSpace");
        assert_eq!(verb("/../../etc"), "unknown");
    }
}
