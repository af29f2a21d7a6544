//! One node: what its door, its lifecycle and its check-ins share.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use drowse_shared::{
    api::{
        Code, Error,
        spaces::{Resumed, Space as Shown, SpaceAnswer},
    },
    id::{BootId, LedgerId, SpaceId},
    name::{SpaceName, SpaceRef},
    seams::{Counts, Env},
    shutdown::Shutdown,
    slots::{self, Slots},
    throttle::Throttle,
    watchdog::Watchdog,
};

use crate::{
    agent_client::process::Place, config::Config, door::metrics::Metrics, exec::keyed::Keyed,
    executor::Executor, fleet::Fleet, kept::Kept, ledger::Ledger, lifecycle::page_out::PageOuts, live::Live,
    milestone::Milestones, places::Places, reading::Gauge, space::Space, starts::Starts, tickets::Tickets,
    upgrade::Upgrades,
};

/// The slot of a name, while it is held.
pub type Slot = slots::Slot<SpaceName>;

/// The node. Handlers hold it in an [`Arc`].
pub struct Node {
    /// The machine.
    pub env: Env,
    /// The settings.
    pub config: Config,
    /// Where gateways reach it.
    pub endpoint: String,
    /// Who this node is.
    pub ledger_id: LedgerId,
    /// This life of the daemon.
    pub boot: BootId,
    /// What it answers for.
    pub ledger: Ledger,
    /// What touches the kernel.
    pub executor: Arc<dyn Executor>,
    /// One queue per name.
    pub slots: Slots<SpaceName>,
    /// Permissions to create.
    pub tickets: Mutex<Tickets>,
    /// Names given up to a node that comes back.
    pub kept: Kept,
    /// What only this life knows about spaces.
    pub live: Live,
    /// Whose memory is being given back.
    pub page_outs: Arc<PageOuts>,
    /// Requests and tunnels that are at apps.
    pub places: Arc<Places>,
    /// Turns to start.
    pub starts: Starts,
    /// Commands that run once per key.
    pub keyed: Keyed,
    /// How it takes another build.
    pub upgrades: Arc<Upgrades>,
    /// What the gateways said.
    pub fleet: Fleet,
    /// Sees what is done to spaces.
    pub milestones: Arc<dyn Milestones>,
    /// Measures the machine.
    pub gauge: Gauge,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// How many refusals are written down.
    pub lines: Throttle,
    /// What is open.
    pub counts: Counts,
    /// Whether it ends.
    pub shutdown: Shutdown,
    /// Notices loops that stand still.
    pub watchdog: Watchdog,
}

impl Node {
    /// A verb used a space.
    pub fn touch(&self, space: &Space, verb: &'static str) {
        let sleeps_after = space.policy.freeze_after_seconds.map(Duration::from_secs);
        self.live.touch(space.id, verb, self.env.clock.wall(), sleeps_after);
    }

    /// A space is in a new state, or sleeps by a new policy.
    pub fn watch(&self, space: &Space) {
        let idle = self.env.clock.wall().duration_since(space.last_active_at);
        let idle = Duration::try_from(idle).unwrap_or_default();
        self.live.watch(space.id, space.sleeps_after(), idle);
    }

    /// Where commands of a space run.
    pub fn place(&self, id: SpaceId) -> Place {
        let patience = self.config.agent_timeout;
        Place { env: self.env.clone(), executor: self.executor.clone(), id, patience }
    }

    /// A space, as answers show it.
    pub fn shown(&self, space: Space) -> Shown {
        space.shown(&self.config.node_id, &self.live)
    }

    /// The answer of a verb about one space.
    pub fn answer(&self, space: Space, resumed: Option<Resumed>) -> SpaceAnswer {
        SpaceAnswer { space: self.shown(space), resumed }
    }

    /// The tickets.
    pub fn tickets(&self) -> std::sync::MutexGuard<'_, Tickets> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// There is no such space.
pub fn not_found(space: &SpaceRef) -> Error {
    let message = match space {
        SpaceRef::Name(name) => format!("there is no space named {name:?}", name = name.as_str()),
        SpaceRef::Id(id) => format!("there is no space with id {id}"),
    };
    Error::new(Code::SpaceNotFound, message)
}
