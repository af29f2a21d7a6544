//! The facts of a machine, as far as this user can see them. Nothing is changed, and nothing here judges.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use camino::{Utf8Path, Utf8PathBuf};
use drowse_gateway::DISK_FLOOR_BYTES;
use drowse_shared::{limits::open_files_max, seams::Env, units};
use tokio::process::Command;

/// Where install.sh keeps the settings of the daemons.
const SETTINGS: &str = "/etc/drowse";
/// Loads a table and is done: it stays active when somebody flushes that.
const FIREWALL: &str = "drowse-firewall.service";
/// Longest wait for a program's version, and for what a unit is.
const PATIENCE: Duration = Duration::from_secs(10);
/// Before this nobody ran this program: 2026-01-01.
const BUILT_AFTER_SECONDS: i64 = 1_767_225_600;

/// Everything that is judged.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Facts {
    /// Whether a gateway was installed here.
    pub(crate) gateway: bool,
    /// Whether a node was.
    pub(crate) node: bool,
    /// Whether all of it could be seen.
    pub(crate) root: bool,
    pub(crate) kernel: Option<(u32, u32)>,
    /// Those the kernel has or can load.
    pub(crate) file_systems: BTreeSet<String>,
    pub(crate) loop_control: bool,
    pub(crate) user_namespaces_max: Option<u64>,
    pub(crate) seccomp: bool,
    /// Of cgroups, in whatever version.
    pub(crate) controllers: BTreeSet<String>,
    pub(crate) runtime: Found,
    pub(crate) mkfs: Found,
    /// None on a machine that serves no domain.
    pub(crate) caddy: Option<Found>,
    /// How many there are.
    pub(crate) templates: usize,
    /// That of the state directory.
    pub(crate) disk: Option<Disk>,
    /// What must be free of it, at most.
    pub(crate) disk_floor_bytes: u64,
    pub(crate) swap_bytes: u64,
    pub(crate) inotify_instances: Option<u64>,
    pub(crate) inotify_watches: Option<u64>,
    pub(crate) pid_max: Option<u64>,
    /// What a daemon may have open: the least of those that run, else what this shell may have.
    pub(crate) open_files: u64,
    pub(crate) clock: Clock,
    /// Of systemd; none on a machine that was not installed.
    pub(crate) units: Vec<Unit>,
}

impl Facts {
    /// Whether spaces run here, or could: a machine that only has a gateway does not.
    pub(crate) fn runs_spaces(&self) -> bool {
        self.node || !self.gateway
    }

    /// Whether the kernel has, or can load, this file system.
    pub(crate) fn has(&self, file_system: &str) -> bool {
        self.file_systems.contains(file_system)
    }
}

/// A program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// The first line of what it says of its version.
    Runs(String),
    /// Why it cannot be used.
    Fails(String),
}

/// A file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) path: Utf8PathBuf,
    pub(crate) kind: String,
    pub(crate) total_bytes: u64,
    pub(crate) available_bytes: u64,
    pub(crate) files_total: u64,
    pub(crate) files_available: u64,
    pub(crate) read_only: bool,
}

/// How the clock is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    Kept,
    Free,
    /// Before this program was written.
    Past,
    Unknown,
}

/// A unit of systemd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) name: String,
    /// `active`, `failed`, and so on.
    pub(crate) state: String,
    /// What it says of itself.
    pub(crate) words: String,
}

impl Unit {
    /// As it is when what it made is not there any more.
    fn without(self, missing: Option<String>) -> Self {
        match missing {
            Some(words) => Self { state: "undone".to_owned(), words, ..self },
            None => self,
        }
    }
}

/// The settings of a daemon, as install.sh keeps them; none where it is not installed.
pub(crate) fn settings(daemon: &str) -> Option<BTreeMap<String, String>> {
    let text = fs_err::read_to_string(format!("{SETTINGS}/{daemon}.env")).ok()?;
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once('='));
    let plain = |value: &str| value.trim_matches(['"', '\'']).to_owned();
    Some(
        pairs
            .map(|(key, value)| (key.trim().to_owned(), plain(value)))
            .filter(|(_, v)| !v.is_empty())
            .collect(),
    )
}

