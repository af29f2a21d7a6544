use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::body::Body;
use crate::users::{Names, User};

/// Largest request message; a command's arguments and environment fit well.
const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
const FLAG_MESSAGE: u8 = 0;
const FLAG_END_STREAM: u8 = 2;
const ENVELOPE_HEAD_BYTES: usize = 5;

/// Connect's error codes, as far as the agent answers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// The request makes no sense.
    InvalidArgument,
    /// It took longer than the caller allowed.
    DeadlineExceeded,
    /// What it names does not exist.
    NotFound,
    /// What it would make exists already.
    AlreadyExists,
    /// The user may not.
    PermissionDenied,
    /// A bound is reached.
    ResourceExhausted,
    /// What it names is in no state for it.
    FailedPrecondition,
    /// Not served by this agent.
    Unimplemented,
    /// Anything unforeseen.
    Internal,
    /// Unknown user.
    Unauthenticated,
    /// Not now.
    Unavailable,
}

impl Code {
    fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::ResourceExhausted => "resource_exhausted",
            Self::FailedPrecondition => "failed_precondition",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unauthenticated => "unauthenticated",
            Self::Unavailable => "unavailable",
        }
    }

    /// The HTTP status the Connect protocol gives it.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition => StatusCode::BAD_REQUEST,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// A refusal: what kind, and in words.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Error {
    /// What kind.
    pub(crate) code: Code,
    /// In words.
    pub(crate) message: String,
}

impl Error {
    /// A refusal of kind `code`.
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The kernel refused something done to `subject`.
    pub(crate) fn from_io(subject: &str, error: &std::io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(0);
        let code = match errno {
            libc::ENOENT => Code::NotFound,
            libc::EACCES | libc::EPERM | libc::EROFS => Code::PermissionDenied,
            libc::EEXIST => Code::AlreadyExists,
            libc::ENOSPC | libc::EDQUOT | libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN => {
                Code::ResourceExhausted
            }
            libc::ENOTDIR | libc::EISDIR | libc::ELOOP | libc::ENAMETOOLONG | libc::EINVAL => {
                Code::InvalidArgument
            }
            libc::ENOTEMPTY | libc::EBUSY | libc::EXDEV | libc::ETXTBSY => Code::FailedPrecondition,
            _ => Code::Internal,
        };
        let words = if errno == 0 { error.to_string() } else { crate::sys::errno_text(errno) };
        Self::new(code, format!("{subject}: {words}"))
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({"code": self.code.name(), "message": self.message})
    }

    /// As the answer to a unary call.
    pub(crate) fn unary(&self) -> Response<Body> {
        json_response(self.code.status(), &self.json())
    }

    /// As the last envelope of a stream.
    pub(crate) fn end_stream(&self) -> Bytes {
        envelope(FLAG_END_STREAM, serde_json::json!({"error": self.json()}).to_string().as_bytes())
    }

    /// As a whole stream: its one envelope ends it.
    pub(crate) fn stream(&self) -> Response<Body> {
        stream_response(Body::full(self.end_stream()))
    }
}

/// One envelope: flags, length, payload.
fn envelope(flags: u8, payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(ENVELOPE_HEAD_BYTES + payload.len());
    put_envelope(&mut bytes, flags, payload);
    bytes.freeze()
}

fn put_envelope(bytes: &mut BytesMut, flags: u8, payload: &[u8]) {
    bytes.put_u8(flags);
    bytes.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    bytes.put_slice(payload);
}

/// A message envelope.
pub(crate) fn message(payload: &[u8]) -> Bytes {
    envelope(FLAG_MESSAGE, payload)
}

/// A message envelope followed by the one that ends the stream well.
pub(crate) fn last_message(payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(payload.len() + 2 * ENVELOPE_HEAD_BYTES + 2);
    put_envelope(&mut bytes, FLAG_MESSAGE, payload);
    put_envelope(&mut bytes, FLAG_END_STREAM, b"{}");
    bytes.freeze()
}

/// A stream answer; Connect streams are 200 whatever they say.
pub(crate) fn stream_response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let json = header::HeaderValue::from_static("application/connect+json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// An answer that is one JSON document.
pub(crate) fn json_response(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(bytes) => json_bytes_response(status, bytes),
        Err(error) => json_bytes_response(StatusCode::INTERNAL_SERVER_ERROR, error.to_string().into_bytes()),
    }
}

/// The same, already written.
pub(crate) fn json_bytes_response(status: StatusCode, bytes: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::full(bytes.into()));
    *response.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

async fn collect(body: Incoming) -> Result<Bytes, Error> {
    let whole = Limited::new(body, MESSAGE_BYTES_MAX).collect().await.map_err(|error| {
        if error.is::<http_body_util::LengthLimitError>() {
            Error::new(Code::ResourceExhausted, format!("the request exceeds {MESSAGE_BYTES_MAX} bytes"))
        } else {
            Error::new(Code::InvalidArgument, "the request ended early")
        }
    })?;
    Ok(whole.to_bytes())
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::new(Code::InvalidArgument, format!("bad JSON: {error}")))
}

/// Reads the message of a unary call.
pub(crate) async fn unary_request<T: DeserializeOwned>(body: Incoming) -> Result<T, Error> {
    let bytes = collect(body).await?;
    parse(if bytes.is_empty() { b"{}" } else { &bytes })
}

