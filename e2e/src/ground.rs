use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Read,
    os::unix::fs::PermissionsExt,
    process::Command,
    time::Duration,
};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::{
    fs::{FlockOperation, flock},
    mount::{UnmountFlags, unmount},
    process::{Pid, Signal, kill_process},
};

/// Where every fleet of a test lies: a short path, since Unix socket paths are, and one that mapped users may pass.
const ROOTS: &str = "/tmp";
const RUNS: &str = "/run";
const CGROUPS: &str = "/sys/fs/cgroup";
const PREFIX: &str = "drw-";

/// A place on this machine that belongs to one fleet of one test, and what lies there.
pub struct Ground {
    /// Names it: no other fleet has it.
    pub mark: String,
    /// States, logs and the token.
    pub root: Utf8PathBuf,
    /// Mounts and sockets.
    pub run: Utf8PathBuf,
    /// The cgroup over all spaces.
    pub cgroup_parent: String,
    /// The fleet's secret.
    pub token: String,
    /// Held for life: whoever can lock it knows that the ground was left behind.
    owner: File,
}

/// Fresh random hexadecimal digits.
pub fn random_hex(digits: usize) -> String {
    let mut bytes = vec![0; digits.div_ceil(2)];
    File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut bytes)).expect("every Linux has it");
    let mut hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    hex.truncate(digits);
    hex
}

/// A random number below `end`.
pub fn random_below(end: u64) -> u64 {
    u64::from_str_radix(&random_hex(12), 16).expect("digits") % end
}

