use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use drowse_shared::{
    api::files::{FileEntry, FileKind, Written},
    http::pace::{Pace, Paused},
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::DropGuard;

use super::{ANSWER_BYTES_MAX, Error, Kind, Line, Reply, refused, request, whole};

const FILES: &str = "/files";
const LIST: &str = "/filesystem.Filesystem/ListDir";

/// A file inside a space.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// Its path, as bytes.
    pub path: &'a [u8],
    /// Whose rights apply.
    pub user: Option<&'a str>,
    /// Permission bits when it is written, in octal.
    pub mode: Option<&'a str>,
}

impl Target<'_> {
    fn uri(&self) -> String {
        let encoded = |bytes: &[u8]| percent_encode(bytes, NON_ALPHANUMERIC).to_string();
        let mut uri = format!("{FILES}?path={}", encoded(self.path));
        for (key, value) in [("username", self.user), ("mode", self.mode)] {
            if let Some(value) = value {
                uri.push_str(&format!("&{key}={}", encoded(value.as_bytes())));
            }
        }
        uri
    }
}

/// What a reader may ask for: a part, or to have it compressed.
const ASKED: [HeaderName; 2] = [header::RANGE, header::ACCEPT_ENCODING];
/// What is said about what is sent.
const SAID: [HeaderName; 6] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::ACCEPT_RANGES,
    header::CONTENT_RANGE,
    header::CONTENT_ENCODING,
    header::VARY,
];

/// A file that is being read.
pub struct Content {
    status: StatusCode,
    headers: HeaderMap,
    body: Guarded,
}

impl Content {
    /// As an answer, its body read as fast as it is taken: the file, or the part or coding of it that was asked for.
    pub fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::new(self.body));
        *response.status_mut() = self.status;
        *response.headers_mut() = said(&self.headers, &SAID);
        response
    }

    /// All of it, if it is no larger than `limit`.
    ///
    /// # Errors
    /// `too_large`, or that it broke off.
    pub async fn whole(self, limit: u64) -> Result<Bytes, Error> {
        let larger = || Error::Refused {
            kind: Kind::TooMuch,
            message: format!("the file is larger than {limit} bytes; the streaming form has no limit"),
        };
        let length = self.headers.get(header::CONTENT_LENGTH);
        let size: Option<u64> = length.and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
        if size.is_some_and(|size| size > limit) {
            return Err(larger());
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        match whole(self.body.body, limit, self.body.patience).await {
            Err(Error::Refused { kind: Kind::TooMuch, .. }) => Err(larger()),
            read => read,
        }
    }
}

/// Opens a file for reading, as its reader's headers ask for it.
///
/// # Errors
/// Why it cannot be read.
pub async fn read(line: Line, target: Target<'_>, asked: &HeaderMap) -> Result<Content, Error> {
    let mut request = request("GET", target.uri(), Body::empty())?;
    request.headers_mut().extend(said(asked, &ASKED));
    // No version of a file has a name here, so nobody can know that the rest still fits: it gets the whole.
    if asked.contains_key(header::IF_RANGE) {
        request.headers_mut().remove(header::RANGE);
    }
    let Reply { response, cut, patience } = line.send(request).await?;
    let (parts, body) = response.into_parts();
    if !parts.status.is_success() {
        return Err(refused(parts.status, &whole(body, ANSWER_BYTES_MAX, patience).await?));
    }
    let body = Guarded { body, _cut: cut, patience, pause: None };
    Ok(Content { status: parts.status, headers: parts.headers, body })
}

/// Those of the headers that are named.
fn said(headers: &HeaderMap, names: &[HeaderName]) -> HeaderMap {
    names.iter().filter_map(|name| Some((name.clone(), headers.get(name)?.clone()))).collect()
}

