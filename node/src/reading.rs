//! What a node measures of its machine.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use camino::Utf8PathBuf;
use drowse_shared::{
    api::{
        nodes::{Disk, Reading},
        spaces::State,
    },
    seams::Env,
};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, System};
use tokio::time::Instant;

use crate::{ledger::Ledger, node::Node};

/// Shortest time over which processor use is measured.
const CPU_WINDOW: Duration = Duration::from_millis(200);
/// Longest wait for a measurement; the gateways hear from this node all the same.
const DEADLINE: Duration = Duration::from_secs(2);
/// How old the last measurement may be that stands for one that is late.
const AGE_MAX: Duration = Duration::from_secs(30);

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

/// Measures, and waits for the machine only so long: a disk that does not answer must not silence the node.
pub struct Gauge {
    meter: Arc<dyn Meter>,
    /// Held by the measurement under way: one that hangs keeps one thread, not one more at each look.
    turn: Arc<tokio::sync::Mutex<()>>,
    last: Mutex<Option<(Instant, Reading)>>,
}

impl Gauge {
    /// With this meter.
    pub fn new(meter: Arc<dyn Meter>) -> Self {
        Self { meter, turn: Arc::default(), last: Mutex::default() }
    }

    /// The machine and its spaces, now; while it does not answer, as it was a moment ago, and then `None`.
    async fn read(&self, env: &Env, ledger: &Ledger) -> Option<Reading> {
        if let Ok(reading) = tokio::time::timeout(DEADLINE, self.measure(env, ledger)).await {
            let last = reading.clone().map(|reading| (Instant::now(), reading));
            *self.last() = last;
            return reading;
        }
        self.last().clone().filter(|(at, _)| at.elapsed() <= AGE_MAX).map(|(_, reading)| reading)
    }

    async fn measure(&self, env: &Env, ledger: &Ledger) -> Option<Reading> {
        let (meter, turn) = (self.meter.clone(), self.turn.clone().lock_owned().await);
        let measured = env.blocking("reading", move || {
            let _turn = turn;
            meter.measure()
        });
        let measured = measured.await?;
        let spaces: BTreeMap<State, u64> = ledger.counts().await.ok()?;
        Some(Reading { spaces, ..measured })
    }

    fn last(&self) -> MutexGuard<'_, Option<(Instant, Reading)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The machine and its spaces. `None` when it could not be measured.
pub async fn reading(node: &Node) -> Option<Reading> {
    node.gauge.read(&node.env, &node.ledger).await
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use camino::Utf8Path;
    use rusqlite::Connection;
    use tokio::time::advance;

    use super::*;
    use crate::ledger::Database;

    /// A machine whose disk does not answer until it is told to.
    struct Hung {
        begun: Arc<AtomicUsize>,
        answers: Mutex<mpsc::Receiver<Reading>>,
    }

    impl Meter for Hung {
        fn measure(&self) -> Reading {
            self.begun.fetch_add(1, Ordering::SeqCst);
            self.answers.lock().expect("nobody panics").recv().expect("it is told")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_silences_nobody_and_keeps_one_thread() {
        let env = Env::real();
        let dir = tempfile::tempdir().expect("a directory");
        let database = Database::Open(Connection::open_in_memory().expect("memory"));
        let state = Utf8Path::from_path(dir.path()).expect("UTF-8");
        let ledger = Ledger::open(&env, state, database).await.expect("opened");
        let (answer, answers) = mpsc::channel();
        let begun = Arc::new(AtomicUsize::new(0));
        let gauge = Gauge::new(Arc::new(Hung { begun: begun.clone(), answers: Mutex::new(answers) }));
        let with_cores = |cores| Reading { cores, ..Still::default().0 };
        let told = |cores| answer.send(with_cores(cores)).expect("it listens");
        let cores = |reading: Option<Reading>| reading.map(|reading| reading.cores);
        let late = async || tokio::join!(gauge.read(&env, &ledger), advance(DEADLINE)).0;

        told(1);
        assert_eq!(cores(gauge.read(&env, &ledger).await), Some(1));
        assert_eq!(cores(late().await), Some(1), "as it was a moment ago");
        advance(AGE_MAX).await;
        assert_eq!(cores(late().await), None, "that is too long ago");
        assert!(begun.load(Ordering::SeqCst) <= 2, "the hung one is not joined by others");
        told(2);
        told(3);
        assert_eq!(cores(gauge.read(&env, &ledger).await), Some(3), "it goes on");
    }
}
