use std::{sync::Arc, time::Duration};

use drowse_shared::{
    api::{
        Code, Error, check,
        spaces::{AcquireSpace, Resumed, State as Word, Template, WAIT_SECONDS, Waking},
    },
    id::{Epoch, SpaceId, Ticket},
    name::{SpaceName, SpaceRef},
};
use tokio::time::Instant;

use super::{refused, wake};
use crate::{
    door::error,
    milestone::Moment,
    node::{Node, Slot, not_found},
    space::{
        Space, State,
        state::{Effect, Event, Refusal},
    },
};

const VERB: &str = "acquireSpace";
/// Longest wait of a create for the first check-in of this life.
const FIRST_CHECK_IN: Duration = Duration::from_secs(1);
/// Longest wait for the executor to find a template.
const TEMPLATE: Duration = Duration::from_secs(10);

/// Whether a new space may be built for this caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Licence {
    /// Nobody stands in between: the slot is enough.
    Direct,
    /// A gateway sent it on: it quotes the ticket its lookup was given, or none.
    Forwarded(Option<Ticket>),
    /// The sender believes the space exists.
    Existing,
}

/// What acquiring came to.
pub enum Outcome {
    /// It is there.
    Ready {
        /// The space.
        space: Box<Space>,
        /// Whether this call made it.
        created: bool,
        /// How it came back.
        resumed: Option<Resumed>,
        /// Wishes that were not applied.
        unchanged: Vec<String>,
    },
    /// It goes on being made or woken.
    Later(Waking),
}

/// The space of this name, whatever state it was in; made if there is none.
///
/// # Errors
/// Why it can be neither woken nor made.
pub async fn acquire(node: &Arc<Node>, wish: AcquireSpace, licence: Licence) -> Result<Outcome, Error> {
    if let Some(refusal) = node.fleet.refuses_use() {
        return Err(refusal);
    }
    let started = Instant::now();
    let patience = Duration::from_secs(wish.wait_seconds.unwrap_or(WAIT_SECONDS));
    let row = node.ledger.find(&wish.name).await.map_err(error::ledger)?;
    let name = match (&wish.name, &row) {
        (SpaceRef::Name(name), _) => name.clone(),
        (SpaceRef::Id(_), Some(row)) => row.name.clone(),
        (SpaceRef::Id(_), None) => return Err(not_found(&wish.name)),
    };
    // The warm path: nothing to do and nobody in the way.
    if let Some(row) = row.filter(|row| row.state == State::Active) {
        // Before the slot is looked at: see `wake::used`.
        node.touch(&row, VERB);
        if !node.slots.is_busy(&name) {
            return Ok(ready(node, &wish, row, false, None));
        }
    }
    let slot = match node.slot(&name, patience).await {
        Ok(slot) => slot,
        Err(busy) if busy.code == Code::SpaceBusy => return later(node, &wish.name, busy).await,
        Err(full) => return Err(full),
    };
    let left = patience.saturating_sub(started.elapsed());
    match node.ledger.find(&wish.name).await.map_err(error::ledger)? {
        // Nobody is at this removal, or the slot would not be ours: it comes to its end first.
        Some(row) if row.state == State::Destroying => {
            let slot = cleared(node, slot, row, left).await?;
            let left = patience.saturating_sub(started.elapsed());
            new(node, wish, licence, name, slot, left).await
        }
        // Set aside while we waited: its verbs queue under its new name.
        Some(row) if row.name != name => Err(refused(&row, Refusal::Busy)),
        Some(row) => {
            void(node, &name, licence);
            existing(node, &wish, slot, row, left).await
        }
        None => new(node, wish, licence, name, slot, left).await,
    }
}

/// A ticket that meets a space is used up all the same.
fn void(node: &Node, name: &SpaceName, licence: Licence) {
    if let Licence::Forwarded(Some(ticket)) = licence {
        let _ = node.tickets().consume(name, ticket, Instant::now());
    }
}

/// Ends the removal of what had the name before. Answers the slot again.
async fn cleared(node: &Arc<Node>, slot: Slot, row: Space, left: Duration) -> Result<Slot, Error> {
    let busy = refused(&row, Refusal::Busy);
    let worker = node.clone();
    let work = node.finish("destroy", async move {
        worker.drive(row, Event::Destroy, "a removal that was cut").await?;
        Ok(slot)
    });
    tokio::time::timeout(left, work).await.unwrap_or(Err(busy))
}

async fn existing(
    node: &Arc<Node>,
    wish: &AcquireSpace,
    slot: Slot,
    row: Space,
    left: Duration,
) -> Result<Outcome, Error> {
    let before = row.state.word();
    match wake::wake(node, slot, row, VERB.into(), left).await? {
        Some((space, resumed)) => Ok(ready(node, wish, space, before == Word::Creating, resumed)),
        None => Ok(Outcome::Later(waking(before))),
    }
}

fn ready(node: &Node, wish: &AcquireSpace, space: Space, created: bool, resumed: Option<Resumed>) -> Outcome {
    node.touch(&space, VERB);
    let unchanged = if created { Vec::new() } else { unchanged(wish, &space) };
    Outcome::Ready { space: Box::new(space), created, resumed, unchanged }
}

