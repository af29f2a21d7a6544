//! What happens to spaces. One loop drives every change: event → `step` decides → intent row → effect → outcome row.
//!
//! Whoever changes a space holds the slot of its name. The change runs in a task of its own that owns the slot, so a client
//! that leaves stops nothing; a crash in between is settled by `reconcile`.

use std::{borrow::Cow, future::Future, time::Duration};

use drowse_shared::{
    api::{Code, Error as WireError},
    name::{SpaceName, SpaceRef},
    slots,
};
use tokio::time::Instant;

use crate::{
    door::error,
    executor::{self, Vitality},
    ledger,
    milestone::{Milestone, Moment},
    node::{Node, Slot, not_found},
    space::{
        Space, State,
        state::{Effect, Event, Fault, Meanwhile, Refusal, Settled, Step, step},
    },
};
use told::Told;

/// A name that another node's space is to have.
pub mod aside;
/// What a space computes.
pub mod busy;
/// `acquireSpace` of a name that is not there, and its answer while it takes long.
pub mod create;
/// Removing a space.
pub mod destroy;
/// Suspending a space.
pub mod freeze;
/// Steps down that nobody asked for: what idles sleeps.
pub mod idle;
/// Two disks that carry one name.
pub mod namesake;
/// Giving the memory of what sleeps back.
pub mod page_out;
/// What is asked of the executor, with its deadlines.
mod perform;
/// At boot and in the background: ledger and reality are brought together.
pub mod reconcile;
/// Agents of an earlier build.
pub mod renew;
/// Leaving a space only its disk.
pub mod stop;
/// What is told of a change.
mod told;
/// What counts as using a space over a connection.
pub mod usage;
/// Making a space usable.
pub mod wake;

/// How long SIGTERM is given before SIGKILL when a space stops.
pub const STOP_GRACE: Duration = Duration::from_secs(10);
/// Longest wait for the slot of a verb that does not say how long it waits.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Longest wait for the kernel's word on a body.
pub(crate) const LOOK: Duration = Duration::from_secs(10);
/// Most effects one event may lead to; a create has two, a body that is not what it was has a few more.
const EFFECTS_MAX: usize = 6;

impl Node {
    /// Takes the slot of a name.
    ///
    /// # Errors
    /// `queue_full` or `space_busy`.
    pub async fn slot(&self, name: &SpaceName, patience: Duration) -> Result<Slot, WireError> {
        self.slots.take(name, patience).await.map_err(|why| match why {
            slots::Error::Full(waiting) => WireError::new(
                Code::QueueFull,
                format!("{waiting} requests already wait for {:?}", name.as_str()),
            ),
            slots::Error::Busy(waited) => WireError::new(
                Code::SpaceBusy,
                format!(
                    "{:?} was busy for {} ms; another verb on it is still running",
                    name.as_str(),
                    waited.as_millis()
                ),
            ),
        })
    }

    /// The space a request points at, with its slot.
    ///
    /// # Errors
    /// `space_not_found`, or as [`Node::slot`].
    pub async fn hold(&self, space: &SpaceRef, patience: Duration) -> Result<(Slot, Space), WireError> {
        let mut name = match space {
            SpaceRef::Name(name) => name.clone(),
            SpaceRef::Id(_) => self.known(space).await?.name,
        };
        loop {
            let slot = self.slot(&name, patience).await?;
            // It may have gone, or come anew under this name, while we waited.
            let row = self.known(space).await?;
            if row.name == name {
                return Ok((slot, row));
            }
            // It was set aside: its verbs queue under its new name.
            name = row.name;
        }
    }

    /// The space a request points at.
    ///
    /// # Errors
    /// `space_not_found`.
    pub async fn known(&self, space: &SpaceRef) -> Result<Space, WireError> {
        self.ledger.find(space).await.map_err(error::ledger)?.ok_or_else(|| not_found(space))
    }

