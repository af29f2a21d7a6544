use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use drowse_shared::api::{Code, Error, verbs::is_open};

use crate::node::Node;

/// Lets nothing in without the token but what is open to anybody.
pub(super) async fn check(State(node): State<Arc<Node>>, request: Request, next: Next) -> Response {
    if is_open(request.uri().path()) || node.config.token.admits(request.headers()) {
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