/// A port on loopback that nothing listens on, outside the range that outgoing connections use.
pub fn free_port() -> u16 {
    loop {
        let port = 10_000 + u16::try_from(random_below(20_000)).expect("below 65,536");
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Ground {
    /// Takes a fresh place, and clears those whose tests were killed.
    pub fn take() -> Self {
        sweep();
        Self::at(&random_hex(6))
    }

    fn at(mark: &str) -> Self {
        let root = Utf8PathBuf::from(format!("{ROOTS}/{PREFIX}{mark}"));
        fs::create_dir(&root).expect("a fresh name");
        // Locked before it has the name that a sweep looks for.
        let owner = File::create(root.join("owner.new")).expect("our own folder");
        flock(&owner, FlockOperation::NonBlockingLockExclusive).expect("a fresh file");
        fs::rename(root.join("owner.new"), root.join("owner")).expect("our own folder");
        fs::set_permissions(&root, fs::Permissions::from_mode(0o711)).expect("our own folder");
        fs::create_dir(root.join("logs")).expect("our own folder");
        let token = random_hex(64);
        fs::write(root.join("token"), &token).expect("our own folder");
        fs::set_permissions(root.join("token"), fs::Permissions::from_mode(0o600)).expect("our own file");
        Self::described(mark, root, owner, token)
    }

    fn described(mark: &str, root: Utf8PathBuf, owner: File, token: String) -> Self {
        Self {
            mark: mark.to_owned(),
            root,
            run: Utf8PathBuf::from(format!("{RUNS}/drowse-test-{mark}")),
            cgroup_parent: format!("drowse-test-{mark}"),
            token,
            owner,
        }
    }

    /// Mounts a file system of this size at a fresh directory.
    pub fn small_disk(&self, at: &Utf8Path, bytes: u64) {
        fs::create_dir(at).expect("a fresh directory");
        let size = format!("size={bytes},mode=0711");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "drowse-e2e", at.as_str()]).status();
        assert!(mounted.is_ok_and(|status| status.success()), "cannot mount a tmpfs at {at}");
    }

    /// Takes the small disks away again, at the end of a story.
    pub fn drop_small_disks(&self) {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
        let ours = table.lines().filter(|l| l.contains(&self.mark) && l.contains(" - tmpfs drowse-e2e "));
        for point in ours.filter_map(|line| line.split(' ').nth(4)) {
            unmount(point, UnmountFlags::empty()).unwrap_or_else(|e| panic!("{point} is still in use: {e}"));
        }
    }

    /// Every cgroup directory under this fleet's parent, in all hierarchies, deepest first.
    fn cgroups(&self) -> Vec<Utf8PathBuf> {
        let mut found = Vec::new();
        let mut tops = vec![Utf8PathBuf::from(CGROUPS)];
        tops.extend(children(Utf8Path::new(CGROUPS)));
        for top in tops {
            collect(&top.join(&self.cgroup_parent), &mut found);
        }
        found.sort_by_key(|path| std::cmp::Reverse(path.as_str().len()));
        found
    }

    /// Processes in this fleet's cgroups, and those that were given one of its paths.
    fn processes(&self) -> Vec<(u32, String)> {
        let mut found = Vec::new();
        for entry in children(Utf8Path::new("/proc")) {
            let Some(pid) = entry.file_name().and_then(|n| n.parse::<u32>().ok()) else { continue };
            if pid == std::process::id() {
                continue;
            }
            let line = fs::read(entry.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let groups = fs::read_to_string(entry.join("cgroup")).unwrap_or_default();
            let ours = groups.contains(&self.cgroup_parent)
                || line.contains(self.root.as_str())
                || line.contains(self.run.as_str());
            if ours {
                found.push((pid, line));
            }
        }
        found
    }

    /// Mount points that lie here or come from here, the last one mounted first.
    fn mounts(&self) -> Vec<Utf8PathBuf> {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
        let ours = table.lines().filter(|line| line.contains(&self.mark));
        let mut points: Vec<Utf8PathBuf> =
            ours.filter_map(|line| line.split(' ').nth(4)).map(Utf8PathBuf::from).collect();
        points.reverse();
        points
    }

    /// Loop devices over images that lie here.
    fn loops(&self) -> Vec<(Utf8PathBuf, String)> {
        let mut found = Vec::new();
        for block in children(Utf8Path::new("/sys/block")) {
            let Ok(image) = fs::read_to_string(block.join("loop/backing_file")) else { continue };
            if image.contains(self.root.as_str()) {
                let name = block.file_name().unwrap_or_default();
                found.push((Utf8PathBuf::from(format!("/dev/{name}")), image.trim().to_owned()));
            }
        }
        found
    }

    /// The ids of spaces that have something in the kernel: a cgroup, a mount or a loop device.
    pub fn spaces_in_kernel(&self) -> BTreeSet<String> {
        let mut texts: Vec<String> = self.cgroups().into_iter().map(String::from).collect();
        texts.extend(self.mounts().into_iter().map(String::from));
        texts.extend(self.loops().into_iter().map(|(_, image)| image));
        let ids = texts.iter().flat_map(|t| t.split(|c: char| !c.is_ascii_alphanumeric()));
        ids.filter(|part| drowse_shared::id::SpaceId::is_shape_of(part)).map(str::to_owned).collect()
    }

    /// The ids of spaces that have a body or a record of the runtime under the run directory.
    pub fn spaces_in_runtime(&self) -> BTreeSet<String> {
        let instances = children(&self.run).into_iter().filter(|p| p.is_dir());
        let mut found = BTreeSet::new();
        for instance in instances {
            found.append(&mut ids_in(&instance));
            found.append(&mut ids_in(&instance.join("runc")));
        }
        found
    }

    /// What a fleet that has destroyed its spaces and stopped has left behind, in words. Nothing, if all is well.
    pub fn leftovers(&self) -> Vec<String> {
        let mut found = Vec::new();
        found.extend(self.processes().into_iter().map(|(pid, line)| format!("process {pid}: {line}")));
        found.extend(self.mounts().into_iter().map(|m| format!("mount {m}")));
        found.extend(self.loops().into_iter().map(|(device, image)| format!("{device} over {image}")));
        // A parent without spaces costs nothing and may stay for the next start.
        let is_space = |name: &str| drowse_shared::id::SpaceId::is_shape_of(name);
        let space_groups =
            self.cgroups().into_iter().filter(|p| p.components().any(|c| is_space(c.as_str())));
        found.extend(space_groups.map(|p| format!("cgroup {p}")));
        let netns = children(Utf8Path::new("/run/netns"));
        found.extend(
            netns
                .into_iter()
                .filter(|n| n.as_str().contains(&self.mark))
                .map(|n| format!("network namespace {n}")),
        );
        found
    }

    /// Puts the logs where they are found after a failure.
    pub fn keep_logs(&self) {
        let keep = crate::daemon::profile_dir().join("e2e-logs").join(&self.mark);
        if fs::create_dir_all(&keep).is_err() {
            return;
        }
        for log in children(&self.root.join("logs")) {
            let _ = fs::copy(&log, keep.join(log.file_name().unwrap_or_default()));
        }
        eprintln!("the logs of this fleet are kept in {keep}");
    }

    /// Clears everything that lies here, however it was left. Safe to call twice.
    pub fn clear(&self) {
        for round in 0..100 {
            let processes = self.processes();
            if processes.is_empty() {
                break;
            }
            for (pid, _) in processes {
                if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
                    // It may have ended by itself.
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            // A frozen process dies when it thaws.
            for group in self.cgroups() {
                let _ = fs::write(group.join("freezer.state"), "THAWED");
                let _ = fs::write(group.join("cgroup.freeze"), "0");
            }
            std::thread::sleep(Duration::from_millis(10 + round));
        }
        for mount in self.mounts() {
            let _ = unmount(mount.as_str(), UnmountFlags::DETACH);
        }
        for (device, _) in self.loops() {
            let _ = Command::new("losetup").args(["-d", device.as_str()]).status();
        }
        for group in self.cgroups() {
            let _ = fs::remove_dir(group);
        }
        let _ = fs::remove_dir_all(&self.run);
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.clear();
        let _ = flock(&self.owner, FlockOperation::Unlock);
    }
}

/// Clears what killed tests have left.
fn sweep() {
    for root in children(Utf8Path::new(ROOTS)) {
        let Some(mark) = root.file_name().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let Ok(owner) = File::open(root.join("owner")) else { continue };
        if flock(&owner, FlockOperation::NonBlockingLockExclusive).is_ok() {
            drop(Ground::described(mark, root.clone(), owner, String::new()));
        }
    }
}

/// The ids of spaces among the names in a directory, also of those on their way out.
pub fn ids_in(dir: &Utf8Path) -> BTreeSet<String> {
    let names = children(dir)
        .into_iter()
        .filter_map(|p| p.file_name().map(|n| n.trim_start_matches(".trash-").to_owned()));
    names.filter(|name| drowse_shared::id::SpaceId::is_shape_of(name)).collect()
}

fn children(dir: &Utf8Path) -> Vec<Utf8PathBuf> {
    let Ok(entries) = dir.read_dir_utf8() else { return Vec::new() };
    entries.filter_map(|entry| entry.ok().map(|e| e.into_path())).collect()
}

fn collect(dir: &Utf8Path, into: &mut Vec<Utf8PathBuf>) {
    if !dir.is_dir() {
        return;
    }
    for child in children(dir) {
        if child.is_dir() && !child.is_symlink() {
            collect(&child, into);
        }
    }
    into.push(dir.to_owned());
}
