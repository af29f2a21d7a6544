//! What a space is doing, and what each event makes of it. Pure: no clock, no lock, no await.
//!
//! ```text
//!             create          start               freeze
//!   (none) ──────────> creating ─────> active <──────────> frozen
//!                         │  ^          │   │     thaw       │
//!                  failed │  │    start │   └────── stop ────┤
//!                         v  │          │                    v
//!   (none) <── destroying <──┼─────── waking <─────────── stopped
//!                  ^  from every state  │        use
//!                  └── broken <─────────┘ its disk or template is gone
//! ```
//!
//! `creating`, `waking` and `destroying` are written before the machine is touched; the rest after. Freeze and thaw have
//! no word of their own: what the kernel says about a body settles them after a crash.

use drowse_shared::api::spaces::{Broken, State as Word};

use crate::{executor::Vitality, milestone::listed};

/// What a space is doing, with what only exists in that state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Its disk is made and it is started for the first time; nobody was told it exists.
    Creating,
    /// Its processes run.
    Active,
    /// Its processes are suspended.
    Frozen,
    /// Only its disk is left.
    Stopped,
    /// It is started again.
    Waking,
    /// It is removed, whatever happens.
    Destroying,
    /// A person must look at it.
    Broken(Broken),
}

impl State {
    /// The word on the wire and in the ledger.
    pub fn word(&self) -> Word {
        match self {
            Self::Creating => Word::Creating,
            Self::Active => Word::Active,
            Self::Frozen => Word::Frozen,
            Self::Stopped => Word::Stopped,
            Self::Waking => Word::Waking,
            Self::Destroying => Word::Destroying,
            Self::Broken(_) => Word::Broken,
        }
    }

    /// Whether it waits for an outcome.
    pub fn is_transitional(&self) -> bool {
        matches!(self, Self::Creating | Self::Waking | Self::Destroying)
    }
}

listed! {
    /// One thing the executor does. The word is what the ledger calls it.
    pub enum Effect {
        /// Makes the disk.
        Create = "create",
        /// Starts the processes.
        Start = "start",
        /// Suspends them.
        Freeze = "freeze",
        /// Resumes them.
        Thaw = "thaw",
        /// Ends them.
        Stop = "stop",
        /// Removes everything.
        Destroy = "destroy",
    }
}

impl Effect {
    /// Whether it leads to a start, of which there are so many at once.
    pub fn starts(self) -> bool {
        matches!(self, Self::Create | Self::Start)
    }
}

/// Why an effect failed, as far as the state cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The disk is gone.
    DiskMissing,
    /// The template is gone.
    TemplateMissing,
    /// Anything that may be better next time.
    Passing,
}

impl Fault {
    /// The stable word of what it breaks, if it breaks something.
    pub fn cause(self) -> Option<&'static str> {
        match self {
            Self::DiskMissing => Some("disk_missing"),
            Self::TemplateMissing => Some("template_missing"),
            Self::Passing => None,
        }
    }
}

/// What happens to a space. The space's slot is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Somebody wants to use it.
    Use,
    /// Somebody wants it suspended.
    Freeze,
    /// Somebody wants it stopped.
    Stop,
    /// Somebody wants it gone.
    Destroy,
    /// An effect succeeded.
    Done(Effect),
    /// An effect failed.
    Failed(Effect, Fault),
    /// The kernel was asked what the body does.
    Found(Vitality),
    /// The kernel was asked and there is no disk.
    Lost,
}

/// Why an event cannot be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is being built, started or removed.
    Busy,
    /// It is broken.
    Broken,
    /// It is in another state than the verb needs.
    WrongState,
}

/// What to do about an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing: it is as it should be.
    Rest,
    /// Act. `meanwhile` is written before.
    Do(Meanwhile, Effect),
    /// Write the new state.
    Become(Settled),
    /// Write that it is broken, for this cause.
    Break(&'static str),
    /// Remove the row.
    Forget,
    /// Say no.
    Refuse(Refusal),
}

/// The state while an effect runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meanwhile {
    /// As it was: the kernel knows better after a crash.
    AsItWas,
    /// Creating.
    Creating,
    /// Waking.
    Waking,
    /// Destroying.
    Destroying,
}

