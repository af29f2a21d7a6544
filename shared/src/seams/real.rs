use std::{
    fs::File,
    io::{self, BufReader, Read},
    os::fd::AsFd,
    sync::{LazyLock, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use tokio::net::{TcpListener, TcpStream};

use super::{Accept, BoxFuture, BoxIo, Clock, Entropy, Net, Tasks};

/// Most connections that wait to be accepted, if the kernel allows so many. A client whose connection finds no place tries
/// again only a second later.
const BACKLOG: i32 = 4096;
/// A connection that is quiet for so long is asked whether its other end still lives.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// Between two such questions.
const KEEPALIVE_AGAIN: Duration = Duration::from_secs(5);
/// Questions without an answer after which the connection is given up.
const KEEPALIVE_QUESTIONS: u32 = 3;
/// What was sent and not taken for so long gives the connection up too. The kernel counts a reader that lives but reads
/// nothing the same way, so this is also how long a download may pause; a vanished machine is seen by its check-ins long
/// before.
const UNACKNOWLEDGED_MS: u32 = 60_000;

/// A peer that vanished without a word never ends a connection; without this, whoever waits for it waits for ever.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    let socket = stream.as_fd();
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_AGAIN)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_QUESTIONS)?;
    sockopt::set_tcp_user_timeout(socket, UNACKNOWLEDGED_MS)?;
    Ok(())
}

/// The machine itself.
pub(super) struct Machine;

impl Net for Machine {
    fn connect(&self, to: &str) -> BoxFuture<'static, io::Result<BoxIo>> {
        let to = to.to_owned();
        Box::pin(async move {
            #[expect(clippy::disallowed_methods, reason = "this is the seam")]
            let stream = TcpStream::connect(to).await?;
            stream.set_nodelay(true)?;
            keep_alive(&stream)?;
            Ok(Box::new(stream) as BoxIo)
        })
    }

    fn bind(&self, at: &str) -> BoxFuture<'static, io::Result<Box<dyn Accept>>> {
        let at = at.to_owned();
        Box::pin(async move {
            #[expect(clippy::disallowed_methods, reason = "this is the seam")]
            let listener = TcpListener::bind(at).await?;
            // It listens already, with a queue of 128.
            rustix::net::listen(&listener, BACKLOG)?;
            Ok(Box::new(listener) as Box<dyn Accept>)
        })
    }
}

impl Accept for TcpListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(BoxIo, String)>> {
        Box::pin(async move {
            let (stream, peer) = TcpListener::accept(self).await?;
            stream.set_nodelay(true)?;
            keep_alive(&stream)?;
            Ok((Box::new(stream) as BoxIo, peer.to_string()))
        })
    }

    fn local(&self) -> String {
        self.local_addr().map(|a| a.to_string()).unwrap_or_default()
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
        let mut listener = Machine.bind("127.0.0.1:0").await.expect("a free port");
        let at = listener.local();
        let (dialled, accepted) = tokio::join!(Machine.connect(&at), listener.accept());
        assert!(dialled.is_ok() && accepted.is_ok(), "the options are known to this kernel");
        #[expect(clippy::disallowed_methods, reason = "a plain socket to look at")]
        let stream = TcpStream::connect(&at).await.expect("listening");
        keep_alive(&stream).expect("set");
        assert!(sockopt::socket_keepalive(&stream).expect("read"));
        assert_eq!(sockopt::tcp_user_timeout(&stream).expect("read"), UNACKNOWLEDGED_MS);
    }

    #[tokio::test]
    async fn a_burst_of_connections_waits_for_nobody() {
        let listener = Machine.bind("127.0.0.1:0").await.expect("a free port");
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
