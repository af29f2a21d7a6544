use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;

use super::{Error, kind_of_word};

const HEAD_BYTES: usize = 5;
const END_STREAM: u8 = 2;
/// Largest message of an agent; its pieces of output are far smaller.
const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// A message with its envelope.
pub(super) fn wrap(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEAD_BYTES + message.len());
    bytes.push(0);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}

/// Reads the messages of a stream one by one.
pub(super) struct Envelopes {
    body: Incoming,
    buffer: BytesMut,
    /// Longest silence of the agent.
    patience: Duration,
}

#[derive(Deserialize, Default)]
struct End {
    #[serde(default)]
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    code: String,
    #[serde(default)]
    message: String,
}

impl Envelopes {
    pub(super) fn new(body: Incoming, patience: Duration) -> Self {
        Self { body, buffer: BytesMut::new(), patience }
    }

    /// The next message; `None` at the end of the stream. The agent sends a keepalive when it has nothing to say.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            if let Some((flags, payload)) = take(&mut self.buffer)? {
                if flags & END_STREAM == 0 {
                    return Ok(Some(payload));
                }
                let end: End = serde_json::from_slice(&payload).unwrap_or_default();
                return end.error.map_or(Ok(None), |refusal| {
                    let kind = kind_of_word(&refusal.code, &refusal.message);
                    Err(Error::Refused { kind, message: refusal.message })
                });
            }
            let frame = tokio::time::timeout(self.patience, self.body.frame())
                .await
                .map_err(|_| Error::Late { what: "say anything", after: self.patience })?;
            match frame {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Err(Error::Broken(error)),
                None => return Err(Error::Nonsense("its stream ended without an end".to_owned())),
            }
        }
    }
}

/// One whole envelope off the front of the buffer.
fn take(buffer: &mut BytesMut) -> Result<Option<(u8, Bytes)>, Error> {
    let Some(head) = buffer.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let [flags, length @ ..] = *head;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > MESSAGE_BYTES_MAX {
        return Err(Error::Nonsense(format!("a message of {length} bytes")));
    }
    if buffer.len() < HEAD_BYTES + length {
        buffer.reserve(HEAD_BYTES + length - buffer.len());
        return Ok(None);
    }
    buffer.advance(HEAD_BYTES);
    Ok(Some((flags, buffer.split_to(length).freeze())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_come_whole_however_they_are_cut() {
        let mut bytes = wrap(b"{\"a\":1}");
        bytes.extend(wrap(b"{}"));
        for cut in 0..bytes.len() {
            let mut buffer = BytesMut::from(&bytes[..cut]);
            let mut seen = Vec::new();
            while let Some((_, message)) = take(&mut buffer).expect("small") {
                seen.push(message);
            }
            buffer.extend_from_slice(&bytes[cut..]);
            while let Some((_, message)) = take(&mut buffer).expect("small") {
                seen.push(message);
            }
            assert_eq!(seen, [&b"{\"a\":1}"[..], b"{}"], "cut at {cut}");
        }
        assert!(take(&mut BytesMut::from(&[0, 0xff, 0xff, 0xff, 0xff][..])).is_err());
    }
}
