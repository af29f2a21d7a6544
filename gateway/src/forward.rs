//! A request as it goes on to a node, and its answer as it comes back. Nothing is retried once a byte was sent.

/// Which headers pass, and which are ours.
mod headers;
/// One request to one node, raw.
pub(crate) mod http;
/// Our own calls to nodes: lookup, report, lists.
pub(crate) mod peer;
/// One request for a port of a space.
pub(crate) mod port;
/// Whether a node that keeps somebody waiting is there at all.
pub(crate) mod sign;
/// What comes after an answer that changes the protocol.
pub(crate) mod tunnel;

pub(crate) use headers::Belief;
