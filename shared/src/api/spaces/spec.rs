use garde::Validate;
use serde::{Deserialize, Serialize};

/// Least memory, and least disk, in bytes.
const BYTES_MIN: u64 = 64 << 20;
/// Most memory, in bytes.
const MEMORY_BYTES_MAX: u64 = 1 << 42;
/// Largest disk, in bytes.
const DISK_BYTES_MAX: u64 = 1 << 44;

/// What a space may use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// Processor time, in cores.
    #[garde(range(min = 0.1, max = 512.0))]
    pub cpus: f64,
    /// Memory of the workload, in bytes.
    #[garde(range(min = BYTES_MIN, max = MEMORY_BYTES_MAX))]
    pub memory_bytes: u64,
    /// Size of the disk, in bytes. The image is sparse.
    #[garde(range(min = BYTES_MIN, max = DISK_BYTES_MAX))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SpecPatch {
    /// Processor time, in cores.
    #[garde(range(min = 0.1, max = 512.0))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// Memory of the workload, in bytes.
    #[garde(range(min = BYTES_MIN, max = MEMORY_BYTES_MAX))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Size of the disk, in bytes. The image is sparse.
    #[garde(range(min = BYTES_MIN, max = DISK_BYTES_MAX))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// Most processes and threads at once.
    #[garde(range(min = 32, max = 1 << 20))]
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
