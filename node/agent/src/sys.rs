use std::ffi::{CStr, CString, c_char};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use tokio::io::unix::AsyncFd;

/// Takes over descriptor `fd`, which whoever started this process promised to leave open for it alone.
#[expect(unsafe_code, reason = "inherited descriptors arrive as plain numbers")]
pub(crate) fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_SETFD touches nothing but the descriptor and fails with EBADF when it is not open.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and the command line is the only source of the number, read once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Keeps every descriptor from `first` on out of whatever is executed from here.
#[expect(unsafe_code, reason = "close_range has no wrapper among our crates")]
pub(crate) fn keep_from_children(first: RawFd) {
    // SAFETY: with this flag the call closes nothing, it marks. Where the kernel lacks it, only descriptors that a
    // careless parent left open stay inheritable.
    unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// Lets the runtime wait for a descriptor that is none of its own kinds.
#[expect(unsafe_code, reason = "the runtime cannot check that a descriptor stays the same one")]
pub(crate) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor keeps its number until it is dropped, and the runtime forgets it before that.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

/// Makes this process another program, with `kept` descriptors open in it. Only comes back, with the reason, when that failed.
///
/// SIGTERM is held back meanwhile: the program finds it waiting once it lets it through.
#[expect(unsafe_code, reason = "execve with everything kept is the point of it")]
pub(crate) fn become_program(
    program: &CStr,
    args: &[&CStr],
    environment: &[CString],
    kept: &[RawFd],
) -> io::Error {
    let pointers = |texts: &mut dyn Iterator<Item = *const c_char>| {
        texts.chain(std::iter::once(std::ptr::null())).collect::<Vec<_>>()
    };
    let argv = pointers(&mut args.iter().map(|arg| arg.as_ptr()));
    let envp = pointers(&mut environment.iter().map(|variable| variable.as_ptr()));
    let inherit = |flags: libc::c_int| {
        for fd in kept {
            // SAFETY: F_SETFD touches nothing but the descriptor.
            unsafe { libc::fcntl(*fd, libc::F_SETFD, flags) };
        }
    };
    hold_terminate(true);
    inherit(0);
    // SAFETY: argv and envp are null-terminated arrays of strings that outlive the call. Other threads hold nothing that
    // matters to the program; the kernel ends them.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    let error = io::Error::last_os_error();
    inherit(libc::FD_CLOEXEC);
    hold_terminate(false);
    error
}

/// Keeps SIGTERM waiting, or lets it through.
#[expect(unsafe_code, reason = "signal masks have no wrapper among our crates")]
pub(crate) fn hold_terminate(held: bool) {
    let how = if held { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    // SAFETY: the set is initialised by sigemptyset before use; the call changes this thread's mask only.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut());
    }
}

/// Random bytes, for names and cookies nobody should guess.
#[expect(unsafe_code, reason = "getrandom has no wrapper among our crates")]
pub(crate) fn random() -> [u8; 16] {
    let mut bytes = [0_u8; 16];
    let mut have = 0;
    while have < bytes.len() {
        let rest = &mut bytes[have..];
        // SAFETY: the pointer and length describe `rest`, which is ours.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        have += usize::try_from(got).unwrap_or(0);
    }
    bytes
}

/// The same as 32 hex digits.
pub(crate) fn random_hex() -> String {
    random().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Signals every process this one may signal, except itself. Only for pid 1 of a space.
#[expect(unsafe_code, reason = "rustix refuses kill(-1)")]
pub(crate) fn signal_everything(signal: i32) {
    // SAFETY: kill has no memory effects.
    unsafe { libc::kill(-1, signal) };
}

/// Signals one process, or with a negative number a group. An error means it is gone or is not ours: nothing to do.
#[expect(unsafe_code, reason = "signal numbers come from the wire, rustix wants named ones")]
pub(crate) fn signal(pid: i32, signal: i32) -> io::Result<()> {
    debug_assert!(pid != 0 && pid != -1, "would reach beyond one command");
    // SAFETY: kill has no memory effects.
    if unsafe { libc::kill(pid, signal) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets the file system identity of this thread; proves that it took effect.
#[expect(unsafe_code, reason = "setfsuid and setfsgid have no wrapper among our crates")]
pub(crate) fn set_fs_identity(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: both calls change this thread's credentials only. They report no error, so a second call that is
    // always refused reads the value back.
    let (now_uid, now_gid) = unsafe {
        libc::setfsgid(gid);
        let now_gid = libc::setfsgid(u32::MAX);
        libc::setfsuid(uid);
        (libc::setfsuid(u32::MAX), now_gid)
    };
    if now_uid.cast_unsigned() == uid && now_gid.cast_unsigned() == gid {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }
}

/// Forks a child that writes "0" to each of `procs` (moving itself there), then becomes `program` with `socket` open.
#[expect(unsafe_code, reason = "a child must move itself into its cgroups between fork and exec")]
pub(crate) fn fork_moved(
    program: &CStr,
    args: &[&CStr],
    socket: BorrowedFd<'_>,
    procs: &[OwnedFd],
) -> io::Result<Pid> {
    let mut argv: Vec<*const c_char> = args.iter().map(|arg| arg.as_ptr()).collect();
    argv.push(std::ptr::null());
    let envp: [*const c_char; 1] = [std::ptr::null()];
    let socket = socket.as_raw_fd();
    // SAFETY: other threads may exist, so the child uses only async-signal-safe calls on memory prepared before.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        for procs_fd in procs {
            // SAFETY: the descriptor is open, the buffer is a constant.
            if unsafe { libc::write(procs_fd.as_raw_fd(), b"0".as_ptr().cast(), 1) } != 1 {
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(90) };
            }
        }
        // SAFETY: argv and envp are null-terminated arrays of strings that outlive the call.
        unsafe {
            libc::fcntl(socket, libc::F_SETFD, 0);
            libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr());
            libc::_exit(91);
        }
    }
    match Pid::from_raw(pid) {
        Some(pid) if pid.as_raw_nonzero().get() > 0 => Ok(pid),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What the kernel calls error `errno`.
pub(crate) fn errno_text(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}

/// Points stdin, stdout and stderr at `/dev/null`: they are the host's files otherwise.
pub(crate) fn close_stdio() -> io::Result<()> {
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
