use std::{sync::Arc, time::Duration};

use axum::extract::State;
use drowse_shared::{
    api::{
        Code, Error,
        health::Health,
        nodes::{CheckIn, Intent, Lookup, LookupAnswer, Measure, Measured, Report, SetAside, SetAsideBody},
    },
    id::{LedgerId, Ticket},
    name::SpaceRef,
};
use tokio::time::Instant;

use super::{error, request::Json};
use crate::{checkin, lifecycle::aside, node::Node};

/// Longest wait for a create in flight; below the two seconds a gateway waits.
const PATIENCE: Duration = Duration::from_millis(1800);
/// Longest look at how large a space is.
const LOOK: Duration = Duration::from_secs(2);

/// Whether this node holds a space. A row is a yes at once; without one, a create in flight is waited for.
pub(super) async fn lookup(
    State(node): State<Arc<Node>>,
    Json(asked): Json<Lookup>,
) -> Result<axum::Json<LookupAnswer>, Error> {
    if let Some(row) = node.ledger.find(&asked.space).await.map_err(error::ledger)? {
        return Ok(axum::Json(LookupAnswer::Yes(row.held())));
    }
    // Another node had this address before, and may hold the space.
    if let Some(asked) = asked.ledger_id.filter(|asked| *asked != node.ledger_id) {
        return Err(twin(&node, asked));
    }
    let SpaceRef::Name(name) = &asked.space else { return Ok(axum::Json(LookupAnswer::No { ticket: None })) };
    let _slot = node.slot(name, PATIENCE).await?;
    if let Some(row) = node.ledger.find(&asked.space).await.map_err(error::ledger)? {
        return Ok(axum::Json(LookupAnswer::Yes(row.held())));
    }
    if asked.intent == Intent::Compare {
        node.tickets().void(name);
        return Ok(axum::Json(LookupAnswer::No { ticket: None }));
    }
    if let Some(refusal) = node.kept.refuses(name, &node.fleet) {
        return Err(refusal);
    }
    if let Some(ticket) = asked.ticket {
        let newest = node.tickets().is_newest(name, ticket, Instant::now());
        return Ok(axum::Json(LookupAnswer::No { ticket: newest.then_some(ticket) }));
    }
    let ticket = (asked.intent == Intent::Create).then(|| {
        let ticket = Ticket::mint(&node.env);
        node.tickets().issue(name.clone(), ticket, Instant::now());
        ticket
    });
    Ok(axum::Json(LookupAnswer::No { ticket }))
}

fn twin(node: &Node, asked: LedgerId) -> Error {
    let message = format!(
        "the ledger {asked} is not here: node {}, the ledger {}, has its address now; removeNode the other one, or \
         give it an address of its own",
        node.config.node_id, node.ledger_id
    );
    Error::new(Code::NodeTwin, message)
}

/// What a space is, and how large its disk. A slow look inside leaves the size out.
pub(super) async fn measure(
    State(node): State<Arc<Node>>,
    Json(asked): Json<Measure>,
) -> Result<axum::Json<Measured>, Error> {
    let row = node.known(&SpaceRef::Id(asked.id)).await?;
    let stats = tokio::time::timeout(LOOK, node.executor.stats(asked.id)).await;
    let disk_bytes = stats.ok().and_then(Result::ok).map(|stats| stats.disk_bytes);
    Ok(axum::Json(Measured { space: node.shown(row), disk_bytes }))
}

/// A space gives up its name to another node's.
pub(super) async fn set_aside(
    State(node): State<Arc<Node>>,
    Json(wish): Json<SetAside>,
) -> Result<axum::Json<SetAsideBody>, Error> {
    if wish.ledger_id != node.ledger_id {
        return Err(twin(&node, wish.ledger_id));
    }
    aside::set_aside(&node, wish).await.map(axum::Json)
}

/// A check-in on demand.
pub(super) async fn report(
    State(node): State<Arc<Node>>,
    Json(shown): Json<Report>,
) -> Result<axum::Json<CheckIn>, Error> {
    if let Some(roster) = shown.roster {
        checkin::take_roster(&node, roster).await.map_err(error::ledger)?;
    }
    Ok(axum::Json(checkin::check_in(&node, shown.want_roster).await))
}

/// The daemon runs.
pub(super) async fn healthz(State(node): State<Arc<Node>>) -> axum::Json<Health> {
    axum::Json(Health::of(&node.watchdog, &node.config.build))
}
