use drowse_shared::{
    id::{Epoch, LedgerId, SpaceId},
    name::SpaceName,
};
use serde::Serialize;

use crate::{
    executor::oci::carry::{Beside, Lying},
    space::{Space, State, state::Fault},
};

/// What became of one space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is here now, and not there any more.
    Moved,
    /// It is here now; the source is marked and must not run.
    Copied,
    /// It would be moved or copied, were this no dry run.
    Would,
    /// It was here already.
    Already,
    /// Another space has its name here.
    Conflict,
    /// Its template is not on this machine.
    TemplateMissing,
    /// It was written by a newer version.
    NewerFormat,
    /// Processes still run on its disk.
    InUse,
    /// It was being made or destroyed, and nobody was told that it exists.
    Unfinished,
    /// It belongs to a third node.
    Foreign,
    /// Nothing says what it is.
    Unknown,
    /// Its disk is not there.
    NoDisk,
    /// It could not be carried.
    Failed,
}

impl Outcome {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::Copied => "copied",
            Self::Would => "would go",
            Self::Already => "already here",
            Self::Conflict => "name taken",
            Self::TemplateMissing => "template missing",
            Self::NewerFormat => "newer format",
            Self::InUse => "in use",
            Self::Unfinished => "unfinished",
            Self::Foreign => "not of this node",
            Self::Unknown => "unknown",
            Self::NoDisk => "no disk",
            Self::Failed => "failed",
        }
    }

    /// Whether it is where it should be.
    pub fn is_done(self) -> bool {
        matches!(self, Self::Moved | Self::Copied | Self::Would | Self::Already)
    }
}

/// What is known of a disk of the source.
pub(super) struct Seen<'a> {
    /// The disk.
    pub(super) lying: &'a Lying,
    /// Whose directory it lies in.
    pub(super) source: LedgerId,
    /// The row of the source's ledger.
    pub(super) row: Option<&'a Space>,
}

/// What this machine has.
pub(super) trait Here {
    /// The space of a name.
    fn holder(&self, name: &SpaceName) -> Option<SpaceId>;
    /// Whether the space is here.
    fn has(&self, id: SpaceId) -> bool;
    /// Whether a template is here.
    fn has_template(&self, digest: &str) -> bool;
}

/// What to do about a disk.
#[derive(Debug, PartialEq)]
pub(super) enum Decision {
    /// Take it: it becomes this.
    Take(Box<Space>),
    /// Leave it where it is, and say why.
    Leave(Outcome, String),
}

/// Judges one disk. The source's ledger knows a space better than its card does.
pub(super) fn decide(seen: &Seen<'_>, here: &impl Here) -> Decision {
    let leave = |outcome, why: &str| Decision::Leave(outcome, why.to_owned());
    if here.has(seen.lying.id) {
        return leave(Outcome::Already, "");
    }
    let card = match &seen.lying.beside {
        Beside::Newer => {
            return leave(Outcome::NewerFormat, "it was written by a newer version; upgrade this node first");
        }
        Beside::Card(card) => Some(card),
        Beside::Nothing => None,
    };
    if let Some(card) = card.filter(|card| card.ledger_id != seen.source) {
        return leave(Outcome::Foreign, &format!("its card names ledger {}", card.ledger_id));
    }
    let space = match (seen.row, card) {
        (Some(row), _) => row.clone(),
        (None, Some(card)) => Space::from_card((**card).clone(), State::Stopped),
        (None, None) => return leave(Outcome::Unknown, "neither a card nor a ledger says what it is"),
    };
    if matches!(space.state, State::Creating | State::Destroying) {
        let why = format!("it was {}; its own node ends that when it starts", space.state.word());
        return leave(Outcome::Unfinished, &why);
    }
    if seen.lying.in_use {
        return leave(
            Outcome::InUse,
            "processes still run on its disk: end them, for example by a reboot, and run this again",
        );
    }
    if let Some(holder) = here.holder(&space.name) {
        let why = format!(
            "{holder} has this name here: destroy that one if it is the wrong one, and run this again"
        );
        return leave(Outcome::Conflict, &why);
    }
    if !here.has_template(&space.template.digest) {
        let why = format!("install {} ({}) and run this again", space.template.name, space.template.digest);
        return leave(Outcome::TemplateMissing, &why);
    }
    Decision::Take(Box::new(taken(space)))
}

