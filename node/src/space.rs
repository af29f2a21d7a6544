//! A space as its node knows it.

use std::time::Duration;

use drowse_shared::{
    api::{
        nodes::{Held, Holding},
        spaces::{Awake, Metadata, Policy, Space as Shown, Spec, Template},
    },
    id::{Epoch, LedgerId, NodeId, SpaceId},
    name::SpaceName,
};
use jiff::Timestamp;

use crate::{executor::Card, live::Live};

/// Why a space is awake and when it will sleep.
pub mod awake;
/// What a space is doing, and what each event makes of it.
pub mod state;

pub use state::State;

/// One row of the ledger.
#[derive(Debug, Clone, PartialEq)]
pub struct Space {
    /// Minted once.
    pub id: SpaceId,
    /// The caller's name.
    pub name: SpaceName,
    /// What it is doing.
    pub state: State,
    /// How often it has changed hands.
    pub epoch: Epoch,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last used, as far as it was written down; [`Live`] knows better.
    pub last_active_at: Timestamp,
    /// When it sleeps.
    pub policy: Policy,
    /// What it may use.
    pub spec: Spec,
    /// What it runs over.
    pub template: Template,
    /// The caller's notes.
    pub metadata: Metadata,
}

impl Space {
    /// What is written beside its disk.
    pub fn card(&self, ledger_id: LedgerId) -> Card {
        Card {
            format: Card::FORMAT,
            min_reader: Card::FORMAT,
            ledger_id,
            id: self.id,
            name: self.name.clone(),
            epoch: self.epoch,
            created_at: self.created_at,
            template: self.template.clone(),
            spec: self.spec,
            policy: self.policy.clone(),
            metadata: self.metadata.clone(),
        }
    }

    /// A row made anew from what lies beside a disk.
    pub fn from_card(card: Card, state: State) -> Self {
        Self {
            id: card.id,
            name: card.name,
            state,
            epoch: card.epoch,
            created_at: card.created_at,
            last_active_at: card.created_at,
            policy: card.policy,
            spec: card.spec,
            template: card.template,
            metadata: card.metadata,
        }
    }

    /// How long after its last use it takes its next step down; `None` = never.
    pub fn sleeps_after(&self) -> Option<Duration> {
        let seconds = match self.state {
            State::Active => self.policy.freeze_after_seconds,
            State::Frozen => self.policy.stop_after_seconds,
            _ => None,
        };
        seconds.map(Duration::from_secs)
    }

    /// As answers show it.
    pub fn shown(self, node: &NodeId, live: &Live) -> Shown {
        let seen = live.seen(self.id);
        let last_active_at =
            seen.last_active_at.map_or(self.last_active_at, |at| at.max(self.last_active_at));
        let awake: Option<Awake> = match self.state {
            State::Active => Some(awake::awake(&self.policy, &seen, last_active_at)),
            _ => None,
        };
        Shown {
            id: self.id,
            name: self.name,
            state: self.state.word(),
            node: node.clone(),
            epoch: self.epoch,
            created_at: self.created_at,
            last_active_at,
            policy: self.policy,
            spec: self.spec,
            template: self.template,
            metadata: self.metadata,
            awake,
            broken: match self.state {
                State::Broken(broken) => Some(broken),
                _ => None,
            },
            unresponsive: seen.unresponsive,
        }
    }

    /// As a lookup answers it.
    pub fn held(self) -> Held {
        Held {
            id: self.id,
            name: self.name,
            state: self.state.word(),
            epoch: self.epoch,
            holding: Holding::Home,
        }
    }
}