/// A state that waits for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Active.
    Active,
    /// Frozen.
    Frozen,
    /// Stopped.
    Stopped,
}

impl From<Settled> for State {
    fn from(settled: Settled) -> Self {
        match settled {
            Settled::Active => Self::Active,
            Settled::Frozen => Self::Frozen,
            Settled::Stopped => Self::Stopped,
        }
    }
}

impl From<Vitality> for Settled {
    fn from(vitality: Vitality) -> Self {
        match vitality {
            Vitality::Running => Self::Active,
            Vitality::Frozen => Self::Frozen,
            Vitality::Stopped => Self::Stopped,
        }
    }
}

/// What `event` makes of a space in `state`.
pub fn step(state: &State, event: Event) -> Step {
    use Event as E;
    use State as S;
    let destroy = Step::Do(Meanwhile::Destroying, Effect::Destroy);
    match (state, event) {
        // Removal wins over everything, and is never taken back.
        (_, E::Destroy) => destroy,
        (S::Destroying, E::Done(Effect::Destroy)) => Step::Forget,
        (S::Destroying, E::Failed(Effect::Destroy, _)) => Step::Rest,
        (S::Destroying, E::Found(_) | E::Lost) => destroy,
        (S::Destroying, _) => Step::Refuse(Refusal::Busy),

        // A create that was cut was never acknowledged: what is left of it goes.
        (S::Creating, E::Found(_) | E::Lost | E::Failed(..)) => destroy,
        (S::Creating, E::Use) => Step::Do(Meanwhile::Creating, Effect::Create),
        (S::Creating, E::Done(Effect::Create)) => Step::Do(Meanwhile::Creating, Effect::Start),
        (S::Creating, E::Done(Effect::Start)) => Step::Become(Settled::Active),
        (S::Creating, _) => Step::Refuse(Refusal::Busy),

        // A person chooses; but a disk that is back is a disk.
        (S::Broken(broken), E::Found(vitality)) if Some(&*broken.cause) == Fault::DiskMissing.cause() => {
            Step::Become(vitality.into())
        }
        (S::Broken(_), E::Found(_) | E::Lost) => Step::Rest,
        (S::Broken(_), _) => Step::Refuse(Refusal::Broken),

        (_, E::Lost) => Step::Break("disk_missing"),
        (_, E::Found(vitality)) => settle(state, vitality.into()),

        (S::Active, E::Use) => Step::Rest,
        (S::Frozen, E::Use) => Step::Do(Meanwhile::AsItWas, Effect::Thaw),
        (S::Stopped | S::Waking, E::Use) => Step::Do(Meanwhile::Waking, Effect::Start),

        (S::Active, E::Freeze) => Step::Do(Meanwhile::AsItWas, Effect::Freeze),
        (S::Frozen, E::Freeze) => Step::Rest,
        (S::Stopped, E::Freeze) => Step::Refuse(Refusal::WrongState),
        (S::Waking, E::Freeze) => Step::Refuse(Refusal::Busy),

        (S::Active | S::Frozen | S::Waking, E::Stop) => Step::Do(Meanwhile::AsItWas, Effect::Stop),
        (S::Stopped, E::Stop) => Step::Rest,

        (_, E::Done(Effect::Start | Effect::Thaw)) => Step::Become(Settled::Active),
        (_, E::Done(Effect::Freeze)) => Step::Become(Settled::Frozen),
        (_, E::Done(Effect::Stop)) => Step::Become(Settled::Stopped),

        (_, E::Failed(_, fault @ (Fault::DiskMissing | Fault::TemplateMissing))) => {
            fault.cause().map_or(Step::Rest, Step::Break)
        }
        (S::Waking, E::Failed(..)) => Step::Become(Settled::Stopped),
        (S::Active | S::Frozen | S::Stopped, E::Failed(_, Fault::Passing)) => Step::Rest,
        // These effects are never asked of a space in these states.
        (S::Active | S::Frozen | S::Stopped | S::Waking, E::Done(Effect::Create | Effect::Destroy)) => {
            Step::Refuse(Refusal::WrongState)
        }
    }
}

fn settle(state: &State, found: Settled) -> Step {
    if *state == State::from(found) { Step::Rest } else { Step::Become(found) }
}

#[cfg(test)]
mod tests;
