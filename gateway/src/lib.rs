//! The front door of a fleet. It holds no space state: which node runs a space is asked of the nodes, and what is
//! remembered of their answers is a hint.
//!
//! The modules stand in the order a request meets them. A request comes through a *door*, the space is *found*
//! (cache, else every node is asked), a new one is *placed*, and the request is *forwarded* raw. Beside that,
//! nodes check in with the *fleet*, which knows who must be asked, and get their configuration from the
//! *authority*.

/// Settings, read once and validated before anything is bound.
pub mod config;

/// What is answered where: routes, credentials, and one module per group of verbs.
mod door;

/// Which node holds a space.
mod find;

/// Which node takes a new space.
mod place;

/// A request as it goes on to a node, and its answer as it comes back.
mod forward;

/// Which nodes there are, and what each last said.
mod fleet;

/// The fleet's configuration, handed to nodes.
mod authority;

/// How far a node is with the gateway's build, and whose turn it is.
mod upgrade;

/// What survives a restart.
mod db;

/// How open files are shared out.
mod budget;

/// Counters for operators.
mod metrics;

/// Naming the first of many.
mod several;

/// The parts put together, from start to end.
mod service;

/// The version of the databases this program writes.
///
/// # Errors
/// When its steps are wrong.
pub fn schema() -> Result<i64, drowse_shared::db::Error> {
    db::version()
}

pub use budget::Budget;
pub use config::Config;
pub use db::Store;
pub use place::{DISK_FLOOR_BYTES, disk_floor};
pub use service::{Error, Parts, run};
