use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// No answer of the agent takes longer in these tests.
const ANSWER_WAIT: Duration = Duration::from_secs(40);

/// A running agent that is not pid 1, with a directory for the test's own use.
pub(crate) struct Agent {
    process: Child,
    socket: PathBuf,
    directory: tempfile::TempDir,
}

impl Agent {
    pub(crate) fn start() -> Self {
        Self::begin(&["--init", "0"], &[])
    }

    /// One that is told half a core and 1 GiB, and how much of them is used.
    pub(crate) fn measured(files: &[File; 3]) -> Self {
        Self::begin(&["--init", "0", "--measured", "1073741824", "500"], files)
    }

    #[expect(unsafe_code, reason = "the listening socket goes in as descriptor 3, files follow")]
    fn begin(args: &[&str], files: &[File]) -> Self {
        assert_eq!(
            rustix::process::geteuid().as_raw(),
            0,
            "these tests start commands as other users: run them as root"
        );
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let fds: Vec<i32> =
            [listener.as_raw_fd()].into_iter().chain(files.iter().map(|f| f.as_raw_fd())).collect();
        let mut command = Command::new(binary());
        command.args(args).stdin(Stdio::null());
        // SAFETY: dup2 and fcntl are async-signal-safe, and nothing is allocated.
        unsafe {
            command.pre_exec(move || {
                let mut aside = [-1; 4];
                for (aside, fd) in aside.iter_mut().zip(&fds) {
                    *aside = libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, 64);
                }
                for (place, aside) in (3..).zip(&aside[..fds.len()]) {
                    if libc::dup2(*aside, place) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let process = command.spawn().unwrap();
        Self { process, socket, directory }
    }

    /// The test's own directory, open to every user.
    pub(crate) fn directory(&self) -> &Path {
        use std::os::unix::fs::PermissionsExt;
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(self.directory.path(), open).unwrap();
        self.directory.path()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(ANSWER_WAIT)).unwrap();
        stream
    }

    /// Sends a request whose body is known, and reads the head of the answer.
    pub(crate) fn send(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.connect();
        stream.write_all(&head(method, target, headers, Some(body.len()))).unwrap();
        stream.write_all(body).unwrap();
        Answer::read(stream)
    }

    pub(crate) fn unary(&self, method: &str, message: &Value) -> (u16, Value) {
        self.unary_with(method, &[], message)
    }

    pub(crate) fn unary_with(&self, method: &str, headers: &[(&str, &str)], message: &Value) -> (u16, Value) {
        let headers = [&[("content-type", "application/json")], headers].concat();
        let mut answer = self.send("POST", &format!("/{method}"), &headers, message.to_string().as_bytes());
        (answer.status, serde_json::from_slice(&answer.whole()).unwrap())
    }

    pub(crate) fn stream(&self, method: &str, headers: &[(&str, &str)], message: &Value) -> Events {
        self.stream_of(&format!("process.Process/{method}"), headers, message)
    }

    pub(crate) fn stream_of(&self, method: &str, headers: &[(&str, &str)], message: &Value) -> Events {
        let headers = [&[("content-type", "application/connect+json")], headers].concat();
        let answer = self.send("POST", &format!("/{method}"), &headers, &envelope(message));
        Events::of(answer)
    }

    /// Starts a command on a terminal, as root unless `headers` say otherwise.
    pub(crate) fn terminal(&self, argv: &[&str], size: (u16, u16), headers: &[(&str, &str)]) -> Events {
        let message = json!({
            "process": {"cmd": argv[0], "args": argv[1..]},
            "pty": {"size": {"cols": size.0, "rows": size.1}},
        });
        self.stream("Start", &[headers, &[ROOT]].concat(), &message)
    }

    /// Types on a terminal.
    pub(crate) fn type_in(&self, pid: u32, bytes: &[u8]) {
        let input = json!({"process": {"pid": pid}, "input": {"pty": STANDARD.encode(bytes)}});
        let answer = self.unary("process.Process/SendInput", &input);
        assert_eq!(answer.0, 200, "{}", answer.1);
    }

    /// Starts a shell script, as root unless `headers` say otherwise.
    pub(crate) fn shell(&self, script: &str, headers: &[(&str, &str)]) -> Events {
        let process = json!({"process": {"cmd": "sh", "args": ["-c", script]}, "stdin": false});
        // The first of two credentials would count.
        self.stream("Start", &[headers, &[ROOT]].concat(), &process)
    }

    /// Runs a shell script as root to its end.
    pub(crate) fn run(&self, script: &str) -> Outcome {
        self.shell(script, &[]).outcome()
    }

    pub(crate) fn join(&self, selector: &Value) -> Events {
        self.stream("Connect", &[], &json!({"process": selector}))
    }

    /// Ends the agent as the node does and tells how long it took.
    pub(crate) fn stop(&mut self) -> (Duration, std::process::ExitStatus) {
        let asked = Instant::now();
        signal(self.process.id(), libc::SIGTERM);
        let status = self.process.wait().unwrap();
        (asked.elapsed(), status)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.process.try_wait().unwrap().is_none() {
            self.stop();
        }
    }
}

/// The agent's binary. Cargo says where; the shell wrapped around the compiler loses variables with such names, so the
/// answer is read when the test runs.
pub(crate) fn binary() -> PathBuf {
    std::env::var_os("CARGO_BIN_EXE_drowse-agent").expect("run by cargo test").into()
}

pub(crate) const ROOT: (&str, &str) = ("authorization", "Basic cm9vdDo=");
pub(crate) const NOBODY: (&str, &str) = ("authorization", "Basic bm9ib2R5Og==");

/// A message in its envelope.
pub(crate) fn envelope(message: &Value) -> Vec<u8> {
    let payload = message.to_string().into_bytes();
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
    bytes.extend(payload);
    bytes
}

pub(crate) fn head(method: &str, target: &str, headers: &[(&str, &str)], length: Option<usize>) -> Vec<u8> {
    let mut text = format!("{method} {target} HTTP/1.1\r\nhost: agent\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if let Some(length) = length {
        text += &format!("content-length: {length}\r\n");
    }
    (text + "\r\n").into_bytes()
}

#[expect(unsafe_code, reason = "kill takes plain numbers")]
pub(crate) fn signal(pid: u32, number: i32) {
    // SAFETY: kill has no memory effects.
    unsafe { libc::kill(i32::try_from(pid).unwrap(), number) };
}

/// Sends a signal to each thread of a process.
#[expect(unsafe_code, reason = "kill takes plain numbers")]
pub(crate) fn signal_threads(pid: u32, number: i32) {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    for thread in threads.flatten() {
        let thread: i32 = thread.file_name().to_str().unwrap().parse().unwrap();
        // SAFETY: a signal to a thread of our own child.
        unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, number) };
    }
}

