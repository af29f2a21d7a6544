use std::future::poll_fn;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::gate::Gate;
use crate::process::stream::EventStream;

/// Goes on with the chunks of an answer whose head an earlier agent wrote. Runs as its own task.
pub(crate) async fn send(connection: UnixStream, mut events: EventStream, gate: Rc<Gate>) {
    let (mut from, mut to) = connection.into_split();
    let left = async {
        let mut ignored = [0; 256];
        while matches!(from.read(&mut ignored).await, Ok(got) if got > 0) {}
    };
    let told = async {
        while let Some(Ok(event)) = poll_fn(|cx| events.poll_event(cx)).await {
            let head = format!("{:x}\r\n", event.len());
            let _unflushed = Unflushed::new(&gate);
            to.write_all(&[head.as_bytes(), &event, b"\r\n"].concat()).await?;
        }
        let _unflushed = Unflushed::new(&gate);
        to.write_all(b"0\r\n\r\n").await
    };
    tokio::select! {
        biased;
        // A client that cannot be written to has left.
        _ = told => {}
        () = left => {}
    }
}

/// Tells whoever asked for the replacement that it was done, by whom.
pub(crate) fn answer(asker: OwnedFd) -> io::Result<()> {
    let body = format!(r#"{{"version":"{}"}}"#, env!("CARGO_PKG_VERSION"));
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
    // Its socket is empty: nothing was answered yet.
    StdStream::from(asker)
        .write_all(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes())
}

struct Unflushed<'a>(&'a Gate);

impl<'a> Unflushed<'a> {
    fn new(gate: &'a Gate) -> Self {
        gate.count_unflushed(true);
        Self(gate)
    }
}

impl Drop for Unflushed<'_> {
    fn drop(&mut self) {
        self.0.count_unflushed(false);
    }
}
