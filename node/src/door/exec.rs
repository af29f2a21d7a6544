use std::sync::Arc;

use axum::{Extension, extract::State};
use drowse_shared::{
    api::{
        Error,
        exec::{ExecCommand, ExecResult},
    },
    http::deadline::Deadline,
};

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
    Json(wish): Json<ExecCommand>,
) -> Result<axum::Json<ExecResult>, Error> {
    deadline.extend(wish.patience());
    let misled = sender.misled(&wish.name);
    let answer = match wish.idempotency_key.is_some() {
        true => keyed::exec(&node, wish.clone()).await,
        false => exec::exec(&node, &wish).await,
    };
    answer.map(axum::Json).map_err(misled)
}
