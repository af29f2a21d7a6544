//! What is told of a change, for whoever asks later why it came.

use std::{borrow::Cow, time::Duration};

use drowse_shared::{
    api::{
        Error as WireError,
        spaces::{Broken, Happened},
    },
    id::SpaceId,
};

use super::LOOK;
use crate::{
    executor::Vitality,
    ledger::events::Event,
    node::Node,
    space::{Space, State},
};

/// Why a space changes, in words, and how long that took the runtime so far.
#[derive(Debug, Clone)]
pub(super) struct Told {
    because: Cow<'static, str>,
    took: Option<Duration>,
    /// Its end is somebody's wish, not its own.
    ends: bool,
}

impl Told {
    pub(super) fn of(because: Cow<'static, str>) -> Self {
        Self { because, took: None, ends: false }
    }

    pub(super) fn because(self) -> Cow<'static, str> {
        self.because
    }

    /// The runtime did something for it.
    pub(super) fn took(&mut self, more: Duration, ends: bool) {
        self.took = Some(self.took.unwrap_or_default() + more);
        self.ends = ends;
    }

    /// What became of it is not what was wanted.
    pub(super) fn failed(&mut self, why: &WireError) {
        self.because = format!("{}: {}", self.because, why.message).into();
    }

    /// The event of a change, if it is one.
    pub(super) fn event(&self, node: &Node, was: &State, is: &State) -> Option<Event> {
        happened(was, is, self.ends).map(|what| self.about(node, what))
    }

    /// The event of its end.
    pub(super) fn end(&self, node: &Node) -> Event {
        self.about(node, Happened::Destroyed)
    }

    fn about(&self, node: &Node, what: Happened) -> Event {
        Event { at: node.env.clock.wall(), what, because: self.because.to_string(), took: self.took }
    }
}

impl Node {
    /// What is told of a body that is not what its row says. `by` is who noticed.
    pub(super) async fn found(&self, space: &Space, vitality: Vitality, by: &Told) -> Told {
        let what = match vitality {
            Vitality::Stopped if self.ran_out(space.id).await => "its memory ran out",
            Vitality::Stopped => "its processes had ended",
            Vitality::Running | Vitality::Frozen => "it was found so",
        };
        Told::of(format!("{what}; noticed by {}", by.because).into())
    }

    async fn ran_out(&self, id: SpaceId) -> bool {
        let looked = tokio::time::timeout(LOOK, self.executor.ran_out_of_memory(id)).await;
        matches!(looked, Ok(Ok(true)))
    }

    /// What is told of a row that was made anew.
    pub(super) fn rebuilt(&self) -> Event {
        Told::of("the ledger had lost it".into()).about(self, Happened::Rebuilt)
    }

    /// What is told of a row that was brought in line at a start. `ends`: a stop was under way.
    pub(super) fn found_at_start(&self, was: &State, is: &State, ends: bool) -> Option<Event> {
        let because = match (is, ends) {
            (State::Stopped, true) => "a stop that was cut",
            (State::Stopped, false) => "its processes had ended when the node started",
            (State::Broken(broken), _) => &broken.message,
            _ => "it was found so when the node started",
        };
        Told { because: because.to_owned().into(), took: None, ends }.event(self, was, is)
    }

    /// Why it is broken, for a person.
    pub(super) fn broken(&self, space: &Space, cause: &str) -> Broken {
        let message = match cause {
            "disk_missing" => format!(
                "the disk of space {} is not where it was; put it back and restart the node, or destroy the space",
                space.id
            ),
            "template_missing" => format!(
                "the template {} ({}) is not on this node; install it again and restart the node, or destroy the space",
                space.template.name, space.template.digest
            ),
            cause => format!("space {}: {cause}", space.id),
        };
        Broken { cause: cause.to_owned(), message, since: self.env.clock.wall() }
    }
}

/// What a change is called.
fn happened(was: &State, is: &State, ends: bool) -> Option<Happened> {
    if was.word() == is.word() {
        return None;
    }
    Some(match (was, is) {
        (State::Creating, State::Active) => Happened::Created,
        (State::Frozen, State::Active) => Happened::Thawed,
        (_, State::Active) => Happened::Restarted,
        (_, State::Frozen) => Happened::Frozen,
        (State::Active | State::Frozen, State::Stopped) if !ends => Happened::Died,
        (_, State::Stopped) => Happened::Stopped,
        (_, State::Broken(_)) => Happened::Broke,
        (_, State::Creating | State::Waking | State::Destroying) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_called_what_a_person_would_call_it() {
        use Happened as H;
        use State as S;
        let cases = [
            (S::Creating, S::Active, false, Some(H::Created)),
            (S::Frozen, S::Active, false, Some(H::Thawed)),
            (S::Waking, S::Active, false, Some(H::Restarted)),
            (S::Stopped, S::Active, false, Some(H::Restarted)),
            (S::Active, S::Frozen, false, Some(H::Frozen)),
            (S::Active, S::Stopped, true, Some(H::Stopped)),
            (S::Active, S::Stopped, false, Some(H::Died)),
            (S::Frozen, S::Stopped, false, Some(H::Died)),
            (S::Waking, S::Stopped, false, Some(H::Stopped)),
            (S::Active, S::Active, true, None),
            (S::Stopped, S::Waking, false, None),
            (S::Active, S::Destroying, false, None),
        ];
        for (was, is, ends, expected) in cases {
            assert_eq!(happened(&was, &is, ends), expected, "{was:?} {is:?}");
        }
    }
}
