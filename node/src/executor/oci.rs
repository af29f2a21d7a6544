//! Bodies as OCI containers over disk images.
//!
//! A body exists in the kernel and in three places on disk, and nowhere in this process: `<state>/spaces/<id>` holds the
//! image and the card, `<run>/<instance>/<id>` the bundle and the socket of a running one, `<run>/<instance>/runc/<id>`
//! what the runtime knows. So a daemon that was killed finds everything again by looking.
//!
//! ```text
//! image ─ loop ─ ext4, owners mapped ─┬─ root/{upper,work} ─┐
//! template, owners mapped, read-only ─┼─────────────────────┴─ overlay ─ root of the container
//!                                     └─ home ─────────────────────────── its /home/user
//! ```
//!
//! The mounts are made here, in front of the container's birth, and detached once it holds them: they end with its last
//! process, whatever becomes of this daemon. The image carries a file lock as long as anything has it mounted.

use std::{io, sync::Arc, time::Duration};

use camino::Utf8PathBuf;
use drowse_shared::{
    api::spaces::Template,
    id::{LedgerId, SpaceId},
    seams::{BoxFuture, BoxIo, Env},
};
use tokio_util::sync::CancellationToken;

use crate::milestone::Milestones;

use super::{Capabilities, Card, Error, Executor, Found, Renewal, Result, Stats, Vitality};

/// The container's `config.json`.
mod bundle;
/// Disks of one node on their way to another.
pub(crate) mod carry;
/// Cgroups: limits, freezer, census, measures.
mod cgroup;
/// Making a disk, and removing it.
mod create;
/// Reaching a port inside.
mod dial;
/// The image and the card.
mod disk;
/// Files that a step changes.
mod files;
/// What exists on this machine.
mod find;
/// What all calls share: paths, deadlines, leases.
mod host;
/// The number of this node on its machine.
mod instance;
/// Mounts and loop devices.
mod mounts;
/// Checks at boot, in words.
mod open;
/// Memory of what sleeps goes to swap.
mod page_out;
/// Where things are.
mod paths;
/// One agent becoming another under what runs.
mod renew;
/// Programs with deadlines.
mod runtime;
/// Which system calls a space may make.
mod seccomp;
/// From a disk to an answering agent.
mod start;
/// Every change of the machine, by name.
mod step;
/// From processes to a disk only.
mod stop;
/// Templates on this node.
mod templates;
/// Uid ranges and the maps for mounts.
mod userns;

pub use instance::Error as InstanceError;
pub use open::Error as OpenError;
pub use step::{Program, Step};

use host::Host;

/// How long the kernel and the runtime are given.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// One command of the runtime that makes or starts a container.
    pub start: Duration,
    /// Any other command of the runtime, and a look at the kernel's files.
    pub command: Duration,
    /// The agent's first answer.
    pub agent: Duration,
    /// A freeze or thaw.
    pub freeze: Duration,
    /// The end of processes that were killed.
    pub kill: Duration,
    /// A connection to a port inside.
    pub dial: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            start: seconds(30),
            command: seconds(10),
            agent: seconds(10),
            freeze: seconds(5),
            kill: seconds(5),
            dial: seconds(10),
        }
    }
}

/// Settings of the executor.
#[derive(Debug, Clone)]
pub struct OciConfig {
    /// `DROWSE_RUNTIME`: runc, or a program that takes the same arguments.
    pub runtime: Utf8PathBuf,
    /// The node's state directory: disks.
    pub state: Utf8PathBuf,
    /// Bodies, sockets and instance numbers; gone at a reboot. All users must be able to cross it.
    pub run: Utf8PathBuf,
    /// Templates by digest.
    pub templates: Utf8PathBuf,
    /// The agent's binary.
    pub agent: Utf8PathBuf,
    /// `DROWSE_CGROUP_PARENT`, relative to the root of each cgroup tree.
    pub cgroup_parent: String,
    /// Whose bodies these are.
    pub ledger_id: LedgerId,
    /// How long things may take.
    pub deadlines: Deadlines,
    /// Who sees the steps pass.
    pub milestones: Arc<dyn Milestones>,
}

/// The executor over an OCI runtime.
#[derive(Debug, Clone)]
pub struct Oci {
    host: Arc<Host>,
}

impl Oci {
    /// Checks the machine, takes an instance number, and ends what an earlier life left half made.
    pub async fn open(env: Env, config: OciConfig) -> std::result::Result<Self, OpenError> {
        open::open(env, config).await.map(|host| Self { host })
    }

