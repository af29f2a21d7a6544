//! Black-box tests of Drowse: real binaries, real wire, and a machine that must be clean afterwards. Beside them, the
//! seeded simulation of a whole fleet.

/// What a daemon has open, by its own word and the kernel's.
pub mod census;
/// Many callers on connections of their own.
pub mod crowd;
/// A binary of the product that a test starts, kills and starts again.
pub mod daemon;
/// The native door as a client sees it.
pub mod door;
/// A gateway and its nodes, and the words in which a test tells its story.
pub mod fleet;
/// What a process costs, as the kernel counts it.
pub mod gauge;
/// Where a fleet lies on this machine, and what it leaves there.
pub mod ground;
/// A wire that a test can bend.
pub mod relay;
/// A thousand nodes in one process.
pub mod swarm;
/// Waiting for what is promised, with a deadline.
pub mod wait;

/// A whole fleet in one thread, under a seed.
pub mod sim;