    /// Runs `work` to its end whatever happens to the caller. The daemon's end waits for it within its grace.
    ///
    /// # Errors
    /// What `work` answers, or that the daemon ends.
    pub async fn finish<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<T, WireError>> + Send + 'static,
    ) -> Result<T, WireError> {
        let running = self.shutdown.running();
        let work = async move {
            let _running = running;
            work.await
        };
        self.env.finish(name, work).await.unwrap_or_else(|| {
            Err(WireError::new(Code::ShuttingDown, "the daemon ended while it worked on this"))
        })
    }

    /// An effect came this far.
    pub(crate) fn reached(&self, effect: Effect, moment: Moment) {
        self.milestones.reached(Milestone::Effect(effect, moment));
    }

    /// Follows an event to its end. The caller holds the slot. Answers the space afterwards; `None` when it is gone. What
    /// comes of it is told with its reason.
    ///
    /// # Errors
    /// Why the event was refused, or which effect failed; the ledger then says what is left.
    pub async fn drive(
        &self,
        mut space: Space,
        event: Event,
        because: impl Into<Cow<'static, str>> + Send,
    ) -> Result<Option<Space>, WireError> {
        let mut told = Told::of(because.into());
        let mut event = event;
        let mut failure: Option<WireError> = None;
        let mut stopping = false;
        let mut turn = None;
        for _ in 0..=EFFECTS_MAX {
            let ended = match event {
                Event::Done(effect) | Event::Failed(effect, _) => Some(effect),
                _ => None,
            };
            // What an effect led to is written: its outcome, or the intent of the next.
            let settled =
                |node: &Self| ended.into_iter().for_each(|effect| node.reached(effect, Moment::Settled));
            match step(&space.state, event) {
                Step::Rest => {
                    if stopping {
                        // It was said that it failed: the next life is not to end it then.
                        let state = space.state.clone();
                        self.settle(&mut space, state, &told).await?;
                        settled(self);
                    }
                    break;
                }
                Step::Refuse(refusal) => return Err(failure.unwrap_or_else(|| refused(&space, refusal))),
                Step::Become(next) => {
                    if matches!(event, Event::Done(Effect::Start | Effect::Thaw)) {
                        // Whoever woke it says so only after the slot is free again.
                        self.live.renew(space.id);
                    }
                    if let Err(unwritten) = self.settle(&mut space, next.into(), &told).await {
                        self.unfreeze(&space, event).await;
                        return Err(unwritten);
                    }
                    settled(self);
                    if event == Event::Done(Effect::Thaw) {
                        self.renew_agent(&space).await;
                    }
                    break;
                }
                Step::Break(cause) => {
                    let broken = self.broken(&space, cause);
                    tracing::error!(space = %space.id, name = space.name.as_str(), cause, "the space is broken");
                    self.settle(&mut space, State::Broken(broken), &told).await?;
                    settled(self);
                    break;
                }
                Step::Forget => {
                    let end = Some((space.name.clone(), told.end(self)));
                    self.ledger.forget(space.id, end).await.map_err(error::ledger)?;
                    settled(self);
                    self.live.forget(space.id);
                    self.ledger.restore_ballast().await;
                    return failure.map_or(Ok(None), Err);
                }
                Step::Do(_, effect) if turn.is_none() && effect.starts() => match self.starts.turn().await {
                    Ok(taken) => turn = Some(taken),
                    Err(busy) => {
                        self.metrics.started("refused");
                        told.failed(&busy);
                        failure = Some(busy);
                        event = Event::Failed(effect, Fault::Passing);
                    }
                },
                Step::Do(meanwhile, effect) => {
                    self.begin(&mut space, meanwhile, effect).await?;
                    settled(self);
                    self.reached(effect, Moment::Begun);
                    stopping = effect == Effect::Stop;
                    let began = Instant::now();
                    let done = self.perform_in_turn(&space, effect, &mut turn).await;
                    told.took(began.elapsed(), stopping);
                    if effect == Effect::Start {
                        self.metrics.started(if done.is_ok() { "done" } else { "failed" });
                    }
                    self.reached(effect, Moment::Ended);
                    event = match done {
                        Ok(()) => Event::Done(effect),
                        Err(executor::Error::Vitality { vitality, .. })
                            if failure.is_none() && space.state != State::Creating =>
                        {
                            // It is not what the ledger thought: take what it is, and ask again.
                            let found = self.found(&space, vitality, &told).await;
                            self.settle(&mut space, Settled::from(vitality).into(), &found).await?;
                            event
                        }
                        Err(why) => {
                            tracing::warn!(
                                space = %space.id, name = space.name.as_str(), effect = effect.word(),
                                error = %error::chain(&why), "an effect failed"
                            );
                            let says = error::executor(&why);
                            told.failed(&says);
                            failure = failure.or(Some(says));
                            self.after(&space, effect, &why).await
                        }
                    };
                }
            }
        }
        match failure {
            Some(_) if matches!(space.state, State::Broken(_)) => Err(refused(&space, Refusal::Broken)),
            Some(failure) => Err(failure),
            None => Ok(Some(space)),
        }
    }

    /// A freeze that could not be written is undone: the ledger still calls the space active, and who uses one that stands
    /// still waits for ever. Where nobody may use it, it rests.
    async fn unfreeze(&self, space: &Space, event: Event) {
        let froze = matches!(event, Event::Done(Effect::Freeze) | Event::Found(Vitality::Frozen));
        if froze
            && self.fleet.refuses_use().is_none()
            && let Err(why) = self.perform(space, Effect::Thaw).await
        {
            tracing::error!(space = %space.id, error = %error::chain(&why), "it stands still and is called active");
        }
    }

    /// What a failed effect is taken for. A freeze or a stop that failed may have been had all the same, and a space that
    /// is called active must not stand still or be gone; so the kernel is asked. A stop that did not come back may still do
    /// something: what the kernel says then is of a moment.
    async fn after(&self, space: &Space, effect: Effect, why: &executor::Error) -> Event {
        let fault = fault(why);
        if effect == Effect::Stop && matches!(why, executor::Error::Timeout { .. }) {
            return Event::Failed(effect, fault);
        }
        if !matches!(effect, Effect::Freeze | Effect::Stop) || fault != Fault::Passing {
            return Event::Failed(effect, fault);
        }
        match tokio::time::timeout(LOOK, self.executor.vitality(space.id)).await {
            Ok(Ok(vitality)) => Event::Found(vitality),
            _ => Event::Failed(effect, fault),
        }
    }

    async fn begin(&self, space: &mut Space, meanwhile: Meanwhile, effect: Effect) -> Result<(), WireError> {
        // The row of a create is its intent: it was written before the first event.
        if effect != Effect::Create {
            self.reached(effect, Moment::Meant);
        }
        let next = match meanwhile {
            // Stopping ends processes: that is written before. Freeze and thaw are the kernel's to tell.
            Meanwhile::AsItWas if effect == Effect::Stop => space.state.clone(),
            Meanwhile::AsItWas => return Ok(()),
            Meanwhile::Creating if effect == Effect::Create => return Ok(()),
            Meanwhile::Creating => State::Creating,
            Meanwhile::Waking => State::Waking,
            Meanwhile::Destroying => State::Destroying,
        };
        match self.ledger.set_state(space.id, &space.state, &next, Some(effect), None).await {
            // What frees room is never refused for want of room. Cut here, the space is found without its disk.
            Err(ledger::Error::DiskFull) if effect == Effect::Destroy => {
                tracing::warn!(space = %space.id, "the disk is full: the space is removed without its intent written");
            }
            written => written.map_err(error::ledger)?,
        }
        space.state = next;
        Ok(())
    }

    async fn settle(&self, space: &mut Space, state: State, told: &Told) -> Result<(), WireError> {
        let event = told.event(self, &space.state, &state);
        self.ledger.set_state(space.id, &space.state, &state, None, event).await.map_err(error::ledger)?;
        space.state = state;
        match space.state {
            State::Stopped => self.rest(space).await,
            State::Frozen => {
                self.live.fell_asleep(space.id);
                self.watch(space);
                self.page_out(space.id);
            }
            _ => self.watch(space),
        }
        Ok(())
    }

    /// A stopped space costs no memory: what only this life knew of it is written down and forgotten.
    async fn rest(&self, space: &mut Space) {
        if let Some(at) = self.live.seen(space.id).last_active_at {
            space.last_active_at = space.last_active_at.max(at);
            if self.ledger.set_activity(vec![(space.id, space.last_active_at)]).await.is_err() {
                return;
            }
        }
        self.live.forget(space.id);
    }
}

fn fault(why: &executor::Error) -> Fault {
    match why {
        executor::Error::DiskMissing { .. } => Fault::DiskMissing,
        executor::Error::TemplateMissing { .. } => Fault::TemplateMissing,
        _ => Fault::Passing,
    }
}

/// Why a verb cannot be followed, in words.
pub fn refused(space: &Space, refusal: Refusal) -> WireError {
    let (name, state) = (space.name.as_str(), space.state.word());
    match (refusal, &space.state) {
        (Refusal::Broken, State::Broken(broken)) => {
            WireError::new(Code::SpaceBroken, format!("{name:?} is broken: {}", broken.message))
                .with("cause", broken.cause.clone())
        }
        (Refusal::Busy | Refusal::Broken, _) => {
            WireError::new(Code::SpaceBusy, format!("{name:?} is {state}; try again when that has ended"))
        }
        (Refusal::WrongState, _) => {
            WireError::new(Code::WrongState, format!("{name:?} is {state}; wake it first"))
                .with("state", state.as_str())
        }
    }
}
