use std::{
    fs::File,
    io::{self, BufReader, Read},
    net::IpAddr,
    os::fd::AsFd,
    sync::{LazyLock, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use tokio::net::{TcpListener, TcpStream};

use super::{Accept, BoxFuture, BoxIo, Caller, Clock, Entropy, Net, Tasks};

/// Most connections that wait to be accepted, if the kernel allows so many. A client whose connection finds no place tries
/// again only a second later.
const BACKLOG: i32 = 4096;
/// Questions without an answer after which a connection is given up.
const KEEPALIVE_QUESTIONS: u32 = 3;
/// How long a peer may give no sign of life, if nobody says otherwise.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(60);
/// The kernel counts in seconds.
const SECOND: Duration = Duration::from_secs(1);

/// A peer that vanished without a word never ends a connection; without this, whoever waits for it waits for ever. A quiet
/// connection is asked after a quarter of `patience` whether its other end lives, and then again and again. What was sent and not
/// taken for as long gives the connection up too. The kernel counts a reader that lives but reads nothing the same way, so
/// this is also how long a download may pause.
fn keep_alive(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    use rustix::net::sockopt;
    let socket = stream.as_fd();
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, (patience / 4).max(SECOND))?;
    sockopt::set_tcp_keepintvl(socket, (patience / 12).max(SECOND))?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_QUESTIONS)?;
    sockopt::set_tcp_user_timeout(socket, u32::try_from(patience.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}

/// The machine itself.
#[derive(Clone, Copy)]
pub(super) struct Machine {
    /// How long a peer may give no sign of life.
    pub(super) peer_timeout: Duration,
}

impl Default for Machine {
    fn default() -> Self {
        Self { peer_timeout: PEER_TIMEOUT }
    }
}

/// A listening socket, and how long those who come in may give no sign of life.
struct Listener {
    socket: TcpListener,
    peer_timeout: Duration,
}

impl Net for Machine {
    fn connect(&self, to: &str) -> BoxFuture<'static, io::Result<BoxIo>> {
        let (to, patience) = (to.to_owned(), self.peer_timeout);
        Box::pin(async move {
            #[expect(clippy::disallowed_methods, reason = "this is the seam")]
            let stream = TcpStream::connect(to).await?;
            stream.set_nodelay(true)?;
            keep_alive(&stream, patience)?;
            Ok(Box::new(stream) as BoxIo)
        })
    }

    fn bind(&self, at: &str) -> BoxFuture<'static, io::Result<Box<dyn Accept>>> {
        let (at, peer_timeout) = (at.to_owned(), self.peer_timeout);
        Box::pin(async move {
            #[expect(clippy::disallowed_methods, reason = "this is the seam")]
            let listener = TcpListener::bind(at).await?;
            self::listener(listener, peer_timeout)
        })
    }
}

/// A proxy on the machine of a daemon that listens at another address than loopback comes from that address.
fn is_near(peer: IpAddr, local: IpAddr) -> bool {
    let (peer, local) = (peer.to_canonical(), local.to_canonical());
    peer.is_loopback() || peer == local
}

/// A socket that listens already, with whatever queue it has.
pub(super) fn listener(socket: TcpListener, peer_timeout: Duration) -> io::Result<Box<dyn Accept>> {
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(Box::new(Listener { socket, peer_timeout }))
}

impl Accept for Listener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(BoxIo, Caller)>> {
        Box::pin(async move {
            let (stream, peer) = self.socket.accept().await?;
            stream.set_nodelay(true)?;
            keep_alive(&stream, self.peer_timeout)?;
            let caller =
                Caller { address: peer.to_string(), is_near: is_near(peer.ip(), stream.local_addr()?.ip()) };
            Ok((Box::new(stream) as BoxIo, caller))
        })
    }

    fn local(&self) -> String {
        self.socket.local_addr().map(|a| a.to_string()).unwrap_or_default()
    }
}

impl Clock for Machine {
    fn wall(&self) -> Timestamp {
        #[expect(clippy::disallowed_methods, reason = "this is the seam")]
        Timestamp::now()
    }
}

impl Entropy for Machine {
    fn fill(&self, out: &mut [u8]) {
        // Every request mints an id; one read serves a few hundred of them.
        static SOURCE: LazyLock<io::Result<Mutex<BufReader<File>>>> =
            LazyLock::new(|| File::open("/dev/urandom").map(|file| Mutex::new(BufReader::new(file))));
        let filled = SOURCE.as_ref().is_ok_and(|source| {
            source.lock().unwrap_or_else(PoisonError::into_inner).read_exact(out).is_ok()
        });
        assert!(filled, "/dev/urandom cannot be read; nothing safe can be minted without it");
    }
}

impl Tasks for Machine {
    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) {
        #[expect(clippy::disallowed_methods, reason = "this is the seam")]
        tokio::spawn(task);
    }

    fn blocking(&self, name: &'static str, job: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        #[expect(clippy::disallowed_methods, reason = "this is the seam")]
        let handle = tokio::task::spawn_blocking(job);
        Box::pin(async move {
            if let Err(error) = handle.await {
                tracing::error!(job = name, %error, "blocking work did not end normally");
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt;

    #[tokio::test]
    async fn both_ends_of_a_connection_notice_a_peer_that_vanished() {
        let patience = Duration::from_secs(30);
        let machine = Machine { peer_timeout: patience };
        let mut listener = machine.bind("127.0.0.1:0").await.expect("a free port");
        let at = listener.local();
        let (dialled, accepted) = tokio::join!(machine.connect(&at), listener.accept());
        assert!(dialled.is_ok() && accepted.is_ok(), "the options are known to this kernel");
        #[expect(clippy::disallowed_methods, reason = "a plain socket to look at")]
        let stream = TcpStream::connect(&at).await.expect("listening");
        keep_alive(&stream, patience).expect("set");
        assert!(sockopt::socket_keepalive(&stream).expect("read"));
        assert_eq!(sockopt::tcp_user_timeout(&stream).expect("read"), 30_000);
        let asked = sockopt::tcp_keepidle(&stream).expect("read")
            + sockopt::tcp_keepintvl(&stream).expect("read") * 3;
        assert!(asked <= patience, "it is asked often enough before: {asked:?}");
    }

    #[test]
    fn who_is_on_this_machine_is_known_by_its_address() {
        for (peer, local, expected) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("::1", "::1", true),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("10.0.0.7", "10.0.0.1", false),
            ("::ffff:10.0.0.7", "::ffff:10.0.0.1", false),
        ] {
            let ip = |text: &str| text.parse().expect("an address");
            assert_eq!(is_near(ip(peer), ip(local)), expected, "{peer} at {local}");
        }
    }

    #[tokio::test]
    async fn a_burst_of_connections_waits_for_nobody() {
        let listener = Machine::default().bind("127.0.0.1:0").await.expect("a free port");
        let at = listener.local().parse().expect("an address");
        // Nobody accepts: all of them wait in the kernel. One that finds no place tries again a second later.
        let patience = Duration::from_millis(900);
        let burst = (0..600).map(|n| {
            std::net::TcpStream::connect_timeout(&at, patience)
                .unwrap_or_else(|error| panic!("the {n}th: {error}"))
        });
        assert_eq!(burst.collect::<Vec<_>>().len(), 600);
    }
}