/// Looks around. `state` is where spaces are kept, if somebody says so.
pub(crate) async fn gather(env: &Env, state: Option<Utf8PathBuf>) -> Facts {
    let exists = |daemon: &str| Utf8Path::new(SETTINGS).join(format!("{daemon}.env")).exists();
    let (gateway, node) = (exists("gateway"), exists("node"));
    let of_gateway = settings("gateway").unwrap_or_default();
    let domain = of_gateway.contains_key("DROWSE_DOMAIN");
    let of_node = settings("node").unwrap_or_default();
    let set = |key: &str, default: &str| of_node.get(key).cloned().unwrap_or_else(|| default.to_owned());
    let named = node || state.is_some();
    let state = state.unwrap_or_else(|| set("DROWSE_STATE", "/var/lib/drowse/node").into());
    let templates = set("DROWSE_TEMPLATES", "/var/lib/drowse/templates");
    let runtime = set("DROWSE_RUNTIME", "runc");
    let mut units = Vec::new();
    let mut open_files = open_files_max();
    for (name, installed) in [
        ("drowse-gateway.socket", gateway),
        ("drowse-gateway.service", gateway),
        ("drowse-spaces.service", node),
        (FIREWALL, node),
        ("drowse-node.service", node),
        ("caddy.service", domain),
    ] {
        if !installed {
            continue;
        }
        let (mut unit, pid) = unit(name).await;
        if name == FIREWALL && unit.state == "active" && rustix::process::geteuid().is_root() {
            let listed = said("nft", &["list", "table", "inet", "drowse"]).await;
            unit = unit.without(listed.err());
        }
        if let Some(limit) = pid.filter(|_| name != "caddy.service").and_then(limit_of) {
            open_files = open_files.min(limit);
        }
        units.push(unit);
    }
    Facts {
        gateway,
        node,
        root: rustix::process::geteuid().is_root(),
        kernel: read("/proc/sys/kernel/osrelease").and_then(|text| version(&text)),
        file_systems: file_systems(),
        loop_control: Utf8Path::new("/dev/loop-control").exists(),
        user_namespaces_max: number("/proc/sys/user/max_user_namespaces"),
        seccomp: read("/proc/self/status").is_some_and(|text| text.contains("\nSeccomp:")),
        controllers: controllers(),
        runtime: program(&runtime, "--version").await,
        mkfs: program("mkfs.ext4", "-V").await,
        caddy: if domain { Some(program("caddy", "version").await) } else { None },
        templates: fs_err::read_dir(&templates)
            .map_or(0, |all| all.flatten().filter(|entry| is_template(&entry.path())).count()),
        // Before a node is installed what counts is the disk on which its directory will be.
        disk: state.ancestors().find(|at| named || at.exists()).and_then(disk),
        disk_floor_bytes: of_gateway
            .get("DROWSE_DISK_FLOOR")
            .and_then(|floor| units::bytes(floor).ok())
            .unwrap_or(DISK_FLOOR_BYTES),
        swap_bytes: read("/proc/meminfo").as_deref().map_or(0, swap),
        inotify_instances: number("/proc/sys/fs/inotify/max_user_instances"),
        inotify_watches: number("/proc/sys/fs/inotify/max_user_watches"),
        pid_max: number("/proc/sys/kernel/pid_max"),
        open_files,
        clock: clock(env).await,
        units,
    }
}

/// One that is whole, by its name: what is being built has none yet.
fn is_template(path: &std::path::Path) -> bool {
    let named = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| !name.starts_with('.'));
    named && path.is_symlink() && path.join("manifest.json").is_file()
}

fn read(path: &str) -> Option<String> {
    fs_err::read_to_string(path).ok()
}

fn number(path: &str) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

/// The first two numbers of a release such as `6.1.0-18-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// What is there, and what a module waits for.
fn file_systems() -> BTreeSet<String> {
    let there = read("/proc/filesystems").unwrap_or_default();
    let mut all: BTreeSet<String> =
        there.lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect();
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let modules = read(&format!("/lib/modules/{}/modules.dep", release.trim())).unwrap_or_default();
    for name in ["overlay", "ext4"] {
        if modules.contains(&format!("/{name}.ko")) {
            all.insert(name.to_owned());
        }
    }
    all
}