/// Waits, boundedly, until `condition` holds.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

enum Framing {
    Length(u64),
    Chunked(u64),
    Done,
}

/// An answer whose body is read as it comes.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    reader: BufReader<UnixStream>,
    framing: Framing,
}

impl Answer {
    pub(crate) fn read(stream: UnixStream) -> Self {
        let mut reader = BufReader::with_capacity(64 * 1024, stream);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let line = line.trim_end().to_owned();
            if line.is_empty() {
                break;
            }
            lines.push(line);
        }
        let status = lines.first().expect("an answer").split(' ').nth(1).unwrap().parse().unwrap();
        let split =
            |line: &String| line.split_once(": ").map(|(a, b)| (a.to_ascii_lowercase(), b.to_owned()));
        let headers: Vec<_> = lines[1..].iter().map(|line| split(line).unwrap()).collect();
        let mut answer = Self { status, headers, reader, framing: Framing::Done };
        answer.framing = match answer.header("content-length") {
            Some(length) => Framing::Length(length.parse().unwrap()),
            None if answer.header("transfer-encoding").is_some() => Framing::Chunked(0),
            None => Framing::Done,
        };
        answer
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn whole(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn json(&mut self) -> Value {
        serde_json::from_slice(&self.whole()).unwrap()
    }
}

impl Read for Answer {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if let Framing::Chunked(0) = self.framing {
            let mut line = String::new();
            self.reader.read_line(&mut line)?;
            if line.trim().is_empty() {
                line.clear();
                self.reader.read_line(&mut line)?;
            }
            let bad = |_| std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            let length = u64::from_str_radix(line.trim(), 16).map_err(bad)?;
            self.framing = if length == 0 { Framing::Done } else { Framing::Chunked(length) };
        }
        let (Framing::Length(left) | Framing::Chunked(left)) = &mut self.framing else { return Ok(0) };
        if *left == 0 {
            return Ok(0);
        }
        let got = (&mut self.reader).take(*left).read(buffer)?;
        if got == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        *left -= got as u64;
        Ok(got)
    }
}

