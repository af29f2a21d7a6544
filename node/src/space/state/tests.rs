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
                assert!(!matches!(next, Step::Become(_) | Step::Break(_)), "a removal is never taken back");
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