/// Of version 2 at the root, of version 1 wherever they are mounted.
fn controllers() -> BTreeSet<String> {
    let one = read("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    let mut all: BTreeSet<String> = one.split_whitespace().map(str::to_owned).collect();
    for line in read("/proc/self/mounts").unwrap_or_default().lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        if let [_, _, "cgroup", options, ..] = fields[..] {
            all.extend(options.split(',').map(str::to_owned));
        }
    }
    all
}

fn swap(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("SwapTotal:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn disk(path: &Utf8Path) -> Option<Disk> {
    let kind = rustix::fs::statfs(path.as_std_path()).ok()?.f_type;
    let stat = rustix::fs::statvfs(path.as_std_path()).ok()?;
    let kind = match kind as u64 {
        0xEF53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0x0102_1994 => "tmpfs",
        0x794C_7630 => "overlay",
        _ => "another file system",
    };
    Some(Disk {
        path: path.to_owned(),
        kind: kind.to_owned(),
        total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        files_total: stat.f_files,
        files_available: stat.f_favail,
        read_only: stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
    })
}

/// What a program prints, at most for so long.
async fn said(program: &str, args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(args).stdin(std::process::Stdio::null()).kill_on_drop(true);
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    command.env_clear().env("PATH", path);
    let ran = tokio::time::timeout(PATIENCE, command.output()).await;
    let output = match ran {
        Err(_) => return Err(format!("{program} does not answer")),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(format!("there is no {program}"));
        }
        Ok(Err(error)) => return Err(format!("{program} cannot be started: {error}")),
        Ok(Ok(output)) => output,
    };
    // mkfs speaks on standard error.
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    if output.status.success() { Ok(text) } else { Err(format!("{program}: {text}")) }
}

async fn program(program: &str, flag: &str) -> Found {
    match said(program, &[flag]).await {
        Ok(text) => Found::Runs(text.lines().next().unwrap_or_default().to_owned()),
        Err(why) => Found::Fails(why.lines().next().unwrap_or_default().to_owned()),
    }
}

/// A unit, and the process it is.
async fn unit(name: &str) -> (Unit, Option<u32>) {
    let shown =
        said("systemctl", &["show", name, "--property=ActiveState,SubState,StatusText,MainPID"]).await;
    let text = match shown {
        Ok(text) => text,
        Err(why) => return (Unit { name: name.to_owned(), state: "unknown".to_owned(), words: why }, None),
    };
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_default().to_owned()
    };
    let words = Some(value("StatusText")).filter(|words| !words.is_empty());
    let words = words.unwrap_or_else(|| value("SubState"));
    let unit = Unit { name: name.to_owned(), state: value("ActiveState"), words };
    (unit, value("MainPID").parse().ok().filter(|pid| *pid > 0))
}

/// How many files a process may have open.
fn limit_of(pid: u32) -> Option<u64> {
    let limits = read(&format!("/proc/{pid}/limits"))?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

async fn clock(env: &Env) -> Clock {
    if env.clock.wall().as_second() < BUILT_AFTER_SECONDS {
        return Clock::Past;
    }
    match said("timedatectl", &["show", "--property=NTPSynchronized", "--value"]).await.as_deref() {
        Ok("yes") => Clock::Kept,
        Ok("no") => Clock::Free,
        _ => Clock::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_and_tables_of_the_kernel_are_read() {
        for (release, expected) in [
            ("6.1.0-18-amd64\n", Some((6, 1))),
            ("5.15-rc1", Some((5, 15))),
            ("6.18.44-fc-v769", Some((6, 18))),
            ("unknown", None),
            ("", None),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
        assert_eq!(swap("MemTotal: 1 kB\nSwapTotal:        2048 kB\nSwapFree: 1 kB\n"), 2 << 20);
        assert_eq!(swap("MemTotal: 1 kB\n"), 0);
    }

    #[tokio::test]
    async fn a_program_that_is_missing_or_fails_says_so() {
        assert!(matches!(program("true", "--version").await, Found::Runs(text) if text.contains("true")));
        let missing = program("no-such-program-anywhere", "--version").await;
        assert_eq!(missing, Found::Fails("there is no no-such-program-anywhere".to_owned()));
        assert!(matches!(program("false", "x").await, Found::Fails(_)));
    }
}
