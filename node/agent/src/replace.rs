/// Going on with streams that an earlier agent began.
pub(crate) mod resumed;
/// What one agent leaves to the next.
pub(crate) mod state;

use std::ffi::{CString, OsString};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::Response;
use hyper::body::Incoming;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Deserialize;

use crate::body::Body;
use crate::connect::{self, Code, Error};
use crate::metrics::Metrics;
use crate::process::kept;
use crate::server::Agent;
use state::State;

/// How long what is under way may take until nothing is.
const QUIET_WAIT: Duration = Duration::from_millis(500);
const QUIET_PAUSE: Duration = Duration::from_millis(2);
/// How long a successor may take to say that it understands.
const CHECK_WAIT: Duration = Duration::from_secs(5);
/// What it says: that a program ends well is not enough, many do.
pub(crate) const UNDERSTOOD: &str = "drowse-agent understands the state\n";

#[derive(Deserialize)]
struct Request {
    path: PathBuf,
}

/// Holds the gate until it is dropped, also when whoever asked leaves.
struct Hold(Rc<Agent>);

impl Hold {
    fn new(agent: &Rc<Agent>) -> Self {
        agent.gate.hold(true);
        Self(Rc::clone(agent))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.gate.hold(false);
        self.0.table.wake_streams();
        for connection in self.0.connections.borrow().values() {
            connection.wake();
        }
    }
}

/// Serves POST /replace: this process becomes the program at `path`, with all commands, terminals, pipes and streams. The
/// answer comes from there; only refusals come from here, after which everything goes on as it was.
pub(crate) async fn serve(agent: &Rc<Agent>, asker: RawFd, body: Incoming) -> Result<Response<Body>, Error> {
    let Request { path } = connect::unary_request(body).await?;
    if !path.is_absolute() {
        return Err(Error::new(Code::InvalidArgument, "path: absolute, of the program to become"));
    }
    let _only = agent
        .replacing
        .try_lock()
        .map_err(|_| Error::new(Code::Unavailable, "the agent is being replaced already"))?;
    let memory = {
        let _hold = Hold::new(agent);
        quiet(agent).await?;
        write_state(agent, asker)?.1
    };
    // Meanwhile everything goes on: its answer is about the format.
    let checked = tokio::task::spawn_blocking({
        let path = path.clone();
        move || check(&path, memory)
    });
    checked.await.unwrap_or_else(|error| Err(Error::new(Code::Internal, error.to_string())))?;
    let _hold = Hold::new(agent);
    agent.watchers.end_streams();
    quiet(agent).await?;
    let (descriptors, memory) = write_state(agent, asker)?;
    Err(become_program(&path, &memory, descriptors))
}

/// Waits until nothing is in the middle of anything.
async fn quiet(agent: &Agent) -> Result<(), Error> {
    let deadline = Instant::now() + QUIET_WAIT;
    // What was answered just now may not be written yet.
    tokio::time::sleep(QUIET_PAUSE).await;
    while let Some(why) = why_busy(agent) {
        if Instant::now() > deadline {
            return Err(Error::new(Code::Unavailable, format!("{why}: ask again")));
        }
        tokio::time::sleep(QUIET_PAUSE).await;
    }
    Ok(())
}

fn why_busy(agent: &Agent) -> Option<&'static str> {
    if !agent.control.is_idle() {
        return Some("commands are starting");
    }
    let commands = || kept::keep(&agent.table).is_none().then_some("commands are being ended");
    agent.gate.why_busy().or_else(commands)
}

/// Everything that is to outlive this program, written down; and its descriptors.
fn write_state(agent: &Agent, asker: RawFd) -> Result<(Vec<RawFd>, OwnedFd), Error> {
    let busy = || Error::new(Code::Unavailable, "commands are being ended: ask again");
    let (processes, streams) = kept::keep(&agent.table).ok_or_else(busy)?;
    let mut state = State::new(agent.listener, agent.control.procs(), asker);
    state.processes =
        processes.iter().map(|process| process.kept()).collect::<Option<_>>().ok_or_else(busy)?;
    state.streams = streams;
    state.measured = agent.metrics.as_ref().map(Metrics::told);
    state.lingering = agent.table.lingering();
    let connections = agent.connections.borrow();
    let kept = connections.values().filter(|connection| connection.is_between_requests());
    state.connections = kept.map(|connection| connection.fd).collect();
    let memory = state.write().map_err(|error| Error::from_io("the state", &error))?;
    Ok((state.descriptors(), memory))
}

/// Asks the program whether it understands the state.
fn check(path: &Path, memory: OwnedFd) -> Result<(), Error> {
    let refuse = |words: String| Error::new(Code::FailedPrecondition, format!("{}: {words}", path.display()));
    let spawned = Command::new(path)
        .arg("--check")
        .stdin(Stdio::from(memory))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = spawned.map_err(|error| Error::from_io(&path.display().to_string(), &error))?;
    let said = hear(&mut child);
    if said.is_err() {
        // Whether it is there to be killed or ended meanwhile is the same.
        let _gone = child.kill();
    }
    // Pid 1 collects whatever ends; here this only gives the pid back in time.
    let _collected = child.wait();
    match said {
        Ok(text) if text == UNDERSTOOD.as_bytes() => Ok(()),
        Ok(_) => Err(refuse("it does not understand the state of this agent".to_owned())),
        Err(error) => Err(refuse(format!("it does not answer the check: {error}"))),
    }
}

fn hear(child: &mut Child) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + CHECK_WAIT;
    let mut output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut said = Vec::new();
    let mut piece = [0; 64];
    while said.len() <= UNDERSTOOD.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(0),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut polled = [PollFd::new(&output, PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            // Some command has ended meanwhile.
            Err(rustix::io::Errno::INTR) => continue,
            polled => polled?,
        };
        match output.read(&mut piece) {
            Ok(0) => break,
            Ok(got) => said.extend_from_slice(&piece[..got]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(said)
}

/// Only comes back, with the reason, when that failed.
fn become_program(path: &Path, memory: &OwnedFd, mut descriptors: Vec<RawFd>) -> Error {
    descriptors.push(memory.as_raw_fd());
    let text = |text: &[u8]| CString::new(text).unwrap_or_default();
    let program = text(path.as_os_str().as_bytes());
    let number = text(memory.as_raw_fd().to_string().as_bytes());
    let variable =
        |(name, value): (OsString, OsString)| text(&[name.as_bytes(), b"=", value.as_bytes()].concat());
    let environment: Vec<CString> = std::env::vars_os().map(variable).collect();
    let args = [c"drowse-agent", c"--resume", number.as_c_str()];
    let error = crate::sys::become_program(&program, &args, &environment, &descriptors);
    Error::from_io(&path.display().to_string(), &error)
}
