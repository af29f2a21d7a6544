use garde::Validate;
use serde::{Deserialize, Serialize};

/// What a space may use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// Processor time, in cores.
    #[garde(range(min = 0.1, max = 512.0))]
    pub cpus: f64,
    /// Memory of the workload, in bytes.
    #[garde(range(min = 64 << 20, max = 1 << 42))]
    pub memory_bytes: u64,
    /// Size of the disk, in bytes. The image is sparse.
    #[garde(range(min = 64 << 20, max = 1 << 44))]
    pub disk_bytes: u64,
    /// Most processes and threads at once.
    #[garde(range(min = 32, max = 1 << 20))]
    pub pids: u32,
}

impl Default for Spec {
    /// 1 core, 2 GiB, 10 GiB of disk, 4,096 processes.
    fn default() -> Self {
        Self { cpus: 1.0, memory_bytes: 2 << 30, disk_bytes: 10 << 30, pids: 4096 }
    }
}

/// A wish for a spec: what is absent takes the fleet's default.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, Validate)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SpecPatch {
    /// See [`Spec::cpus`].
    #[garde(inner(range(min = 0.1, max = 512.0)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// See [`Spec::memory_bytes`].
    #[garde(inner(range(min = 64 << 20, max = 1 << 42)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// See [`Spec::disk_bytes`].
    #[garde(inner(range(min = 64 << 20, max = 1 << 44)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// See [`Spec::pids`].
    #[garde(inner(range(min = 32, max = 1 << 20)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
}

impl SpecPatch {
    /// The spec after the change.
    pub fn apply(self, to: Spec) -> Spec {
        Spec {
            cpus: self.cpus.unwrap_or(to.cpus),
            memory_bytes: self.memory_bytes.unwrap_or(to.memory_bytes),
            disk_bytes: self.disk_bytes.unwrap_or(to.disk_bytes),
            pids: self.pids.unwrap_or(to.pids),
        }
    }
}
