use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse as _, Response},
};
use drowse_shared::{
    api::{
        Error,
        exec::{EVENTS, ExecCommand, ExecResult},
    },
    http::deadline::Deadline,
};
use http::header::CONTENT_TYPE;

use super::{expect::Sender, request::Json};
use crate::{
    exec::{self, keyed},
    node::Node,
};

/// Runs a command. A client that leaves drops this future: what that means for the command is the other side's to say.
pub(super) async fn exec(
    State(node): State<Arc<Node>>,
    sender: Sender,
    Extension(deadline): Extension<Deadline>,
    Json(mut wish): Json<ExecCommand>,
) -> Result<axum::Json<ExecResult>, Error> {
    deadline.extend(wish.patience());
    let name = wish.name.clone();
    wish.name = sender.meant(&wish.name);
    let misled = sender.misled(&name);
    let answer = match wish.idempotency_key.is_some() {
        true => keyed::exec(&node, wish.clone()).await,
        false => exec::exec(&node, &wish).await,
    };
    answer.map(axum::Json).map_err(misled)
}

/// Runs a command and answers what it says while it does.
pub(super) async fn stream(
    State(node): State<Arc<Node>>,
    sender: Sender,
    Json(mut wish): Json<ExecCommand>,
) -> Result<Response, Error> {
    let name = wish.name.clone();
    wish.name = sender.meant(&wish.name);
    let misled = sender.misled(&name);
    let body = exec::stream::stream(&node, &wish).await.map_err(misled)?;
    Ok(([(CONTENT_TYPE, EVENTS)], body).into_response())
}