/// Writes a file whole; a body that breaks off changes nothing. The connection can be used again. An upload takes as long as
/// its sender sends: `pace` tells whether it is he who is waited for.
///
/// # Errors
/// Why it cannot be written.
pub async fn write(
    line: &mut Line,
    target: Target<'_>,
    body: Body,
    length: Option<u64>,
    pace: &Pace,
) -> Result<Written, Error> {
    #[derive(Deserialize)]
    struct Info {
        path: String,
        size: String,
    }
    let mut request = request("POST", target.uri(), body)?;
    let octets = HeaderValue::from_static("application/octet-stream");
    request.headers_mut().insert(header::CONTENT_TYPE, octets);
    if let Some(length) = length {
        request.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    let patience = line.patience;
    let answer = async {
        line.sender.ready().await.map_err(Error::Broken)?;
        line.sender.send_request(request).await.map_err(upload)
    };
    let response = drowse_shared::select_biased! {
        response = answer => response?,
        () = pace.quiet(patience) => return Err(Error::Late { what: "take the upload", after: patience }),
    };
    let status = response.status();
    let body = whole(response.into_body(), ANSWER_BYTES_MAX, patience).await?;
    if !status.is_success() {
        return Err(refused(status, &body));
    }
    let [info]: [Info; 1] =
        serde_json::from_slice(&body).map_err(|error| Error::Nonsense(error.to_string()))?;
    let size_bytes = info.size.parse().map_err(|_| Error::Nonsense(format!("a size of {:?}", info.size)))?;
    Ok(Written { path: info.path, size_bytes })
}

/// A request that failed because its own body did is the caller's doing.
fn upload(error: hyper::Error) -> Error {
    if let Some(Paused(patience)) = Paused::caused(&error) {
        return Error::UploadPaused(patience);
    }
    if error.is_user() { Error::UploadCut } else { Error::Broken(error) }
}

/// Lists a directory.
///
/// # Errors
/// Why it cannot be listed.
pub async fn list(
    line: &mut Line,
    path: Option<&str>,
    depth: Option<u32>,
    user: Option<&str>,
) -> Result<Vec<FileEntry>, Error> {
    #[derive(Deserialize)]
    struct List {
        #[serde(default)]
        entries: Vec<Info>,
    }
    let message = json!({ "path": path.unwrap_or_default(), "depth": depth.unwrap_or(1) });
    let list: List = line.call(LIST, user, &message).await?;
    Ok(list.entries.into_iter().map(FileEntry::from).collect())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Info {
    name: String,
    r#type: String,
    path: String,
    #[serde(default)]
    size: String,
    #[serde(default)]
    mode: u32,
    #[serde(default)]
    owner: String,
    #[serde(default)]
    group: String,
    #[serde(default)]
    modified_time: Option<Timestamp>,
    symlink_target: Option<String>,
    path_base64: Option<String>,
}

impl From<Info> for FileEntry {
    fn from(info: Info) -> Self {
        Self {
            name: info.name,
            path: info.path,
            path_base64: info.path_base64,
            kind: match info.r#type.as_str() {
                "FILE_TYPE_FILE" => FileKind::File,
                "FILE_TYPE_DIRECTORY" => FileKind::Directory,
                "FILE_TYPE_SYMLINK" => FileKind::Symlink,
                _ => FileKind::Other,
            },
            size_bytes: info.size.parse().unwrap_or(0),
            mode: format!("{:o}", info.mode),
            owner: info.owner,
            group: info.group,
            modified_at: info.modified_time.unwrap_or(Timestamp::UNIX_EPOCH),
            symlink_target: info.symlink_target,
        }
    }
}

/// The body of an answer, its connection, and how long it may pause.
struct Guarded {
    body: Incoming,
    _cut: DropGuard,
    patience: Duration,
    pause: Option<Pin<Box<Sleep>>>,
}

impl http_body::Body for Guarded {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.pause = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Error::Broken)));
        }
        let patience = self.patience;
        let pause = self.pause.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + patience)));
        ready!(pause.as_mut().poll(cx));
        Poll::Ready(Some(Err(Error::Late { what: "go on with the file", after: patience })))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
