//! The node as a whole: its router in process, a real ledger file, the fake executor.

/// A node under test.
mod harness;

/// Spaces of a dead node.
mod adopt;
/// Names that another node's spaces are to have.
mod aside;
/// Bad inputs of every verb.
mod door;
/// What is told of changes, and why they came.
mod events;
/// Commands that run once per key.
mod keyed;
/// What acquire, freeze, stop, destroy promise.
mod lifecycle;
/// Lookups, tickets, expectations.
mod lookup;
/// What a node finds after a crash.
mod reconcile;
/// Ten thousand spaces.
mod scale;
/// Standing, roster, configuration.
mod standing;
/// Taking another build.
mod upgrade;
