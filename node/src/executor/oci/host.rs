use std::{
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use camino::Utf8PathBuf;
use drowse_shared::{id::SpaceId, seams::Env};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{
    super::{Error, Result, Vitality},
    Deadlines,
    cgroup::Cgroups,
    disk::failed,
    instance::Instance,
    paths::Paths,
    runtime::Runtime,
    step::{Leave, Step, Steps},
    userns::{MapCache, Ranges},
};

/// What all calls share. Nothing here is the only record of a body.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) env: Env,
    pub(super) paths: Paths,
    pub(super) cgroups: Cgroups,
    pub(super) runtime: Runtime,
    pub(super) instance: Instance,
    pub(super) ranges: Ranges,
    pub(super) maps: MapCache,
    /// The agent, relative to the agents' directory.
    pub(super) agent: Utf8PathBuf,
    pub(super) deadlines: Deadlines,
    /// The daemon's own limit of open files.
    pub(super) open_files: u64,
    pub(super) steps: Steps,
    busy: Mutex<BTreeMap<SpaceId, Weak<tokio::sync::Mutex<()>>>>,
}

/// The parts of a [`Host`] that are found at boot.
pub(super) struct Parts {
    pub(super) env: Env,
    pub(super) paths: Paths,
    pub(super) cgroups: Cgroups,
    pub(super) runtime: Runtime,
    pub(super) instance: Instance,
    pub(super) maps: MapCache,
    pub(super) agent: Utf8PathBuf,
    pub(super) deadlines: Deadlines,
    pub(super) open_files: u64,
    pub(super) steps: Steps,
}

impl Host {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { env, paths, cgroups, runtime, instance, maps, agent, deadlines, open_files, steps } =
            parts;
        Self {
            env,
            paths,
            cgroups,
            runtime,
            instance,
            ranges: Ranges::default(),
            maps,
            agent,
            deadlines,
            open_files,
            steps,
            busy: Mutex::default(),
        }
    }

    /// Changes the machine, as a step.
    pub(super) fn take<T, E>(
        &self,
        step: Step,
        change: impl FnOnce(&Leave) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        self.steps.take(step, change)
    }

    /// Looks at the kernel without changing anything.
    pub(super) async fn look<T: Send + 'static>(
        self: &Arc<Self>,
        what: &'static str,
        job: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let host = self.clone();
        let within = self.deadlines.command;
        let done = tokio::time::timeout(within, self.env.blocking(what, move || job(&host))).await;
        settle(done, what, within)
    }

    /// Changes something of one space. Work that outlived its deadline keeps the next one out until it ends, so that no
    /// two ever touch one body.
    pub(super) async fn kernel<T: Send + 'static>(
        self: &Arc<Self>,
        id: SpaceId,
        what: &'static str,
        within: Duration,
        job: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (host, lock) = (self.clone(), self.lock_of(id));
        let work = async move {
            let held = lock.lock_owned().await;
            let worker = host.clone();
            let job = move || {
                let _held = held;
                job(&worker)
            };
            host.env.blocking(what, job).await
        };
        settle(tokio::time::timeout(within, work).await, what, within)
    }

    fn lock_of(&self, id: SpaceId) -> Arc<tokio::sync::Mutex<()>> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = busy.get(&id).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        busy.insert(id, Arc::downgrade(&lock));
        lock
    }

    /// What the kernel says about a body. One that never answered, or whose first process is gone or on its way, is
    /// stopped.
    pub(super) fn vitality(&self, id: SpaceId) -> Result<Vitality> {
        let body = self.paths.body(id);
        let at = |what| failed(what, &body.dir);
        if !body.started().exists() {
            return Ok(Vitality::Stopped);
        }
        let alive = self.cgroups.pids(id, "agent").map_err(at("read the cgroup"))?;
        let Some(first) = self.first_pid(id).filter(|pid| alive.contains(pid)) else {
            return Ok(Vitality::Stopped);
        };
        if is_ending(first).map_err(at("look at the first process"))? {
            return Ok(Vitality::Stopped);
        }
        let frozen = self.cgroups.is_frozen(id).map_err(at("read the freezer"))?;
        Ok(if frozen { Vitality::Frozen } else { Vitality::Running })
    }

    /// The pid the runtime wrote down; it may be gone, or somebody else's by now.
    pub(super) fn first_pid(&self, id: SpaceId) -> Option<i32> {
        std::fs::read_to_string(self.paths.body(id).pid()).ok()?.trim().parse().ok()
    }

    /// Everything alive in the cgroups of a space.
    pub(super) fn all_pids(&self, id: SpaceId) -> io::Result<Vec<i32>> {
        let mut pids = self.cgroups.pids(id, "agent")?;
        pids.extend(self.cgroups.pids(id, "work")?);
        Ok(pids)
    }

    /// The first process, held: what is done to the hold is done to it, and [`lives`] says of what was found under its pid
    /// since whether it was of this process. `None` when it is gone.
    pub(super) fn first_process(&self, id: SpaceId) -> io::Result<Option<(i32, OwnedFd)>> {
        let Some(pid) = self.first_pid(id) else { return Ok(None) };
        let Some(held) = hold(pid)? else { return Ok(None) };
        // Only after it is held does the cgroup prove that it is ours.
        Ok(self.all_pids(id)?.contains(&pid).then_some((pid, held)))
    }

    /// Whether anything of a body is there beside its disk.
    pub(super) fn has_body(&self, id: SpaceId) -> Result<bool> {
        let dir = self.paths.body(id).dir;
        let pids = self.all_pids(id).map_err(failed("read the cgroup", &dir))?;
        Ok(dir.exists() || self.paths.runtime().join(id.to_string()).exists() || !pids.is_empty())
    }

    /// Suspends or resumes the workload of a running space.
    pub(super) async fn set_frozen(self: &Arc<Self>, id: SpaceId, frozen: bool) -> Result<()> {
        let what = if frozen { "freeze the space" } else { "thaw the space" };
        let after = self.deadlines.freeze;
        // The inner deadline takes the freeze back; the outer one only guards against a kernel that hangs.
        self.kernel(id, what, after * 2, move |host| {
            match host.vitality(id)? {
                Vitality::Stopped => return Err(Error::Vitality { id, vitality: Vitality::Stopped }),
                Vitality::Frozen if frozen => return Ok(()),
                // A freeze that was cut may be half done, so even a running space is thawed.
                Vitality::Frozen | Vitality::Running => {}
            }
            let step = if frozen { Step::Freeze } else { Step::Thaw };
            let change = || {
                // From here on the kernel goes on by itself.
                host.take(Step::TellFreezer, |leave| host.cgroups.tell_freezer(leave, id, frozen))?;
                host.take(step, |leave| host.cgroups.set_frozen(leave, id, frozen, after))
            };
            match change().map_err(failed(what, &host.paths.body(id).dir))? {
                true => Ok(()),
                false => Err(Error::Timeout { what, after }),
            }
        })
        .await
    }
}

