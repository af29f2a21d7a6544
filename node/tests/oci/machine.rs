use std::{
    os::unix::fs::{MetadataExt, PermissionsExt},
    sync::Arc,
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use camino::{Utf8Path, Utf8PathBuf};
use drowse_node::{
    executor::{
        Card, Executor,
        oci::{Deadlines, Oci, OciConfig},
    },
    milestone::unwatched,
};
use drowse_shared::{
    api::spaces::{Metadata, Policy, Spec},
    id::{Epoch, LedgerId, SpaceId},
    seams::{BoxIo, Env},
};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::{
    traces::Places,
    wire::{fetch, outcome},
};

/// Tells a test's own binary that it is a daemon.
const HANDED_OVER: &str = "DROWSE_TEST_HANDED_OVER";

/// One executor with directories and cgroups of its own.
pub(crate) struct Machine {
    pub(crate) oci: Oci,
    config: OciConfig,
    env: Env,
    dir: Arc<tempfile::TempDir>,
    state: Utf8PathBuf,
}

impl Machine {
    pub(crate) async fn new(name: &str) -> Self {
        Self::open(name, "runc".into(), Deadlines::default()).await
    }

    /// With a runtime that hangs for the spaces and verbs it is told, and short deadlines.
    pub(crate) async fn with_hanging_runtime(name: &str) -> Self {
        let seconds = Duration::from_secs;
        let deadlines = Deadlines { start: seconds(3), command: seconds(2), ..Deadlines::default() };
        Self::open(name, "wrapper".into(), deadlines).await
    }

    async fn open(name: &str, runtime: Utf8PathBuf, deadlines: Deadlines) -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests make containers: run them as root");
        let env = Env::real();
        let dir = tempfile::Builder::new().prefix("drowse-oci-").tempdir().expect("a directory");
        let state = Utf8PathBuf::try_from(dir.path().to_owned()).expect("UTF-8");
        let unique = env.random_u64() & 0xffff_ffff;
        let mut config = OciConfig {
            runtime,
            state: state.join("a"),
            run: format!("/run/dt-{unique:x}").into(),
            templates: templates(),
            agent: agent(),
            cgroup_parent: format!("drowse-test-{name}-{unique:x}"),
            ledger_id: LedgerId::mint(&env),
            deadlines,
            milestones: unwatched(),
        };
        if config.runtime == "wrapper" {
            config.runtime = state.join("wrapper");
            // Hangs, with a child of its own, when a file named after the space holds the verb.
            let script = format!(
                "#!/bin/sh\nfor word do last=$word; done\ncase \" $* \" in *\" $(cat {state}/hang-$last 2>/dev/null || echo :) \"*) sleep 600; esac\nexec runc \"$@\"\n"
            );
            std::fs::write(&config.runtime, script).expect("written");
            let executable = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(&config.runtime, executable).expect("executable");
        }
        let oci = Oci::open(env.clone(), config.clone()).await.expect("opened");
        Self { oci, config, env, dir: Arc::new(dir), state }
    }

    /// Where the disks of its spaces lie.
    pub(crate) fn disks(&self) -> Utf8PathBuf {
        self.config.state.join("spaces")
    }

    /// Another node on the same machine.
    pub(crate) async fn neighbour(&self) -> Self {
        let mut config = self.config.clone();
        config.ledger_id = LedgerId::mint(&self.env);
        config.state = self.state.join("b");
        let oci = Oci::open(self.env.clone(), config.clone()).await.expect("opened");
        Self { oci, config, env: self.env.clone(), dir: self.dir.clone(), state: self.state.clone() }
    }

    /// The daemon ends and another begins over the same state.
    pub(crate) async fn reopen(&mut self) {
        let number = self.oci.instance();
        self.step_aside().await;
        self.take_back().await;
        assert_eq!(self.oci.instance(), number);
    }

    /// Lets go of this machine: its number is held for the life of the executor.
    async fn step_aside(&mut self) {
        let elsewhere = OciConfig {
            ledger_id: LedgerId::mint(&self.env),
            state: self.state.join("x"),
            run: format!("{}x", self.config.run).into(),
            cgroup_parent: format!("{}x", self.config.cgroup_parent),
            ..self.config.clone()
        };
        self.oci = Oci::open(self.env.clone(), elsewhere).await.expect("opened");
    }

    /// Another process becomes the daemon of this machine.
    pub(crate) async fn hand_over(&mut self) -> std::process::Child {
        self.step_aside().await;
        let config = &self.config;
        let words = [
            config.state.as_str(),
            config.run.as_str(),
            &config.cgroup_parent,
            &config.ledger_id.to_string(),
            self.state.as_str(),
        ];
        std::process::Command::new(std::env::current_exe().expect("known"))
            .args(["--exact", "crash::daemon_to_be_killed"])
            .env(HANDED_OVER, words.join(" "))
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("started")
    }

    /// In that other process: the machine, if there is one.
    pub(crate) async fn handed_over() -> Option<Self> {
        let words = std::env::var(HANDED_OVER).ok()?;
        let words: Vec<&str> = words.split(' ').collect();
        let [state, run, parent, ledger, dir] = words[..] else { panic!("not five words") };
        let env = Env::real();
        let config = OciConfig {
            runtime: "runc".into(),
            state: state.into(),
            run: run.into(),
            templates: templates(),
            agent: agent(),
            cgroup_parent: parent.to_owned(),
            ledger_id: ledger.parse().expect("an id"),
            deadlines: Deadlines::default(),
            milestones: unwatched(),
        };
        let oci = Oci::open(env.clone(), config.clone()).await.expect("opened");
        let dir_unused = Arc::new(tempfile::tempdir().expect("a directory"));
        Some(Self { oci, config, env, dir: dir_unused, state: dir.into() })
    }

    pub(crate) async fn take_back(&mut self) {
        let oci = Oci::open(self.env.clone(), self.config.clone()).await.expect("opened again");
        let aside = std::mem::replace(&mut self.oci, oci);
        assert!(aside.leave().await.expect("left"));
    }

    pub(crate) fn card(&self, name: &str) -> Card {
        Card {
            format: Card::FORMAT,
            min_reader: 1,
            ledger_id: self.config.ledger_id,
            id: SpaceId::mint(&self.env),
            name: name.parse().expect("a name"),
            epoch: Epoch::FIRST,
            created_at: self.env.clock.wall(),
            template: base_template(),
            spec: Spec { memory_bytes: 512 << 20, ..Spec::default() },
            policy: Policy::default(),
            metadata: Metadata::new(),
        }
    }

    /// Puts the disks on a file system of this size.
    pub(crate) fn limit_disks(&self, size_bytes: u64) -> DiskLimit {
        let spaces = self.config.state.join("spaces");
        let size = std::ffi::CString::new(format!("size={size_bytes}")).expect("no zero");
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("limit", spaces.as_str(), "tmpfs", flags, size.as_c_str()).expect("mounted");
        DiskLimit(spaces)
    }

    /// The settings, to open them changed.
    pub(crate) fn config(&self) -> OciConfig {
        self.config.clone()
    }

    pub(crate) fn dir(&self) -> &Utf8Path {
        &self.state
    }

    pub(crate) fn run_dir(&self) -> &Utf8Path {
        &self.config.run
    }

    fn instance_dir(&self) -> Utf8PathBuf {
        self.config.run.join(self.oci.instance().to_string())
    }

    fn body(&self, id: SpaceId) -> Utf8PathBuf {
        self.instance_dir().join(id.to_string())
    }

    fn disk(&self, name: &str) -> Utf8PathBuf {
        self.config.state.join("spaces").join(name)
    }

    /// Runs a shell script to its end; its code and all it said.
    pub(crate) async fn run(&self, id: SpaceId, user: &str, script: &str) -> (i64, String) {
        let stream = self.start(id, user, script).await;
        let work = outcome(stream);
        tokio::time::timeout(Duration::from_secs(60), work).await.expect("ends in time")
    }

    /// Starts a shell script; dropping the connection does not end it.
    pub(crate) async fn start(&self, id: SpaceId, user: &str, script: &str) -> BoxIo {
        let message = json!({"process": {"cmd": "bash", "args": ["-c", script]}, "stdin": false}).to_string();
        let mut body = vec![0];
        body.extend(u32::try_from(message.len()).expect("short").to_be_bytes());
        body.extend(message.as_bytes());
        let head = format!(
            "POST /process.Process/Start HTTP/1.1\r\nhost: agent\r\nconnection: close\r\ncontent-length: {}\r\n\
             content-type: application/connect+json\r\nauthorization: Basic {}\r\n\r\n",
            body.len(),
            STANDARD.encode(format!("{user}:"))
        );
        let mut stream = self.oci.agent(id).await.expect("the agent answers");
        stream.write_all(&[head.as_bytes(), &body].concat()).await.expect("sent");
        stream
    }

    /// Reads a file through the agent itself: no process of the workload is needed.
    pub(crate) async fn read(&self, id: SpaceId, path: &str) -> String {
        let stream = self.oci.agent(id).await.expect("the agent answers");
        let request = format!(
            "GET /files?path={path}&username=user HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n"
        );
        let answer = fetch(stream, &request).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
    }

    fn pids(&self, id: SpaceId, part: &str) -> Vec<u32> {
        let dir = format!("{}/{}/{id}/{part}", self.config.cgroup_parent, self.oci.instance());
        let v1 = Utf8Path::new("/sys/fs/cgroup/pids").join(&dir);
        let root = if v1.exists() { v1 } else { Utf8Path::new("/sys/fs/cgroup").join(&dir) };
        let text = std::fs::read_to_string(root.join("cgroup.procs")).unwrap_or_default();
        text.lines().map(|line| line.parse().expect("a pid")).collect()
    }

    /// Processor time of a space as a whole: how much of which period.
    pub(crate) fn processor_ceiling(&self, id: SpaceId) -> (f64, f64) {
        let dir = format!("{}/{}/{id}", self.config.cgroup_parent, self.oci.instance());
        let read = |path: Utf8PathBuf| std::fs::read_to_string(path).ok();
        let trees =
            ["cpu", "cpu,cpuacct", ""].map(|tree| Utf8Path::new("/sys/fs/cgroup").join(tree).join(&dir));
        let texts = trees.iter().find_map(|dir| {
            let old = read(dir.join("cpu.cfs_quota_us")).zip(read(dir.join("cpu.cfs_period_us")));
            old.map(|(quota, period)| format!("{quota} {period}")).or_else(|| read(dir.join("cpu.max")))
        });
        let texts = texts.expect("a ceiling");
        let mut numbers = texts.split_whitespace().map(|number| number.parse().unwrap_or(f64::NEG_INFINITY));
        (numbers.next().expect("a quota"), numbers.next().expect("a period"))
    }

    /// Host uid of the one process of this name in a space.
    pub(crate) async fn owner_of_command(&self, id: SpaceId, name: &str) -> u32 {
        let find = || {
            self.pids(id, "work").into_iter().find_map(|pid| {
                let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
                let owner = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
                (comm.trim() == name).then_some(owner)
            })
        };
        until("the command runs", async || find().is_some()).await;
        find().expect("just seen")
    }

    pub(crate) fn kill_first_process(&self, id: SpaceId) {
        let pids = self.pids(id, "agent");
        let [first] = pids[..] else { panic!("only the agent is in its cgroup: {pids:?}") };
        let first = rustix::process::Pid::from_raw(first.cast_signed()).expect("a pid");
        rustix::process::kill_process(first, rustix::process::Signal::KILL).expect("killed");
    }

    /// Tells the freezer once, like a daemon that dies right after. Says whether the workload is neither running nor
    /// frozen now: only the older interface stays like that, and only when it meets a process in the middle of a start.
    pub(crate) fn begin_to_freeze(&self, id: SpaceId) -> bool {
        let dir = format!("{}/{}/{id}/work", self.config.cgroup_parent, self.oci.instance());
        let file = Utf8Path::new("/sys/fs/cgroup/freezer").join(dir).join("freezer.state");
        (0..2000).any(|_| {
            let told = std::fs::write(&file, "FROZEN");
            std::thread::sleep(Duration::from_millis(2));
            let between = std::fs::read_to_string(&file).is_ok_and(|state| state.trim() == "FREEZING");
            if told.is_ok() && !between {
                std::fs::write(&file, "THAWED").expect("written");
            }
            between
        })
    }

    pub(crate) fn lose_runtime_record(&self, id: SpaceId) {
        std::fs::remove_dir_all(self.instance_dir().join("runc").join(id.to_string())).expect("removed");
    }

    pub(crate) fn lose_body(&self, id: SpaceId) {
        std::fs::remove_dir_all(self.body(id)).expect("removed");
    }

    pub(crate) fn forget_started(&self, id: SpaceId) {
        std::fs::remove_file(self.body(id).join("started")).expect("removed");
    }

    pub(crate) fn half_made_disk(&self, id: SpaceId) {
        let dir = self.disk(&id.to_string());
        std::fs::create_dir_all(&dir).expect("made");
        std::fs::write(dir.join("disk.img"), "half").expect("written");
    }

    pub(crate) fn trash_disk(&self) -> SpaceId {
        let id = SpaceId::mint(&self.env);
        let dir = self.disk(&format!(".trash-{id}"));
        std::fs::create_dir_all(&dir).expect("made");
        std::fs::write(dir.join("space.json"), "{}").expect("written");
        id
    }

    pub(crate) fn hang(&self, id: SpaceId, verb: &str) {
        std::fs::write(self.state.join(format!("hang-{id}")), verb).expect("written");
    }

    pub(crate) fn unhang(&self, id: SpaceId) {
        std::fs::remove_file(self.state.join(format!("hang-{id}"))).expect("removed");
    }

    /// No mount, loop device, cgroup, process or file of a body is left.
    pub(crate) fn assert_clean(&self, when: &str) {
        let places =
            Places { state: &self.state, run: &self.config.run, cgroup_parent: &self.config.cgroup_parent };
        let mut traces = places.look();
        traces.retain(|_, found| !found.is_empty());
        assert!(traces.is_empty(), "{when}: {traces:?}");
    }

    /// Leaves the machine as it was.
    pub(crate) async fn leave(self) {
        assert!(self.oci.leave().await.expect("left"));
        assert!(!self.config.run.exists());
        let mut left = Vec::new();
        cgroups_below("/sys/fs/cgroup".into(), &self.config.cgroup_parent, &mut left);
        assert!(left.is_empty(), "{left:?}");
    }
}

