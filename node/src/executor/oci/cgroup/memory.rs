use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
};

use drowse_shared::id::SpaceId;

use super::{Cgroups, Version, field, read};

/// How memory is taken from a workload.
pub(crate) enum Reclaim {
    /// The kernel does it for the cgroup.
    Group(Group),
    /// It has no word for that: process by process.
    EachProcess,
}

/// The file of a workload's cgroup that takes memory from it.
pub(crate) struct Group(File);

impl Group {
    /// Takes so much more; false when there is not as much left.
    pub(crate) fn piece(&mut self, bytes: usize) -> io::Result<bool> {
        match self.0.write_all(bytes.to_string().as_bytes()) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENODEV)) => Ok(false),
            done => done.map(|()| true),
        }
    }
}

impl Cgroups {
    /// Memory of the workload of a space.
    pub(crate) fn work_bytes(&self, id: SpaceId) -> io::Result<u64> {
        let Some(tree) = self.with("memory") else { return Ok(0) };
        let file = if tree.version == Version::V1 { "memory.usage_in_bytes" } else { "memory.current" };
        let text = read(&self.dir(tree, id).join("work").join(file))?.unwrap_or_default();
        Ok(text.trim().parse().unwrap_or(0))
    }

    /// How memory is taken from the workload of a space.
    pub(crate) fn reclaim(&self, id: SpaceId) -> io::Result<Reclaim> {
        let Some(tree) = self.with("memory") else { return Ok(Reclaim::EachProcess) };
        let file = self.dir(tree, id).join("work/memory.reclaim");
        match OpenOptions::new().write(true).open(file) {
            Ok(file) => Ok(Reclaim::Group(Group(file))),
            // Not before Linux 5.19, and never on version 1.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Reclaim::EachProcess),
            Err(error) => Err(error),
        }
    }

    /// Whether pid 1 of a space was killed for want of memory.
    pub(crate) fn ran_out_of_memory(&self, id: SpaceId) -> io::Result<bool> {
        let Some(tree) = self.with("memory") else { return Ok(false) };
        let file = if tree.version == Version::V1 { "memory.oom_control" } else { "memory.events" };
        let text = read(&self.dir(tree, id).join("agent").join(file))?.unwrap_or_default();
        Ok(field(&text, "oom_kill").is_some_and(|kills| kills > 0))
    }
}
