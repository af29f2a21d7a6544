//! Around every request: its id, the credential, one line in the log if it was refused, and the counters.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use drowse_shared::{
    api::{Code, Error, headers::REQUEST_ID, verbs::is_open},
    http::deadline::{Keeper, keep},
    id::RequestId,
};
use http::HeaderValue;
use tokio::time::Instant;

use crate::service::Gateway;

pub(super) async fn front(State(gateway): State<Arc<Gateway>>, mut request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let said = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok()?.parse().ok());
    let id: RequestId = said.unwrap_or_else(|| RequestId::mint(&gateway.env));
    request.extensions_mut().insert(id);
    let path = request.uri().path().to_owned();
    let open = is_open(&path) || path == super::ask::PATH;
    let mut response = if open || gateway.token.admits(request.headers()) {
        next.run(request).await
    } else {
        refused(request.headers()).into_response()
    };
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let status = response.status().as_u16();
    let verb = super::verb(&path);
    gateway.metrics.request(verb, status);
    if status >= 400
        && let Some(untold) = gateway.lines.admit(status, Instant::now())
    {
        let error = response.extensions().get::<Error>();
        tracing::info!(
            request = %id,
            verb,
            status,
            code = error.map(|error| error.code.as_str()),
            why = error.map(|error| error.message.as_str()),
            ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            untold = (untold > 0).then_some(untold),
            "refused"
        );
    }
    response
}

/// No request takes longer than it may.
pub(super) async fn in_time(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
    keep(Keeper::Gateway, gateway.limits, request, next).await
}

fn refused(headers: &http::HeaderMap) -> Error {
    let message = if headers.contains_key(http::header::AUTHORIZATION) {
        "the token is not this fleet's; send `Authorization: Bearer` with the value of DROWSE_TOKEN"
    } else {
        "no token; send `Authorization: Bearer` with the value of DROWSE_TOKEN"
    };
    Error::new(Code::Unauthenticated, message)
}
