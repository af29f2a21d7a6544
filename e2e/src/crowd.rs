#![expect(clippy::disallowed_methods, reason = "a black-box test has its own tasks, sockets and clock")]

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Most connections opened at once; a listener's backlog is not endless.
const AT_ONCE: usize = 200;
/// No request of a crowd outlives this.
const DEADLINE: Duration = Duration::from_secs(120);
/// Largest head of an answer.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// One plain HTTP connection, cheap enough to have ten thousand of.
pub struct Line {
    stream: TcpStream,
    kept: Vec<u8>,
}

impl Line {
    /// Connects.
    ///
    /// # Errors
    /// When nobody takes it.
    pub async fn open(to: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, kept: Vec::new() })
    }

    /// Sends a prepared request.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.write_all(request).await
    }

    /// Reads one answer: its status and body. The body is framed by its length.
    ///
    /// # Errors
    /// When the connection ends before.
    pub async fn answer(&mut self) -> io::Result<(u16, Vec<u8>)> {
        loop {
            if let Some(end) = self.kept.windows(4).position(|w| w == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.kept[..end]).to_ascii_lowercase();
                let bad = || io::Error::new(io::ErrorKind::InvalidData, head.clone());
                let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or_else(bad)?;
                let length = head.lines().find_map(|l| l.strip_prefix("content-length:"));
                let length: usize = length.map_or(Some(0), |l| l.trim().parse().ok()).ok_or_else(bad)?;
                if head.contains("transfer-encoding:") {
                    return Err(bad());
                }
                while self.kept.len() < end + 4 + length {
                    self.more().await?;
                }
                let body = self.kept[end + 4..end + 4 + length].to_vec();
                self.kept.drain(..end + 4 + length);
                return Ok((status, body));
            }
            if self.kept.len() > HEAD_BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> io::Result<()> {
        if self.stream.read_buf(&mut self.kept).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

/// A request as it goes over the wire.
pub fn request(verb: &str, token: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST /{verb} HTTP/1.1\r\nhost: fleet\r\nauthorization: Bearer {token}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// Many callers, each on a connection of its own, who ask all at once.
pub struct Crowd {
    lines: Vec<Line>,
}

/// What each of a crowd was answered.
pub type Answers = Vec<(u16, Value)>;

impl Crowd {
    /// Opens so many connections.
    ///
    /// # Panics
    /// When one is not taken: raise the limit of open files.
    pub async fn gather(to: SocketAddr, count: usize) -> Self {
        drowse_shared::limits::raise_open_files();
        let lines = stream::iter(0..count)
            .map(|_| async move {
                Line::open(to).await.unwrap_or_else(|e| panic!("a connection of {count}: {e}"))
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        Self { lines }
    }

    /// Everybody asks the same; returns when all are answered.
    ///
    /// # Panics
    /// When somebody is not.
    pub async fn ask(&mut self, request: Vec<u8>) -> Answers {
        let request = Arc::new(request);
        let tasks: Vec<_> = std::mem::take(&mut self.lines)
            .into_iter()
            .map(|mut line| {
                let request = request.clone();
                tokio::spawn(tokio::time::timeout(DEADLINE, async move {
                    line.send(&request).await?;
                    let answer = line.answer().await?;
                    Ok::<_, io::Error>((line, answer))
                }))
            })
            .collect();
        let mut answers = Vec::new();
        for task in tasks {
            let ended = task.await.expect("no panic");
            let (line, (status, body)) = ended.expect("an answer in time").expect("a whole answer");
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            answers.push((status, body));
            self.lines.push(line);
        }
        answers
    }
}
