use camino::Utf8Path;
use drowse_shared::{api::spaces::Spec, name::SpaceName};
use serde_json::{Value, json};

use super::{
    super::Card,
    cgroup::{CPU_PERIOD_US, quota_us},
    paths::Body,
    seccomp,
    userns::RANGE_USERS,
};

/// What root inside keeps: the customary set of containers, nothing that reaches the host.
const CAPABILITIES: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// The customary ones, and the block devices: the kernel tells every reader which files loop devices are bound to, and
/// with them the ids of all spaces of the machine.
const MASKED: [&str; 13] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/block",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Where the agents are inside.
pub(super) const AGENTS: &str = "/.drowse";
/// Where the disk's home directory is inside.
const HOME: &str = "/home/user";
/// The most open files a process inside may have.
const OPEN_FILES_MAX: u64 = 65_536;
/// The most terminals of a space: the kernel has 4,096 for everybody.
const TERMINALS_MAX: u32 = 256;

/// What a container is made from.
pub(super) struct Bundle<'a> {
    /// The space.
    pub(super) card: &'a Card,
    /// Its files on the host.
    pub(super) body: &'a Body,
    /// First host uid of its range.
    pub(super) base: u32,
    /// Path of `work`, as the runtime wants it.
    pub(super) work: String,
    /// Path of the agent below the agents' directory.
    pub(super) agent: &'a Utf8Path,
    /// How many descriptors of cgroups the agent gets.
    pub(super) procs: usize,
    /// The daemon's own limit of open files, which it cannot exceed without a capability.
    pub(super) open_files: u64,
    /// Whether a single cgroup tree is there to be shown inside.
    pub(super) show_cgroup: bool,
}

impl Bundle<'_> {
    /// The runtime's `config.json`.
    pub(super) fn config(&self) -> Value {
        let spec = &self.card.spec;
        let mappings = json!([{"containerID": 0, "hostID": self.base, "size": RANGE_USERS}]);
        let kinds = ["pid", "network", "ipc", "uts", "mount", "cgroup", "user"];
        let namespaces: Vec<Value> = kinds.iter().map(|kind| json!({"type": kind})).collect();
        let files = OPEN_FILES_MAX.min(self.open_files);
        json!({
            "ociVersion": "1.0.2",
            "hostname": hostname(self.card),
            "root": {"path": self.body.merged(), "readonly": false},
            "process": {
                "terminal": false,
                "user": {"uid": 0, "gid": 0},
                "args": self.args(),
                "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"],
                "cwd": "/",
                "capabilities": {
                    "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES,
                },
                "rlimits": [{"type": "RLIMIT_NOFILE", "hard": files, "soft": files}],
                // Passwordless sudo is part of the template.
                "noNewPrivileges": false,
            },
            "mounts": self.mounts(),
            "linux": {
                "namespaces": namespaces,
                "uidMappings": mappings,
                "gidMappings": mappings,
                "cgroupsPath": self.work,
                "resources": resources(spec),
                "seccomp": seccomp::profile(),
                "maskedPaths": MASKED,
                "readonlyPaths": READ_ONLY,
            },
        })
    }

    fn args(&self) -> [String; 6] {
        let spec = &self.card.spec;
        [
            format!("{AGENTS}/{}", self.agent),
            "--init".to_owned(),
            self.procs.to_string(),
            "--measured".to_owned(),
            spec.memory_bytes.to_string(),
            (quota_us(spec.cpus) / (CPU_PERIOD_US / 1000).cast_signed()).to_string(),
        ]
    }

    fn mounts(&self) -> Value {
        let shared_memory = format!("size={}", self.card.spec.memory_bytes / 2);
        let terminals = format!("max={TERMINALS_MAX}");
        let pseudo = |to: &str, kind: &str, options: &[&str]| json!({"destination": to, "type": kind, "source": kind, "options": options});
        let bind = |to: &str, from: &Utf8Path, options: &[&str]| json!({"destination": to, "type": "bind", "source": from, "options": options});
        let mut mounts = vec![
            pseudo("/proc", "proc", &["nosuid", "noexec", "nodev"]),
            pseudo("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
            pseudo(
                "/dev/pts",
                "devpts",
                &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", &terminals],
            ),
            pseudo("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777", &shared_memory]),
            pseudo("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
            pseudo("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        ];
        if self.show_cgroup {
            mounts.push(pseudo("/sys/fs/cgroup", "cgroup", &["nosuid", "noexec", "nodev", "ro"]));
        }
        // Both keep the flags of what is mounted there: read-only, no devices.
        mounts.push(bind(AGENTS, &self.body.agents(), &["bind"]));
        mounts.push(bind(HOME, &self.body.disk().join("home"), &["bind"]));
        Value::Array(mounts)
    }
}

/// Limits of the workload. The ceiling over it and the agent is ours, not the runtime's.
fn resources(spec: &Spec) -> Value {
    json!({
        "devices": [{"allow": false, "access": "rwm"}],
        "memory": {"limit": spec.memory_bytes},
        "pids": {"limit": spec.pids},
        "cpu": {"quota": quota_us(spec.cpus), "period": CPU_PERIOD_US},
    })
}

/// The host name inside: the name as far as it can be one, else the id.
pub(super) fn hostname(card: &Card) -> String {
    label(&card.name).unwrap_or_else(|| card.id.to_string())
}

fn label(name: &SpaceName) -> Option<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let label: String = name.as_str().chars().map(plain).take(63).collect();
    let label = label.trim_matches('-');
    (!label.is_empty()).then(|| label.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_labels() {
        for (name, host) in [
            ("shop", Some("shop")),
            ("User 42", Some("user-42")),
            ("ünï", Some("n")),
            ("✓", None),
            (&*"a".repeat(100), Some(&*"a".repeat(63))),
        ] {
            assert_eq!(label(&name.parse().expect("a name")).as_deref(), host, "{name}");
        }
    }

    #[test]
    fn limits_follow_the_spec() {
        let spec = Spec { cpus: 0.5, ..Spec::default() };
        assert_eq!(resources(&spec)["cpu"]["quota"], 50_000);
        assert_eq!(resources(&spec)["memory"]["limit"], 2_u64 << 30);
    }
}
