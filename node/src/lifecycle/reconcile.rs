//! Ledger and reality are brought together: once at boot, before the door opens, and lightly ever after.
//!
//! At boot only rows are written; what takes time (removals, freezing what must not run) happens behind the open door,
//! where the slots order it with everything else.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use drowse_shared::{
    api::spaces::State as Word,
    id::{LedgerId, SpaceId},
    name::{SpaceName, SpaceRef},
    watchdog::Pulse,
};

use futures_util::{StreamExt as _, stream};

use super::{freeze, namesake};
use crate::{
    door::error::chain,
    executor::{Executor, Found},
    ledger,
    live::OldAgent,
    milestone::{Milestone, Row},
    node::{Node, Slot},
    space::{
        Space, State,
        state::{Effect, Event, Step, step},
    },
};

/// Longest wait at boot for the executor to say what exists.
const LIST: Duration = Duration::from_secs(60);
/// Between two looks at what was left unfinished.
const SWEEP: Duration = Duration::from_secs(15);
/// Most spaces that are frozen or stopped at once.
const AT_ONCE: usize = 32;
/// Longest step of the background work: what is wedged is given up before.
const STEP: Duration = Duration::from_secs(180);
/// Why the spaces of a removed node freeze.
const REMOVED: &str = "the fleet removed this node";
/// Longest wait for one removal of leftovers.
const REMOVAL: Duration = Duration::from_secs(60);

/// What the executor found, by id. `None` when it could not say in time: the ledger is believed as it stands.
pub async fn survey(executor: &dyn Executor) -> Option<BTreeMap<SpaceId, Found>> {
    match tokio::time::timeout(LIST, executor.list()).await {
        Ok(Ok(found)) => Some(found.into_iter().map(|found| (found.id, found)).collect()),
        Ok(Err(error)) => {
            tracing::error!(error = %chain(&error), "what exists could not be listed; the ledger is believed as it stands");
            None
        }
        Err(_) => {
            tracing::error!(
                "what exists could not be listed within {LIST:?}; the ledger is believed as it stands"
            );
            None
        }
    }
}

/// What boot left for later.
#[derive(Default)]
pub struct Leftovers {
    /// Stops that were cut: half of their processes may be gone. They are brought to their end, and their slots are held
    /// since before the door opened, so that nobody uses what is about to end.
    pub stops: Vec<(Slot, Space)>,
    /// Found without a row: removed.
    pub debris: Vec<SpaceId>,
    /// Cards that say something else than the ledger: written again.
    pub stale_cards: Vec<SpaceName>,
}

/// Brings the rows in line with what was found. Afterwards no row waits for anything but its removal.
///
/// # Errors
/// When the ledger cannot be read or written.
pub async fn boot(node: &Node, found: &BTreeMap<SpaceId, Found>) -> Result<Leftovers, ledger::Error> {
    let mut left = Leftovers::default();
    let rows = node.ledger.all().await?;
    let mut known = BTreeSet::new();
    let mut set_aside = Vec::new();
    let stopping = node.ledger.intending(Effect::Stop).await?;
    for mut row in rows {
        known.insert(row.id);
        let seen = found.get(&row.id).filter(|found| found.disk);
        let event = seen.map_or(Event::Lost, |found| Event::Found(found.vitality));
        let stops = stopping.contains(&row.id);
        match adopt(node, &mut row, event, stops).await {
            // The row is put right by the next verb that finds its body different.
            Err(ledger::Error::DiskFull) => {
                tracing::error!(space = %row.id, "the disk is full: not reconciled");
            }
            adopted => adopted?,
        }
        if row.sleeps_after().is_some() {
            node.watch(&row);
        }
        if seen.is_some_and(|found| found.old_agent) {
            node.live.set_old_agent(row.id, Some(OldAgent::Due));
        }
        if stops && matches!(row.state, State::Active | State::Frozen) {
            left.stops.extend(node.slots.try_take(&row.name).map(|slot| (slot, row.clone())));
        }
        let card = seen.and_then(|found| found.card.as_ref());
        if namesake::is_set_aside(&row.state) {
            set_aside.extend(seen.map(|found| (row, found)));
        } else if seen.is_some() && card != Some(&row.card(node.ledger_id)) && !row.state.is_transitional() {
            left.stale_cards.push(row.name);
        }
    }
    let mut lost = Vec::new();
    for found in found.values().filter(|found| !known.contains(&found.id)) {
        match (&found.card, found.disk) {
            (Some(card), _) if card.ledger_id != node.ledger_id => {
                tracing::warn!(space = %found.id, ledger = %card.ledger_id, "a disk of another node lies here; it is left alone");
            }
            (Some(card), true) => lost.push((card.clone(), found)),
            // A crash leaves neither: a row is written before its disk and goes after it, and a disk never has a card
            // without an image. So it is damage, or of a newer version, and may be all that is left of a space.
            (Some(_), false) | (None, true) => {
                tracing::error!(space = %found.id, "a disk without a readable card, or a card without a disk, lies here; it is left alone");
            }
            (None, false) => left.debris.push(found.id),
        }
    }
    lost.sort_by_key(|(card, _)| namesake::precedence(card));
    for (card, found) in lost {
        rebuild(node, card, found).await?;
    }
    // Only now is it known who has which name.
    for (row, found) in set_aside {
        namesake::recall(node, row, found).await?;
    }
    Ok(left)
}

