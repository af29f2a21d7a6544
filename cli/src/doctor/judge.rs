//! What the facts of a machine mean for a fleet, and what would mend them. Pure.

use super::facts::{Clock, Facts, Found, Unit};
use crate::output::units::bytes;
use drowse_gateway::disk_floor;

/// The oldest kernel on which everything a node does was proved.
const KERNEL_MIN: (u32, u32) = (6, 1);
/// Controllers without which no space has a limit.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// Watchers the machine must allow, and how many are advised: each space may have some.
const INOTIFY_INSTANCES: (u64, u64) = (128, 8192);
/// The same for what they watch.
const INOTIFY_WATCHES: (u64, u64) = (8192, 1 << 20);
/// Open files a daemon must be allowed, and how many are advised.
const OPEN_FILES: (u64, u64) = (1024, 20_000);
/// Processes of the whole machine.
const PIDS: (u64, u64) = (4096, 1 << 20);
/// Which part of the files of a disk must be free.
const FILES_PART: u64 = 20;

/// How it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Verdict {
    /// As it should be.
    Good,
    /// It works, and will be felt.
    Poor,
    /// The fleet does not work so.
    Bad,
    /// It was not looked at.
    Skipped,
}

/// What was looked at, what was found, and what would mend it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    /// In a word or two.
    pub(crate) check: String,
    pub(crate) verdict: Verdict,
    /// What is there.
    pub(crate) found: String,
    /// What to do, unless it is good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fix: Option<String>,
}

impl Finding {
    pub(crate) fn good(check: &str, found: impl Into<String>) -> Self {
        Self { check: check.to_owned(), verdict: Verdict::Good, found: found.into(), fix: None }
    }

    pub(crate) fn bad(check: &str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check: check.to_owned(), verdict: Verdict::Bad, found: found.into(), fix: Some(fix.into()) }
    }

    fn poor(check: &str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { verdict: Verdict::Poor, ..Self::bad(check, found, fix) }
    }

    pub(crate) fn skipped(check: &str, why: impl Into<String>) -> Self {
        Self { check: check.to_owned(), verdict: Verdict::Skipped, found: why.into(), fix: None }
    }
}

/// Everything that is to be said of a machine.
pub(crate) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![kernel(facts), clock(facts.clock), open_files(facts)];
    if facts.runs_spaces() {
        findings.extend([
            root(facts),
            file_system("overlay", "overlayfs", facts),
            file_system("ext4", "ext4", facts),
            loops(facts),
            namespaces(facts),
            seccomp(facts),
            controllers(facts),
            program("runtime", "runc, or what DROWSE_RUNTIME in /etc/drowse/node.env names", &facts.runtime),
            program("mkfs.ext4", "e2fsprogs", &facts.mkfs),
            templates(facts),
            disk(facts),
            swap(facts),
            least(
                "inotify instances",
                "fs.inotify.max_user_instances",
                facts.inotify_instances,
                INOTIFY_INSTANCES,
            ),
            least("inotify watches", "fs.inotify.max_user_watches", facts.inotify_watches, INOTIFY_WATCHES),
            least("process ids", "kernel.pid_max", facts.pid_max, PIDS),
        ]);
    }
    findings.extend(facts.caddy.as_ref().map(caddy));
    findings.extend(facts.units.iter().map(unit));
    findings
}

fn kernel(facts: &Facts) -> Finding {
    let fix = || format!("boot Linux {}.{} or newer", KERNEL_MIN.0, KERNEL_MIN.1);
    match facts.kernel {
        Some(kernel) if kernel >= KERNEL_MIN => {
            Finding::good("kernel", format!("Linux {}.{}", kernel.0, kernel.1))
        }
        Some(kernel) => Finding::bad("kernel", format!("Linux {}.{}", kernel.0, kernel.1), fix()),
        None => Finding::bad("kernel", "its version cannot be read", fix()),
    }
}

fn root(facts: &Facts) -> Finding {
    if facts.root {
        return Finding::good("root", "yes");
    }
    Finding::bad("root", "this user is not root, and cannot see all of it", "run it again with sudo")
}

fn file_system(check: &str, name: &str, facts: &Facts) -> Finding {
    if facts.has(check) {
        return Finding::good(check, "there");
    }
    let fix = format!(
        "modprobe {check}, and write {check} into /etc/modules-load.d/drowse.conf; install.sh does both"
    );
    Finding::bad(check, format!("the kernel has no {name}"), fix)
}

fn loops(facts: &Facts) -> Finding {
    if facts.loop_control {
        return Finding::good("loop devices", "/dev/loop-control");
    }
    let fix = "modprobe loop, and write loop into /etc/modules-load.d/drowse.conf; install.sh does both";
    Finding::bad("loop devices", "there is no /dev/loop-control", fix)
}

fn namespaces(facts: &Facts) -> Finding {
    match facts.user_namespaces_max {
        Some(0) => {
            Finding::bad("user namespaces", "none may be made", "sysctl -w user.max_user_namespaces=65536")
        }
        Some(max) => Finding::good("user namespaces", format!("{max}")),
        None => Finding::bad("user namespaces", "the kernel has none", "boot a kernel with CONFIG_USER_NS"),
    }
}