/// Reads the one envelope a server stream's request consists of.
pub(crate) async fn stream_request<T: DeserializeOwned>(body: Incoming) -> Result<T, Error> {
    let bytes = collect(body).await?;
    let bad = |words: &str| Error::new(Code::InvalidArgument, words);
    let (head, payload) =
        bytes.split_at_checked(ENVELOPE_HEAD_BYTES).ok_or_else(|| bad("the request has no envelope"))?;
    if head[0] & !FLAG_END_STREAM != 0 {
        return Err(bad("compressed envelopes are not supported"));
    }
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    parse(payload.get(..length).ok_or_else(|| bad("the envelope is cut short"))?)
}

/// The messages of a client stream, one by one.
pub(crate) struct Messages {
    body: Incoming,
    buffer: BytesMut,
}

impl Messages {
    /// Reads them from `body`.
    pub(crate) fn new(body: Incoming) -> Self {
        Self { body, buffer: BytesMut::new() }
    }

    /// The next one; `None` at the end of the stream. What was read is kept when the wait for more is given up.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        loop {
            if let Some((flags, payload)) = take_envelope(&mut self.buffer)? {
                if flags & FLAG_END_STREAM != 0 {
                    return Ok(None);
                }
                return parse(&payload).map(Some);
            }
            let cut = || Error::new(Code::InvalidArgument, "the request ended early");
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                None if self.buffer.is_empty() => return Ok(None),
                Some(Err(_)) | None => return Err(cut()),
            }
        }
    }
}

/// One whole envelope off the front of the buffer.
fn take_envelope(buffer: &mut BytesMut) -> Result<Option<(u8, BytesMut)>, Error> {
    let Some([flags, length @ ..]) = buffer.first_chunk::<ENVELOPE_HEAD_BYTES>() else { return Ok(None) };
    let (flags, length) = (*flags, u32::from_be_bytes(*length) as usize);
    if flags & !FLAG_END_STREAM != 0 {
        return Err(Error::new(Code::InvalidArgument, "compressed envelopes are not supported"));
    }
    if length > MESSAGE_BYTES_MAX {
        let words = format!("a message exceeds {MESSAGE_BYTES_MAX} bytes");
        return Err(Error::new(Code::ResourceExhausted, words));
    }
    if buffer.len() < ENVELOPE_HEAD_BYTES + length {
        return Ok(None);
    }
    let mut whole = buffer.split_to(ENVELOPE_HEAD_BYTES + length);
    Ok(Some((flags, whole.split_off(ENVELOPE_HEAD_BYTES))))
}

/// Whoever the request runs as: the user of its Basic credentials, else the space's default user.
pub(crate) fn caller(headers: &HeaderMap) -> Result<User, Error> {
    let name = match headers.get(header::AUTHORIZATION) {
        None => None,
        Some(value) => Some(
            basic_user(value.as_bytes())
                .ok_or_else(|| Error::new(Code::Unauthenticated, "authorization is not Basic <user>:"))?,
        ),
    };
    find_user(name.as_deref())
}

/// Finds a user by name, refusing unknown ones.
pub(crate) fn find_user(name: Option<&str>) -> Result<User, Error> {
    Names::load().find(name).ok_or_else(|| {
        Error::new(Code::Unauthenticated, format!("unknown user {:?}", name.unwrap_or_default()))
    })
}

fn basic_user(value: &[u8]) -> Option<String> {
    let encoded = value.split_at_checked(6).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"basic "))?.1;
    let text = String::from_utf8(STANDARD.decode(encoded.trim_ascii()).ok()?).ok()?;
    Some(text.split_once(':').map_or(text.as_str(), |(user, _)| user).to_owned())
}

/// A header that holds a whole number.
pub(crate) fn number_header(headers: &HeaderMap, name: &str) -> Result<Option<u64>, Error> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number.map(Some).ok_or_else(|| Error::new(Code::InvalidArgument, format!("{name} is not a whole number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_carry_flags_and_length() {
        assert_eq!(message(b"{}").as_ref(), b"\0\0\0\0\x02{}");
        assert_eq!(last_message(b"ab").as_ref(), b"\0\0\0\0\x02ab\x02\0\0\0\x02{}");
        let error = Error::new(Code::NotFound, "no").end_stream();
        assert_eq!(error[0], FLAG_END_STREAM);
        assert_eq!(&error[5..], br#"{"error":{"code":"not_found","message":"no"}}"#);
    }

    #[test]
    fn envelopes_come_whole_however_they_are_cut() {
        let whole = [message(b"{\"a\":1}"), message(b"")].concat();
        for cut in 0..=whole.len() {
            let mut buffer = BytesMut::from(&whole[..cut]);
            let mut seen = Vec::new();
            for rest in [&b""[..], &whole[cut..]] {
                buffer.extend_from_slice(rest);
                while let Some((flags, payload)) = take_envelope(&mut buffer).unwrap() {
                    seen.push((flags, payload.to_vec()));
                }
            }
            assert_eq!(seen, [(0, b"{\"a\":1}".to_vec()), (0, Vec::new())], "cut at {cut}");
        }
        assert!(take_envelope(&mut BytesMut::from(&b"\x01\0\0\0\0"[..])).is_err());
        assert!(take_envelope(&mut BytesMut::from(&b"\0\xff\xff\xff\xff"[..])).is_err());
    }

    #[test]
    fn basic_credentials_name_the_user() {
        assert_eq!(basic_user(b"Basic dXNlcjo=").as_deref(), Some("user"));
        assert_eq!(basic_user(b"basic cm9vdDpwdw==").as_deref(), Some("root"));
        assert_eq!(basic_user(b"Bearer x"), None);
        assert_eq!(basic_user(b"Basic !"), None);
    }
}