    /// Leaves the machine as it was, if no body is left on it; says whether it could. Call it last.
    pub async fn leave(&self) -> Result<bool> {
        self.host.look("leave the machine", open::leave).await
    }

    /// The number of this node on its machine.
    pub fn instance(&self) -> u32 {
        self.host.instance.number
    }
}

impl Executor for Oci {
    fn capabilities(&self) -> Capabilities {
        Capabilities { freeze: true, survives_restart: true }
    }

    fn template(&self, name: &str) -> BoxFuture<'_, Result<Option<Template>>> {
        let name = name.to_owned();
        Box::pin(self.host.look("find the template", move |host| {
            let failed = disk::failed("read the template", &host.paths.templates);
            templates::find(&host.paths.templates, &name).map_err(failed)
        }))
    }

    fn create(&self, card: Card) -> BoxFuture<'_, Result<()>> {
        Box::pin(create::create(&self.host, card))
    }

    fn write_card(&self, card: Card) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.host.kernel(card.id, "write the card", self.host.deadlines.command, move |host| {
            let disk = host.paths.disk(card.id);
            if !disk.image().is_file() {
                return Err(Error::DiskMissing { id: card.id });
            }
            host.take(Step::WriteCard, |leave| disk::write_card(leave, &disk, &card))
                .map_err(disk::failed("write the card", &disk.card()))
        }))
    }

    fn start(&self, card: Card) -> BoxFuture<'_, Result<()>> {
        Box::pin(start::start(&self.host, card))
    }

    fn freeze(&self, id: SpaceId) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.host.set_frozen(id, true))
    }

    fn thaw(&self, id: SpaceId) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.host.set_frozen(id, false))
    }

    fn renew_agent(&self, id: SpaceId) -> BoxFuture<'_, Result<Renewal>> {
        let within = self.host.deadlines.command;
        Box::pin(
            self.host.kernel(id, "replace the agent", within, move |host| renew::renew(host, id, within)),
        )
    }

    fn clear_agents(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.host.look("remove old agents", renew::clear))
    }

    fn has_swap(&self) -> bool {
        page_out::has_swap()
    }

    fn page_out(&self, id: SpaceId, enough: CancellationToken) -> BoxFuture<'_, Result<u64>> {
        let host = self.host.clone();
        Box::pin(async move {
            let worker = host.clone();
            let job = move || page_out::page_out(&worker, id, &enough);
            let torn =
                || Err(Error::Runtime { what: "write memory out", says: "its thread ended".to_owned() });
            host.env.blocking("page out", job).await.unwrap_or_else(torn)
        })
    }

    fn stop(&self, id: SpaceId, grace: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(stop::stop(&self.host, id, Some(grace)))
    }

    fn destroy(&self, id: SpaceId) -> BoxFuture<'_, Result<()>> {
        Box::pin(create::destroy(&self.host, id))
    }

    fn stats(&self, id: SpaceId) -> BoxFuture<'_, Result<Stats>> {
        Box::pin(self.host.look("measure the space", move |host| {
            let used = host.cgroups.measure(id).map_err(disk::failed("measure", &host.paths.body(id).dir))?;
            Ok(Stats {
                cpu_us: used.cpu_us,
                memory_bytes: used.memory_bytes,
                pids: used.pids,
                disk_bytes: disk::allocated_bytes(&host.paths.disk(id)),
            })
        }))
    }

    fn vitality(&self, id: SpaceId) -> BoxFuture<'_, Result<Vitality>> {
        Box::pin(self.host.look("look at the space", move |host| host.vitality(id)))
    }

    fn ran_out_of_memory(&self, id: SpaceId) -> BoxFuture<'_, Result<bool>> {
        Box::pin(self.host.look("look at the space", move |host| {
            let at = host.paths.body(id).dir;
            host.cgroups.ran_out_of_memory(id).map_err(disk::failed("read the cgroup", &at))
        }))
    }

    fn agent(&self, id: SpaceId) -> BoxFuture<'_, io::Result<BoxIo>> {
        let socket = self.host.paths.body(id).socket();
        Box::pin(async move {
            let stream = tokio::net::UnixStream::connect(&socket).await?;
            Ok(Box::new(stream) as BoxIo)
        })
    }

    fn dial(&self, id: SpaceId, port: u16) -> BoxFuture<'_, io::Result<BoxIo>> {
        Box::pin(dial::dial(&self.host, id, port))
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Found>>> {
        Box::pin(self.host.look("list what exists", find::list))
    }
}
