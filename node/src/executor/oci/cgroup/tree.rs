use std::io;

use camino::Utf8PathBuf;

/// Names the kernel gives controllers; what else a mount line holds are options.
const CONTROLLERS: [&str; 10] =
    ["cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "net_cls", "hugetlb"];

/// Which interface a tree speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// One tree per controller or few.
    V1,
    /// One tree for all.
    V2,
}

/// One mounted cgroup hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tree {
    /// Its mount point.
    pub(crate) root: Utf8PathBuf,
    /// Its interface.
    pub(crate) version: Version,
    /// What it controls.
    pub(crate) controllers: Vec<String>,
}

/// Finds the trees mounted here.
pub(crate) fn find() -> io::Result<Vec<Tree>> {
    let mut trees = parse(&std::fs::read_to_string("/proc/self/mountinfo")?);
    for tree in &mut trees {
        if tree.version == Version::V2 {
            let controllers = std::fs::read_to_string(tree.root.join("cgroup.controllers"))?;
            tree.controllers = controllers.split_whitespace().map(str::to_owned).collect();
        }
    }
    Ok(trees)
}

/// Reads mountinfo. The runtime joins the same mount points: those below `/sys/fs/cgroup`, the first of each tree.
fn parse(mountinfo: &str) -> Vec<Tree> {
    let mut trees: Vec<Tree> = Vec::new();
    let mut devices: Vec<&str> = Vec::new();
    for line in mountinfo.lines() {
        let Some((mount, file_system)) = line.split_once(" - ") else { continue };
        let mount: Vec<&str> = mount.split(' ').collect();
        let file_system: Vec<&str> = file_system.split(' ').collect();
        let (&[_, _, device, _, root, ..], &[kind, _, options, ..]) = (&mount[..], &file_system[..]) else {
            continue;
        };
        let version = match kind {
            "cgroup" => Version::V1,
            "cgroup2" => Version::V2,
            _ => continue,
        };
        if !root.starts_with("/sys/fs/cgroup") || devices.contains(&device) {
            continue;
        }
        devices.push(device);
        let controllers = match version {
            Version::V1 => {
                options.split(',').filter(|o| CONTROLLERS.contains(o)).map(str::to_owned).collect()
            }
            Version::V2 => Vec::new(),
        };
        trees.push(Tree { root: root.into(), version, controllers });
    }
    trees
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_and_pure_machines_are_read() {
        let hybrid = "30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
            31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
            32 30 0:28 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd\n\
            33 30 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n\
            34 23 0:27 / /elsewhere rw,relatime - cgroup cgroup rw,cpu,cpuacct\n";
        let found: Vec<_> = parse(hybrid)
            .into_iter()
            .map(|t| (t.root.to_string(), t.version, t.controllers.join("+")))
            .collect();
        assert_eq!(
            found,
            [
                ("/sys/fs/cgroup/cpu,cpuacct".into(), Version::V1, "cpu+cpuacct".into()),
                ("/sys/fs/cgroup/systemd".into(), Version::V1, String::new()),
                ("/sys/fs/cgroup/unified".into(), Version::V2, String::new()),
            ]
        );
        let pure = "28 23 0:25 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(parse(pure).len(), 1);
        assert_eq!(parse(""), []);
    }
}
