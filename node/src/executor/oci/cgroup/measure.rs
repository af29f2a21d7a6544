use std::{fs::File, io};

use drowse_shared::id::SpaceId;

use super::{Cgroups, field, read, tree::Version};

/// What a space used since its start, and uses now.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(in crate::executor::oci) struct Use {
    pub(in crate::executor::oci) cpu_us: u64,
    pub(in crate::executor::oci) memory_bytes: u64,
    pub(in crate::executor::oci) pids: u64,
}

impl Cgroups {
    /// Opens what tells a space how much it uses: memory, the kinds of memory, processor time.
    pub(in crate::executor::oci) fn open_measures(&self, id: SpaceId) -> io::Result<[File; 3]> {
        let open = |controller: &str, v1: &str, v2: &str| {
            let missing = || io::Error::new(io::ErrorKind::NotFound, format!("no {controller} controller"));
            let tree = self.with(controller).ok_or_else(missing)?;
            let file = if tree.version == Version::V1 { v1 } else { v2 };
            File::open(self.dir(tree, id).join(file).as_std_path())
        };
        let cpu = match self.with("cpuacct") {
            Some(_) => open("cpuacct", "cpuacct.usage", "")?,
            None => open("cpu", "", "cpu.stat")?,
        };
        Ok([
            open("memory", "memory.usage_in_bytes", "memory.current")?,
            open("memory", "memory.stat", "memory.stat")?,
            cpu,
        ])
    }

    /// Measures a space; zeros when it does not run.
    pub(in crate::executor::oci) fn measure(&self, id: SpaceId) -> io::Result<Use> {
        let number = |controller: &str, v1: &str, v2: &str, key: Option<&str>| -> io::Result<u64> {
            let Some(tree) = self.with(controller) else { return Ok(0) };
            let (file, key) = if tree.version == Version::V1 { (v1, None) } else { (v2, key) };
            let text = read(&self.dir(tree, id).join(file))?.unwrap_or_default();
            Ok(match key {
                Some(key) => field(&text, key).unwrap_or(0),
                None => text.trim().parse().unwrap_or(0),
            })
        };
        let v1_nanoseconds = self.with("cpuacct").is_some();
        let cpu = if v1_nanoseconds {
            number("cpuacct", "cpuacct.usage", "", None)? / 1000
        } else {
            number("cpu", "", "cpu.stat", Some("usage_usec"))?
        };
        Ok(Use {
            cpu_us: cpu,
            memory_bytes: number("memory", "memory.usage_in_bytes", "memory.current", None)?,
            pids: number("pids", "pids.current", "pids.current", None)?,
        })
    }
}
