use std::io;
use std::path::Path;

use http::{Response, StatusCode, Uri};
use percent_encoding::percent_decode;
use serde_json::json;

use crate::body::Body;
use crate::connect::{self, Error};

/// A refusal in the plain HTTP dialect: `{code, message}`.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    status: StatusCode,
    message: String,
}

impl Refusal {
    /// A refusal with its status.
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// The kernel refused something done to `path`.
    pub(crate) fn from_io(path: &Path, error: &io::Error) -> Self {
        Self { message: format!("{}: {}", path.display(), words(error)), ..Self::from_kernel(error) }
    }

    fn from_kernel(error: &io::Error) -> Self {
        let status = match error.raw_os_error() {
            Some(libc::ENOENT) => StatusCode::NOT_FOUND,
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => StatusCode::FORBIDDEN,
            Some(libc::ENOSPC | libc::EDQUOT) => StatusCode::INSUFFICIENT_STORAGE,
            Some(libc::EFBIG) => StatusCode::PAYLOAD_TOO_LARGE,
            Some(
                libc::ENOTDIR
                | libc::EISDIR
                | libc::ELOOP
                | libc::ENAMETOOLONG
                | libc::EINVAL
                | libc::ENXIO
                | libc::ENODEV,
            ) => StatusCode::BAD_REQUEST,
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self { status, message: words(error) }
    }

    /// As an answer.
    pub(crate) fn respond(self) -> Response<Body> {
        let body = json!({"code": self.status.as_u16(), "message": self.message});
        connect::json_response(self.status, &body)
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::from_kernel(&error)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { status: error.code.status(), message: error.message }
    }
}

fn words(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), crate::sys::errno_text)
}

/// The query of `/files`; values are raw bytes, for names need not be UTF-8.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Query {
    /// What to read or write.
    pub(crate) path: Option<Vec<u8>>,
    /// As whom.
    pub(crate) username: Option<String>,
    /// Permission bits of a written file.
    pub(crate) mode: Option<u32>,
}

impl Query {
    /// Reads it. As in forms, `+` is a space.
    pub(crate) fn read(uri: &Uri) -> Result<Self, Refusal> {
        let bad = |words: &str| Refusal::new(StatusCode::BAD_REQUEST, words);
        let mut query = Self::default();
        for pair in uri.query().unwrap_or_default().split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let spaced: Vec<u8> = value.bytes().map(|byte| if byte == b'+' { b' ' } else { byte }).collect();
            let value: Vec<u8> = percent_decode(&spaced).collect();
            match name {
                "path" => query.path = Some(value),
                "username" if value.is_empty() => {}
                "username" => {
                    query.username =
                        Some(String::from_utf8(value).map_err(|_| bad("username is not UTF-8"))?);
                }
                "mode" => {
                    let text = std::str::from_utf8(&value).unwrap_or_default();
                    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
                    query.mode = Some(mode.ok_or_else(|| bad("mode is not octal between 0 and 777"))?);
                }
                _ => {}
            }
        }
        Ok(query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_decode_to_bytes() {
        let read = |text: &str| Query::read(&format!("/files?{text}").parse().unwrap());
        let query = read("path=/a+b%2B%FF%0A&username=root&mode=0640&signature=x").unwrap();
        assert_eq!(query.path.unwrap(), b"/a b+\xff\n");
        assert_eq!((query.username.as_deref(), query.mode), (Some("root"), Some(0o640)));
        assert_eq!(read("").unwrap(), Query::default());
        assert!(read("mode=9").is_err());
        assert!(read("mode=4755").is_err());
    }
}
