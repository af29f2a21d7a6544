//! What nodes leave on a machine, by space.

use std::collections::{BTreeMap, BTreeSet};

use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::id::SpaceId;

/// Where a node keeps what.
pub(crate) struct Places<'a> {
    pub(crate) state: &'a Utf8Path,
    pub(crate) run: &'a Utf8Path,
    pub(crate) cgroup_parent: &'a str,
}

/// Names of spaces, or of whatever else is found, by kind of trace.
pub(crate) type Traces = BTreeMap<&'static str, BTreeSet<String>>;

impl Places<'_> {
    /// Everything there is.
    pub(crate) fn look(&self) -> Traces {
        let disks = names(&self.state.join("spaces"));
        let whole = |name: &String| {
            let dir = self.state.join("spaces").join(name);
            names(&dir) == ["disk.img", "space.json"].map(str::to_owned).into()
        };
        let numbers = names(self.run).into_iter().filter(|name| name.parse::<u32>().is_ok());
        let instances: Vec<_> = numbers.map(|number| self.run.join(number)).collect();
        let of = |kind: &dyn Fn(&Utf8Path) -> Utf8PathBuf| -> BTreeSet<String> {
            instances.iter().flat_map(|dir| names(&kind(dir))).collect()
        };
        let bodies = of(&|dir| dir.to_owned()).into_iter().filter(|name| SpaceId::is_shape_of(name));
        [
            ("disk", disks.clone()),
            ("disk that is not whole", disks.into_iter().filter(|name| !whole(name)).collect()),
            ("body", bodies.collect()),
            ("record of the runtime", of(&|dir| dir.join("runc"))),
            (
                "log of the runtime",
                of(&|dir| dir.to_owned())
                    .into_iter()
                    .filter(|n| n.contains('.') && n != "check.log")
                    .collect(),
            ),
            ("loop device", self.loops()),
            ("cgroup", self.cgroups()),
            ("mount", self.mounts()),
            ("process", self.processes()),
            ("program", self.programs()),
        ]
        .into()
    }

    /// What there is should be what these spaces have: all of them a disk, the living ones a body.
    pub(crate) fn differs(&self, all: &BTreeSet<String>, living: &BTreeSet<String>) -> Option<String> {
        let mut differs = Vec::new();
        for (kind, found) in self.look() {
            let none = BTreeSet::new();
            let expected = match kind {
                "disk" => all,
                "body" | "record of the runtime" | "loop device" | "cgroup" | "process" => living,
                _ => &none,
            };
            for extra in found.difference(expected) {
                differs.push(format!("{kind} of {extra} is left"));
            }
            for missing in expected.difference(&found) {
                differs.push(format!("{kind} of {missing} is missing"));
            }
        }
        (!differs.is_empty()).then(|| differs.join("; "))
    }

    /// Ends and removes everything, after a test that failed: as well as it goes.
    pub(crate) fn clear(&self) {
        let trees = names("/sys/fs/cgroup".into()).into_iter().chain([".".to_owned()]);
        let parents = trees.map(|tree| Utf8Path::new("/sys/fs/cgroup").join(tree).join(self.cgroup_parent));
        let mut levels: Vec<Utf8PathBuf> = parents.filter(|dir| dir.is_dir()).collect();
        let mut known = 0;
        while known < levels.len() {
            let entries = levels[known].read_dir_utf8().into_iter().flatten().flatten();
            let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            let below: Vec<_> = below.map(|entry| entry.path().to_owned()).collect();
            levels.extend(below);
            known += 1;
        }
        for _ in 0..200 {
            for level in &levels {
                let _ = std::fs::write(level.join("freezer.state"), "THAWED");
                let pids = std::fs::read_to_string(level.join("cgroup.procs")).unwrap_or_default();
                for pid in pids.lines().filter_map(|pid| rustix::process::Pid::from_raw(pid.parse().ok()?)) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            levels.iter().rev().for_each(|level| drop(std::fs::remove_dir(level)));
            if !levels.iter().any(|level| level.is_dir()) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        for mount in self.mounts().iter().rev().filter_map(|line| line.split(' ').nth(4)) {
            let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
        }
        let _ = std::fs::remove_dir_all(self.run);
    }

    fn loops(&self) -> BTreeSet<String> {
        let devices = Utf8Path::new("/sys/block").read_dir_utf8().expect("read").flatten();
        let files = devices.filter_map(|d| std::fs::read_to_string(d.path().join("loop/backing_file")).ok());
        files.filter(|file| file.contains(self.state.as_str())).map(|file| id_in(&file)).collect()
    }

    fn mounts(&self) -> BTreeSet<String> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("read");
        mounts.lines().filter(|line| line.contains(self.run.as_str())).map(str::to_owned).collect()
    }

    fn cgroups(&self) -> BTreeSet<String> {
        let trees = names("/sys/fs/cgroup".into()).into_iter().chain([".".to_owned()]);
        let parents = trees.map(|tree| Utf8Path::new("/sys/fs/cgroup").join(tree).join(self.cgroup_parent));
        let instances = parents.flat_map(|dir| names(&dir).into_iter().map(move |name| dir.join(name)));
        instances.flat_map(|dir| names(&dir)).filter(|name| SpaceId::is_shape_of(name)).collect()
    }

    /// Spaces that have a process.
    fn processes(&self) -> BTreeSet<String> {
        let of = |dir: Utf8PathBuf| {
            let text = std::fs::read_to_string(dir.join("cgroup")).unwrap_or_default();
            let line = text.lines().find(|line| line.contains(self.cgroup_parent))?.to_owned();
            // The dead ones wait for whoever reaps them.
            let state = std::fs::read_to_string(dir.join("stat")).unwrap_or_default();
            (!state.is_empty() && !state.contains(") Z ")).then(|| id_in(&line))
        };
        processes().filter_map(of).collect()
    }

    /// Programs at work on our files.
    fn programs(&self) -> BTreeSet<String> {
        let of = |dir: Utf8PathBuf| {
            let line = std::fs::read(dir.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            (line.contains(self.run.as_str()) || line.contains(self.state.as_str())).then_some(line)
        };
        processes().filter_map(of).collect()
    }
}

fn processes() -> impl Iterator<Item = Utf8PathBuf> {
    let entries = Utf8Path::new("/proc").read_dir_utf8().expect("read").flatten();
    entries.filter(|entry| entry.file_name().parse::<u32>().is_ok()).map(|entry| entry.path().to_owned())
}

/// The part of a path that is an id, or all of it.
fn id_in(path: &str) -> String {
    let mut parts = path.trim().split('/');
    parts.find(|part| SpaceId::is_shape_of(part)).unwrap_or(path).to_owned()
}

fn names(dir: &Utf8Path) -> BTreeSet<String> {
    let Ok(entries) = dir.read_dir_utf8() else { return BTreeSet::new() };
    entries.flatten().map(|entry| entry.file_name().to_owned()).collect()
}
