use std::fs::File;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::task::JoinHandle;

use super::read::read_piece;

/// How an answer may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// As it is.
    Identity,
    /// Compressed.
    Gzip,
    /// In no way the client takes.
    None,
}

/// What `Accept-Encoding` asks for. Clients name gzip beside others without meaning to have each file compressed, so it is
/// chosen only where it alone is named.
pub(super) fn choose(accepted: &str) -> Coding {
    let quality = |item: &str| {
        let (name, parameters) = item.split_once(';').unwrap_or((item, ""));
        let quality = parameters.split_once('=').map_or(1.0, |(_, q)| q.trim().parse::<f32>().unwrap_or(0.0));
        (name.trim().to_ascii_lowercase(), quality)
    };
    let named: Vec<(String, f32)> =
        accepted.split(',').filter(|item| !item.trim().is_empty()).map(quality).collect();
    let of = |name: &str| named.iter().find(|(other, _)| other == name).map(|(_, quality)| *quality);
    let identity = of("identity").or(of("*").filter(|quality| *quality == 0.0)).unwrap_or(1.0) > 0.0;
    let gzip = of("gzip").or(of("*")).unwrap_or(0.0) > 0.0;
    let alone = of("gzip").is_some() && named.iter().all(|(name, _)| name == "gzip" || name == "identity");
    match (gzip, identity) {
        (true, _) if alone || !identity => Coding::Gzip,
        (_, true) => Coding::Identity,
        _ => Coding::None,
    }
}

struct Packer {
    file: Arc<File>,
    at: u64,
    end: u64,
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl Packer {
    /// Reads on until there is something to send; empty at the end.
    fn next(&mut self) -> io::Result<Bytes> {
        while let Some(encoder) = &mut self.encoder {
            let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
            if left == 0 {
                let Some(encoder) = self.encoder.take() else { break };
                return Ok(encoder.finish()?.into());
            }
            let piece = read_piece::<io::Error>(&self.file, self.at, left)?;
            if piece.is_empty() {
                // It became shorter than it was: the client must see a broken answer.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            encoder.write_all(&piece)?;
            self.at += piece.len() as u64;
            let packed = std::mem::take(encoder.get_mut());
            if !packed.is_empty() {
                return Ok(packed.into());
            }
        }
        Ok(Bytes::new())
    }
}

/// A file on its way out compressed, one piece in memory at a time.
pub(crate) struct GzipStream {
    packer: Option<Box<Packer>>,
    packing: Option<JoinHandle<(Box<Packer>, io::Result<Bytes>)>>,
}

impl GzipStream {
    /// The first `length` bytes of a file.
    pub(super) fn new(file: File, length: u64) -> Self {
        let encoder = GzEncoder::new(Vec::new(), Compression::fast());
        let packer = Packer { file: Arc::new(file), at: 0, end: length, encoder: Some(encoder) };
        Self { packer: Some(Box::new(packer)), packing: None }
    }

    /// The next piece of the body.
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if let Some(mut packer) = self.packer.take() {
            self.packing = Some(tokio::task::spawn_blocking(move || {
                let packed = packer.next();
                (packer, packed)
            }));
        }
        let Some(packing) = &mut self.packing else { return Poll::Ready(None) };
        let Poll::Ready(packed) = Pin::new(packing).poll(cx) else { return Poll::Pending };
        self.packing = None;
        match packed {
            Ok((_, Ok(piece))) if piece.is_empty() => Poll::Ready(None),
            Ok((packer, Ok(piece))) => {
                self.packer = Some(packer);
                Poll::Ready(Some(Ok(piece)))
            }
            Ok((_, Err(error))) => Poll::Ready(Some(Err(error))),
            Err(error) => Poll::Ready(Some(Err(io::Error::other(error)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_chosen_where_it_alone_is_asked_for() {
        let cases = [
            ("", Coding::Identity),
            ("gzip", Coding::Gzip),
            ("GZIP;q=0.5, identity", Coding::Gzip),
            ("gzip, deflate, br", Coding::Identity),
            ("gzip;q=0", Coding::Identity),
            ("br", Coding::Identity),
            ("*", Coding::Identity),
            ("br, gzip, identity;q=0", Coding::Gzip),
            ("*, identity;q=0", Coding::Gzip),
            ("br, identity;q=0", Coding::None),
            ("br, *;q=0", Coding::None),
        ];
        for (accepted, coding) in cases {
            assert_eq!(choose(accepted), coding, "{accepted}");
        }
    }
}
