//! HTTP/1 as somebody reads it who only listens.

/// Largest message that is looked into; after a larger one nothing of its connection is.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Bytes of one direction of a connection that are not a whole message yet.
#[derive(Debug, Default)]
pub(super) struct Half {
    bytes: Vec<u8>,
    /// It cannot be followed any more.
    lost: bool,
}

impl Half {
    /// Takes what was read or written.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        if self.lost {
            return;
        }
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > MESSAGE_BYTES_MAX {
            (self.bytes, self.lost) = (Vec::new(), true);
        }
    }

    /// The next whole message: its head and its body.
    pub(super) fn message(&mut self) -> Option<(String, Vec<u8>)> {
        let end = self.bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&self.bytes[..end]).into_owned();
        let fields: Vec<(String, String)> = head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .map(|(key, value)| (key.to_ascii_lowercase(), value.trim().to_ascii_lowercase()))
            .collect();
        let field = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let rest = &self.bytes[end + 4..];
        let (body, taken) = if field("transfer-encoding") == Some("chunked") {
            chunks(rest)?
        } else {
            let length = field("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
            (rest.get(..length)?.to_vec(), length)
        };
        self.bytes.drain(..end + 4 + taken);
        Some((head, body))
    }
}

/// A body in chunks, once all of it is there, and how long it was on the wire.
fn chunks(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let line = bytes.get(at..)?.windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(&bytes[at..at + line]).ok()?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        at += line + 2;
        body.extend_from_slice(bytes.get(at..at + size)?);
        at += size + 2;
        if size == 0 {
            return (bytes.len() >= at).then_some((body, at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_in_pieces_and_chunks() {
        let mut half = Half::default();
        half.take(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n");
        assert_eq!(half.message(), None);
        half.take(b"2\r\nde\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\nrest");
        assert_eq!(half.message().map(|(_, body)| body), Some(b"abcde".to_vec()));
        assert_eq!(half.message(), Some(("GET / HTTP/1.1".to_owned(), Vec::new())));
        assert_eq!(half.bytes, b"rest");
    }
}
