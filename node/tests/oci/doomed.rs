//! A node in a process of its own, which dies at the milestone it is told to.

use std::{
    collections::VecDeque,
    fs::File,
    io::{BufRead, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use camino::{Utf8Path, Utf8PathBuf};
use clap::Parser as _;
use drowse_node::{
    Parts,
    config::Args,
    executor::oci::{Deadlines, Oci, OciConfig},
    milestone::{Milestone, Milestones, unwatched},
};
use drowse_shared::{
    seams::{Accept, BoxFuture, BoxIo, Env, Net},
    shutdown::Shutdown,
    telemetry,
    token::Token,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{machine, traces::Places};

/// Tells a test's own binary that it is such a node.
const NODE: &str = "DROWSE_TEST_NODE";
pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// No start, no verb and no death takes longer, however busy the machine.
const LONGEST: Duration = Duration::from_secs(60);

/// A milestone by name, and which time it is reached.
pub(crate) type Point = (String, u32);

/// What such a node is told.
#[derive(Serialize, Deserialize)]
struct Told {
    flags: Vec<String>,
    /// Where it writes each milestone it reaches.
    passed: Utf8PathBuf,
    /// Where it writes its address.
    address: Utf8PathBuf,
    point: Option<Point>,
}

/// Where it lives.
pub(crate) struct Home {
    dir: tempfile::TempDir,
    lives: std::cell::Cell<u32>,
    builds: std::cell::Cell<u32>,
    pub(crate) state: Utf8PathBuf,
    pub(crate) run: Utf8PathBuf,
    pub(crate) cgroup_parent: String,
}

impl Home {
    pub(crate) fn new(name: &str) -> Self {
        let unique = Env::real().random_u64() & 0xffff_ffff;
        let dir = tempfile::Builder::new().prefix("drw-doom-").tempdir().expect("a directory");
        let root = Utf8PathBuf::try_from(dir.path().to_owned()).expect("UTF-8");
        // Fails `run` when told to: a container that cannot be started.
        let script = format!(
            "#!/bin/sh\ncase \" $* \" in *\" run \"*) [ -e {root}/fail ] && exit 1; esac\nexec runc \"$@\"\n"
        );
        let runtime = root.join("runtime");
        std::fs::write(&runtime, script).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&runtime, mode).expect("executable");
        Self {
            lives: 0.into(),
            builds: 0.into(),
            state: root.join("state"),
            run: format!("/run/drowse-test-doom-{unique:x}").into(),
            cgroup_parent: format!("drowse-test-{name}-{unique:x}"),
            dir,
        }
    }

    pub(crate) fn places(&self) -> Places<'_> {
        Places { state: &self.state, run: &self.run, cgroup_parent: &self.cgroup_parent }
    }

    pub(crate) fn root(&self) -> &Utf8Path {
        Utf8Path::from_path(self.dir.path()).expect("UTF-8")
    }

    /// The agent of the lives that begin now.
    fn agent(&self) -> Utf8PathBuf {
        match self.builds.get() {
            0 => machine::agent(),
            number => self.root().join(format!("agent-{number}")),
        }
    }

    /// From the next life on the agent is another program: the same, with one more byte at its end for each build.
    pub(crate) fn rebuild(&self) {
        self.builds.set(self.builds.get() + 1);
        std::fs::copy(machine::agent(), self.agent()).expect("copied");
        let mut agent = File::options().append(true).open(self.agent()).expect("ours");
        agent.write_all(&vec![0; self.builds.get() as usize]).expect("written");
    }

    /// How many agents are kept.
    pub(crate) fn agents(&self) -> usize {
        std::fs::read_dir(self.state.join("agents")).expect("it started once").count()
    }

    /// Whether a space runs the agent of these lives.
    pub(crate) fn has_own_agent(&self, id: &str) -> bool {
        let length = |path: &Utf8Path| std::fs::metadata(path).map(|file| file.len()).ok();
        let pid = std::fs::read_to_string(self.instance().join(id).join("bundle/pid")).unwrap_or_default();
        length(format!("/proc/{}/exe", pid.trim()).as_str().into()) == length(&self.agent())
    }

    /// Whether the runtime starts containers.
    pub(crate) fn runtime_works(&self, works: bool) {
        let flag = self.root().join("fail");
        if works {
            let _ = std::fs::remove_file(flag);
        } else {
            std::fs::write(flag, "").expect("told");
        }
    }

    /// The directory of the only instance here.
    fn instance(&self) -> Utf8PathBuf {
        self.run.join("0")
    }

    pub(crate) fn kill_first_process(&self, id: &str) {
        let pid = std::fs::read_to_string(self.instance().join(id).join("bundle/pid")).expect("it runs");
        let pid = rustix::process::Pid::from_raw(pid.trim().parse().expect("a pid")).expect("a pid");
        let held = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("it lives");
        rustix::process::pidfd_send_signal(&held, rustix::process::Signal::KILL).expect("killed");
        let mut dead = [rustix::event::PollFd::new(&held, rustix::event::PollFlags::IN)];
        let wait = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut dead, Some(&wait)), Ok(1), "it dies");
    }

    pub(crate) fn spoil_record(&self, id: &str) {
        let record = self.instance().join("runc").join(id).join("state.json");
        std::fs::write(record, "{").expect("written");
    }

    pub(crate) fn lose_ledger(&self) {
        for file in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
            let _ = std::fs::remove_file(self.state.join(file));
        }
    }

    /// Gives the disk of a space another name, and takes its row away.
    pub(crate) fn name_like(&self, id: &str, name: &str) {
        let path = self.state.join("spaces").join(id).join("space.json");
        let mut card: Value = serde_json::from_slice(&std::fs::read(&path).expect("read")).expect("JSON");
        card["name"] = name.into();
        std::fs::write(path, card.to_string()).expect("written");
        let ledger = rusqlite::Connection::open(self.state.join("ledger.db")).expect("opened");
        assert_eq!(ledger.execute("delete from spaces where id = ?1", [id]), Ok(1));
    }

    /// Gives the machine back. Nothing of a space may be left.
    pub(crate) async fn leave(self) {
        let identity = std::fs::read(self.state.join("node.json")).expect("it started once");
        let identity: Value = serde_json::from_slice(&identity).expect("JSON");
        let config = OciConfig {
            runtime: "runc".into(),
            state: self.state.clone(),
            run: self.run.clone(),
            templates: machine::templates(),
            agent: machine::agent(),
            cgroup_parent: self.cgroup_parent.clone(),
            ledger_id: identity["ledgerId"].as_str().expect("an id").parse().expect("an id"),
            deadlines: Deadlines::default(),
            milestones: unwatched(),
        };
        let oci = Oci::open(Env::real(), config).await.expect("opened");
        assert!(oci.leave().await.expect("left"), "a body is left");
        assert!(!self.run.exists());
    }

    /// The daemon of this place, which may be told a point of its own start to die at.
    pub(crate) fn begin(&self, point: Option<Point>) -> Life {
        let life = self.lives.replace(self.lives.get() + 1);
        let passed = self.root().join(format!("passed-{life}"));
        let address = self.root().join(format!("address-{life}"));
        File::create(&passed).expect("made");
        let flags = [
            ("--id", "doomed"),
            ("--listen", "127.0.0.1:0"),
            ("--state", self.state.as_str()),
            ("--run", self.run.as_str()),
            ("--runtime", self.root().join("runtime").as_str()),
            ("--cgroup-parent", &self.cgroup_parent),
            ("--templates", machine::templates().as_str()),
            ("--agent", self.agent().as_str()),
        ]
        .iter()
        .flat_map(|(flag, value)| [(*flag).to_owned(), (*value).to_owned()])
        .collect();
        let told = Told { flags, passed: passed.clone(), address: address.clone(), point };
        let log = File::create(self.root().join(format!("log-{life}"))).expect("made");
        let mut child = Command::new(std::env::current_exe().expect("known"))
            .args(["--exact", "doomed::a_node_to_be_killed", "--nocapture"])
            .env(NODE, serde_json::to_string(&told).expect("JSON"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("started");
        let told = child.stdin.take().expect("a pipe");
        Life { child, told, passed, address, log: self.root().join(format!("log-{life}")) }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.run.exists() {
            self.places().clear();
        }
    }
}

/// One life of the daemon.
pub(crate) struct Life {
    child: Child,
    told: ChildStdin,
    passed: Utf8PathBuf,
    address: Utf8PathBuf,
    log: Utf8PathBuf,
}

impl Drop for Life {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What came of a request.
#[derive(Debug)]
pub(crate) enum Heard {
    /// An answer.
    Answer(u16, Value),
    /// The connection ended before one.
    Nothing,
}

impl Life {
    /// Waits until its door answers.
    pub(crate) async fn ready(&mut self) {
        let until = Instant::now() + LONGEST;
        while !matches!(self.call("listSpaces", &serde_json::json!({})).await, Heard::Answer(200, _)) {
            let ended = self.child.try_wait().expect("asked");
            assert!(
                ended.is_none() && Instant::now() < until,
                "it does not start: {ended:?}\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    /// One verb.
    pub(crate) async fn call(&self, verb: &str, body: &Value) -> Heard {
        let work = self.ask(verb, body);
        match tokio::time::timeout(LONGEST, work).await {
            Ok(Ok((status, value))) => Heard::Answer(status, value),
            Ok(Err(_)) => Heard::Nothing,
            Err(_) => panic!("{verb} {body} neither answered nor died\n{}", self.log()),
        }
    }

    async fn ask(&self, verb: &str, body: &Value) -> std::io::Result<(u16, Value)> {
        let cut = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        let address = std::fs::read_to_string(&self.address)?;
        let mut stream = tokio::net::TcpStream::connect(&address).await?;
        let body = body.to_string();
        let head = format!(
            "POST /{verb} HTTP/1.1\r\nhost: node\r\nconnection: close\r\nauthorization: Bearer {TOKEN}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await?;
        let text = String::from_utf8_lossy(&bytes);
        let (head, body) = text.split_once("\r\n\r\n").ok_or_else(cut)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(cut)?;
        Ok((status, serde_json::from_str(body).map_err(|_| cut())?))
    }

    /// It dies the `time`-th time it reaches this milestone from now on.
    pub(crate) async fn doom(&mut self, (name, time): &Point) {
        let before = self.passed().len();
        writeln!(self.told, "{time} {name}").expect("it lives");
        let until = Instant::now() + LONGEST;
        while !self.passed().iter().skip(before).any(|line| line == ARMED) {
            assert!(Instant::now() < until, "it does not listen");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The milestones it has passed.
    pub(crate) fn passed(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.passed).expect("written by it");
        text.lines().map(str::to_owned).collect()
    }

    /// Waits for its death. Answers the last milestone it reached.
    pub(crate) async fn dies(mut self, what: &str) -> String {
        let until = Instant::now() + LONGEST;
        while self.child.try_wait().expect("asked").is_none() {
            assert!(Instant::now() < until, "{what}: it does not die\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.passed().pop().unwrap_or_default()
    }

    /// Kills it wherever it is.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    /// The end of its log.
    pub(crate) fn log(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let mut last: VecDeque<&str> = text.lines().rev().take(25).collect();
        last.make_contiguous().reverse();
        Vec::from(last).join("\n")
    }
}

/// Said among the milestones, once a point is known.
const ARMED: &str = "armed";

/// Writes down what passes, and ends the process where it was told.
#[derive(Debug)]
struct Doom {
    passed: Mutex<File>,
    point: Mutex<Option<Point>>,
}

impl Doom {
    fn write(&self, line: &str) {
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        passed.write_all(format!("{line}\n").as_bytes()).expect("written");
    }
}

impl Milestones for Doom {
    fn reached(&self, milestone: Milestone) {
        let name = milestone.to_string();
        // Whoever comes second waits here while the first one dies.
        let mut point = self.point.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(&name);
        if let Some((at, time)) = &mut *point
            && *at == name
        {
            *time -= 1;
            if *time == 0 {
                let this = rustix::process::getpid();
                rustix::process::kill_process(this, rustix::process::Signal::KILL).expect("killed");
                std::thread::sleep(LONGEST);
            }
        }
    }
}

/// The machine's network, telling which address was bound.
struct Telling(Arc<dyn Net>, Utf8PathBuf);

impl Net for Telling {
    fn connect(&self, to: &str) -> BoxFuture<'static, std::io::Result<BoxIo>> {
        self.0.connect(to)
    }

    fn bind(&self, at: &str) -> BoxFuture<'static, std::io::Result<Box<dyn Accept>>> {
        let (bound, file) = (self.0.bind(at), self.1.clone());
        Box::pin(async move {
            let bound = bound.await?;
            std::fs::write(file.with_extension("new"), bound.local())?;
            std::fs::rename(file.with_extension("new"), file)?;
            Ok(bound)
        })
    }
}

/// Not a test by itself: the node that the tests kill, with all that is in production.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_to_be_killed() {
    let Ok(told) = std::env::var(NODE) else { return };
    let told: Told = serde_json::from_str(&told).expect("JSON");
    let args = Args::try_parse_from(["node".to_owned()].into_iter().chain(told.flags)).expect("flags");
    telemetry::init(&args.telemetry);
    let config = args.checked(Token::checked(TOKEN, "a test").expect("long enough"), None).expect("settings");
    let passed = File::options().append(true).open(&told.passed).expect("made");
    let doom = Arc::new(Doom { passed: passed.into(), point: told.point.into() });
    let listening = doom.clone();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let line = line.expect("readable");
            let (time, name) = line.split_once(' ').expect("two words");
            let point = (name.to_owned(), time.parse().expect("a number"));
            *listening.point.lock().unwrap_or_else(PoisonError::into_inner) = Some(point);
            listening.write(ARMED);
        }
        // Whoever started it is gone.
        std::process::exit(1);
    });
    let mut env = Env::real();
    env.net = Arc::new(Telling(env.net.clone(), told.address));
    let parts = Parts::watched(&env, &config, doom).expect("parts");
    drowse_node::run(env, config, parts, Shutdown::new()).await.expect("runs");
}
