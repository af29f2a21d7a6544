//! The real binary on the host, driven over its socket. Needs root: commands run as other users.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and uses real threads"
)]

/// The agent under test and a small client for its wire.
mod client;
/// Reading and writing files.
mod files;
/// Starting and ending: pid 1's own life.
mod life;
/// Running commands.
mod processes;
/// Ending commands and whatever they started.
mod trees;
