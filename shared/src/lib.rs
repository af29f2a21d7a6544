//! What both Drowse daemons share: the wire with its validation, the seams to the outside, and small pieces
//! that must behave the same at the gateway and at a node.
//!
//! Nothing here decides anything about a fleet; it names things, checks them, and reaches the machine.

/// Request and answer types of the native API, each validated once, here.
pub mod api;
/// Names of hosts.
pub mod domain;
/// Names and identities: spaces, nodes, ledgers, fleets, requests.
pub mod id;
/// The name of a space and its rules.
pub mod name;
/// Secrets: the fleet token, where it comes from and how it is compared.
pub mod token;

/// Growing waits between tries.
pub mod backoff;
/// SQLite behind the blocking seam.
pub mod db;
/// The only HTTP server loop and the only HTTP client in the daemons, over the seams.
pub mod http;
/// Limits of the process.
pub mod limits;
/// One writer per file, for the life of a process.
pub mod lock;
/// What was probably meant by a misspelt word.
pub mod nearest;
/// Where the outside begins: clock, entropy, tasks, network. Real here, simulated in tests.
pub mod seams;
/// Ending in bounded time.
pub mod shutdown;
/// Keyed FIFO slots: verbs about one name happen one after another.
pub mod slots;
/// Whoever started a daemon: when it serves, that it moves, that it ends.
pub mod supervisor;
/// Logs.
pub mod telemetry;
/// Lines that repeat.
pub mod throttle;
/// Durations and sizes as people write them in settings.
pub mod units;
/// Loops that make no progress.
pub mod watchdog;

/// `tokio::select!` that always polls its branches in the order written, so that a simulation's seed decides
/// alone what happens next.
#[macro_export]
macro_rules! select_biased {
    ($($tokens:tt)*) => { ::tokio::select! { biased; $($tokens)* } };
}
