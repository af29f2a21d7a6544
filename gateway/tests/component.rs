//! A whole gateway on real sockets before nodes that only pretend: what it asks, sends, keeps back and remembers.

#![expect(clippy::unwrap_used, reason = "a test may stop at once")]

/// A node that keeps its spaces in a map and can be told to misbehave.
#[path = "component/fake.rs"]
mod fake;
/// A gateway, its nodes, and calls to them.
#[path = "component/fleet.rs"]
mod fleet;

/// Creating: one body per name, whoever leaves or asks again.
#[path = "component/create.rs"]
mod create;
/// Reaching a space that exists, also behind a wrong hint.
#[path = "component/find.rs"]
mod find;
/// Check-ins, the roster, removing and readmitting.
#[path = "component/nodes.rs"]
mod nodes;
/// What the door refuses, and in which words.
#[path = "component/refusals.rs"]
mod refusals;
