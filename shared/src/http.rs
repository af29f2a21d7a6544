//! The only HTTP server loop and the only HTTP client in the daemons.
//!
//! axum's own `serve` and reqwest both start tasks and open sockets behind our back; these go through the seams.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, response::IntoResponse as _};
use http::{Uri, header};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connected, Connection},
    },
    rt::{TokioIo, TokioTimer},
};
use tower_service::Service as _;

use crate::{
    api::{Code, Error},
    seams::{Accept, BoxFuture, BoxIo, Env, Net, Tasks},
    shutdown::Shutdown,
};
use std::sync::Arc;

/// Longest wait for a request's head, once its connection is open or its predecessor answered.
const HEAD: Duration = Duration::from_secs(60);
/// Reading what is not wanted.
mod drain;

pub use drain::drain;

/// Longest wait for a connection to a peer.
pub const CONNECT: Duration = Duration::from_secs(10);
/// How long an unused connection to a peer is kept.
const IDLE: Duration = Duration::from_secs(60);
/// Pause after an accept that failed, as when descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `app` on a bound listener until `shutdown` says stop; open connections then finish their request.
///
/// A handler's future is dropped as soon as its caller leaves, so whatever must finish runs in a task of its own.
pub async fn serve(env: Env, mut listener: Box<dyn Accept>, app: Router, shutdown: Shutdown) {
    loop {
        let accepted = crate::select_biased! {
            () = shutdown.stopping() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((io, peer)) => {
                let connection = connection(io, app.clone(), shutdown.clone(), peer);
                env.spawn("connection", connection);
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(io: BoxIo, app: Router, shutdown: Shutdown, peer: String) {
    let _running = shutdown.running();
    let peer = Peer(peer);
    let service = hyper::service::service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer.clone());
        let refused = ambiguous(request.headers()).map(|why| Error::new(Code::InvalidRequest, why));
        let mut app = app.clone();
        async move {
            match refused {
                Some(error) => Ok(error.into_response()),
                None => app.call(request).await,
            }
        }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    // The date header would differ between two runs of one seed.
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD).auto_date_header(false);
    let served = builder.serve_connection(TokioIo::new(io), service).with_upgrades();
    let mut served = std::pin::pin!(served);
    let ended = crate::select_biased! {
        ended = served.as_mut() => ended,
        () = shutdown.stopping() => {
            served.as_mut().graceful_shutdown();
            crate::select_biased! {
                ended = served.as_mut() => ended,
                () = shutdown.cutting() => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Why a request could be read in two ways, if it could: by us in one, by a proxy before us in the other.
fn ambiguous(headers: &http::HeaderMap) -> Option<&'static str> {
    if headers.get_all(header::HOST).iter().nth(1).is_some() {
        return Some("the request has two Host headers; send one");
    }
    let measured = headers.contains_key(header::CONTENT_LENGTH);
    if measured && headers.contains_key(header::TRANSFER_ENCODING) {
        return Some("the request has both Content-Length and Transfer-Encoding; send one of them");
    }
    None
}

/// Who opened the connection, as `host:port`; an extension of every request.
#[derive(Debug, Clone)]
pub struct Peer(pub String);

/// An HTTP/1.1 client with a pool of connections per peer. Only `http://` endpoints are reached.
pub type HttpClient<B> = Client<Connector, B>;

/// A client over the seams.
pub fn client<B>(env: &Env) -> HttpClient<B>
where
    B: http_body::Body + Send,
    B::Data: Send,
{
    Client::builder(Spawner(env.tasks.clone()))
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(64)
        // Only what was never written goes out again, on a fresh connection: the kept one had been closed meanwhile.
        .retry_canceled_requests(true)
        .set_host(true)
        .build(Connector(env.net.clone()))
}

/// Starts hyper's tasks through the seam.
#[derive(Clone)]
pub struct Spawner(Arc<dyn Tasks>);

impl Spawner {
    /// Over the seams of `env`.
    pub fn new(env: &Env) -> Self {
        Self(env.tasks.clone())
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Spawner {
    fn execute(&self, task: F) {
        self.0.spawn("http", Box::pin(task));
    }
}

/// Opens connections through the seam, each within [`CONNECT`].
#[derive(Clone)]
pub struct Connector(Arc<dyn Net>);

impl tower_service::Service<Uri> for Connector {
    type Response = Dialled;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Dialled>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dial = address(&uri).map(|to| self.0.connect(&to));
        Box::pin(async move {
            let io = tokio::time::timeout(CONNECT, dial?).await.map_err(|_| io::ErrorKind::TimedOut)??;
            Ok(Dialled(TokioIo::new(io)))
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
pub struct Dialled(TokioIo<BoxIo>);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_reads_in_two_ways_is_refused() {
        let cases: [(&[(&str, &str)], bool); 5] = [
            (&[("host", "a"), ("content-length", "5")], false),
            (&[("host", "a"), ("transfer-encoding", "chunked")], false),
            (&[], false),
            (&[("host", "a"), ("host", "b")], true),
            (&[("host", "a"), ("content-length", "5"), ("transfer-encoding", "chunked")], true),
        ];
        for (pairs, expected) in cases {
            let mut headers = http::HeaderMap::new();
            for (name, value) in pairs {
                let name: http::HeaderName = name.parse().expect("a name");
                headers.append(name, value.parse().expect("a value"));
            }
            assert_eq!(ambiguous(&headers).is_some(), expected, "{pairs:?}");
        }
    }
}
