/// Pid 1's side: start, feed, watch and replace the launcher.
pub(crate) mod control;
/// What the two say to each other.
pub(crate) mod wire;

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags};
use rustix::process::DumpableBehavior;
use rustix::thread::{Gid, Uid};

use wire::{Reply, Request, Spec, Stage};

/// Stack of a child between clone and exec; unoptimised builds need some room.
const CHILD_STACK_BYTES: usize = 256 * 1024;

/// The launcher's whole life: one request at a time until pid 1 hangs up.
pub(crate) fn run(socket: i32) -> ExitCode {
    let Ok(socket) = crate::sys::adopt(socket) else { return ExitCode::from(64) };
    let prepared = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .and_then(|()| rustix::thread::set_name(c"drowse-launch"));
    if prepared.is_err() || crate::sys::close_stdio().is_err() {
        return ExitCode::FAILURE;
    }
    block_all_signals();
    let mut stack = vec![0_u8; CHILD_STACK_BYTES];
    loop {
        match receive(&socket) {
            Ok(Some((request, descriptors))) => {
                let reply = serve(&socket, &request, &descriptors, &mut stack);
                if rustix::net::send(&socket, &reply.encode(), SendFlags::NOSIGNAL).is_err() {
                    return ExitCode::SUCCESS;
                }
            }
            Ok(None) => return ExitCode::SUCCESS,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return ExitCode::FAILURE,
        }
    }
}

fn receive(socket: &OwnedFd) -> rustix::io::Result<Option<(Request, Vec<OwnedFd>)>> {
    let mut bytes = [0_u8; wire::REQUEST_BYTES];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [std::io::IoSliceMut::new(&mut bytes)];
    let received = rustix::net::recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::with_capacity(4);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let whole = received.bytes == bytes.len()
        && !received.flags.contains(ReturnFlags::CTRUNC)
        && descriptors.len() == 4;
    if whole { Ok(Some((Request::decode(&bytes), descriptors))) } else { Err(rustix::io::Errno::PROTO) }
}

fn serve(socket: &OwnedFd, request: &Request, descriptors: &[OwnedFd], stack: &mut [u8]) -> Reply {
    let failed = |errno: i32| Reply::done(request.id, Stage::Fork, errno);
    let [memory, stdio @ ..] = descriptors else { return failed(libc::EPROTO) };
    let spec = match Spec::read(memory, request.spec_bytes) {
        Ok(spec) => spec,
        Err(errno) => return failed(errno.raw_os_error()),
    };
    let arrays = spec.arrays();
    let mut birth = Birth {
        id: request.id,
        socket: socket.as_fd(),
        stdio,
        spec: &spec,
        candidates: &arrays.candidates,
        argv: &arrays.argv,
        envp: &arrays.envp,
        stage: Stage::Fork,
        errno: 0,
    };
    let pid = clone_vfork(&mut birth, stack);
    match pid {
        Ok(_) => Reply::done(request.id, birth.stage, birth.errno),
        Err(errno) => failed(errno),
    }
}

/// All a child needs, prepared before it exists: it shares the launcher's memory and must not allocate.
struct Birth<'a> {
    id: u64,
    socket: BorrowedFd<'a>,
    stdio: &'a [OwnedFd],
    spec: &'a Spec,
    candidates: &'a [*const c_char],
    argv: &'a [*const c_char],
    envp: &'a [*const c_char],
    stage: Stage,
    errno: i32,
}

