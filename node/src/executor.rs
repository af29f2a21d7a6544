//! The executor: what touches the kernel, and nothing else does.
//!
//! It knows bodies, not verbs: it makes, starts, freezes and destroys what the lifecycle tells it to, one call after
//! another for one space (the caller holds the space's slot), many spaces at once. Every method is idempotent where a
//! crash may have cut it: asked again, it brings the body to the same end.

use std::{io, time::Duration};

use camino::Utf8PathBuf;
use drowse_shared::{
    api::spaces::{Metadata, Policy, Spec, Template},
    id::{Epoch, LedgerId, SpaceId},
    name::SpaceName,
    seams::{BoxFuture, BoxIo},
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

/// In memory, for tests and simulation only.
pub mod fake;
/// OCI containers: runc over disk images.
pub mod oci;

/// What an executor can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Processes can be suspended.
    pub freeze: bool,
    /// Bodies survive a restart of the daemon.
    pub survives_restart: bool,
}

/// What a space is, written beside its disk as `space.json`: from these a lost ledger is rebuilt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Card {
    /// Format of the card.
    pub format: u32,
    /// The oldest reader that understands it.
    pub min_reader: u32,
    /// The ledger the space belongs to.
    pub ledger_id: LedgerId,
    /// Its id.
    pub id: SpaceId,
    /// Its name.
    pub name: SpaceName,
    /// How often it has changed hands.
    pub epoch: Epoch,
    /// When it was made.
    pub created_at: Timestamp,
    /// What it runs over.
    pub template: Template,
    /// What it may use.
    pub spec: Spec,
    /// When it sleeps.
    pub policy: Policy,
    /// The caller's notes.
    pub metadata: Metadata,
}

impl Card {
    /// The format this version writes.
    pub const FORMAT: u32 = 1;
}

/// What the kernel says about a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vitality {
    /// Its processes run.
    Running,
    /// Its processes are suspended.
    Frozen,
    /// Only its disk is there.
    Stopped,
}

/// Something that exists on this machine under this executor's roots.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Which space it belongs to.
    pub id: SpaceId,
    /// Its card; `None` when it cannot be read: leftovers of a create or destroy that was cut, or damage.
    pub card: Option<Card>,
    /// Whether a disk is there.
    pub disk: bool,
    /// What its processes do.
    pub vitality: Vitality,
    /// Whether its first process is the agent of another build than this daemon's.
    pub old_agent: bool,
}

/// What became of having an agent become this daemon's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewal {
    /// It is. Whatever runs under it goes on.
    Renewed,
    /// It was already.
    Current,
    /// It goes on as it was, for now: why.
    Busy(String),
    /// It goes on as it was, and would again: why.
    Refused(String),
}

/// What a space uses now.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stats {
    /// Processor time since its start, in microseconds.
    pub cpu_us: u64,
    /// Memory, all in.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Bytes its image takes on the node's disk.
    pub disk_bytes: u64,
}

/// Why a call failed. Each variant names its subject; the cause is the source.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call did not end in time. What it was doing may still be going on.
    #[error("{what} did not end within {after:?}")]
    Timeout {
        /// What was asked.
        what: &'static str,
        /// How long it was given.
        after: Duration,
    },
    /// The runtime said no.
    #[error("the runtime could not {what}: {says}")]
    Runtime {
        /// What was asked.
        what: &'static str,
        /// Its last words.
        says: String,
    },
    /// A system call failed.
    #[error("{what} failed on {path}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The node's disk is full.
    #[error("the node's disk is full")]
    DiskFull,
    /// The template is not on this node.
    #[error("the template {digest} is not on this node")]
    TemplateMissing {
        /// Which.
        digest: String,
    },
    /// The disk of the space is gone.
    #[error("the disk of space {id} is gone")]
    DiskMissing {
        /// Whose.
        id: SpaceId,
    },
    /// The body is not in the state the call needs.
    #[error("space {id} is {vitality:?}")]
    Vitality {
        /// Whose.
        id: SpaceId,
        /// What it is.
        vitality: Vitality,
    },
    /// All of this instance's uid ranges are in use.
    #[error("all {0} uid ranges of this node are in use")]
    NoRange(u32),
}

/// The answer of an executor's call.
pub type Result<T> = std::result::Result<T, Error>;

/// Makes and moves bodies.
///
/// Calls are bounded by deadlines of the executor's own. A caller that leaves does not stop a call: the lifecycle runs
/// them in tasks of their own.
pub trait Executor: Send + Sync + 'static {
    /// What this executor can do.
    fn capabilities(&self) -> Capabilities;

    /// Finds a template by the name people use. `None` when this node has none of that name.
    fn template(&self, name: &str) -> BoxFuture<'_, Result<Option<Template>>>;

    /// Makes the disk, with its file system and its card. What a cut create left is replaced.
    fn create(&self, card: Card) -> BoxFuture<'_, Result<()>>;

    /// Replaces the card of an existing disk, atomically.
    fn write_card(&self, card: Card) -> BoxFuture<'_, Result<()>>;

    /// Starts a stopped body over its pinned template; ends when the agent inside answers. Running already is fine.
    fn start(&self, card: Card) -> BoxFuture<'_, Result<()>>;

    /// Suspends the workload. The agent goes on. A freeze that cannot be completed in time is taken back.
    fn freeze(&self, id: SpaceId) -> BoxFuture<'_, Result<()>>;

    /// Resumes the workload.
    fn thaw(&self, id: SpaceId) -> BoxFuture<'_, Result<()>>;

    /// Has the agent of a running body become the one of this daemon, in place. One that cannot goes on as it was.
    fn renew_agent(&self, id: SpaceId) -> BoxFuture<'_, Result<Renewal>>;

    /// Removes the agents of other builds that no body runs any more.
    fn clear_agents(&self) -> BoxFuture<'_, Result<()>>;

    /// Whether memory can be written out.
    fn has_swap(&self) -> bool;

    /// Has the memory of a suspended body written to swap, until that is done or `enough`; answers how much went. Waits for
    /// nothing that happens to the body, and nothing waits for it.
    fn page_out(&self, id: SpaceId, enough: CancellationToken) -> BoxFuture<'_, Result<u64>>;

    /// Ends every process (SIGTERM, `grace`, SIGKILL) and unmounts the disk. Only the disk is left.
    fn stop(&self, id: SpaceId, grace: Duration) -> BoxFuture<'_, Result<()>>;

    /// Removes everything: processes at once, mounts, cgroups, disk. Nothing there is fine.
    fn destroy(&self, id: SpaceId) -> BoxFuture<'_, Result<()>>;

    /// Measures, without waking.
    fn stats(&self, id: SpaceId) -> BoxFuture<'_, Result<Stats>>;

    /// What the processes of one body do, without waking.
    fn vitality(&self, id: SpaceId) -> BoxFuture<'_, Result<Vitality>>;

    /// Whether the first process of a body that ended was killed for want of memory, as far as the kernel still knows.
    fn ran_out_of_memory(&self, id: SpaceId) -> BoxFuture<'_, Result<bool>>;

    /// A fresh connection to the agent inside.
    fn agent(&self, id: SpaceId) -> BoxFuture<'_, io::Result<BoxIo>>;

    /// A fresh connection to a port inside.
    fn dial(&self, id: SpaceId, port: u16) -> BoxFuture<'_, io::Result<BoxIo>>;

    /// Everything that exists under this executor's roots: for reconcile at boot.
    fn list(&self) -> BoxFuture<'_, Result<Vec<Found>>>;
}
