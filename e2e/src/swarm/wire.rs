use std::io;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Largest message: a roster of thousands of nodes.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// One message, request or answer.
pub(super) struct Message {
    /// `POST /lookup HTTP/1.1`, or `HTTP/1.1 200 OK`.
    pub(super) first: String,
    /// The other lines of the head.
    head: String,
    /// The body.
    pub(super) body: Vec<u8>,
    /// How many bytes came.
    pub(super) bytes: u64,
}

impl Message {
    /// What came, byte by byte.
    pub(super) fn raw(&self) -> Vec<u8> {
        [self.first.as_bytes(), b"\r\n", self.head.as_bytes(), &self.body].concat()
    }

    /// A header's value.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        find(&self.head, name)
    }
}

fn find<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
}

/// A connection, and what came over it beyond the last message.
pub(super) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    pub(super) fn over(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// The next message; nothing at the end of the connection.
    pub(super) async fn receive(&mut self) -> io::Result<Option<Message>> {
        let head_end = loop {
            if let Some(at) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            if self.more().await? == 0 {
                return Ok(None);
            }
        };
        let head = std::str::from_utf8(&self.buffer[..head_end]).map_err(io::Error::other)?;
        let (first, head) = head.split_once("\r\n").unwrap_or((head, ""));
        let (first, head) = (first.to_owned(), head.to_owned());
        let length = find(&head, "content-length").map_or(Ok(0), str::parse).map_err(io::Error::other)?;
        let end = head_end + length;
        while self.buffer.len() < end {
            if self.more().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let body = self.buffer[head_end..end].to_vec();
        self.buffer.drain(..end);
        // A thousand nodes shall not each keep room for a roster.
        if self.buffer.capacity() > 64 << 10 {
            self.buffer.shrink_to(4 << 10);
        }
        Ok(Some(Message { first, head, body, bytes: end as u64 }))
    }

    async fn more(&mut self) -> io::Result<usize> {
        if self.buffer.len() > MESSAGE_BYTES_MAX {
            return Err(io::Error::other("a message without an end"));
        }
        self.stream.read_buf(&mut self.buffer).await
    }

    /// Answers with a body.
    pub(super) async fn answer(&mut self, status: u16, body: &[u8]) -> io::Result<()> {
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.send(head, body).await.map(drop)
    }

    /// Sends a `POST`. Answers how many bytes that were.
    pub(super) async fn post(&mut self, verb: &str, token: &str, body: &[u8]) -> io::Result<u64> {
        let head = format!(
            "POST /{verb} HTTP/1.1\r\nhost: swarm\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        self.send(head, body).await
    }

    async fn send(&mut self, head: String, body: &[u8]) -> io::Result<u64> {
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        self.stream.write_all(&bytes).await?;
        Ok(bytes.len() as u64)
    }
}
