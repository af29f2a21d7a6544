//! What a node measures of its machine.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use camino::Utf8PathBuf;
use drowse_shared::api::{
    nodes::{Disk, Reading},
    spaces::State,
};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, System};
use tokio::time::Instant;

use crate::node::Node;

/// Shortest time over which processor use is measured.
const CPU_WINDOW: Duration = Duration::from_millis(200);

/// Measures the machine. Blocks; asked through the blocking seam.
pub trait Meter: Send + Sync + 'static {
    /// The machine now, without its spaces.
    fn measure(&self) -> Reading;
}

/// The machine itself.
pub struct Machine {
    state: Utf8PathBuf,
    system: Mutex<Measured>,
}

struct Measured {
    system: System,
    /// When processor time was first and last read.
    cpu: Option<(Instant, Option<f64>)>,
}

impl Machine {
    /// Measures the file system of `state`, and the rest.
    ///
    /// # Errors
    /// When this machine cannot be measured at all.
    pub fn new(state: Utf8PathBuf) -> Result<Self, sysinfo::Error> {
        Ok(Self { state, system: Mutex::new(Measured { system: System::new()?, cpu: None }) })
    }
}

impl Meter for Machine {
    fn measure(&self) -> Reading {
        let mut measured = self.system.lock().unwrap_or_else(PoisonError::into_inner);
        let measured = &mut *measured;
        measured.system.refresh_memory_specifics(MemoryRefreshKind::everything());
        let now = Instant::now();
        match measured.cpu {
            None => {
                measured.system.refresh_cpu_list(CpuRefreshKind::nothing().with_usage());
                measured.cpu = Some((now, None));
            }
            Some((at, _)) if now.saturating_duration_since(at) >= CPU_WINDOW => {
                measured.system.refresh_cpu_specifics(CpuRefreshKind::nothing().with_usage());
                measured.cpu = Some((now, Some(f64::from(measured.system.global_cpu_usage()))));
            }
            // Too soon for a new one: the last holds.
            Some(_) => {}
        }
        Reading {
            cores: cores(measured.system.cpus().len()),
            cpu_percent: measured.cpu.and_then(|(_, percent)| percent),
            memory_total_bytes: measured.system.total_memory(),
            memory_available_bytes: measured.system.available_memory(),
            swap_total_bytes: measured.system.total_swap(),
            swap_used_bytes: measured.system.used_swap(),
            disk: disk(&self.state),
            spaces: BTreeMap::new(),
        }
    }
}

/// The cores that this daemon, and so its spaces, may run on; a daemon that is confined to some does not count the rest.
fn cores(machine: usize) -> u32 {
    let mine = rustix::thread::sched_getaffinity(None).map_or(machine, |set| set.count() as usize);
    u32::try_from(mine).unwrap_or(u32::MAX).max(1)
}

fn disk(path: &Utf8PathBuf) -> Option<Disk> {
    let stat = rustix::fs::statvfs(path.as_std_path()).ok()?;
    Some(Disk {
        total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
    })
}

/// A machine that never changes: for tests and simulation.
#[derive(Debug, Clone)]
pub struct Still(pub Reading);

impl Default for Still {
    /// 4 idle cores, 16 GiB of memory, 100 GiB of free disk.
    fn default() -> Self {
        Self(Reading {
            cores: 4,
            cpu_percent: Some(1.0),
            memory_total_bytes: 16 << 30,
            memory_available_bytes: 12 << 30,
            swap_total_bytes: 0,
            swap_used_bytes: 0,
            disk: Some(Disk { total_bytes: 200 << 30, available_bytes: 100 << 30 }),
            spaces: BTreeMap::new(),
        })
    }
}

impl Meter for Still {
    fn measure(&self) -> Reading {
        self.0.clone()
    }
}

/// The machine and its spaces, now. `None` when it could not be measured.
pub async fn reading(node: &Node) -> Option<Reading> {
    let meter = node.meter.clone();
    let measured = node.env.blocking("reading", move || meter.measure()).await?;
    let spaces: BTreeMap<State, u64> = node.ledger.counts().await.ok()?;
    Some(Reading { spaces, ..measured })
}
