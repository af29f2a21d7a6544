use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags,
    SocketType,
};
use rustix::process::{Pid, WaitStatus};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::wire::{REPLY_BYTES, Reply, Request, Stage};

/// Commands that may wait for the launcher at once.
const QUEUE_MAX: usize = 256;
/// How often a command that provably did not start is handed to a fresh launcher.
const RETRIES_MAX: u32 = 2;
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Exit {
    /// By itself, with a code.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// A running command, as far as its exit goes.
pub(crate) struct Child {
    /// Its pid, also its session and process group.
    pub(crate) pid: i32,
    exit: Cell<Option<Exit>>,
    exited: Notify,
}

impl Child {
    /// How it ended, if it did.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.exit.get()
    }

    /// Waits for its end.
    pub(crate) async fn wait(&self) -> Exit {
        loop {
            let exited = self.exited.notified();
            if let Some(exit) = self.exit.get() {
                return exit;
            }
            exited.await;
        }
    }
}

/// Why a command did not start.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The kernel refused one of the steps.
    #[error("the kernel refused step {stage:?} of the start, error {errno}")]
    Refused {
        /// Which step.
        stage: Stage,
        /// Its error.
        errno: i32,
    },
    /// No launcher stays alive in `work`.
    #[error("the space cannot hold a launcher: its memory or process limit is used up")]
    NoLauncher,
    /// Too many commands wait already.
    #[error("{QUEUE_MAX} commands are waiting to start")]
    QueueFull,
}

struct Job {
    id: u64,
    spec: OwnedFd,
    spec_bytes: u64,
    stdio: [OwnedFd; 3],
    tries: u32,
    reply: oneshot::Sender<Result<Rc<Child>, Error>>,
}

#[derive(Default)]
struct State {
    socket: Option<Rc<AsyncFd<OwnedFd>>>,
    launcher: Option<Pid>,
    born: Option<Instant>,
    backoff: Duration,
    queue: VecDeque<Job>,
    /// The head of the queue is at the launcher.
    sent: bool,
    /// Pid of the head, once it said so.
    started: Option<i32>,
    /// Its exit, when that came before the launcher's last word.
    early_exit: Option<Exit>,
    next_id: u64,
    children: BTreeMap<i32, Rc<Child>>,
    closing: bool,
}

/// Pid 1's hold on the launcher. One request is outstanding there, the rest waits here.
pub(crate) struct Control {
    state: RefCell<State>,
    procs: Vec<OwnedFd>,
}

impl Control {
    /// Starts the first launcher. `procs` are the `cgroup.procs` files it moves itself into.
    pub(crate) fn start(procs: Vec<OwnedFd>) -> io::Result<Rc<Self>> {
        let control = Rc::new(Self { state: RefCell::default(), procs });
        control.spawn_launcher()?;
        Ok(control)
    }

    /// Queues a command. The answer comes once it runs, or provably does not. Dropping the receiver early takes it
    /// out of the queue, or kills it if it has started by then.
    pub(crate) fn spawn(
        self: &Rc<Self>,
        (spec, spec_bytes): (OwnedFd, u64),
        stdio: [OwnedFd; 3],
    ) -> Result<oneshot::Receiver<Result<Rc<Child>, Error>>, Error> {
        let (reply, answer) = oneshot::channel();
        {
            let mut state = self.state.borrow_mut();
            if state.queue.len() >= QUEUE_MAX {
                return Err(Error::QueueFull);
            }
            state.next_id += 1;
            let id = state.next_id;
            state.queue.push_back(Job { id, spec, spec_bytes, stdio, tries: 0, reply });
        }
        self.pump();
        Ok(answer)
    }

    /// Looks after a child that an earlier agent started.
    pub(crate) fn adopt(&self, pid: i32, exit: Option<Exit>) -> Rc<Child> {
        let child = Rc::new(Child { pid, exit: Cell::new(exit), exited: Notify::new() });
        if exit.is_none() {
            self.state.borrow_mut().children.insert(pid, Rc::clone(&child));
        }
        child
    }

