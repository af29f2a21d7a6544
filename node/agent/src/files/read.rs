use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri, header};
use tokio::task::JoinHandle;

use super::gzip::{self, Coding, GzipStream};
use super::http::{Query, Refusal};
use super::{as_user, path};
use crate::body::Body;
use crate::connect;

const PIECE_BYTES: usize = 128 * 1024;

/// Serves GET /files.
pub(crate) async fn serve(uri: &Uri, headers: &HeaderMap) -> Result<Response<Body>, Refusal> {
    let query = Query::read(uri)?;
    let user = connect::find_user(query.username.as_deref())?;
    let path = path::absolute(&user, query.path.as_deref().unwrap_or_default())?;
    let (file, length) = as_user(&user, move || open(&path)).await?;
    let mut response = Response::new(Body::empty());
    let octets = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, octets);
    if length == 0 {
        // Files of the kernel's own have no size but may have content, so the first piece decides.
        let file = Arc::new(file);
        let first = super::aside({
            let file = Arc::clone(&file);
            move || read_piece::<Refusal>(&file, 0, PIECE_BYTES)
        });
        let first = first.await?;
        if !first.is_empty() {
            *response.body_mut() = Body::File(Box::new(FileStream::unsized_file(file, first)));
        }
        return Ok(response);
    }
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|accepted| accepted.to_str().ok());
    match gzip::choose(accepted.unwrap_or_default()) {
        // A part is a part of the file as it is.
        Coding::Gzip if !headers.contains_key(header::RANGE) => {
            let coding = HeaderValue::from_static("gzip");
            response.headers_mut().insert(header::CONTENT_ENCODING, coding);
            response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept-encoding"));
            *response.body_mut() = Body::Gzip(Box::new(GzipStream::new(file, length)));
            return Ok(response);
        }
        Coding::None => {
            let words = "accept-encoding: gzip or identity";
            return Err(Refusal::new(StatusCode::NOT_ACCEPTABLE, words));
        }
        Coding::Gzip | Coding::Identity => {}
    }
    response.headers_mut().insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let (start, end) = match headers.get(header::RANGE).and_then(|range| range.to_str().ok()) {
        Some(range) => match parse_range(range, length) {
            Range::Whole => (0, length),
            Range::Part(start, end) => {
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                let part = format!("bytes {start}-{}/{length}", end - 1);
                let part = HeaderValue::try_from(part).map_err(io::Error::other)?;
                response.headers_mut().insert(header::CONTENT_RANGE, part);
                (start, end)
            }
            Range::Beyond => {
                let words = format!("the file ends at {length} bytes");
                return Err(Refusal::new(StatusCode::RANGE_NOT_SATISFIABLE, words));
            }
        },
        None => (0, length),
    };
    *response.body_mut() = Body::File(Box::new(FileStream::sized(file, start, end)));
    Ok(response)
}

fn open(path: &PathBuf) -> Result<(File, u64), Refusal> {
    let refuse = |error: &io::Error| Refusal::from_io(path, error);
    // Looked at before it is opened: opening a device can have effects, and a FIFO could wait for ever.
    regular(path, &std::fs::metadata(path).map_err(|error| refuse(&error))?)?;
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file =
        std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|e| refuse(&e))?;
    let metadata = file.metadata().map_err(|error| refuse(&error))?;
    regular(path, &metadata)?;
    Ok((file, metadata.len()))
}

fn regular(path: &Path, metadata: &std::fs::Metadata) -> Result<(), Refusal> {
    let what = if metadata.is_file() {
        return Ok(());
    } else if metadata.is_dir() {
        "is a directory"
    } else {
        "is not a regular file"
    };
    Err(Refusal::new(StatusCode::BAD_REQUEST, format!("{} {what}", path.display())))
}

