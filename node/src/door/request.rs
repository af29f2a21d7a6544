use std::time::Duration;

use axum::{
    body::Body,
    extract::{FromRequest, Request},
};
use bytes::Bytes;
use drowse_shared::{
    api::{
        Code, Error, JSON_BODY_BYTES_MAX, WRITE_FILES_BODY_BYTES_MAX, files::octal, headers::SPACE, parse,
    },
    http::{drain, pace::Paused},
    name::SpaceRef,
};
use garde::Validate;
use http::{HeaderMap, header, request::Parts};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use percent_encoding::percent_decode;
use serde::de::DeserializeOwned;

use super::expect::pointed;

/// Longest wait for a body that is read whole.
const PATIENCE: Duration = Duration::from_secs(60);

/// The body of a JSON verb, whatever its content type says.
pub(super) struct Json<T>(pub(super) T);

impl<S: Sync, T: DeserializeOwned + Validate<Context = ()>> FromRequest<S> for Json<T> {
    type Rejection = Error;

    async fn from_request(request: Request, _: &S) -> Result<Self, Error> {
        let (parts, body) = request.into_parts();
        read(&parts.headers, body, JSON_BODY_BYTES_MAX).await.map(Self)
    }
}

/// The body of a JSON verb that carries files.
pub(super) struct BigJson<T>(pub(super) T);

impl<S: Sync, T: DeserializeOwned + Validate<Context = ()>> FromRequest<S> for BigJson<T> {
    type Rejection = Error;

    async fn from_request(request: Request, _: &S) -> Result<Self, Error> {
        let (parts, body) = request.into_parts();
        read(&parts.headers, body, WRITE_FILES_BODY_BYTES_MAX).await.map(Self)
    }
}

/// Reads and checks a JSON body of at most `limit` bytes.
pub(super) async fn read<T>(headers: &HeaderMap, body: Body, limit: usize) -> Result<T, Error>
where
    T: DeserializeOwned + Validate<Context = ()>,
{
    parse(&whole(headers, body, limit).await?)
}

/// The whole body, if it is no larger than `limit`.
async fn whole(headers: &HeaderMap, mut body: Body, limit: usize) -> Result<Bytes, Error> {
    let too_large = || {
        Error::new(Code::TooLarge, format!("the body is larger than {limit} bytes")).with("limitBytes", limit)
    };
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
    if announced.is_some_and(|length: usize| length > limit) {
        drain(body).await;
        return Err(too_large());
    }
    let collected = tokio::time::timeout(PATIENCE, Limited::new(&mut body, limit).collect()).await;
    let late = || {
        let message = format!("the body did not arrive within {} s", PATIENCE.as_secs());
        Error::new(Code::RequestTimeout, message)
    };
    match collected.map_err(|_| late())? {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            drain(body).await;
            Err(too_large())
        }
        Err(error) if let Some(paused) = Paused::caused(&*error) => {
            Err(Error::new(Code::RequestTimeout, paused.to_string()))
        }
        Err(_) => Err(Error::new(Code::InvalidRequest, "the body ended early")),
    }
}

/// The streaming form of `readFile` and `writeFile`: everything but the file is in the query.
pub(super) struct Stream {
    pub(super) space: SpaceRef,
    pub(super) path: Vec<u8>,
    pub(super) user: Option<String>,
    pub(super) mode: Option<String>,
}

impl Stream {
    /// Reads it; `None` when there is no query: then the body is JSON.
    pub(super) fn read(parts: &Parts) -> Result<Option<Self>, Error> {
        let bad = |why: String| Error::new(Code::InvalidRequest, why);
        if parts.uri.query().is_none_or(str::is_empty) {
            return Ok(None);
        }
        let space = pointed(&parts.headers, parts.uri.query())?
            .ok_or_else(|| bad(format!("space: name it in `?space=` or `{SPACE}`")))?;
        let (mut path, mut user, mut mode) = (None, None, None);
        for (key, value) in query(parts.uri.query()) {
            let text = |value: Vec<u8>, key: &str| {
                let text = String::from_utf8(value).map_err(|_| bad(format!("{key}: is not UTF-8")))?;
                if text.is_empty() || text.contains('\0') || text.len() > 256 {
                    return Err(bad(format!("{key}: has 1 to 256 bytes and no NUL")));
                }
                Ok(text)
            };
            match key.as_slice() {
                b"space" => {}
                b"path" => path = Some(value),
                b"user" => user = Some(text(value, "user")?),
                b"mode" => mode = Some(text(value, "mode")?),
                other => {
                    let other: String = String::from_utf8_lossy(other).chars().take(64).collect();
                    return Err(bad(format!(
                        "unknown field {other:?} in the query; there are space, path, user, mode"
                    )));
                }
            }
        }
        if let Some(mode) = &mode {
            octal(mode, &()).map_err(|why| bad(format!("mode: {why}")))?;
        }
        let path = path.filter(|path| (1..=4096).contains(&path.len()) && !path.contains(&0));
        let path = path.ok_or_else(|| bad("path: has 1 to 4096 bytes and no NUL".to_owned()))?;
        Ok(Some(Self { space, path, user, mode }))
    }
}

/// The pairs of a query, percent-decoded as bytes.
pub(super) fn query(text: Option<&str>) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let decoded = |part: &str| -> Vec<u8> {
        let spaces = part.replace('+', " ");
        percent_decode(spaces.as_bytes()).collect()
    };
    text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()).map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(key), decoded(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_comes_is_not_waited_for() {
        let never = Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        let error = whole(&HeaderMap::new(), never, 1000).await.expect_err("refused");
        assert!(error.message.contains("within 60 s"), "{error}");
    }

    #[test]
    fn a_query_reaches_every_byte() {
        let pairs: Vec<_> = query(Some("space=a+b&path=%2Fh%FF%2B&x&=y&&")).collect();
        let expected: [(&[u8], &[u8]); 4] =
            [(b"space", b"a b"), (b"path", b"/h\xff+"), (b"x", b""), (b"", b"y")];
        assert_eq!(pairs.len(), expected.len());
        for ((key, value), (k, v)) in pairs.iter().zip(expected) {
            assert_eq!((&key[..], &value[..]), (k, v));
        }
        assert_eq!(query(None).count(), 0);
    }
}
