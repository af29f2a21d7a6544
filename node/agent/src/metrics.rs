use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::time::{Instant, SystemTime};

use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::body::Body;
use crate::connect;
use crate::files::http::Refusal;

/// The kernel's files are short.
const FILE_BYTES_MAX: usize = 16 * 1024;
const MIB: u64 = 1 << 20;

/// What the space may use, and which descriptors tell what it uses. The files are of the host: nothing inside shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Told {
    /// Memory it may use.
    pub(crate) memory_bytes: u64,
    /// Processor time it may use, in thousandths of one core.
    pub(crate) cpu_millis: u64,
    /// How much memory is used: one number.
    pub(crate) memory: RawFd,
    /// What the memory is: lines of names and numbers.
    pub(crate) memory_kinds: RawFd,
    /// Processor time so far: nanoseconds alone, or `usage_usec` among lines.
    pub(crate) cpu: RawFd,
}

impl Told {
    /// From `first` on.
    pub(crate) fn new(memory_bytes: u64, cpu_millis: u64, first: RawFd) -> Self {
        Self { memory_bytes, cpu_millis, memory: first, memory_kinds: first + 1, cpu: first + 2 }
    }

    /// Every descriptor.
    pub(crate) fn descriptors(self) -> [RawFd; 3] {
        [self.memory, self.memory_kinds, self.cpu]
    }
}

/// What the space uses.
pub(crate) struct Metrics {
    told: Told,
    memory: File,
    memory_kinds: File,
    cpu: File,
    /// When processor time was looked at last, and how much it was, in microseconds.
    last: Cell<(Instant, u64)>,
}

impl Metrics {
    /// Takes the descriptors over.
    pub(crate) fn adopt(told: Told) -> io::Result<Self> {
        let [memory, memory_kinds, cpu] = told.descriptors().map(crate::sys::adopt);
        let [memory, memory_kinds, cpu]: [OwnedFd; 3] = [memory?, memory_kinds?, cpu?];
        let metrics = Self {
            told,
            memory: memory.into(),
            memory_kinds: memory_kinds.into(),
            cpu: cpu.into(),
            last: Cell::new((Instant::now(), 0)),
        };
        let used = metrics.cpu_us()?;
        metrics.last.set((Instant::now(), used));
        Ok(metrics)
    }

    /// For the agent that comes next.
    pub(crate) fn told(&self) -> Told {
        Told {
            memory: self.memory.as_raw_fd(),
            memory_kinds: self.memory_kinds.as_raw_fd(),
            cpu: self.cpu.as_raw_fd(),
            ..self.told
        }
    }

    fn cpu_us(&self) -> io::Result<u64> {
        let text = read(&self.cpu)?;
        match field(&text, "usage_usec") {
            Some(used) => Ok(used),
            None => number(&text).map(|used| used / 1000),
        }
    }

    /// Serves GET /metrics. The processor's share is since the last time somebody asked.
    pub(crate) fn serve(&self) -> Result<Response<Body>, Refusal> {
        let (then, before) = self.last.get();
        let (now, used) = (Instant::now(), self.cpu_us()?);
        self.last.set((now, used));
        let could_us =
            now.duration_since(then).as_micros().saturating_mul(u128::from(self.told.cpu_millis)) / 1000;
        let share = percent(u128::from(used.saturating_sub(before)), could_us);
        let memory = number(&read(&self.memory)?)?;
        let kinds = read(&self.memory_kinds)?;
        // Of the whole tree below, whichever version of cgroups it is.
        let cache =
            ["total_cache", "file"].into_iter().find_map(|name| field(&kinds, name)).unwrap_or(0).min(memory);
        let disk = rustix::fs::statvfs("/").map_err(io::Error::from)?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        let total = self.told.memory_bytes;
        let used = (memory - cache).min(total);
        let seconds =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let answer = json!({
            "ts": seconds,
            "cpu_count": self.told.cpu_millis.div_ceil(1000).max(1),
            "cpu_used_pct": share,
            "mem_total": total,
            "mem_used": used,
            "mem_cache": cache,
            "mem_total_mib": total / MIB,
            "mem_used_mib": used / MIB,
            "disk_total": bytes(disk.f_blocks),
            "disk_used": bytes(disk.f_blocks.saturating_sub(disk.f_bfree)),
        });
        Ok(connect::json_response(StatusCode::OK, &answer))
    }
}

/// An agent that was started without knowing how much there is to use.
pub(crate) fn unknown() -> Refusal {
    Refusal::new(
        StatusCode::NOT_IMPLEMENTED,
        "this space was started by a build that does not tell; stop and wake it",
    )
}

/// With two digits after the point.
fn percent(part: u128, whole: u128) -> f64 {
    let hundredths = part.saturating_mul(10_000).checked_div(whole).unwrap_or(0).min(10_000);
    f64::from(u32::try_from(hundredths).unwrap_or(0)) / 100.0
}

fn read(file: &File) -> io::Result<String> {
    let mut bytes = vec![0; FILE_BYTES_MAX];
    let mut have = 0;
    while have < bytes.len() {
        match file.read_at(&mut bytes[have..], have as u64)? {
            0 => break,
            got => have += got,
        }
    }
    bytes.truncate(have);
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn number(text: &str) -> io::Result<u64> {
    text.trim()
        .parse()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is no number")))
}

/// The number after a name.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}
