use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Response},
};
use drowse_shared::{
    api::{
        Error, check,
        spaces::{
            AcquireSpace, Acquired, Destroyed, EventList, ListEvents, ListSpaces, OneSpace, SpaceAnswer,
            SpaceList, UpdateMetadata, UpdatePolicy,
        },
    },
    http::deadline::Deadline,
    name::SpaceRef,
};
use http::StatusCode;

use super::{error, expect::Sender, request::Json};
use crate::{
    lifecycle::{
        PATIENCE,
        create::{self, Outcome},
        destroy as removal, freeze as suspension, reconcile, stop as ending, wake as waking,
    },
    milestone::{Milestone, Row},
    node::Node,
    space::Space,
};

type Answer<T> = Result<axum::Json<T>, Error>;

pub(super) async fn acquire(
    State(node): State<Arc<Node>>,
    sender: Sender,
    Extension(deadline): Extension<Deadline>,
    Json(mut wish): Json<AcquireSpace>,
) -> Result<Response, Error> {
    deadline.extend(wish.patience());
    let space = wish.name.clone();
    wish.name = sender.meant(&wish.name);
    let outcome = create::acquire(&node, wish, sender.licence()).await.map_err(sender.misled(&space))?;
    Ok(match outcome {
        Outcome::Ready { space, created, resumed, unchanged } => {
            let space = node.shown(*space);
            axum::Json(Acquired { space, created, resumed, as_of: None, unchanged }).into_response()
        }
        Outcome::Later(waking) => (StatusCode::ACCEPTED, axum::Json(waking)).into_response(),
    })
}

/// Looking never wakes.
pub(super) async fn get(
    State(node): State<Arc<Node>>,
    sender: Sender,
    Json(wish): Json<OneSpace>,
) -> Answer<SpaceAnswer> {
    let row = node.known(&sender.meant(&wish.name)).await.map_err(sender.misled(&wish.name))?;
    Ok(axum::Json(node.answer(row, None)))
}

/// From the ledger alone: one wedged space never holds up a list.
pub(super) async fn list(State(node): State<Arc<Node>>, Json(wish): Json<ListSpaces>) -> Answer<SpaceList> {
    let (rows, next_cursor) = node.ledger.list(&wish, node.live.unwritten()).await.map_err(error::ledger)?;
    let spaces = rows.into_iter().map(|row| node.shown(row)).collect();
    Ok(axum::Json(SpaceList { spaces, next_cursor, silent: Vec::new() }))
}

/// What happened to a space. Looking never wakes.
pub(super) async fn events(
    State(node): State<Arc<Node>>,
    sender: Sender,
    Json(wish): Json<ListEvents>,
) -> Answer<EventList> {
    let row = node.known(&sender.meant(&wish.name)).await.map_err(sender.misled(&wish.name))?;
    let told = node.ledger.events(row.id, row.name, wish.cursor, wish.limit).await;
    let (events, next_cursor) = told.map_err(error::ledger)?;
    Ok(axum::Json(EventList { events, next_cursor }))
}

pub(super) async fn freeze(
    State(node): State<Arc<Node>>,
    sender: Sender,
    Json(wish): Json<OneSpace>,
) -> Answer<SpaceAnswer> {
    let row = suspension::freeze(&node, &sender.meant(&wish.name), "freezeSpace")
        .await
        .map_err(sender.misled(&wish.name))?;
    Ok(axum::Json(node.answer(row, None)))
}

pub(super) async fn stop(
    State(node): State<Arc<Node>>,
    sender: Sender,
    Json(wish): Json<OneSpace>,
) -> Answer<SpaceAnswer> {
    let row = ending::stop(&node, &sender.meant(&wish.name)).await.map_err(sender.misled(&wish.name))?;
    Ok(axum::Json(node.answer(row, None)))
}

pub(super) async fn wake(
    State(node): State<Arc<Node>>,
    sender: Sender,
    Json(wish): Json<OneSpace>,
) -> Answer<SpaceAnswer> {
    let (row, resumed) = waking::used(&node, &sender.meant(&wish.name), "wakeSpace")
        .await
        .map_err(sender.misled(&wish.name))?;
    Ok(axum::Json(node.answer(row, resumed)))
}

pub(super) async fn touch(
    State(node): State<Arc<Node>>,
    sender: Sender,
    Json(wish): Json<OneSpace>,
) -> Answer<SpaceAnswer> {
    let (row, resumed) = waking::used(&node, &sender.meant(&wish.name), "touchSpace")
        .await
        .map_err(sender.misled(&wish.name))?;
    Ok(axum::Json(node.answer(row, resumed)))
}

pub(super) async fn destroy(
    State(node): State<Arc<Node>>,
    sender: Sender,
    Json(wish): Json<OneSpace>,
) -> Answer<Destroyed> {
    let destroyed = removal::destroy(&node, &sender.meant(&wish.name)).await?;
    if !destroyed && sender.expects {
        return Err(super::expect::not_mine(&wish.name));
    }
    Ok(axum::Json(Destroyed { destroyed }))
}

pub(super) async fn update_policy(
    State(node): State<Arc<Node>>,
    sender: Sender,
    Json(wish): Json<UpdatePolicy>,
) -> Answer<SpaceAnswer> {
    change(&node, sender, wish.name, move |mut row| {
        row.policy = wish.policy.apply(row.policy);
        check("policy: ", &row.policy)?;
        Ok(row)
    })
    .await
}

pub(super) async fn update_metadata(
    State(node): State<Arc<Node>>,
    sender: Sender,
    Json(wish): Json<UpdateMetadata>,
) -> Answer<SpaceAnswer> {
    change(&node, sender, wish.name, move |mut row| {
        row.metadata = wish.metadata;
        Ok(row)
    })
    .await
}

/// Changes what the ledger says of a space; its card follows. The space is not woken.
async fn change(
    node: &Arc<Node>,
    sender: Sender,
    space: SpaceRef,
    edit: impl FnOnce(Space) -> Result<Space, Error> + Send + 'static,
) -> Answer<SpaceAnswer> {
    let (slot, row) = node.hold(&sender.meant(&space), PATIENCE).await.map_err(sender.misled(&space))?;
    let worker = node.clone();
    let changed = node
        .finish("change", async move {
            let _slot = slot;
            let row = edit(row)?;
            worker.ledger.set_policy(row.id, &row.policy).await.map_err(error::ledger)?;
            worker.ledger.set_metadata(row.id, &row.metadata).await.map_err(error::ledger)?;
            worker.milestones.reached(Milestone::Row(Row::Changed));
            worker.watch(&row);
            reconcile::write_card(&worker, &row).await;
            Ok(row)
        })
        .await?;
    Ok(axum::Json(node.answer(changed, None)))
}
