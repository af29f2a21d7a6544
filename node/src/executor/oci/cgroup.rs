use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    time::Duration,
};

use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::{api::spaces::Spec, id::SpaceId, seams::Env};
use tokio::time::Instant;

use super::{paths::names_in, step::Leave};

/// What a space uses.
mod measure;
/// Memory of a workload.
mod memory;
/// Which cgroup trees this machine has.
pub(super) mod tree;
/// Cheap moves while bodies start.
mod warmth;

pub(super) use memory::Reclaim;
use tree::{Tree, Version};
use warmth::{Warm, Warmth};

/// What pid 1 of a space may use beside the workload: an upload or a pipe buffer must not count against the spec.
const AGENT_MEMORY_BYTES: u64 = 64 << 20;
const AGENT_PIDS: u64 = 64;
/// Carrying output and reaping orphans is work that commands cause: without a ceiling it would be theirs for nothing.
const AGENT_CPUS: f64 = 0.5;
/// One period of a processor quota.
pub(super) const CPU_PERIOD_US: u64 = 100_000;
/// Controllers a space needs on a version 2 tree.
const V2_CONTROLLERS: [&str; 5] = ["cpu", "memory", "pids", "io", "cpuset"];
/// A version 1 freezer that meets a process in the middle of vfork stays FREEZING for ever unless it is told again.
const POLLS_BETWEEN_WRITES: u32 = 4;

/// The cgroups of one instance: `<parent>/<instance>/<id>/{work,agent}` in every tree.
///
/// `<id>` is the ceiling, `work` holds the workload with the spec's limits and is what freezes, `agent` holds pid 1.
#[derive(Debug)]
pub(super) struct Cgroups {
    trees: Vec<Tree>,
    parent: String,
    warmth: Warmth,
}

impl Cgroups {
    /// Finds the trees of this machine; `parent` is relative to their roots.
    pub(super) fn find(parent: String) -> io::Result<Self> {
        Ok(Self { trees: tree::find()?, parent, warmth: Warmth::default() })
    }

