use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, Uri};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use crate::body::Body;
use crate::connect;

/// Relays at once: each holds a connection, and some must be left for everything else.
const RELAYS_MAX: usize = 384;
/// How long one attempt to connect may take; a listener that accepts nothing has a full queue.
const DIAL_WAIT: Duration = Duration::from_secs(5);
/// How long a caller may have a listener waited for.
const WAIT_MS_MAX: u64 = 60_000;
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How often a client that has ended is looked at: whether it still listens.
const GONE_LOOK: Duration = Duration::from_millis(500);
const PIECE_BYTES: usize = 32 * 1024;

thread_local! {
    /// One buffer for all relays, so that a quiet one costs none.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE_BYTES]);
}

/// Why there is no connection to a port.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0}")]
    Invalid(&'static str),
    #[error("port {0} is not open: nothing listens on it")]
    Closed(u16),
    #[error("port {0} does not answer: its listener accepts nothing")]
    Silent(u16),
    #[error("{RELAYS_MAX} connections to ports are open already")]
    TooMany,
    #[error("cannot connect to port {port}: {source}")]
    Failed { port: u16, source: io::Error },
}

impl Error {
    fn respond(&self) -> Response<Body> {
        let (status, code) = match self {
            Self::Invalid(_) => (StatusCode::BAD_REQUEST, "invalid_argument"),
            Self::Closed(_) => (StatusCode::BAD_GATEWAY, "port_closed"),
            Self::Silent(_) => (StatusCode::GATEWAY_TIMEOUT, "port_silent"),
            Self::TooMany | Self::Failed { .. } => (StatusCode::SERVICE_UNAVAILABLE, "resource_exhausted"),
        };
        connect::json_response(status, &json!({"code": code, "message": self.to_string()}))
    }
}

/// A connection to a port, until its client's own connection is free for it.
pub(crate) struct Dialled {
    port: TcpStream,
    _place: OwnedSemaphorePermit,
}

/// How many more there may be.
pub(crate) struct Relays(Arc<Semaphore>);

impl Relays {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(RELAYS_MAX)))
    }

    /// Serves CONNECT: dials a port of the space's own loopback, over IPv4 or else IPv6. With `Drowse-Wait-Ms`, a listener that
    /// is not there yet is waited for so long.
    pub(crate) async fn serve(&self, uri: &Uri, headers: &HeaderMap) -> Result<Dialled, Response<Body>> {
        self.dial(uri, headers).await.map_err(|error| error.respond())
    }

    async fn dial(&self, uri: &Uri, headers: &HeaderMap) -> Result<Dialled, Error> {
        let port = target(uri)?;
        let wait = connect::number_header(headers, "drowse-wait-ms")
            .map_err(|_| Error::Invalid("drowse-wait-ms is not a whole number"))?;
        let wait = Duration::from_millis(wait.unwrap_or(0).min(WAIT_MS_MAX));
        let place = Arc::clone(&self.0).try_acquire_owned().map_err(|_| Error::TooMany)?;
        let port = dial(port, Instant::now() + wait).await?;
        Ok(Dialled { port, _place: place })
    }
}

/// The port of a CONNECT to this host; no other is relayed to.
fn target(uri: &Uri) -> Result<u16, Error> {
    let authority = uri.authority().ok_or(Error::Invalid("CONNECT wants host:port"))?;
    if !matches!(authority.host(), "localhost" | "127.0.0.1" | "[::1]") {
        return Err(Error::Invalid("only ports of localhost are relayed to"));
    }
    authority
        .port_u16()
        .filter(|port| *port > 0)
        .ok_or(Error::Invalid("CONNECT wants a port from 1 to 65535"))
}

async fn dial(port: u16, until: Instant) -> Result<TcpStream, Error> {
    let mut pause = PAUSE_MIN;
    loop {
        match attempt(port).await {
            Err(Error::Closed(_)) if Instant::now() < until => {}
            dialled => return dialled,
        }
        sleep(pause.min(until.saturating_duration_since(Instant::now()))).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn attempt(port: u16) -> Result<TcpStream, Error> {
    for host in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        match timeout(DIAL_WAIT, TcpStream::connect(SocketAddr::new(host, port))).await {
            Ok(Ok(stream)) => {
                // What an app writes is to arrive at once; that this fails shows when it is used.
                let _as_it_is = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => match error.raw_os_error() {
                Some(
                    libc::ECONNREFUSED
                    | libc::ECONNRESET
                    | libc::EADDRNOTAVAIL
                    | libc::ENETUNREACH
                    | libc::EAFNOSUPPORT,
                ) => {}
                _ => return Err(Error::Failed { port, source: error }),
            },
            Err(_) => return Err(Error::Silent(port)),
        }
    }
    Err(Error::Closed(port))
}

/// The answer that makes a connection a relay.
pub(crate) fn connected() -> Response<Body> {
    Response::new(Body::empty())
}

/// Carries bytes both ways until both sides have ended, or one broke. `early` came with the request.
pub(crate) async fn run(client: UnixStream, early: Bytes, dialled: Dialled) {
    let Dialled { port, _place } = dialled;
    let (from_client, mut to_client) = client.into_split();
    let (from_port, mut to_port) = port.into_split();
    let ended = Notify::new();
    let up = async {
        to_port.write_all(&early).await?;
        loop {
            from_client.readable().await?;
            match take(|scratch| from_client.try_read(scratch))? {
                None => {}
                Some(piece) if piece.is_empty() => {
                    ended.notify_one();
                    return to_port.shutdown().await;
                }
                Some(piece) => to_port.write_all(&piece).await?,
            }
        }
    };
    let down = async {
        loop {
            from_port.readable().await?;
            match take(|scratch| from_port.try_read(scratch))? {
                None => {}
                Some(piece) if piece.is_empty() => return to_client.shutdown().await,
                Some(piece) => to_client.write_all(&piece).await?,
            }
        }
    };
    // A client that ended may still listen, or be gone for good; an app that says nothing would not find out.
    let gone = async {
        ended.notified().await;
        while !has_hung_up(&from_client) {
            sleep(GONE_LOOK).await;
        }
    };
    let both = async {
        // A side that broke ends both: the other must not wait for what cannot come.
        let _ended = tokio::try_join!(up, down);
    };
    tokio::select! {
        biased;
        () = both => {}
        () = gone => {}
    }
}

fn has_hung_up(client: &OwnedReadHalf) -> bool {
    let stream: &UnixStream = client.as_ref();
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    let looked = rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    looked.is_ok() && polled[0].revents().contains(PollFlags::HUP)
}

/// A piece of what is there; empty at the end, `None` when there is nothing yet.
fn take(read: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<Option<Vec<u8>>> {
    SCRATCH.with_borrow_mut(|scratch| match read(scratch) {
        Ok(got) => Ok(Some(scratch[..got].to_vec())),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ports_of_this_host_are_dialled() {
        let port = |text: &str| target(&text.parse().unwrap()).ok();
        assert_eq!(port("localhost:80"), Some(80));
        assert_eq!(port("127.0.0.1:65535"), Some(65535));
        assert_eq!(port("[::1]:1"), Some(1));
        for other in ["localhost:0", "127.0.0.2:80", "10.0.0.1:80", "example.com:443", "/", "localhost:70000"]
        {
            assert_eq!(port(other), None, "{other}");
        }
    }
}
