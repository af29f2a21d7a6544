use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse as _, Response},
};
use drowse_shared::api::{Error, exec::EVENTS, watch::WatchFiles};
use http::header::CONTENT_TYPE;

use super::{expect::Sender, request::Json};
use crate::node::Node;

/// Watches a directory and answers what changes in it.
pub(super) async fn watch(
    State(node): State<Arc<Node>>,
    sender: Sender,
    Json(mut wish): Json<WatchFiles>,
) -> Result<Response, Error> {
    let name = wish.name.clone();
    wish.name = sender.meant(&wish.name);
    let misled = sender.misled(&name);
    let body = crate::watch::stream(&node, &wish).await.map_err(misled)?;
    Ok(([(CONTENT_TYPE, EVENTS)], body).into_response())
}
