//! A fleet in one process for one test, and the commands against it.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
    time::Duration,
};

use camino::{Utf8Path, Utf8PathBuf};

/// What the bodies run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Executor {
    Fake,
    Oci,
}

/// A fleet under a mark of its own, so that what it leaves can be told.
pub(crate) struct Fleet {
    mark: String,
    place: Utf8PathBuf,
    executor: Executor,
    child: Option<Child>,
}

/// How a command ended.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Fleet {
    pub(crate) fn start(executor: Executor) -> Self {
        let mut fleet = Self::laid_out(executor);
        let name = if executor == Executor::Oci { "oci" } else { "fake" };
        fleet.go(&["--executor", name, "--listen", "127.0.0.1:0"]);
        fleet
    }

    /// A place for one, where nothing is yet.
    pub(crate) fn laid_out(executor: Executor) -> Self {
        let mut random = [0; 3];
        fs::File::open("/dev/urandom")
            .and_then(|mut f| f.read_exact(&mut random))
            .expect("every Linux has it");
        let mark: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let place = Utf8PathBuf::from(format!("/tmp/drw-{mark}"));
        fs::create_dir(&place).expect("a fresh name");
        Self { mark, place, executor, child: None }
    }

    /// Starts it, and waits until it takes spaces.
    pub(crate) fn go(&mut self, flags: &[&str]) {
        let mut child = self
            .command(&[&["up"], flags].concat())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("drowse");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("text");
        self.child = Some(child);
        assert!(line.contains("gateway http://127.0.0.1:"), "it did not start: {line:?}");
    }

    /// Tells it to end, and answers its exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        let mut child = self.child.take()?;
        signal(&child, "TERM");
        let mut code = None;
        eventually(|| {
            code = child.try_wait().expect("ours");
            code.is_some()
        });
        code.and_then(|status| status.code())
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("ours");
            child.wait().expect("ours");
        }
    }

    /// Where everything of this test is.
    pub(crate) fn place(&self) -> &Utf8Path {
        &self.place
    }

    /// Where the fleet keeps its state.
    pub(crate) fn state(&self) -> Utf8PathBuf {
        self.place.join("state")
    }

    /// What keeps this fleet apart from others of this machine.
    pub(crate) fn surroundings(&self) -> [(&'static str, String); 2] {
        let mark = format!("drowse-test-{}", self.mark);
        [("DROWSE_RUN", format!("/run/{mark}")), ("DROWSE_CGROUP_PARENT", mark)]
    }

    /// A command on this fleet.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = self.bare(&[]);
        let state = self.state();
        command.args(["--state", state.as_str()]).args(words);
        command
    }

    /// A command that is not told which fleet.
    pub(crate) fn bare(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_drowse"));
        for name in
            ["DROWSE_ENDPOINT", "DROWSE_TOKEN", "DROWSE_TOKEN_FILE", "DROWSE_GATEWAY_LISTEN", "DROWSE_LOG"]
        {
            command.env_remove(name);
        }
        command.envs(self.surroundings()).args(words);
        command
    }

    /// Runs a command whose input and output are a terminal, and answers what is shown there.
    pub(crate) fn at_terminal(&self, words: &[&str], typed: &[u8]) -> String {
        let program = env!("CARGO_BIN_EXE_drowse");
        let line = format!("{program} --state {} {}", self.state(), words.join(" "));
        let mut child = Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .envs(self.surroundings())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script");
        let _ = child.stdin.take().expect("piped").write_all(typed);
        String::from_utf8_lossy(&child.wait_with_output().expect("ours").stdout).into_owned()
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        self.fed(words, b"")
    }

    /// Runs a command that reads `input`.
    pub(crate) fn fed(&self, words: &[&str], input: &[u8]) -> Ran {
        let mut child = self
            .command(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("drowse");
        // A command that wants no input may have closed it.
        let _ = child.stdin.take().expect("piped").write_all(input);
        let ended = child.wait_with_output().expect("ours");
        Ran {
            code: ended.status.code().unwrap_or(-1),
            stdout: ended.stdout,
            stderr: String::from_utf8(ended.stderr).expect("errors are text"),
        }
    }

    /// Runs a command that must succeed, and answers what it printed.
    pub(crate) fn ok(&self, words: &[&str]) -> String {
        let ran = self.run(words);
        assert_eq!(ran.code, 0, "{words:?}: {}", ran.stderr);
        String::from_utf8(ran.stdout).expect("text")
    }

    /// What this fleet has on the machine beside its directory.
    pub(crate) fn traces(&self) -> Vec<String> {
        let mark = format!("drowse-test-{}", self.mark);
        let mut found = Vec::new();
        if Utf8Path::new("/run").join(&mark).exists() {
            found.push(format!("/run/{mark}"));
        }
        let trees =
            fs::read_dir("/sys/fs/cgroup").expect("cgroups are mounted").flatten().map(|tree| tree.path());
        for tree in trees.chain(["/sys/fs/cgroup".into()]) {
            let group = tree.join(&mark);
            if group.exists() {
                found.push(group.display().to_string());
            }
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
        found.extend(mounts.lines().filter(|line| line.contains(&self.mark)).map(str::to_owned));
        for block in fs::read_dir("/sys/block").expect("/sys is mounted").flatten() {
            let image = fs::read_to_string(block.path().join("loop/backing_file")).unwrap_or_default();
            if image.contains(&self.mark) {
                found.push(format!("loop device over {image}"));
            }
        }
        found
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if self.stop().is_none() && self.executor == Executor::Oci {
            let _ = self.command(&["down"]).status();
        }
        let _ = fs::remove_dir_all(&self.place);
    }
}

/// Sends a signal by its name.
pub(crate) fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()), "{name} could not be sent");
}

/// Waits until `done` holds, and fails when it does not within half a minute.
pub(crate) fn eventually(mut done: impl FnMut() -> bool) {
    for _ in 0..600 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("it did not come to pass within 30 s");
}
