use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::fd::{AsRawFd, OwnedFd},
    process::Stdio,
    time::Duration,
};

use camino::{Utf8Path, Utf8PathBuf};
use tokio::process::Command;

use super::{
    super::{Error, Result},
    step::{Program, Steps},
};
use crate::milestone::Progress;

/// Programs run with this and nothing else from the daemon's environment, which holds secrets.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How much of a program's last words an error repeats.
const LAST_WORDS_BYTES: u64 = 600;
/// A killed program is waited for this long.
const REAP: Duration = Duration::from_secs(1);
/// Descriptors that are handed on are first moved above those numbers they will take.
const ABOVE: i32 = 64;

/// The OCI runtime.
#[derive(Debug)]
pub(super) struct Runtime {
    /// The program, or a wrapper around it.
    pub(super) program: Utf8PathBuf,
    /// Where it keeps its records.
    pub(super) root: Utf8PathBuf,
    /// Says how far its commands are.
    pub(super) steps: Steps,
}

impl Runtime {
    /// Runs one of its commands to its end.
    pub(super) async fn call(
        &self,
        command: Program,
        args: &[&str],
        log: &Utf8Path,
        fds: Vec<OwnedFd>,
        within: Duration,
    ) -> Result<()> {
        let mut all = vec!["--root", self.root.as_str()];
        all.extend(args);
        run(&self.steps, command, self.program.as_str(), &all, log, fds, within).await
    }
}

/// Runs a program to its end, or kills it and all it started in its process group at the deadline.
///
/// Its output goes to a file: a container keeps what it inherits, and a pipe would never see its end. `fds` become its
/// descriptors 3, 4, and so on.
pub(super) async fn run(
    steps: &Steps,
    command: Program,
    program: &str,
    args: &[&str],
    log: &Utf8Path,
    fds: Vec<OwnedFd>,
    within: Duration,
) -> Result<()> {
    let what = command.word();
    let io_error = |source| Error::Io { what, path: program.into(), source };
    let output =
        File::create(log).map_err(|source| Error::Io { what: "create", path: log.into(), source })?;
    let errors = output.try_clone().map_err(io_error)?;
    let mut start = Command::new(program);
    start.args(args).env_clear().env("PATH", PATH).stdin(Stdio::null()).stdout(output).stderr(errors);
    start.process_group(0).kill_on_drop(true);
    prepare(&mut start, &fds).map_err(io_error)?;
    let mut child = start.spawn().map_err(io_error)?;
    // Only the program has them from here on.
    drop((start, fds));
    let group = Group(child.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed())));
    steps.program(command, Progress::Underway);
    match tokio::time::timeout(within, child.wait()).await {
        Ok(ended) => {
            group.ended();
            let status = ended.map_err(io_error)?;
            if status.success() {
                steps.program(command, Progress::Done);
                return Ok(());
            }
            let words = last_words(log);
            let says = if words.is_empty() { status.to_string() } else { words };
            Err(Error::Runtime { what, says })
        }
        Err(_) => {
            drop(group);
            let _ = tokio::time::timeout(REAP, child.wait()).await;
            Err(Error::Timeout { what, after: within })
        }
    }
}

/// A program and what it started: killed together when this is dropped, at a deadline or when the caller is cut.
struct Group(Option<rustix::process::Pid>);

impl Group {
    /// The program was waited for: its number may be another's by now.
    fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

/// Makes `fds` the descriptors 3 and up of the program, which dies with this daemon: a container that is being made is
/// then never finished behind the back of the next one.
fn prepare(command: &mut Command, fds: &[OwnedFd]) -> io::Result<()> {
    let lift = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, ABOVE);
    let high = fds.iter().map(lift).collect::<rustix::io::Result<Vec<_>>>()?;
    let daemon = rustix::process::getpid();
    #[expect(unsafe_code, reason = "std has no other way to hand descriptors on")]
    // SAFETY: between fork and exec the closure only makes the plain system calls prctl, getppid and dup2; it allocates
    // nothing.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            if rustix::process::getppid() != Some(daemon) {
                // It died before it could be heard.
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            for (to, from) in (3..).zip(&high) {
                if libc::dup2(from.as_raw_fd(), to) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    Ok(())
}

fn last_words(log: &Utf8Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LAST_WORDS_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    read().unwrap_or_default()
}