/// A stream of process events.
pub(crate) struct Events {
    answer: Answer,
    /// The last message was the end of the stream.
    pub(crate) over: bool,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    Start(u32),
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Pty(Vec<u8>),
    Keepalive,
    End(Value),
    /// The stream ended: `{}` or an error.
    Over(Value),
}

impl Events {
    /// The stream an answer is.
    pub(crate) fn of(answer: Answer) -> Self {
        assert_eq!(answer.status, 200);
        Self { answer, over: false }
    }

    /// The next message, of any kind of stream.
    pub(crate) fn message(&mut self) -> Value {
        let mut head = [0; 5];
        self.answer.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
        let mut payload = vec![0; length];
        self.answer.read_exact(&mut payload).unwrap();
        self.over = head[0] == 2;
        serde_json::from_slice(&payload).unwrap()
    }

    pub(crate) fn next(&mut self) -> Event {
        let value = self.message();
        if self.over {
            return Event::Over(value);
        }
        let event = &value["event"];
        let decoded = |text: &Value| STANDARD.decode(text.as_str().unwrap()).unwrap();
        if let Some(start) = event.get("start") {
            Event::Start(u32::try_from(start["pid"].as_u64().unwrap()).unwrap())
        } else if let Some(stdout) = event["data"].get("stdout") {
            Event::Stdout(decoded(stdout))
        } else if let Some(stderr) = event["data"].get("stderr") {
            Event::Stderr(decoded(stderr))
        } else if let Some(pty) = event["data"].get("pty") {
            Event::Pty(decoded(pty))
        } else if event.get("keepalive").is_some() {
            Event::Keepalive
        } else {
            Event::End(event["end"].clone())
        }
    }

    pub(crate) fn pid(&mut self) -> u32 {
        match self.next() {
            Event::Start(pid) => pid,
            other => panic!("not started: {other:?}"),
        }
    }

    /// The start event as it came: the one of a stream that joins says more than the pid.
    pub(crate) fn start(&mut self) -> Value {
        self.message()["event"]["start"].clone()
    }

    /// Reads on until stdout, or the terminal, so far contains `text`.
    pub(crate) fn stdout_until(&mut self, text: &str) -> String {
        let mut seen = String::new();
        while !seen.contains(text) {
            match self.next() {
                Event::Stdout(bytes) | Event::Pty(bytes) => seen += &String::from_utf8_lossy(&bytes),
                Event::Start(_) | Event::Keepalive | Event::Stderr(_) => {}
                other => panic!("ended early: {other:?} after {seen:?}"),
            }
        }
        seen
    }

    /// Reads to the end.
    pub(crate) fn outcome(mut self) -> Outcome {
        let mut outcome = Outcome::default();
        loop {
            match self.next() {
                Event::Start(pid) => outcome.pid = pid,
                Event::Stdout(bytes) => outcome.stdout.extend(bytes),
                Event::Pty(bytes) => outcome.pty.extend(bytes),
                Event::Stderr(bytes) => outcome.stderr.extend(bytes),
                Event::Keepalive => {}
                Event::End(end) => outcome.end = end,
                Event::Over(over) => {
                    outcome.error = over["error"].clone();
                    return outcome;
                }
            }
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) pid: u32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) pty: Vec<u8>,
    pub(crate) end: Value,
    pub(crate) error: Value,
}

impl Outcome {
    pub(crate) fn code(&self) -> i64 {
        self.end["exitCode"].as_i64().unwrap_or_else(|| panic!("no end: {self:?}"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }
}