fn seccomp(facts: &Facts) -> Finding {
    if facts.seccomp {
        return Finding::good("seccomp", "there");
    }
    Finding::bad("seccomp", "the kernel filters no system calls", "boot a kernel with CONFIG_SECCOMP_FILTER")
}

fn controllers(facts: &Facts) -> Finding {
    let missing: Vec<_> = CONTROLLERS.into_iter().filter(|name| !facts.controllers.contains(*name)).collect();
    if missing.is_empty() {
        return Finding::good("cgroups", CONTROLLERS.join(", "));
    }
    let fix = "take cgroup_disable away from the kernel's command line; in a container, delegate them to it";
    Finding::bad("cgroups", format!("without {}", missing.join(", ")), fix)
}

fn program(check: &str, package: &str, found: &Found) -> Finding {
    match found {
        Found::Runs(version) => Finding::good(check, version.clone()),
        Found::Fails(why) => Finding::bad(check, why.clone(), format!("install {package}")),
    }
}

fn templates(facts: &Facts) -> Finding {
    match facts.templates {
        0 => Finding::bad(
            "templates",
            "none: no space can be made",
            "run deploy/base/build as root; install.sh does",
        ),
        count => Finding::good("templates", count.to_string()),
    }
}

fn disk(facts: &Facts) -> Finding {
    let Some(disk) = &facts.disk else {
        return Finding::bad(
            "disk",
            "the state directory is not there",
            "start the node once, or set DROWSE_STATE",
        );
    };
    let percent = |part: u64, whole: u64| part.saturating_mul(100).checked_div(whole).unwrap_or(100);
    let floor_bytes = disk_floor(facts.disk_floor_bytes, disk.total_bytes);
    let files = percent(disk.files_available, disk.files_total);
    let found = format!(
        "{} of {} free, {}, {}",
        bytes(disk.available_bytes),
        bytes(disk.total_bytes),
        disk.kind,
        disk.path
    );
    if disk.read_only {
        return Finding::bad(
            "disk",
            format!("{found}, read-only"),
            "look for errors of the disk in dmesg; mount it writable",
        );
    }
    if !["ext4", "xfs", "btrfs"].contains(&disk.kind.as_str()) {
        let fix = "put DROWSE_STATE and the templates on ext4, XFS or btrfs: owners are mapped there";
        return Finding::bad("disk", found, fix);
    }
    if disk.available_bytes < floor_bytes || disk.files_available < disk.files_total / FILES_PART {
        let found = format!("{found}, {files} % of its files free");
        return Finding::bad("disk", found, "destroy spaces that are not needed, or give it more room");
    }
    Finding::good("disk", found)
}

fn swap(facts: &Facts) -> Finding {
    match facts.swap_bytes {
        0 => Finding::poor(
            "swap",
            "none: the memory of frozen spaces stays where it is",
            "install.sh --swap 8GiB, or --zram; docs/operate.md says how by hand",
        ),
        size => Finding::good("swap", bytes(size)),
    }
}

fn least(check: &str, sysctl: &str, value: Option<u64>, (must, advised): (u64, u64)) -> Finding {
    let fix = format!("sysctl -w {sysctl}={advised}, and write it into /etc/sysctl.d; install.sh does both");
    match value {
        Some(value) if value >= advised => Finding::good(check, value.to_string()),
        Some(value) if value >= must => {
            Finding::poor(check, format!("{value}: enough for a few spaces"), fix)
        }
        Some(value) => Finding::bad(check, value.to_string(), fix),
        None => Finding::skipped(check, format!("{sysctl} cannot be read")),
    }
}

fn open_files(facts: &Facts) -> Finding {
    let fix = "set LimitNOFILE of the units, which install.sh does, or raise ulimit -Hn";
    match facts.open_files {
        files if files >= OPEN_FILES.1 => Finding::good("open files", files.to_string()),
        files if files > OPEN_FILES.0 => {
            Finding::poor("open files", format!("{files}: few connections"), fix)
        }
        files => Finding::bad("open files", files.to_string(), fix),
    }
}

fn clock(clock: Clock) -> Finding {
    let fix = "timedatectl set-ntp true, or install chrony";
    match clock {
        Clock::Kept => Finding::good("clock", "kept in step"),
        Clock::Free => {
            Finding::poor("clock", "nobody keeps it in step; times in answers and certificates drift", fix)
        }
        Clock::Past => Finding::bad("clock", "it is years behind; no certificate is valid yet", fix),
        Clock::Unknown => Finding::skipped("clock", "nobody here says whether it is kept in step"),
    }
}

fn caddy(found: &Found) -> Finding {
    match found {
        Found::Runs(version) => Finding::good("caddy", version.clone()),
        Found::Fails(why) => Finding::bad(
            "caddy",
            format!("{why}: nobody ends TLS before the gateway"),
            "apt-get install caddy, then run install.sh again",
        ),
    }
}

fn unit(unit: &Unit) -> Finding {
    let Unit { name, state, words } = unit;
    match state.as_str() {
        "active" => Finding::good(name, words.clone()),
        _ => Finding::bad(
            name,
            format!("{state} {words}").trim().to_owned(),
            format!("journalctl -u {name} says why; systemctl restart {name}, or run install.sh again"),
        ),
    }
}

#[cfg(test)]
mod tests;