/// Reads up to one piece.
pub(super) fn read_piece<E: From<io::Error>>(file: &File, at: u64, limit: usize) -> Result<Bytes, E> {
    let mut piece = vec![0; limit.min(PIECE_BYTES)];
    loop {
        match file.read_at(&mut piece, at) {
            Ok(got) => {
                piece.truncate(got);
                return Ok(piece.into());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Range {
    /// Not understood, or several parts: all of it, as the standard allows.
    Whole,
    /// From, and up to but without.
    Part(u64, u64),
    /// Nothing of it exists.
    Beyond,
}

fn parse_range(text: &str, length: u64) -> Range {
    let parts = text.strip_prefix("bytes=").and_then(|part| part.split_once('-'));
    let Some((start, end)) = parts else { return Range::Whole };
    let range = match (start.trim().parse::<u64>(), end.trim().parse::<u64>()) {
        (Ok(start), Ok(end)) if start <= end => (start, end.saturating_add(1).min(length)),
        (Ok(start), Err(_)) if end.trim().is_empty() => (start, length),
        (Err(_), Ok(last)) if start.trim().is_empty() => (length.saturating_sub(last), length),
        _ => return Range::Whole,
    };
    if range.0 < range.1 { Range::Part(range.0, range.1) } else { Range::Beyond }
}

/// A file on its way out, one piece in memory at a time.
pub(crate) struct FileStream {
    file: Arc<File>,
    at: u64,
    /// Where it ends; `None` = where reading says so.
    end: Option<u64>,
    ready: Option<Bytes>,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
    finished: bool,
}

impl FileStream {
    fn sized(file: File, start: u64, end: u64) -> Self {
        Self { file: Arc::new(file), at: start, end: Some(end), ready: None, reading: None, finished: false }
    }

    fn unsized_file(file: Arc<File>, first: Bytes) -> Self {
        Self { file, at: 0, end: None, ready: Some(first), reading: None, finished: false }
    }

    /// How much is still to come, if that is known.
    pub(crate) fn remaining(&self) -> Option<u64> {
        self.end.map(|end| end.saturating_sub(self.at))
    }

    /// The next piece of the body.
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.finished || self.remaining() == Some(0) {
            return Poll::Ready(None);
        }
        if let Some(piece) = self.ready.take() {
            return Poll::Ready(Some(Ok(self.pass(piece))));
        }
        let limit = self.remaining().map_or(PIECE_BYTES, |left| usize::try_from(left).unwrap_or(PIECE_BYTES));
        let (file, at) = (Arc::clone(&self.file), self.at);
        let reading = self.reading.get_or_insert_with(|| {
            tokio::task::spawn_blocking(move || read_piece::<io::Error>(&file, at, limit))
        });
        let Poll::Ready(read) = Pin::new(reading).poll(cx) else { return Poll::Pending };
        self.reading = None;
        match read.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(piece) if piece.is_empty() => {
                self.finished = true;
                // It became shorter than was promised: the client must see a broken answer, not a short one.
                Poll::Ready(self.end.map(|_| Err(io::ErrorKind::UnexpectedEof.into())))
            }
            Ok(piece) => Poll::Ready(Some(Ok(self.pass(piece)))),
            Err(error) => {
                self.finished = true;
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn pass(&mut self, piece: Bytes) -> Bytes {
        self.at += piece.len() as u64;
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let cases = [
            ("bytes=0-0", Range::Part(0, 1)),
            ("bytes=2-", Range::Part(2, 10)),
            ("bytes=-3", Range::Part(7, 10)),
            ("bytes=-30", Range::Part(0, 10)),
            ("bytes=5-99", Range::Part(5, 10)),
            ("bytes=10-", Range::Beyond),
            ("bytes=-0", Range::Beyond),
            ("bytes=3-2", Range::Whole),
            ("bytes=0-1,3-4", Range::Whole),
            ("lines=1-2", Range::Whole),
        ];
        for (text, wanted) in cases {
            assert_eq!(parse_range(text, 10), wanted, "{text}");
        }
    }
}
