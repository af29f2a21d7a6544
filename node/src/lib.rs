//! The node daemon: one per machine. It owns its ledger and its lock, runs its spaces, and tells its gateways how the
//! machine is doing.
//!
//! The modules stand in the order a request meets them: the *door* reads it, the *lifecycle* takes the slot of its name
//! and decides, the *ledger* is written, the *executor* acts, and the *agent* inside runs commands and moves files.
//!
//! Invariants: only `ledger` holds SQL; only `executor` touches the kernel; only `door::error` picks a code; whoever
//! changes a space holds its slot; nothing is read from the outside but through [`Env`](drowse_shared::seams::Env) and
//! [`Parts`].

/// Settings, read once and judged before anything is bound.
pub mod config;

/// Taking over the spaces of a dead node.
pub mod adopt;
/// Speaks to the agent inside a space.
pub mod agent_client;
/// Terminals, and commands that run, over a connection of their client.
pub mod attach;
/// What is answered where, and to whom.
pub mod door;
/// Running commands.
pub mod exec;
/// What touches the kernel.
pub mod executor;
/// What this node answers for, on disk.
pub mod ledger;
/// What happens to spaces: create, wake, freeze, stop, destroy, reconcile.
pub mod lifecycle;
/// What only this life of the daemon knows about spaces.
pub mod live;
/// Points at which this daemon may die, by name.
pub mod milestone;
/// How many requests and tunnels are at apps.
pub mod places;
/// What a space is and what each event makes of it.
pub mod space;
/// How many bodies are started at once.
pub mod starts;
/// Permissions to create, given out with a "no".
pub mod tickets;
/// Telling what changes in directories.
pub mod watch;

/// What gateways are told, every interval.
pub mod checkin;
/// What the gateways said.
pub mod fleet;
/// Names given up to a node that comes back.
pub mod kept;
/// What the machine measures.
pub mod reading;
/// Taking another build.
pub mod upgrade;

/// What all of these share.
pub mod node;
/// The node from start to end.
pub mod service;

pub use config::Config;
pub use service::{Error, Parts, run};
