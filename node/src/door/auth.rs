use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use drowse_shared::api::{Code, Error};

use crate::node::Node;

/// Lets nothing in without the token but `/healthz`.
pub(super) async fn check(State(node): State<Arc<Node>>, request: Request, next: Next) -> Response {
    if request.uri().path() == "/healthz" || node.config.token.admits(request.headers()) {
        return next.run(request).await;
    }
    let given = request.headers().contains_key(http::header::AUTHORIZATION);
    let message = if given {
        "this is not the token of this fleet"
    } else {
        "no token: send `Authorization: Bearer …` with the fleet's token"
    };
    Error::new(Code::Unauthenticated, message).into_response()
}
