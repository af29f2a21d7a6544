//! A whole fleet in one thread: production gateway and nodes, simulated network and time, one seed.
//!
//! The same seed gives the same run, line for line, on any machine. What a seed decides: how long each segment and
//! each blocking job takes, which task goes first, which host falls at which of its steps, what is cut, held, lost.
//!
//! # Run one seed
//!
//! ```text
//! DROWSE_SIM_SEED=17 DROWSE_SIM_SEEDS=1 cargo test -p drowse-e2e --test sim seeds -- --nocapture
//! ```
//!
//! `DROWSE_SIM_SEEDS` says how many seeds to run from `DROWSE_SIM_SEED` on, `DROWSE_SIM_GATEWAYS=2` runs them with two
//! gateways, `DROWSE_SIM_STRIDE=1` lets every single step of a space's life be a fall's. `DROWSE_SIM_STORY=FILE` writes the story
//! of the last run to a file, whether it went well or not.
//!
//! # Read a story
//!
//! One line is one event: simulated milliseconds, who, what.
//!
//! ```text
//!    13006 c1>g:4677 SYN                       c1 dials the gateway
//!    13008 c1>g:4677 c41 OPENS                 connection 41; TWICE: a ghost arrives beside it
//!    13010 c1>g c41 send 212B 4fab… POST /…    first line and body of what is sent, with a hash of all of it
//!    13014 g<c1 c41 got 212B 4fab… POST /…     the same bytes are read at the other end
//!    13020 g>n2 CUT                            nothing gets from g to n2 until HEALED
//!    13020 n1 FALLS (Process) at step 311      after 311 effects of this life; STARTS says when it is back
//!    13022 c1: acquire a -> 0190… created      what a client was told
//!    13022 FAILED: …                           a promise was broken
//! ```
//!
//! The first FAILED line is the one to explain. Read up from it along one connection (`c41`) or one host.
//!
//! # How it works
//!
//! `run` makes a fresh thread with a paused tokio runtime and a `World`. A host is an async function of an
//! [`Env`](drowse_shared::seams::Env) whose seams lead into the world. Nothing else may be nondeterministic: see
//! `clippy.toml` for what daemons may not use, and `interpose` for what libraries do behind our back.

/// What disks have taken for good, and what a loss of power takes back.
mod cache;
/// Those who listen to the wire.
mod ear;
/// The seams of a host.
mod env;
/// The production fleet as hosts of a world, its clients, its troubles and its laws.
pub mod fleet;
/// Holding one message on the wire.
mod hold;
/// Hosts and their lives.
mod host;
/// libc's randomness and clock, from the seed.
mod interpose;
/// The daemons' logs, in the story.
mod log;
/// Dialling and listening.
mod net;
/// What breaks and heals between hosts.
mod links;
/// Connections: bytes under way, ends, resets.
mod pipe;
/// The seeded source of chance.
mod rng;
/// A run of a scenario: thread, runtime, story.
mod run;
/// What happened, line by line.
mod story;
/// How things go when nothing is broken.
mod weather;
/// Hosts, and what they all share.
mod world;

#[cfg(test)]
mod tests;

pub use ear::Heard;
pub use hold::Held;
pub use host::Fall;
pub use rng::{Chance, Rng};
pub use run::{Run, run};
pub use story::{Kind, Line, brief};
pub use weather::Weather;
pub use world::{Pulse, World};