async fn new(
    node: &Arc<Node>,
    wish: AcquireSpace,
    licence: Licence,
    name: SpaceName,
    slot: Slot,
    left: Duration,
) -> Result<Outcome, Error> {
    if matches!(wish.name, SpaceRef::Id(_)) {
        return Err(not_found(&wish.name));
    }
    // A daemon that started a moment ago has its first check-in under way.
    let _ = tokio::time::timeout(FIRST_CHECK_IN, node.fleet.heard()).await;
    admitted(node, &name, licence)?;
    let worker = node.clone();
    let work = node.finish("create", async move {
        let _slot = slot;
        let space = planned(&worker, &wish, name).await?;
        worker.reached(Effect::Create, Moment::Meant);
        worker.ledger.insert(&space, Some(Effect::Create)).await.map_err(error::ledger)?;
        let missing = not_found(&wish.name);
        let made = worker.drive(space, Event::Use, VERB).await?.ok_or(missing)?;
        Ok(ready(&worker, &wish, made, true, None))
    });
    match tokio::time::timeout(left, work).await {
        Ok(made) => made,
        Err(_) => Ok(Outcome::Later(waking(Word::Creating))),
    }
}

/// Whether this create may go ahead. The slot is held.
fn admitted(node: &Node, name: &SpaceName, licence: Licence) -> Result<(), Error> {
    let now = Instant::now();
    if let Some(refusal) = node.fleet.refuses_creates(now).or_else(|| node.kept.refuses(name, &node.fleet)) {
        return Err(refusal);
    }
    match licence {
        Licence::Direct => Ok(()),
        Licence::Existing => {
            Err(Error::new(Code::NotMine, format!("this node does not hold {:?} any more", name.as_str())))
        }
        Licence::Forwarded(None) => Err(Error::new(
            Code::TicketVoid,
            "a forwarded create must quote the ticket of a lookup with intent `create`",
        )),
        Licence::Forwarded(Some(ticket)) => node
            .tickets()
            .consume(name, ticket, Instant::now())
            .map_err(|void| Error::new(Code::TicketVoid, void.to_string())),
    }
}

/// What the new space will be, by the caller's wishes and the fleet's settings.
async fn planned(node: &Node, wish: &AcquireSpace, name: SpaceName) -> Result<Space, Error> {
    let settings = node.fleet.settings();
    let policy = wish.policy.clone().unwrap_or_default().apply(settings.policy);
    check("policy, with the fleet's defaults: ", &policy)?;
    let template = template(node, wish.template.as_deref().unwrap_or(&settings.template)).await?;
    let now = node.env.clock.wall();
    Ok(Space {
        id: SpaceId::mint(&node.env),
        name,
        state: State::Creating,
        epoch: Epoch::FIRST,
        created_at: now,
        last_active_at: now,
        policy,
        spec: wish.spec.unwrap_or_default().apply(settings.spec),
        template,
        metadata: wish.metadata.clone().unwrap_or_default(),
    })
}

async fn template(node: &Node, name: &str) -> Result<Template, Error> {
    let found = tokio::time::timeout(TEMPLATE, node.executor.template(name)).await.map_err(|_| {
        Error::new(
            Code::RuntimeTimeout,
            format!("the template {name:?} could not be looked up in {TEMPLATE:?}"),
        )
    })?;
    found.map_err(|why| error::executor(&why))?.ok_or_else(|| {
        Error::new(Code::TemplateNotFound, format!("this node has no template named {name:?}"))
    })
}

/// Wishes that differ from what the space is. They are not applied: other verbs change a space.
fn unchanged(wish: &AcquireSpace, space: &Space) -> Vec<String> {
    let differs = [
        ("template", wish.template.as_ref().is_some_and(|name| *name != space.template.name)),
        ("spec", wish.spec.is_some_and(|patch| patch.apply(space.spec) != space.spec)),
        (
            "policy",
            wish.policy.clone().is_some_and(|patch| patch.apply(space.policy.clone()) != space.policy),
        ),
        ("metadata", wish.metadata.as_ref().is_some_and(|metadata| *metadata != space.metadata)),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(wish, _)| wish.to_owned()).collect()
}

/// The slot was busy for as long as the caller waits: on the way counts as an answer, anything else does not.
async fn later(node: &Arc<Node>, space: &SpaceRef, busy: Error) -> Result<Outcome, Error> {
    match node.ledger.find(space).await.map_err(error::ledger)? {
        Some(row) if matches!(row.state, State::Creating | State::Waking) => {
            Ok(Outcome::Later(waking(row.state.word())))
        }
        _ => Err(busy),
    }
}

fn waking(before: Word) -> Waking {
    let (state, phase, percent) = match before {
        Word::Creating => (Word::Creating, "making its disk and starting it", 10),
        Word::Frozen => (Word::Waking, "thawing its processes", 50),
        _ => (Word::Waking, "starting it from its disk", 50),
    };
    Waking { state, phase: phase.to_owned(), percent }
}