/// Settles one row by what was found of it.
async fn adopt(node: &Node, row: &mut Space, event: Event, stopping: bool) -> Result<(), ledger::Error> {
    let (state, intent) = match step(&row.state, event) {
        Step::Become(settled) => (settled.into(), None),
        Step::Do(_, Effect::Destroy) => (State::Destroying, Some(Effect::Destroy)),
        Step::Break(cause) => (State::Broken(node.broken(row, cause)), None),
        _ => return Ok(()),
    };
    tracing::info!(space = %row.id, name = row.name.as_str(), was = %row.state.word(), is = %state.word(), "reconciled");
    let told = node.found_at_start(&row.state, &state, stopping);
    row.state = state;
    node.ledger.set_found(row.id, &row.state, intent, told).await?;
    node.milestones.reached(Milestone::Row(Row::Reconciled));
    Ok(())
}

/// The ledger was lost: the card brings the row back.
async fn rebuild(node: &Node, card: crate::executor::Card, found: &Found) -> Result<(), ledger::Error> {
    let holder = node.ledger.by_name(&card.name).await?.map(|holder| holder.id);
    if let Some(holder) = holder {
        tracing::error!(space = %found.id, %holder, name = card.name.as_str(), "two disks carry one name; the second is set aside");
    }
    if found.old_agent {
        node.live.set_old_agent(found.id, Some(OldAgent::Due));
    }
    let space = namesake::row(card, found, holder, node.env.clock.wall());
    tracing::info!(space = %space.id, name = space.name.as_str(), state = %space.state.word(), "rebuilt from its disk");
    node.watch(&space);
    node.ledger.insert_found(&space, node.rebuilt()).await?;
    node.milestones.reached(Milestone::Row(Row::Rebuilt));
    Ok(())
}

/// The ids the cards name, for a node that lost its own.
pub fn identities(found: Option<&BTreeMap<SpaceId, Found>>) -> impl Iterator<Item = LedgerId> {
    found
        .into_iter()
        .flat_map(BTreeMap::values)
        .filter_map(|found| found.card.as_ref().map(|card| card.ledger_id))
}

/// Behind the open door: removes leftovers, then looks after what was left unfinished until the daemon ends.
pub async fn tend(node: Arc<Node>, left: Leftovers) {
    let pulse = node.watchdog.watch("tend", STEP);
    let work = async {
        clear(&node, left, &pulse).await;
        loop {
            sweep(&node, &pulse).await;
            pulse.pauses(SWEEP);
            tokio::time::sleep(SWEEP).await;
        }
    };
    drowse_shared::select_biased! {
        () = node.shutdown.stopping() => {}
        () = work => {}
    }
    write_activity(&node).await;
}

