use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::id::SpaceId;

/// Name of a disk directory on its way out.
const TRASH: &str = ".trash-";

/// Where everything of one instance lives.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    /// The node's state directory: disks and agents, kept over reboots.
    pub(super) state: Utf8PathBuf,
    /// This instance's directory under the run directory: bodies, gone at a reboot.
    pub(super) run: Utf8PathBuf,
    /// Templates by digest.
    pub(super) templates: Utf8PathBuf,
}

impl Paths {
    /// Where disks are.
    pub(super) fn spaces(&self) -> Utf8PathBuf {
        self.state.join("spaces")
    }

    /// Where one disk is.
    pub(super) fn disk(&self, id: SpaceId) -> Disk {
        Disk { dir: self.spaces().join(id.to_string()) }
    }

    /// Where a disk goes to be removed.
    pub(super) fn trash(&self, id: SpaceId) -> Utf8PathBuf {
        self.spaces().join(format!("{TRASH}{id}"))
    }

    /// Where one body is.
    pub(super) fn body(&self, id: SpaceId) -> Body {
        Body { dir: self.run.join(id.to_string()) }
    }

    /// Agent binaries by digest, shown to every space.
    pub(super) fn agents(&self) -> Utf8PathBuf {
        self.state.join("agents")
    }

    /// Last words of the runtime about a container it deletes; outside the body, which may be gone.
    pub(super) fn last_words(&self, id: SpaceId) -> Utf8PathBuf {
        self.run.join(format!("{id}.log"))
    }

    /// The runtime's own records.
    pub(super) fn runtime(&self) -> Utf8PathBuf {
        self.run.join("runc")
    }
}

/// What a name under `spaces/` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskName {
    /// A disk.
    Disk(SpaceId),
    /// A disk on its way out.
    Trash(SpaceId),
}

impl DiskName {
    /// Reads a name; `None` when it is not one of ours.
    pub(super) fn read(name: &str) -> Option<Self> {
        match name.strip_prefix(TRASH) {
            Some(id) => id.parse().ok().map(Self::Trash),
            None => name.parse().ok().map(Self::Disk),
        }
    }
}

/// The files of one disk.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    /// Its directory.
    pub(super) dir: Utf8PathBuf,
}

impl Disk {
    /// The file system.
    pub(super) fn image(&self) -> Utf8PathBuf {
        self.dir.join("disk.img")
    }

    /// What the space is.
    pub(super) fn card(&self) -> Utf8PathBuf {
        self.dir.join("space.json")
    }
}

/// The files of one running body.
#[derive(Debug, Clone)]
pub(super) struct Body {
    /// Its directory; every component can be crossed by the space's users, only what is mounted is shown to them.
    pub(super) dir: Utf8PathBuf,
}

impl Body {
    fn at(&self, name: &str) -> Utf8PathBuf {
        self.dir.join(name)
    }

    /// Host-only directory of the socket.
    pub(super) fn socket_dir(&self) -> Utf8PathBuf {
        self.at("sock")
    }

    /// The agent's listening socket.
    pub(super) fn socket(&self) -> Utf8PathBuf {
        self.at("sock/agent")
    }

    /// The OCI bundle.
    pub(super) fn bundle(&self) -> Utf8PathBuf {
        self.at("bundle")
    }

    /// The runtime writes the pid of the first process here.
    pub(super) fn pid(&self) -> Utf8PathBuf {
        self.at("bundle/pid")
    }

    /// Last words of the runtime.
    pub(super) fn log(&self) -> Utf8PathBuf {
        self.at("bundle/log")
    }

    /// Which uid range is leased to it.
    pub(super) fn range(&self) -> Utf8PathBuf {
        self.at("range")
    }

    /// There once the agent has answered: without it a body is half made.
    pub(super) fn started(&self) -> Utf8PathBuf {
        self.at("started")
    }

    /// Mount point of the disk.
    pub(super) fn disk(&self) -> Utf8PathBuf {
        self.at("disk")
    }

    /// Mount point of the template.
    pub(super) fn lower(&self) -> Utf8PathBuf {
        self.at("lower")
    }

    /// Mount point of the root the space sees.
    pub(super) fn merged(&self) -> Utf8PathBuf {
        self.at("merged")
    }

    /// Mount point of the agent binaries.
    pub(super) fn agents(&self) -> Utf8PathBuf {
        self.at("agents")
    }

    /// All mount points, in the order to unmount them.
    pub(super) fn mounts(&self) -> [Utf8PathBuf; 4] {
        [self.merged(), self.lower(), self.disk(), self.agents()]
    }
}

/// Names in a directory that are UTF-8; none when the directory is not there.
pub(super) fn names_in(dir: &Utf8Path) -> std::io::Result<Vec<String>> {
    let entries = match fs_err::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_disks_are_told_apart() {
        let id: SpaceId = "0190f0c2a4b87c3d9e0f112233445566".parse().expect("an id");
        assert_eq!(DiskName::read(&id.to_string()), Some(DiskName::Disk(id)));
        assert_eq!(DiskName::read(&format!(".trash-{id}")), Some(DiskName::Trash(id)));
        for other in ["", "lost+found", ".trash-", ".trash-x", "0190"] {
            assert_eq!(DiskName::read(other), None, "{other}");
        }
    }
}