    /// Whether no command is about to start.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.borrow().queue.is_empty()
    }

    /// Descriptors of the `cgroup.procs` files.
    pub(crate) fn procs(&self) -> Vec<RawFd> {
        self.procs.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// Pid of the launcher, which no tree of a command contains.
    pub(crate) fn launcher_pid(&self) -> Option<i32> {
        self.state.borrow().launcher.map(|pid| pid.as_raw_nonzero().get())
    }

    /// No more commands: the launcher ends at once and is not replaced.
    pub(crate) fn close(&self) {
        let mut state = self.state.borrow_mut();
        state.closing = true;
        if let Some(socket) = &state.socket {
            // It may be gone already, which is what is wanted.
            let _gone = rustix::net::shutdown(socket.get_ref(), Shutdown::Both);
        }
    }

    /// A child of pid 1 ended (or stopped). Replies are read first: a child says that it started before it can end.
    pub(crate) fn child_changed(self: &Rc<Self>, pid: Pid, status: WaitStatus) {
        let is_launcher = self.state.borrow().launcher == Some(pid);
        if status.stopped() {
            if is_launcher {
                // Somebody inside stopped it; commands would wait for ever.
                let _gone = rustix::process::kill_process(pid, rustix::process::Signal::CONT);
            }
            return;
        }
        if is_launcher {
            self.launcher_gone();
            return;
        }
        self.drain();
        let exit = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(signal),
            (None, None) => return,
        };
        let mut state = self.state.borrow_mut();
        let pid = pid.as_raw_nonzero().get();
        if let Some(child) = state.children.remove(&pid) {
            child.exit.set(Some(exit));
            child.exited.notify_waiters();
        } else if state.started == Some(pid) {
            state.early_exit = Some(exit);
        }
    }

    fn spawn_launcher(self: &Rc<Self>) -> io::Result<()> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let number = CString::new(theirs.as_raw_fd().to_string())?;
        let args = [c"drowse-launcher", c"--launcher", number.as_c_str()];
        let pid = crate::sys::fork_moved(c"/proc/self/exe", &args, theirs.as_fd(), &self.procs)?;
        let socket = Rc::new(crate::sys::watch(ours)?);
        {
            let mut state = self.state.borrow_mut();
            state.socket = Some(Rc::clone(&socket));
            state.launcher = Some(pid);
            state.born = Some(Instant::now());
            state.sent = false;
        }
        let control = Rc::clone(self);
        tokio::task::spawn_local(async move {
            while let Ok(mut ready) = socket.readable().await {
                ready.clear_ready();
                if control.drain_from(&socket) {
                    break;
                }
            }
        });
        self.pump();
        Ok(())
    }

    fn pump(&self) {
        let mut state = self.state.borrow_mut();
        if state.sent {
            return;
        }
        while state.queue.front().is_some_and(|job| job.reply.is_closed()) {
            state.queue.pop_front();
        }
        let (Some(socket), Some(job)) = (&state.socket, state.queue.front()) else { return };
        let [input, output, error] = &job.stdio;
        let descriptors = [job.spec.as_fd(), input.as_fd(), output.as_fd(), error.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let packet = Request { id: job.id, spec_bytes: job.spec_bytes }.encode();
        let slices = [io::IoSlice::new(&packet)];
        // A dead launcher refuses it; its SIGCHLD brings the job to the next one.
        if rustix::net::sendmsg(socket.get_ref(), &slices, &mut control, SendFlags::NOSIGNAL).is_ok() {
            state.sent = true;
        }
    }

    fn drain(self: &Rc<Self>) {
        let socket = self.state.borrow().socket.clone();
        if let Some(socket) = socket {
            self.drain_from(&socket);
        }
    }

    /// Reads every waiting reply; true once the other side is gone.
    fn drain_from(self: &Rc<Self>, socket: &AsyncFd<OwnedFd>) -> bool {
        loop {
            let mut packet = [0; REPLY_BYTES];
            match rustix::net::recv(socket.get_ref(), &mut packet, RecvFlags::DONTWAIT) {
                Ok((REPLY_BYTES, _)) => self.reply(Reply::decode(&packet)),
                Ok(_) => return true,
                Err(rustix::io::Errno::AGAIN) => return false,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }

    fn reply(self: &Rc<Self>, reply: Reply) {
        let head = self.state.borrow().queue.front().map(|job| job.id);
        match reply {
            Reply::Started { id, pid } if head == Some(id) => self.state.borrow_mut().started = Some(pid),
            Reply::Done { id, errno: 0, .. } if head == Some(id) => self.resolve(Ok(())),
            Reply::Done { id, stage, errno } if head == Some(id) => {
                self.resolve(Err(Error::Refused { stage, errno }));
            }
            Reply::Started { .. } | Reply::Done { .. } => {}
        }
    }

    /// The head of the queue runs, or will not.
    fn resolve(self: &Rc<Self>, outcome: Result<(), Error>) {
        {
            let mut state = self.state.borrow_mut();
            let Some(job) = state.queue.pop_front() else { return };
            let (started, early_exit) = (state.started.take(), state.early_exit.take());
            state.sent = false;
            let answer = match (outcome, started) {
                (Ok(()), Some(pid)) => {
                    let child = Rc::new(Child { pid, exit: Cell::new(early_exit), exited: Notify::new() });
                    if early_exit.is_none() {
                        state.children.insert(pid, Rc::clone(&child));
                    }
                    Ok(child)
                }
                (Ok(()), None) => Err(Error::Refused { stage: Stage::Fork, errno: libc::EPROTO }),
                (Err(error), _) => Err(error),
            };
            if let Err(Ok(child)) = job.reply.send(answer)
                && child.exit().is_none()
            {
                // Whoever asked left before it was told the pid, so nobody knows of this command.
                let _gone = crate::sys::signal(-child.pid, libc::SIGKILL);
            }
        }
        self.pump();
    }

    fn launcher_gone(self: &Rc<Self>) {
        let socket = self.state.borrow_mut().socket.take();
        if let Some(socket) = socket {
            // From here no straggling child of it can start: its first act fails. What was queued is still readable.
            let _gone = rustix::net::shutdown(socket.get_ref(), Shutdown::Both);
            self.drain_from(&socket);
        }
        if self.state.borrow().sent && self.state.borrow().started.is_some() {
            self.resolve(Ok(()));
        }
        let exhausted = {
            let mut state = self.state.borrow_mut();
            state.launcher = None;
            state.sent = false;
            let lived = state.born.map(|born| born.elapsed()).unwrap_or_default();
            state.backoff = match state.backoff {
                _ if lived > BACKOFF_MAX => Duration::ZERO,
                Duration::ZERO => Duration::from_millis(1),
                backoff => (backoff * 2).min(BACKOFF_MAX),
            };
            state.queue.front_mut().is_some_and(|job| {
                job.tries += 1;
                job.tries > RETRIES_MAX
            })
        };
        if exhausted {
            self.resolve(Err(Error::NoLauncher));
        }
        self.respawn_later();
    }

    fn respawn_later(self: &Rc<Self>) {
        let control = Rc::clone(self);
        tokio::task::spawn_local(async move {
            loop {
                let wait = control.state.borrow().backoff;
                tokio::time::sleep(wait).await;
                if control.state.borrow().closing || control.spawn_launcher().is_ok() {
                    return;
                }
                let mut state = control.state.borrow_mut();
                state.backoff = (state.backoff * 2).clamp(Duration::from_millis(10), BACKOFF_MAX);
            }
        });
    }
}
