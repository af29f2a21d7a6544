use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{Read, Seek, SeekFrom},
    net::TcpListener,
    os::fd::OwnedFd,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::process::{Pid, Signal, kill_process};

use crate::wait::eventually;

/// A daemon told to stop ends within this, whatever it was doing.
pub const STOP_WITHIN: Duration = Duration::from_secs(25);

/// One of the product's binaries, with its settings; started, killed and started again by a test.
pub struct Daemon {
    /// What the test calls it.
    pub name: String,
    /// Everything it is told.
    pub env: BTreeMap<String, String>,
    binary: Utf8PathBuf,
    log: Utf8PathBuf,
    child: Option<Child>,
    /// The program it is started under, and its words.
    under: Vec<String>,
    /// A listening socket that is handed to it.
    socket: Option<TcpListener>,
}

/// The folder of the profile that this test was built with, where the product's binaries are too.
///
/// # Panics
/// When this program is not a test that cargo built.
pub fn profile_dir() -> Utf8PathBuf {
    let me = std::env::current_exe().expect("/proc is mounted");
    let me = Utf8PathBuf::from_path_buf(me).expect("a plain path");
    // target/<profile>/deps/<test>
    me.parent().and_then(Utf8Path::parent).expect("a test lies two folders deep").to_owned()
}

/// A binary of the product.
///
/// # Panics
/// When it was not built: a test that cannot run must not pass.
pub fn binary(name: &str) -> Utf8PathBuf {
    let path = profile_dir().join(name);
    assert!(path.exists(), "{path} is missing: run `cargo build --workspace` first, or use e2e/run");
    path
}

impl Daemon {
    /// Describes a daemon; nothing runs yet.
    pub fn new(name: &str, program: &str, log: Utf8PathBuf) -> Self {
        let mut env = BTreeMap::new();
        // The developer's own settings must not leak into a test.
        env.insert(
            "PATH".to_owned(),
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        );
        env.insert("RUST_BACKTRACE".to_owned(), "1".to_owned());
        Self {
            name: name.to_owned(),
            env,
            binary: binary(program),
            log,
            child: None,
            under: Vec::new(),
            socket: None,
        }
    }

    /// Changes a setting for the next start.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "settings are written down in passing, as literals and as values"
    )]
    pub fn set(&mut self, key: &str, value: impl ToString) {
        self.env.insert(key.to_owned(), value.to_string());
    }

    /// Its program is that of this folder from the next start on.
    pub fn run_from(&mut self, folder: &Utf8Path) {
        if let Some(program) = self.binary.file_name() {
            self.binary = folder.join(program);
        }
    }

    /// Confines it to one core from the next start on.
    pub fn on_one_core(&mut self) {
        self.under = ["taskset", "-c", "0"].map(str::to_owned).to_vec();
    }

    /// Lets it have so many files open, and no more, from the next start on.
    pub fn with_files(&mut self, files: u64) {
        self.under = vec!["prlimit".to_owned(), format!("--nofile={files}:{files}")];
    }

    /// Hands it a listening socket from the next start on, as a supervisor does.
    ///
    /// # Panics
    /// When no descriptor is left.
    pub fn inherit(&mut self, socket: &TcpListener) {
        self.socket = Some(socket.try_clone().expect("a descriptor is left"));
        let hand_over = r#"exec 3<&0 </dev/null; export LISTEN_FDS=1 LISTEN_PID=$$; exec "$0""#;
        self.under = ["sh", "-c", hand_over].map(str::to_owned).to_vec();
    }

    /// Starts it.
    ///
    /// # Panics
    /// When it runs already or cannot be started.
    pub fn start(&mut self) {
        assert!(!self.runs(), "{} runs already", self.name);
        let out =
            OpenOptions::new().create(true).append(true).open(&self.log).expect("the log folder is ours");
        let err = out.try_clone().expect("a descriptor is left");
        let mut command = Command::new(&self.binary);
        if let Some((program, words)) = self.under.split_first() {
            // It becomes the daemon, with the same process id.
            command = Command::new(program);
            command.args(words).arg(&self.binary);
        }
        let child = command
            .env_clear()
            .envs(&self.env)
            .current_dir("/")
            .stdin(self.stdin())
            .stdout(out)
            .stderr(err)
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", self.binary));
        self.child = Some(child);
    }

    fn stdin(&self) -> Stdio {
        let Some(socket) = &self.socket else { return Stdio::null() };
        OwnedFd::from(socket.try_clone().expect("a descriptor is left")).into()
    }

    /// Whether it runs.
    pub fn runs(&mut self) -> bool {
        self.ended().is_none() && self.child.is_some()
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut().and_then(|child| child.try_wait().expect("our own child"))
    }

    /// Its process id.
    ///
    /// # Panics
    /// When it was not started.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it was started").id()
    }

    /// Sends a signal.
    pub fn signal(&mut self, signal: Signal) {
        if self.runs() {
            let pid = Pid::from_raw(self.pid().cast_signed()).expect("a child's pid is positive");
            kill_process(pid, signal).expect("our own child");
        }
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself; then there is nothing to kill.
            let _ = child.kill();
            child.wait().expect("our own child");
        }
    }

    /// SIGTERM; it must end by itself, well, and in time.
    ///
    /// # Panics
    /// When it does not.
    pub async fn stop(&mut self) {
        if self.child.is_none() {
            return;
        }
        if let Some(status) = self.ended() {
            panic!("{} has ended by itself: {status}\n{}", self.name, self.log_tail(40));
        }
        self.signal(Signal::TERM);
        let status = self.exit(STOP_WITHIN).await;
        assert!(status.success(), "{} ended with {status}\n{}", self.name, self.log_tail(40));
    }

    /// Waits until it has ended by itself.
    pub async fn exit(&mut self, within: Duration) -> ExitStatus {
        let name = self.name.clone();
        let status = eventually(&format!("{name} ends"), within, || std::future::ready(self.ended())).await;
        self.child = None;
        status
    }

    /// Everything it has written.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// What it has written since it had written `offset` bytes.
    pub fn log_since(&self, offset: u64) -> String {
        let mut bytes = Vec::new();
        if let Ok(mut file) = fs::File::open(&self.log) {
            file.seek(SeekFrom::Start(offset)).expect("a regular file");
            file.read_to_end(&mut bytes).expect("a regular file");
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// How much it has written.
    pub fn log_bytes(&self) -> u64 {
        fs::metadata(&self.log).map_or(0, |m| m.len())
    }

    /// The last lines it has written.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// The most memory it ever had resident since the last [`Daemon::forget_peak`], in bytes.
    ///
    /// # Panics
    /// When it does not run.
    pub fn peak_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status.lines().find(|l| l.starts_with("VmHWM:")).expect("every process has one");
        let kib: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
        kib * 1024
    }

    /// Starts measuring the peak anew.
    pub fn forget_peak(&self) {
        fs::write(format!("/proc/{}/clear_refs", self.pid()), "5").expect("it runs");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
        self.kill();
        if std::thread::panicking() {
            eprintln!("---- the end of {}'s log ----\n{}", self.name, self.log_tail(60));
        }
    }
}