/// Holds a process by its pid; `None` when there is none.
pub(super) fn hold(pid: i32) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
    match pidfd_open(pid, PidfdFlags::NONBLOCK) {
        Ok(held) => Ok(Some(held)),
        Err(Errno::SRCH) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether a process that is held has not ended: until then nobody else has its pid.
pub(super) fn lives(held: &OwnedFd) -> io::Result<bool> {
    let mut looks = [PollFd::new(held, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut looks, Some(&now))? == 0)
}

/// Whether a process has ended, or has begun to: it answers nobody any more, but is in its cgroup until everything else in
/// its pid namespace has ended too.
fn is_ending(pid: i32) -> io::Result<bool> {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => Ok(says_ending(&stat)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Reads the flags of a process, the seventh word after its name in parentheses (proc_pid_stat(5)).
fn says_ending(stat: &str) -> bool {
    const PF_EXITING: u64 = 0x4;
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6));
    flags.and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & PF_EXITING != 0)
}

fn settle<T>(
    done: std::result::Result<Option<Result<T>>, tokio::time::error::Elapsed>,
    what: &'static str,
    after: Duration,
) -> Result<T> {
    match done {
        Ok(Some(done)) => done,
        Ok(None) => Err(Error::Runtime { what, says: "the executor's own thread failed".to_owned() }),
        Err(_) => Err(Error::Timeout { what, after }),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    #[test]
    fn a_process_that_has_begun_to_end_is_told_from_one_that_runs() {
        for (stat, ends) in [
            ("7 (drowse-agent) S 1 7 7 0 -1 4194560 1 2", false),
            ("7 (drowse-agent) S 1 7 7 0 -1 4194564 1 2", true),
            ("7 (a) S 1 (b) Z 1 7 7 0 -1 4194564 1 2", true),
            ("7 (a) S 4 4 4 4 4", false),
            ("", false),
        ] {
            assert_eq!(says_ending(stat), ends, "{stat}");
        }
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert!(!is_ending(own).expect("it is there"));
        let mut child = std::process::Command::new("true").spawn().expect("it runs");
        let pid = Pid::from_child(&child);
        // It stays there until it is asked how it ended.
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), ended).expect("it ends");
        let pid = pid.as_raw_nonzero().get();
        assert!(is_ending(pid).expect("it is a zombie"));
        child.wait().expect("it ended");
        assert!(is_ending(pid).expect("it is gone"));
    }
}
