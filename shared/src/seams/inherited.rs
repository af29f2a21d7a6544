//! A listening socket that whoever started this process holds: it outlives the process, and those who come while nobody
//! runs wait in it.

use std::{
    io,
    net::TcpListener,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{Accept, BoxFuture, BoxIo, Env, Net, real};

/// The first descriptor that is handed over.
const FIRST: RawFd = 3;

/// Why the socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Several.
    #[error("LISTEN_FDS hands {0} sockets over; this daemon listens on one")]
    Many(u32),
    /// No socket.
    #[error("what LISTEN_FDS hands over is no TCP socket that listens; see ListenStream of the socket unit")]
    Unfit(#[source] io::Error),
}

/// The socket that was handed over, if `sockets` says that there is one. To be asked for once, at the start.
///
/// # Errors
/// When it is none to accept connections from.
pub fn inherited(sockets: Option<u32>) -> Result<Option<TcpListener>, Error> {
    match sockets {
        None => Ok(None),
        Some(1) => take(FIRST).map(Some).map_err(Error::Unfit),
        Some(many) => Err(Error::Many(many)),
    }
}

fn take(number: RawFd) -> io::Result<TcpListener> {
    #[expect(unsafe_code, reason = "a descriptor that was handed over is known by its number only")]
    // SAFETY: it is only asked what it is, and that ends before this function does. Were it closed, the question fails.
    let socket = unsafe { BorrowedFd::borrow_raw(number) };
    let unfit = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
    if !rustix::net::sockopt::socket_acceptconn(socket)? {
        return Err(unfit("it does not listen"));
    }
    let address = rustix::net::getsockname(socket)?;
    if std::net::SocketAddr::try_from(address).is_err() {
        return Err(unfit("it is no TCP socket"));
    }
    // A program that is started does not keep the address.
    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC)?;
    #[expect(unsafe_code, reason = "see above")]
    // SAFETY: it was handed over for this process to own, and nobody else here takes sockets that listen by number.
    let socket = unsafe { OwnedFd::from_raw_fd(socket.as_raw_fd()) };
    let socket = TcpListener::from(socket);
    socket.set_nonblocking(true)?;
    Ok(socket)
}

impl Env {
    /// The same machine, on which the first address that is listened on is this socket's.
    #[must_use]
    pub fn inheriting(self, socket: TcpListener, peer_timeout: Duration) -> Self {
        let net = Inheriting { net: self.net, peer_timeout, socket: Mutex::new(Some(socket)) };
        Self { net: Arc::new(net), ..self }
    }
}

struct Inheriting {
    net: Arc<dyn Net>,
    peer_timeout: Duration,
    socket: Mutex<Option<TcpListener>>,
}

impl Net for Inheriting {
    fn connect(&self, to: &str) -> BoxFuture<'static, io::Result<BoxIo>> {
        self.net.connect(to)
    }

    fn bind(&self, at: &str) -> BoxFuture<'static, io::Result<Box<dyn Accept>>> {
        let Some(socket) = self.socket.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return self.net.bind(at);
        };
        let (at, peer_timeout) = (at.to_owned(), self.peer_timeout);
        Box::pin(async move {
            let listener = real::listener(tokio::net::TcpListener::from_std(socket)?, peer_timeout)?;
            let address = listener.local();
            if address != at {
                tracing::warn!(
                    address,
                    setting = at,
                    "the socket that was handed over is at another address; it is used"
                );
            }
            Ok(listener)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd as _;

    use super::*;

    #[test]
    fn what_cannot_be_accepted_from_is_refused() {
        assert!(matches!(inherited(None), Ok(None)));
        assert!(matches!(inherited(Some(2)), Err(Error::Many(2))));
        let file = std::fs::File::open("/dev/null").expect("a file");
        assert!(take(file.as_raw_fd()).is_err(), "no socket");
        let dir = tempfile::tempdir().expect("a directory");
        let unix = std::os::unix::net::UnixListener::bind(dir.path().join("s")).expect("bound");
        assert!(take(unix.as_raw_fd()).is_err(), "no TCP");
        let listening = TcpListener::bind("127.0.0.1:0").expect("bound");
        let dialled =
            std::net::TcpStream::connect(listening.local_addr().expect("bound")).expect("listening");
        assert!(take(dialled.as_raw_fd()).is_err(), "it does not listen");
    }

    #[tokio::test]
    async fn the_first_address_is_the_one_that_was_handed_over() {
        let held = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = held.local_addr().expect("bound").to_string();
        let handed = take(held.try_clone().expect("a descriptor is left").into_raw_fd()).expect("it listens");
        let env = Env::real().inheriting(handed, real::PEER_TIMEOUT);
        let mut listener = env.net.bind("127.0.0.1:1").await.expect("handed over");
        assert_eq!(listener.local(), address);
        let (dialled, accepted) = tokio::join!(env.net.connect(&address), listener.accept());
        assert!(dialled.is_ok() && accepted.is_ok());
        drop(listener);
        assert!(env.net.connect(&address).await.is_ok(), "whoever comes now waits");
        assert_ne!(
            env.net.bind("127.0.0.1:0").await.expect("a free port").local(),
            address,
            "only the first"
        );
    }
}
