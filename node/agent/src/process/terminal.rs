use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use serde::Deserialize;
use tokio::io::unix::AsyncFd;

use crate::users::User;

/// What a terminal is opened with or changed to.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct Request {
    size: Option<Size>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Size {
    #[serde(default)]
    cols: u16,
    #[serde(default)]
    rows: u16,
}

impl Request {
    /// The size asked for, if one was.
    pub(super) fn size(self) -> Option<Winsize> {
        let size = self.size.filter(|size| size.cols > 0 || size.rows > 0)?;
        Some(Winsize { ws_col: size.cols, ws_row: size.rows, ws_xpixel: 0, ws_ypixel: 0 })
    }
}

/// Our end of a command's terminal.
pub(super) struct Terminal(AsyncFd<OwnedFd>);

impl Terminal {
    /// Opens one of the given size; the descriptors are the command's stdin, stdout and stderr.
    pub(super) fn open(size: Winsize, user: &User) -> io::Result<(Self, [OwnedFd; 3])> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags)?;
        rustix::pty::unlockpt(&master)?;
        rustix::termios::tcsetwinsize(&master, size)?;
        rustix::io::ioctl_fionbio(&master, true)?;
        let theirs = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
        // Programs open it again by name, as `/dev/stdout`. Where the kernel refuses, they still have the open ones.
        let uid = rustix::fs::Uid::from_raw(user.uid);
        let _kept = rustix::fs::fchown(&theirs, Some(uid), None);
        let stdio = [theirs.try_clone()?, theirs.try_clone()?, theirs];
        Ok((Self(crate::sys::watch(master)?), stdio))
    }

    /// One that an earlier agent opened.
    pub(super) fn adopt(master: OwnedFd) -> io::Result<Self> {
        Ok(Self(crate::sys::watch(master)?))
    }

    /// Changes its size; the command hears of it by SIGWINCH.
    pub(super) fn resize(&self, size: Winsize) -> io::Result<()> {
        Ok(rustix::termios::tcsetwinsize(self.0.get_ref(), size)?)
    }

    pub(super) async fn readable(&self) {
        // Readiness is an optimisation: an error shows again when reading.
        drop(self.0.readable().await);
    }

    /// Reads what is there; `WouldBlock` when that is nothing, an error or nothing once no process holds it any more.
    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_io(tokio::io::Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut *buffer)?))
    }

    /// The same without asking the runtime.
    pub(super) fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(self.0.get_ref(), buffer)?)
    }

    /// Types all of `bytes`.
    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written =
                self.0.async_io(tokio::io::Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, bytes)?));
            bytes = &bytes[written.await?..];
        }
        Ok(())
    }
}

impl AsRawFd for Terminal {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