impl Birth<'_> {
    /// Becomes the command. Only returns, with the error, when that failed.
    fn become_command(&mut self) -> rustix::io::Errno {
        let started = Reply::started(self.id, rustix::process::getpid().as_raw_nonzero().get());
        // Pid 1 gave this launcher up, so the request may already run elsewhere: it must not run here.
        if let Err(errno) = rustix::net::send(self.socket, &started.encode(), SendFlags::NOSIGNAL) {
            return errno;
        }
        if let Err(errno) = self.take_shape() {
            return errno;
        }
        self.stage = Stage::Directory;
        if let Err(errno) = rustix::process::chdir(self.spec.directory()) {
            let tolerated = self.spec.directory_is_a_wish().then(|| rustix::process::chdir(c"/"));
            if !matches!(tolerated, Some(Ok(()))) {
                return errno;
            }
        }
        self.stage = Stage::Exec;
        restore_signals();
        self.exec()
    }

    fn take_shape(&self) -> rustix::io::Result<()> {
        rustix::process::setsid()?;
        if let [input, output, error] = self.stdio {
            rustix::stdio::dup2_stdin(input)?;
            rustix::stdio::dup2_stdout(output)?;
            rustix::stdio::dup2_stderr(error)?;
            if self.spec.terminal() {
                rustix::process::ioctl_tiocsctty(input)?;
            }
        }
        // Raw system calls: the C library's own would try to change every thread of the memory it shares.
        rustix::thread::set_thread_groups(self.spec.groups())?;
        let (uid, gid) = (Uid::from_raw(self.spec.uid()), Gid::from_raw(self.spec.gid()));
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)
    }

    #[expect(unsafe_code, reason = "execve is the point of it")]
    fn exec(&self) -> rustix::io::Errno {
        let mut worst = rustix::io::Errno::NOENT;
        for candidate in self.candidates {
            // SAFETY: all are null-terminated strings and arrays inside `spec`, which outlives the child's use.
            unsafe { libc::execve(*candidate, self.argv.as_ptr(), self.envp.as_ptr()) };
            let errno = last_errno();
            match errno {
                rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR => {}
                rustix::io::Errno::ACCESS => worst = errno,
                _ => return errno,
            }
        }
        worst
    }
}

#[expect(unsafe_code, reason = "clone with a parent of its choice has no wrapper")]
fn clone_vfork(birth: &mut Birth<'_>, stack: &mut [u8]) -> Result<i32, i32> {
    extern "C" fn child(birth: *mut c_void) -> c_int {
        // SAFETY: the launcher passed a live `Birth` and is suspended by CLONE_VFORK until this child is gone or is
        // another program, so this is the only reference in use.
        let birth = unsafe { &mut *birth.cast::<Birth<'_>>() };
        birth.errno = birth.become_command().raw_os_error();
        // SAFETY: ends the child alone, without running the launcher's exit handlers.
        unsafe { libc::_exit(127) }
    }
    // CLONE_PARENT: pid 1 becomes the real parent, so exit codes come by plain waitpid and the launcher keeps no state.
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT | libc::SIGCHLD;
    let top = stack.as_mut_ptr_range().end;
    let top = top.wrapping_sub(top.addr() % 16);
    // SAFETY: the stack is ours alone until the vfork returns, and `birth` outlives the child's use of it.
    let pid = unsafe { libc::clone(child, top.cast(), flags, std::ptr::from_mut(birth).cast()) };
    if pid < 0 { Err(last_errno().raw_os_error()) } else { Ok(pid) }
}

fn last_errno() -> rustix::io::Errno {
    let errno = std::io::Error::last_os_error();
    rustix::io::Errno::from_io_error(&errno).unwrap_or(rustix::io::Errno::IO)
}

/// A signal meant for the space as a whole must not end the launcher.
#[expect(unsafe_code, reason = "signal masks have no wrapper among our crates")]
fn block_all_signals() {
    // SAFETY: `all` is initialised by sigfillset before use; the call changes this thread's mask only.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}

/// Default dispositions and an empty mask, as a program expects; Rust's runtime ignores SIGPIPE.
#[expect(unsafe_code, reason = "signal dispositions have no wrapper among our crates")]
fn restore_signals() {
    for signal in 1..=64 {
        // SAFETY: SIG_DFL installs no handler; the table is the child's own, for CLONE_SIGHAND is not set. Numbers the
        // C library keeps to itself answer EINVAL.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: as in `block_all_signals`.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}
