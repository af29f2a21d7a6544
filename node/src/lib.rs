//! The node daemon: one per machine. It owns its ledger and its lock, runs its spaces, and tells its gateways how the
//! machine is doing.

/// What touches the kernel.
pub mod executor;