async fn clear(node: &Arc<Node>, left: Leftovers, pulse: &Pulse) {
    pulse.at("ending stops that were cut");
    let stops = stream::iter(left.stops).for_each_concurrent(AT_ONCE, |(slot, row)| async move {
        let (worker, name) = (node.clone(), row.name.clone());
        let done = node.finish("stop", async move {
            let _slot = slot;
            worker.drive(row, Event::Stop, "a stop that was cut").await
        });
        if let Err(error) = done.await {
            tracing::warn!(name = name.as_str(), %error, "a stop that was cut could not be brought to its end");
        }
    });
    stops.await;
    for id in left.debris {
        pulse.about("removing leftovers", &id);
        tracing::info!(space = %id, "removing leftovers");
        match tokio::time::timeout(REMOVAL, node.executor.destroy(id)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(space = %id, error = %chain(&error), "leftovers could not be removed");
            }
            Err(_) => tracing::warn!(space = %id, "leftovers could not be removed within {REMOVAL:?}"),
        }
    }
    for name in left.stale_cards {
        pulse.about("writing a card", &name);
        let Some(_slot) = node.slots.try_take(&name) else { continue };
        if let Ok(Some(space)) = node.ledger.by_name(&name).await {
            write_card(node, &space).await;
        }
    }
}

/// Writes the card of a space anew. A failure is made good at the next boot.
pub async fn write_card(node: &Node, space: &Space) {
    // Its card keeps the name it had.
    if namesake::is_set_aside(&space.state) {
        return;
    }
    let written = tokio::time::timeout(LIST, node.executor.write_card(space.card(node.ledger_id))).await;
    if let Ok(Err(error)) = &written {
        tracing::warn!(space = %space.id, error = %chain(error), "the card of a space could not be written");
    }
}

async fn sweep(node: &Arc<Node>, pulse: &Pulse) {
    pulse.at("looking for what was left unfinished");
    let unfinished = [
        (Word::Destroying, Event::Destroy, "a removal that was cut"),
        (Word::Creating, Event::Lost, "a create that was cut"),
    ];
    for (state, event, because) in unfinished {
        for name in node.ledger.in_state(state).await.unwrap_or_default() {
            // Whoever holds the slot is at it.
            let Some(slot) = node.slots.try_take(&name) else { continue };
            let Ok(Some(row)) = node.ledger.by_name(&name).await else { continue };
            if row.state.word() != state {
                continue;
            }
            pulse.about("ending what was left unfinished", &name);
            let worker = node.clone();
            let done = node.finish("sweep", async move {
                let _slot = slot;
                worker.drive(row, event, because).await
            });
            if let Err(error) = done.await {
                tracing::warn!(name = name.as_str(), %error, "a removal has not come to its end yet");
            }
        }
    }
    if node.fleet.is_removed() {
        pulse.at("freezing the spaces of this removed node");
        suspend(node).await;
    }
    pulse.at("releasing names that were kept for another node");
    if let Err(error) = node.kept.release(&node.ledger, &node.fleet).await {
        tracing::warn!(error = %chain(&error), "names that were kept for another node could not be released");
    }
    pulse.at("writing when spaces were last used");
    write_activity(node).await;
    node.ledger.restore_ballast().await;
}

/// Freezes every active space: the fleet removed this node.
pub async fn suspend(node: &Arc<Node>) {
    let names = node.ledger.in_state(Word::Active).await.unwrap_or_default();
    // Beside each other: a space that is wedged holds up no other.
    let frozen = stream::iter(names).for_each_concurrent(AT_ONCE, |name| async move {
        if let Err(error) = freeze::freeze(node, &SpaceRef::Name(name.clone()), REMOVED).await {
            tracing::warn!(name = name.as_str(), %error, "a space of this removed node could not be frozen yet");
        }
    });
    frozen.await;
}

/// Writes down when spaces were last used.
pub async fn write_activity(node: &Node) {
    let used = node.live.unwritten();
    match node.ledger.set_activity(used.clone().into_iter().collect()).await {
        Ok(()) => node.live.written(&used),
        Err(error) => {
            tracing::warn!(error = %chain(&error), "when spaces were last used could not be written");
        }
    }
}
