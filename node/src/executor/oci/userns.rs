use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
};

use nix::{
    sched::CloneFlags,
    sys::{
        signal::{Signal, kill},
        wait::waitpid,
    },
    unistd::Pid,
};

/// Users of one range: 0 to 65,535 inside.
pub(super) const RANGE_USERS: u32 = 65_536;
/// Ranges of one instance, which is also the most spaces it can run at once.
pub(super) const RANGES: u32 = 2_048;
/// Below this the host's own users live.
const FIRST: u32 = 1 << 20;

/// First host uid of a range. The last of sixteen instances ends below 2^32.
pub(super) fn base(instance: u32, range: u32) -> u32 {
    FIRST + (instance * RANGES + range) * RANGE_USERS
}

/// User namespaces that carry the id map of a range for mounts. No process lives in them; kept for reuse.
#[derive(Debug, Default)]
pub(super) struct MapCache(Mutex<BTreeMap<u32, Arc<OwnedFd>>>);

impl MapCache {
    /// The map of the range that begins at `base`.
    pub(super) fn of(&self, base: u32) -> io::Result<Arc<OwnedFd>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(map) = kept.get(&base) {
            return Ok(map.clone());
        }
        let map = Arc::new(make(base)?);
        kept.insert(base, map.clone());
        Ok(map)
    }
}

/// Makes a user namespace with two extents: on-disk 0..65,535 is the range, and on-disk 65,536 is the host's root.
///
/// Overlayfs creates its work directory as the mounter, host root. Were that uid unmapped it could not, and would mount
/// read-only without a word.
fn make(base: u32) -> io::Result<OwnedFd> {
    let parent = rustix::process::getpid();
    let mut stack = vec![0; 64 * 1024];
    let child = move || -> isize {
        // The holder must not outlive a daemon that is killed in the middle.
        let bound = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        if bound.is_err() || rustix::process::getppid() != Some(parent) {
            return 1;
        }
        loop {
            nix::unistd::pause();
        }
    };
    let flags = CloneFlags::CLONE_NEWUSER;
    #[expect(
        unsafe_code,
        reason = "a user namespace is made by a process of its own, and no safe wrapper exists"
    )]
    // SAFETY: without CLONE_VM the child works on a copy of this memory, and it makes only the three plain system
    // calls above: no allocation, no lock, whatever other threads were doing.
    let pid = unsafe { nix::sched::clone(Box::new(child), &mut stack, flags, Some(Signal::SIGCHLD as i32)) }?;
    let _holder = Holder(pid);
    let map = format!("0 {base} {RANGE_USERS}\n{RANGE_USERS} 0 1\n");
    for file in ["uid_map", "gid_map"] {
        File::options().write(true).open(format!("/proc/{pid}/{file}"))?.write_all(map.as_bytes())?;
    }
    Ok(File::open(format!("/proc/{pid}/ns/user"))?.into())
}

/// Ends the process that held the namespace while it was made.
struct Holder(Pid);

impl Drop for Holder {
    fn drop(&mut self) {
        // It is our child and not yet waited for, so the pid is its own.
        let _ = kill(self.0, Signal::SIGKILL);
        let _ = waitpid(self.0, None);
    }
}

/// Which ranges are leased.
#[derive(Debug, Default)]
pub(super) struct Ranges(Mutex<BTreeMap<u32, drowse_shared::id::SpaceId>>);

impl Ranges {
    /// Leases a range to a space: the one it has, else the lowest free one.
    pub(super) fn lease(&self, id: drowse_shared::id::SpaceId) -> Option<u32> {
        let mut leased = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let had = leased.iter().find(|(_, holder)| **holder == id).map(|(range, _)| *range);
        let range = had.or_else(|| (0..RANGES).find(|range| !leased.contains_key(range)))?;
        leased.insert(range, id);
        Some(range)
    }

    /// Notes a lease found on the machine.
    pub(super) fn note(&self, range: u32, id: drowse_shared::id::SpaceId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(range, id);
    }

    /// Ends the lease of a space.
    pub(super) fn free(&self, id: drowse_shared::id::SpaceId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, holder| *holder != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_never_meet_and_end_below_the_last_uid() {
        assert_eq!(base(0, 0), 1_048_576);
        assert_eq!(base(1, 0), base(0, RANGES - 1) + RANGE_USERS);
        assert!(base(15, RANGES - 1).checked_add(RANGE_USERS).is_some());
    }

    #[test]
    fn a_range_is_leased_once_and_comes_back() {
        let id = |n: u8| format!("0190f0c2a4b87c3d9e0f1122334455{n:02x}").parse().expect("an id");
        let ranges = Ranges::default();
        ranges.note(1, id(9));
        assert_eq!(
            (ranges.lease(id(1)), ranges.lease(id(2)), ranges.lease(id(1))),
            (Some(0), Some(2), Some(0))
        );
        ranges.free(id(1));
        assert_eq!(ranges.lease(id(3)), Some(0));
    }
}
