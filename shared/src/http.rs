//! The only HTTP server loop and the only HTTP client in the daemons.
//!
//! axum's own `serve` and reqwest both start tasks and open sockets behind our back; these go through the seams.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connected, Connection},
    },
    rt::{TokioIo, TokioTimer},
};
use tokio::time::Instant;

use crate::{
    backoff::Backoff,
    seams::{BoxFuture, Env, Net, Tasks},
};

/// Requests that end in time.
pub mod deadline;
/// Reading what is not wanted.
mod drain;
/// Answers on connections that are not served.
mod farewell;
/// Connections of which nothing is read that has not one reading.
mod framed;
/// Where a request ends.
mod framing;
/// What concerns one connection only.
pub mod hop;
/// How much a server takes on, and how long it waits.
mod limits;
/// Bodies that may pause, but not for ever.
pub mod pace;
/// The last words on a websocket.
mod parting;
/// The server.
mod serve;
/// Connections whose other side stands still.
mod stall;
/// Connections that were upgraded.
pub mod tunnel;
/// Whose turn it is on a connection.
mod turn;

pub use drain::drain;
pub use framing::Fault;
pub use limits::{Args as LimitArgs, Limits};
pub use serve::serve;
use stall::Stalling;

/// Longest wait for a connection to a peer.
pub const CONNECT: Duration = Duration::from_secs(10);

/// How long a peer who is expected back is dialled: within [`CONNECT`], so that what is said in the end is why.
const PATIENCE: Duration = Duration::from_secs(9);
/// Between two dials of it.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(400));

/// An HTTP/1.1 client with a pool of connections per peer. Only `http://` endpoints are reached.
pub type HttpClient<B> = Client<Connector, B>;

/// A client over the seams. It keeps an unused connection for three quarters of the time its peer does, so that hardly ever
/// a request meets one that is just being closed.
pub fn client<B>(env: &Env, limits: Limits) -> HttpClient<B>
where
    B: http_body::Body + Send,
    B::Data: Send,
{
    built(env, limits, None)
}

/// Whether somebody who refuses connections is expected back.
pub type Expected = Arc<dyn Fn(&Uri) -> bool + Send + Sync>;

/// A client that dials again while it is refused by a peer who is expected back, for nine seconds: nothing was sent,
/// and whoever asks waits a moment instead of being refused.
pub fn patient_client<B>(env: &Env, limits: Limits, expected: Expected) -> HttpClient<B>
where
    B: http_body::Body + Send,
    B::Data: Send,
{
    built(env, limits, Some(expected))
}

fn built<B>(env: &Env, limits: Limits, expected: Option<Expected>) -> HttpClient<B>
where
    B: http_body::Body + Send,
    B::Data: Send,
{
    Client::builder(Spawner(env.tasks.clone()))
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(limits.idle_timeout * 3 / 4)
        .pool_max_idle_per_host(64)
        // Only what was never written goes out again, on a fresh connection: the kept one had been closed meanwhile.
        .retry_canceled_requests(true)
        .set_host(true)
        .build(Connector { net: env.net.clone(), stall: limits.client_timeout, expected })
}

/// Starts hyper's tasks through the seam.
#[derive(Clone)]
struct Spawner(Arc<dyn Tasks>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Spawner {
    fn execute(&self, task: F) {
        self.0.spawn("http", Box::pin(task));
    }
}

/// Opens connections through the seam, each within [`CONNECT`].
#[derive(Clone)]
pub struct Connector {
    net: Arc<dyn Net>,
    /// Longest pause of a peer in taking what is sent to it.
    stall: Duration,
    expected: Option<Expected>,
}

impl tower_service::Service<Uri> for Connector {
    type Response = Dialled;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Dialled>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (to, net, stall, expected) = (address(&uri), self.net.clone(), self.stall, self.expected.clone());
        Box::pin(async move {
            let to = to?;
            let dial = async {
                let (mut again, until) = (AGAIN, Instant::now() + PATIENCE);
                loop {
                    let refused = match net.connect(&to).await {
                        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => error,
                        dialled => return dialled,
                    };
                    let waits = expected.as_ref().is_some_and(|expected| expected(&uri));
                    if !waits || Instant::now() >= until {
                        return Err(refused);
                    }
                    tokio::time::sleep(again.wait()).await;
                }
            };
            let io = tokio::time::timeout(CONNECT, dial).await.map_err(|_| io::ErrorKind::TimedOut)??;
            Ok(Dialled(TokioIo::new(Stalling::new(io, stall))))
        })
    }
}

/// The `host:port` a URL points at.
///
/// # Errors
/// When it has no host, or is not plain HTTP.
pub fn address(uri: &Uri) -> io::Result<String> {
    let host =
        uri.host().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the URL has no host"))?;
    if uri.scheme_str() == Some("https") {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "TLS between gateway and node is not built yet",
        ));
    }
    Ok(format!("{host}:{}", uri.port_u16().unwrap_or(80)))
}

/// A connection to a peer.
pub struct Dialled(TokioIo<Stalling>);

impl Connection for Dialled {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Dialled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl hyper::rt::Write for Dialled {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }
}

/// Why a peer did not answer, in the words an operator knows.
pub fn why(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = Some(error);
    let mut last = String::new();
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return match io.kind() {
                io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
                io::ErrorKind::ConnectionReset => "connection reset".to_owned(),
                io::ErrorKind::TimedOut => "timed out".to_owned(),
                _ => io.to_string(),
            };
        }
        last = error.to_string();
        cause = error.source();
    }
    last
}
