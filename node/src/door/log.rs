use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use drowse_shared::{
    api::{Error, headers::REQUEST_ID},
    id::RequestId,
};
use http::HeaderValue;
use tokio::time::Instant;

use crate::node::Node;

/// Gives every request an id, counts it, and logs the ones that failed. Queries are left out: they name files.
pub(super) async fn watch(State(node): State<Arc<Node>>, mut request: Request, next: Next) -> Response {
    let given = request.headers().get(REQUEST_ID).and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
    let id: RequestId = given.unwrap_or_else(|| RequestId::mint(&node.env));
    let value = HeaderValue::from_str(&id.to_string()).ok();
    if let Some(value) = &value {
        request.headers_mut().insert(REQUEST_ID, value.clone());
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let began = Instant::now();
    let mut response = next.run(request).await;
    let (status, ms) = (response.status().as_u16(), began.elapsed().as_millis());
    node.metrics.asked(&path, status, began.elapsed());
    // 421 is the everyday way of correcting a gateway's memory.
    if status >= 400
        && status != 421
        && let Some(untold) = node.lines.admit(status, Instant::now())
    {
        let untold = (untold > 0).then_some(untold);
        let error = response.extensions().get::<Error>();
        let code = error.map_or("", |error| error.code.as_str());
        let message = error.map_or("", |error| error.message.as_str());
        if status >= 500 {
            tracing::warn!(%method, path, status, ms, request = %id, code, message, untold, "request failed");
        } else {
            tracing::info!(%method, path, status, ms, request = %id, code, message, untold, "request refused");
        }
    }
    if let Some(value) = value {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}
