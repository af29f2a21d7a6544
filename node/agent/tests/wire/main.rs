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
/// Forms, compression, notes and links.
mod forms;
/// Starting and ending: pid 1's own life.
mod life;
/// Telling what the space uses.
mod metrics;
/// Running commands.
mod processes;
/// Connections to ports.
mod relays;
/// One agent becoming another.
mod replacements;
/// Commands on terminals.
mod terminals;
/// Ending commands and whatever they started.
mod trees;
/// Watching directories.
mod watches;
