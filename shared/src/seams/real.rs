use std::{fs::File, io, io::Read, sync::LazyLock};

use jiff::Timestamp;
use tokio::net::{TcpListener, TcpStream};

use super::{Accept, BoxFuture, BoxIo, Clock, Entropy, Net, Tasks};

/// The machine itself.
pub(super) struct Machine;

impl Net for Machine {
    fn connect(&self, to: &str) -> BoxFuture<'static, io::Result<BoxIo>> {
        let to = to.to_owned();
        Box::pin(async move {
            #[expect(clippy::disallowed_methods, reason = "this is the seam")]
            let stream = TcpStream::connect(to).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as BoxIo)
        })
    }

    fn bind(&self, at: &str) -> BoxFuture<'static, io::Result<Box<dyn Accept>>> {
        let at = at.to_owned();
        Box::pin(async move {
            #[expect(clippy::disallowed_methods, reason = "this is the seam")]
            let listener = TcpListener::bind(at).await?;
            Ok(Box::new(listener) as Box<dyn Accept>)
        })
    }
}

impl Accept for TcpListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(BoxIo, String)>> {
        Box::pin(async move {
            let (stream, peer) = TcpListener::accept(self).await?;
            stream.set_nodelay(true)?;
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
        static SOURCE: LazyLock<io::Result<File>> = LazyLock::new(|| File::open("/dev/urandom"));
        let filled = SOURCE.as_ref().is_ok_and(|mut source| source.read_exact(out).is_ok());
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
