//! A whole fleet in one thread: production gateway and nodes, simulated network and time, one seed.
//!
//! A seed draws a [`Plan`](fleet::Plan): who asks what and when, what breaks and when, in which weather. A run is a function
//! of its plan: the same plan gives the same run, line for line, on any machine. What chance decides on the way comes
//! from a stream for each purpose and each host or link, and depends on the simulated millisecond: without one event the
//! rest of a run goes on as it was, except for what that event touches.
//!
//! `docs/TESTING.md` says how to run seeds, read stories and shrink; here is how it works.
//!
//! # The parts
//!
//! - `run` makes a fresh thread with a paused tokio runtime and a `World`. A host is an async function of an
//!   [`Env`](drowse_shared::seams::Env) whose seams lead into the world. Nothing else may be nondeterministic: see
//!   `clippy.toml` for what daemons may not use, and `interpose` for what libraries do behind our back.
//! - `fleet::plan` says what may happen. A new trouble is a variant of `Trouble`, a weight in `plan/draw`, an arm in
//!   `chaos`; a new verb is a variant of `Verb` and a weight.
//! - `fleet::scenario` carries a plan out and ends at the first broken law; `fleet::Laws` checks while it happens.
//! - Daemons keep real files on a simulated disk: libc's syncs come to `cache`, which knows what is durable; at a loss of
//!   power the rest goes, stays or is torn. SQLite runs there as in production.
//! - `fleet::tap` and `fleet::standing` listen to the wire, and judge tickets and membership by that alone.
//! - `fleet::shrink` makes a failing plan small. `brief` tells a failing run in 30 lines.
//! - `Rng::of` draws plans, `Chance` names the streams of a run. A daemon's randomness is one of them.
//!
//! # The environment of the tests
//!
//! | variable | what it says |
//! |---|---|
//! | `DROWSE_SIM_SEED`, `DROWSE_SIM_SEEDS` | the first seed, and how many from there on |
//! | `DROWSE_SIM_PLAN=FILE` | run this plan instead of seeds |
//! | `DROWSE_SIM_STORY=FILE` | write the whole story of a single or failing run |
//! | `DROWSE_SIM_GATEWAYS` | draw every plan for one gateway, or for two |
//! | `DROWSE_SIM_FAILURES` | how many failing seeds end a soak |
//! | `DROWSE_SIM_STRIDE` | every so-manieth step of a space's life is tried as a fall |

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
/// libc's randomness, clock and syncs, from the seed and the world.
mod interpose;
/// What breaks and heals between hosts.
mod links;
/// Starts and falls of hosts.
mod lives;
/// The daemons' logs, in the story.
mod log;
/// Dialling and listening.
mod net;
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
