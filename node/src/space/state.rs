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

use crate::executor::Vitality;

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

/// One thing the executor does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Makes the disk.
    Create,
    /// Starts the processes.
    Start,
    /// Suspends them.
    Freeze,
    /// Resumes them.
    Thaw,
    /// Ends them.
    Stop,
    /// Removes everything.
    Destroy,
}

impl Effect {
    /// Every effect.
    pub const ALL: [Self; 6] =
        [Self::Create, Self::Start, Self::Freeze, Self::Thaw, Self::Stop, Self::Destroy];
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
mod tests {
    use super::*;

    fn states() -> Vec<State> {
        let broken = |cause: &str| {
            State::Broken(Broken {
                cause: cause.to_owned(),
                message: String::new(),
                since: jiff::Timestamp::UNIX_EPOCH,
            })
        };
        vec![
            State::Creating,
            State::Active,
            State::Frozen,
            State::Stopped,
            State::Waking,
            State::Destroying,
            broken("disk_missing"),
            broken("template_missing"),
        ]
    }

    fn events() -> Vec<Event> {
        let mut events = vec![Event::Use, Event::Freeze, Event::Stop, Event::Destroy, Event::Lost];
        events.extend([Vitality::Running, Vitality::Frozen, Vitality::Stopped].map(Event::Found));
        events.extend(Effect::ALL.map(Event::Done));
        for effect in Effect::ALL {
            let faults = [Fault::DiskMissing, Fault::TemplateMissing, Fault::Passing];
            events.extend(faults.map(|fault| Event::Failed(effect, fault)));
        }
        events
    }

    /// One row per state: what each verb and each finding makes of it.
    #[test]
    fn every_verb_and_finding_has_one_outcome_in_every_state() {
        use Effect::{Create, Destroy, Freeze, Start, Stop, Thaw};
        use Meanwhile::{AsItWas, Destroying};
        let act = Step::Do;
        let (busy, broken) = (Step::Refuse(Refusal::Busy), Step::Refuse(Refusal::Broken));
        let gone = act(Destroying, Destroy);
        let become_ = Step::Become;
        let lost = Step::Break("disk_missing");
        use Settled::{Active, Frozen, Stopped};
        // state: use, freeze, stop, destroy, lost, found running, found frozen, found stopped
        let table: [[Step; 8]; 8] = [
            [
                act(Meanwhile::Creating, Create),
                busy.clone(),
                busy.clone(),
                gone.clone(),
                gone.clone(),
                gone.clone(),
                gone.clone(),
                gone.clone(),
            ],
            [
                Step::Rest,
                act(AsItWas, Freeze),
                act(AsItWas, Stop),
                gone.clone(),
                lost.clone(),
                Step::Rest,
                become_(Frozen),
                become_(Stopped),
            ],
            [
                act(AsItWas, Thaw),
                Step::Rest,
                act(AsItWas, Stop),
                gone.clone(),
                lost.clone(),
                become_(Active),
                Step::Rest,
                become_(Stopped),
            ],
            [
                act(Meanwhile::Waking, Start),
                Step::Refuse(Refusal::WrongState),
                Step::Rest,
                gone.clone(),
                lost.clone(),
                become_(Active),
                become_(Frozen),
                Step::Rest,
            ],
            [
                act(Meanwhile::Waking, Start),
                busy.clone(),
                act(AsItWas, Stop),
                gone.clone(),
                lost,
                become_(Active),
                become_(Frozen),
                become_(Stopped),
            ],
            [
                busy.clone(),
                busy.clone(),
                busy,
                gone.clone(),
                gone.clone(),
                gone.clone(),
                gone.clone(),
                gone.clone(),
            ],
            [
                broken.clone(),
                broken.clone(),
                broken.clone(),
                gone.clone(),
                Step::Rest,
                become_(Active),
                become_(Frozen),
                become_(Stopped),
            ],
            [broken.clone(), broken.clone(), broken, gone, Step::Rest, Step::Rest, Step::Rest, Step::Rest],
        ];
        for (state, row) in states().iter().zip(table) {
            for (event, expected) in events().into_iter().zip(row) {
                assert_eq!(step(state, event), expected, "{state:?} × {event:?}");
            }
        }
    }

    #[test]
    fn an_effect_that_ends_leaves_no_state_without_a_way_on() {
        for state in states() {
            for event in events() {
                let next = step(&state, event);
                if let (Event::Failed(..), State::Active | State::Frozen | State::Stopped) = (event, &state) {
                    assert!(matches!(next, Step::Rest | Step::Break(_)), "{state:?} × {event:?}: {next:?}");
                }
                if state == State::Destroying {
                    assert!(
                        !matches!(next, Step::Become(_) | Step::Break(_)),
                        "a removal is never taken back"
                    );
                }
                if matches!(next, Step::Forget) {
                    assert_eq!((state.clone(), event), (State::Destroying, Event::Done(Effect::Destroy)));
                }
            }
        }
    }

    /// What the driver does, with outcomes drawn at will: `true` = done, else a fault.
    fn drive(mut state: State, mut event: Event, outcomes: &[Option<Fault>]) -> (State, usize) {
        let mut effects = 0;
        loop {
            match step(&state, event) {
                Step::Rest | Step::Refuse(_) | Step::Forget => return (state, effects),
                Step::Become(settled) => return (settled.into(), effects),
                Step::Break(_) => return (states().remove(6), effects),
                Step::Do(meanwhile, effect) => {
                    match meanwhile {
                        Meanwhile::AsItWas => {}
                        Meanwhile::Creating => state = State::Creating,
                        Meanwhile::Waking => state = State::Waking,
                        Meanwhile::Destroying => state = State::Destroying,
                    }
                    event = match outcomes.get(effects) {
                        Some(Some(fault)) => Event::Failed(effect, *fault),
                        _ => Event::Done(effect),
                    };
                    effects += 1;
                }
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_effects_come_to_a_space_never_waits_for_one_nobody_asked_for(
            verbs in proptest::collection::vec((0_usize..5, proptest::collection::vec(0_usize..4, 4)), 1..20),
        ) {
            let mut state = State::Creating;
            for (verb, outcomes) in verbs {
                let event = events()[verb];
                let faults = [None, Some(Fault::DiskMissing), Some(Fault::TemplateMissing), Some(Fault::Passing)];
                let outcomes: Vec<_> = outcomes.into_iter().map(|n| faults[n]).collect();
                let before = state.clone();
                let (after, effects) = drive(state, event, &outcomes);
                proptest::prop_assert!(effects <= 3, "{:?} × {:?}: {} effects", before, event, effects);
                let waits = matches!(after, State::Creating | State::Waking);
                proptest::prop_assert!(!waits || after == before, "{:?} × {:?} leaves {:?}", before, event, after);
                state = after;
            }
        }
    }

    #[test]
    fn a_passing_failure_never_loses_a_space_that_was_acknowledged() {
        for state in [State::Active, State::Frozen, State::Stopped, State::Waking] {
            for effect in Effect::ALL {
                let next = step(&state, Event::Failed(effect, Fault::Passing));
                assert!(matches!(next, Step::Rest | Step::Become(Settled::Stopped)), "{state:?}: {next:?}");
            }
        }
    }
}