    /// Controllers that are missing.
    pub(super) fn missing(&self) -> Vec<&'static str> {
        ["cpu", "memory", "pids"].into_iter().filter(|name| self.with(name).is_none()).collect()
    }

    /// How many descriptors [`Self::open_procs`] opens.
    pub(super) fn count(&self) -> usize {
        self.trees.len()
    }

    /// Whether there is one tree for all, cheap to show inside.
    pub(super) fn is_single(&self) -> bool {
        matches!(&self.trees[..], [Tree { version: Version::V2, .. }])
    }

    /// The path the runtime gets, relative to the roots.
    pub(super) fn work_path(&self, id: SpaceId) -> String {
        format!("/{}/{id}/work", self.parent)
    }

    fn with(&self, controller: &str) -> Option<&Tree> {
        self.trees.iter().find(|tree| tree.controllers.iter().any(|c| c == controller))
    }

    fn dir(&self, tree: &Tree, id: SpaceId) -> Utf8PathBuf {
        tree.root.join(&self.parent).join(id.to_string())
    }

    /// The tree that freezes.
    fn freezer(&self) -> io::Result<&Tree> {
        let old = self.with("freezer");
        old.or_else(|| self.trees.iter().find(|tree| tree.version == Version::V2))
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no cgroup tree can freeze"))
    }

    /// The tree that is asked who is alive.
    fn census(&self) -> io::Result<&Tree> {
        self.with("pids")
            .or_else(|| self.trees.first())
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no cgroup tree"))
    }

    /// Makes the cgroups of a space and puts the ceiling on them.
    pub(super) fn make(&self, _: &Leave, id: SpaceId, spec: &Spec) -> io::Result<()> {
        for tree in &self.trees {
            let mut dir = tree.root.clone();
            let mut above = vec![dir.clone()];
            let ours = self.dir(tree, id);
            for part in ours.strip_prefix(&tree.root).unwrap_or(&ours) {
                dir.push(part);
                make_dir(&dir)?;
                above.push(dir.clone());
            }
            if tree.version == Version::V2 {
                for level in &above {
                    delegate(level);
                }
            }
            let (work, agent) = (dir.join("work"), dir.join("agent"));
            make_dir(&work)?;
            make_dir(&agent)?;
            if tree.controllers.iter().any(|c| c == "cpuset") && tree.version == Version::V1 {
                for level in above.iter().skip(1).chain([&work, &agent]) {
                    inherit_cpuset(level)?;
                }
            }
            if tree.controllers.iter().any(|c| c == "cpu") {
                let quota = quota_us(spec.cpus + AGENT_CPUS);
                if tree.version == Version::V1 {
                    write(&dir.join("cpu.cfs_period_us"), &CPU_PERIOD_US.to_string())?;
                    write(&dir.join("cpu.cfs_quota_us"), &quota.to_string())?;
                } else {
                    write(&dir.join("cpu.max"), &format!("{quota} {CPU_PERIOD_US}"))?;
                }
            }
            let memory = (spec.memory_bytes + AGENT_MEMORY_BYTES).to_string();
            let pids = (u64::from(spec.pids) + AGENT_PIDS).to_string();
            for (controller, v1, v2, value) in [
                ("memory", "memory.limit_in_bytes", "memory.max", &memory),
                ("pids", "pids.max", "pids.max", &pids),
            ] {
                if tree.controllers.iter().any(|c| c == controller) {
                    let file = if tree.version == Version::V1 { v1 } else { v2 };
                    write(&dir.join(file), value)?;
                }
            }
        }
        Ok(())
    }

    /// Opens `work/cgroup.procs` of every tree for writing: whoever holds these may move itself into `work`.
    pub(super) fn open_procs(&self, id: SpaceId) -> io::Result<Vec<File>> {
        let open = |tree: &Tree| {
            OpenOptions::new().write(true).open(self.dir(tree, id).join("work/cgroup.procs").as_std_path())
        };
        self.trees.iter().map(open).collect()
    }

    /// Makes moves cheap until the answer is dropped.
    pub(super) fn warm(&self, env: &Env) -> Warm {
        self.warmth.keep(env, self.census().ok().and_then(warmth::own_procs))
    }

    /// Moves pid 1 of a space out of the workload.
    pub(super) fn move_to_agent(&self, _: &Leave, id: SpaceId, pid: i32) -> io::Result<()> {
        for tree in &self.trees {
            write(&self.dir(tree, id).join("agent/cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Pids in one of the two cgroups of a space; none when it is not there.
    pub(super) fn pids(&self, id: SpaceId, part: &str) -> io::Result<Vec<i32>> {
        let file = self.dir(self.census()?, id).join(part).join("cgroup.procs");
        Ok(read(&file)?.unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Whether the workload is suspended.
    pub(super) fn is_frozen(&self, id: SpaceId) -> io::Result<bool> {
        let tree = self.freezer()?;
        let work = self.dir(tree, id).join("work");
        Ok(match tree.version {
            Version::V1 => read(&work.join("freezer.state"))?.is_some_and(|state| state.trim() == "FROZEN"),
            Version::V2 => {
                read(&work.join("cgroup.events"))?.is_some_and(|events| field(&events, "frozen") == Some(1))
            }
        })
    }

    /// The freezer's file of a workload, and what it takes to suspend and to resume.
    fn freezer_of(&self, id: SpaceId) -> io::Result<(Utf8PathBuf, &'static str, &'static str)> {
        let tree = self.freezer()?;
        let work = self.dir(tree, id).join("work");
        Ok(match tree.version {
            Version::V1 => (work.join("freezer.state"), "FROZEN", "THAWED"),
            Version::V2 => (work.join("cgroup.freeze"), "1", "0"),
        })
    }

    /// Whether the workload is suspended or about to be.
    pub(super) fn is_told_to_freeze(&self, id: SpaceId) -> io::Result<bool> {
        let (file, _, off) = self.freezer_of(id)?;
        Ok(read(&file)?.is_some_and(|state| state.trim() != off))
    }

    /// Tells the freezer, and does not wait for it.
    pub(super) fn tell_freezer(&self, _: &Leave, id: SpaceId, frozen: bool) -> io::Result<()> {
        let (file, on, off) = self.freezer_of(id)?;
        write(&file, if frozen { on } else { off })
    }

    /// Suspends or resumes the workload and waits for it. A freeze that does not end in time is taken back.
    pub(super) fn set_frozen(
        &self,
        leave: &Leave,
        id: SpaceId,
        frozen: bool,
        within: Duration,
    ) -> io::Result<bool> {
        let thawed = |id| -> io::Result<bool> { Ok(!self.is_told_to_freeze(id)? && !self.is_frozen(id)?) };
        let deadline = Instant::now() + within;
        let mut polls = 0;
        let mut pause = Duration::from_micros(50);
        loop {
            if polls % POLLS_BETWEEN_WRITES == 0 {
                self.tell_freezer(leave, id, frozen)?;
            }
            let done = if frozen { self.is_frozen(id)? } else { thawed(id)? };
            if done {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                if frozen {
                    self.tell_freezer(leave, id, false)?;
                }
                return Ok(false);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
            polls += 1;
        }
    }

    /// Removes the cgroups of a space; false when something still lives in them.
    pub(super) fn remove(&self, _: &Leave, id: SpaceId) -> io::Result<bool> {
        let mut gone = true;
        for tree in &self.trees {
            gone &= remove_tree(&self.dir(tree, id))?;
        }
        Ok(gone)
    }

    /// Spaces that have a cgroup in any tree.
    pub(super) fn ids(&self) -> io::Result<Vec<SpaceId>> {
        let mut ids = Vec::new();
        for tree in &self.trees {
            let names = names_in(&tree.root.join(&self.parent))?;
            ids.extend(names.iter().filter_map(|name| name.parse::<SpaceId>().ok()));
        }
        ids.sort();
        ids.dedup();
        Ok(ids)
    }

    /// Removes this instance's own level, and the one above when no other instance is left.
    pub(super) fn remove_parents(&self) {
        for tree in &self.trees {
            for level in Utf8Path::new(&self.parent).ancestors().filter(|level| !level.as_str().is_empty()) {
                // Busy or gone: either is fine.
                let _ = std::fs::remove_dir(tree.root.join(level));
            }
        }
    }
}

/// Processor time that so many cores have in one period.
pub(super) fn quota_us(cpus: f64) -> i64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "at most 512 cores, validated: the product is far below 2^53"
    )]
    let quota = (cpus * CPU_PERIOD_US as f64) as i64;
    quota
}

fn make_dir(dir: &Utf8Path) -> io::Result<()> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Lets the levels below have the controllers. One that is missing here is noticed where it is needed.
fn delegate(level: &Utf8Path) {
    let file = level.join("cgroup.subtree_control");
    let has = read(&file).ok().flatten().unwrap_or_default();
    for controller in V2_CONTROLLERS {
        if !has.split_whitespace().any(|c| c == controller) {
            let _ = write(&file, &format!("+{controller}"));
        }
    }
}

fn inherit_cpuset(level: &Utf8Path) -> io::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let ours = level.join(file);
        if read(&ours)?.is_some_and(|value| value.trim().is_empty())
            && let Some(above) = level.parent()
        {
            write(&ours, read(&above.join(file))?.unwrap_or_default().trim())?;
        }
    }
    Ok(())
}

fn remove_tree(dir: &Utf8Path) -> io::Result<bool> {
    match std::fs::remove_dir(dir) {
        Ok(()) => return Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENOTEMPTY) => {}
        Err(error) => return Err(error),
    }
    let mut gone = true;
    for name in names_in(dir)? {
        let below = dir.join(name);
        if below.is_dir() {
            gone &= remove_tree(&below)?;
        }
    }
    Ok(gone && std::fs::remove_dir(dir).is_ok())
}

/// The content of a file; `None` when the file, or the cgroup it belongs to, is gone.
fn read(path: &Utf8Path) -> io::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn write(path: &Utf8Path, value: &str) -> io::Result<()> {
    // One write: the kernel takes each as a whole command.
    OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(value.as_bytes())).map_err(
        |error| match error.raw_os_error() {
            Some(_) => io::Error::new(error.kind(), format!("{path}: {error}")),
            None => error,
        },
    )
}

/// The number after a key, in files of `key value` lines.
fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_key() {
        assert_eq!(field("oom_kill_disable 0\noom_kill 2\n", "oom_kill"), Some(2));
        let text = "populated 1\nfrozen 0\n";
        assert_eq!(
            (field(text, "frozen"), field(text, "populated"), field(text, "x")),
            (Some(0), Some(1), None)
        );
    }
}