/// It changes hands, and only its disk comes along.
fn taken(space: Space) -> Space {
    let healed = [Fault::DiskMissing.cause(), Fault::TemplateMissing.cause()];
    let state = match space.state {
        State::Broken(broken) if !healed.contains(&Some(&broken.cause)) => State::Broken(broken),
        _ => State::Stopped,
    };
    Space { state, epoch: Epoch(space.epoch.0.saturating_add(1)), ..space }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use drowse_shared::api::spaces::{Broken, Policy, Spec, Template};
    use jiff::Timestamp;

    use super::*;
    use crate::executor::Card;

    #[derive(Default)]
    struct Machine {
        names: BTreeMap<String, SpaceId>,
        ids: BTreeSet<SpaceId>,
        templates: BTreeSet<String>,
    }

    impl Here for Machine {
        fn holder(&self, name: &SpaceName) -> Option<SpaceId> {
            self.names.get(name.as_str()).copied()
        }
        fn has(&self, id: SpaceId) -> bool {
            self.ids.contains(&id)
        }
        fn has_template(&self, digest: &str) -> bool {
            self.templates.contains(digest)
        }
    }

    fn ledger(digit: char) -> LedgerId {
        digit.to_string().repeat(32).parse().expect("an id")
    }

    fn space(state: State) -> Space {
        Space {
            id: "0190f0c2a4b87c3d9e0f112233445566".parse().expect("an id"),
            name: "a".parse().expect("a name"),
            state,
            epoch: Epoch::FIRST,
            created_at: Timestamp::UNIX_EPOCH,
            last_active_at: Timestamp::UNIX_EPOCH,
            policy: Policy::default(),
            spec: Spec::default(),
            template: Template { name: "base".to_owned(), digest: "blake3:1".to_owned() },
            metadata: [("by".to_owned(), "card".to_owned())].into(),
        }
    }

    fn lying(card: Option<Card>) -> Lying {
        let beside = card.map_or(Beside::Nothing, |card| Beside::Card(Box::new(card)));
        Lying { id: space(State::Active).id, beside, bytes: 1, in_use: false }
    }

    #[test]
    fn only_a_disk_that_is_known_at_rest_and_welcome_is_taken() {
        let source = ledger('a');
        let machine = Machine { templates: ["blake3:1".to_owned()].into(), ..Machine::default() };
        let fine = lying(Some(space(State::Active).card(source)));
        let id = fine.id;
        let broken = |cause: &str| {
            State::Broken(Broken {
                cause: cause.to_owned(),
                message: String::new(),
                since: Timestamp::UNIX_EPOCH,
            })
        };
        let outcome = |lying: &Lying, row: Option<State>, machine: &Machine| {
            let row = row.map(space);
            match decide(&Seen { lying, source, row: row.as_ref() }, machine) {
                Decision::Take(space) => Ok(space.state),
                Decision::Leave(outcome, _) => Err(outcome),
            }
        };
        assert_eq!(outcome(&fine, None, &machine), Ok(State::Stopped));
        assert_eq!(outcome(&fine, Some(State::Frozen), &machine), Ok(State::Stopped));
        assert_eq!(outcome(&lying(None), Some(State::Active), &machine), Ok(State::Stopped));
        assert_eq!(outcome(&fine, Some(broken("template_missing")), &machine), Ok(State::Stopped));
        assert_eq!(outcome(&fine, Some(broken("name_taken")), &machine), Ok(broken("name_taken")));
        assert_eq!(outcome(&lying(None), None, &machine), Err(Outcome::Unknown));
        for cut in [State::Creating, State::Destroying] {
            assert_eq!(outcome(&fine, Some(cut), &machine), Err(Outcome::Unfinished));
        }
        let strange = lying(Some(space(State::Active).card(ledger('b'))));
        assert_eq!(outcome(&strange, None, &machine), Err(Outcome::Foreign));
        let newer = Lying { beside: Beside::Newer, ..lying(None) };
        assert_eq!(outcome(&newer, Some(State::Stopped), &machine), Err(Outcome::NewerFormat));
        let used = Lying { in_use: true, ..fine.clone() };
        assert_eq!(outcome(&used, None, &machine), Err(Outcome::InUse));
        assert_eq!(outcome(&fine, None, &Machine::default()), Err(Outcome::TemplateMissing));
        let taken = Machine {
            names: [("a".to_owned(), SpaceId::mint(&drowse_shared::seams::Env::real()))].into(),
            ..Machine::default()
        };
        assert_eq!(outcome(&fine, None, &taken), Err(Outcome::Conflict));
        let there = Machine { ids: [id].into(), ..taken };
        assert_eq!(outcome(&fine, None, &there), Err(Outcome::Already));
    }

    #[test]
    fn what_the_ledger_says_holds_over_the_card_and_the_epoch_grows() {
        let source = ledger('a');
        let machine = Machine { templates: ["blake3:1".to_owned()].into(), ..Machine::default() };
        let card = lying(Some(space(State::Active).card(source)));
        let row = Space { metadata: [("by".to_owned(), "row".to_owned())].into(), ..space(State::Active) };
        let Decision::Take(taken) = decide(&Seen { lying: &card, source, row: Some(&row) }, &machine) else {
            panic!("it is taken");
        };
        assert_eq!(*taken, Space { state: State::Stopped, epoch: Epoch(row.epoch.0 + 1), ..row });
    }
}