/// A small file system under the disks; unmounted in the end.
pub(crate) struct DiskLimit(Utf8PathBuf);

impl DiskLimit {
    /// Takes all the room there is.
    pub(crate) fn fill(&self) {
        let mut filler = std::fs::File::create(self.0.join("filler")).expect("made");
        let zeros = vec![0; 64 << 10];
        while std::io::Write::write_all(&mut filler, &zeros).is_ok() {}
    }
}

impl Drop for DiskLimit {
    fn drop(&mut self) {
        let detach = rustix::mount::UnmountFlags::DETACH;
        rustix::mount::unmount(self.0.as_str(), detach).expect("unmounted");
    }
}

fn cgroups_below(dir: &Utf8Path, parent: &str, found: &mut Vec<Utf8PathBuf>) {
    for entry in dir.read_dir_utf8().expect("read") {
        let entry = entry.expect("read");
        if !entry.file_type().expect("read").is_dir() {
            continue;
        }
        let ours = entry.path().as_str().split('/').any(|part| part == parent);
        if ours {
            found.push(entry.path().to_owned());
        }
        // Only the trees' roots and our own levels.
        if ours || dir == "/sys/fs/cgroup" {
            cgroups_below(entry.path(), parent, found);
        }
    }
}

/// Waits, boundedly, until a condition holds.
pub(crate) async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap_or_else(|_| panic!("in vain: {what}"));
}

pub(crate) fn templates() -> Utf8PathBuf {
    std::env::var("DROWSE_TEMPLATES").unwrap_or_else(|_| "/var/lib/drowse/templates".to_owned()).into()
}

/// The base template; built once if it is not here.
pub(crate) fn base_template() -> drowse_shared::api::spaces::Template {
    static DIGEST: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let digest = DIGEST.get_or_init(|| {
        let build = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/base/build");
        let out = std::process::Command::new(build).args(["--templates", templates().as_str()]).output();
        let out = out.expect("the build of the base template runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("a digest").trim().to_owned()
    });
    drowse_shared::api::spaces::Template { name: "base".to_owned(), digest: digest.clone() }
}

/// The agent beside the test's own binary.
pub(crate) fn agent() -> Utf8PathBuf {
    let exe = Utf8PathBuf::try_from(std::env::current_exe().expect("known")).expect("UTF-8");
    let agent = exe.ancestors().nth(2).expect("target/debug").join("drowse-agent");
    assert!(agent.is_file(), "{agent} is missing: cargo build -p drowse-agent");
    agent
}
