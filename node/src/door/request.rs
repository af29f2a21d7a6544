use axum::{
    body::Body,
    extract::{FromRequest, Request},
};
use bytes::Bytes;
use drowse_shared::api::{Code, Error, JSON_BODY_BYTES_MAX, WRITE_FILES_BODY_BYTES_MAX, parse};
use garde::Validate;
use http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use percent_encoding::percent_decode;
use serde::de::DeserializeOwned;

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

async fn read<T>(headers: &HeaderMap, body: Body, limit: usize) -> Result<T, Error>
where
    T: DeserializeOwned + Validate<Context = ()>,
{
    parse(&whole(headers, body, limit).await?)
}

/// The whole body, if it is no larger than `limit`.
async fn whole(headers: &HeaderMap, body: Body, limit: usize) -> Result<Bytes, Error> {
    let too_large = || {
        Error::new(Code::TooLarge, format!("the body is larger than {limit} bytes")).with("limitBytes", limit)
    };
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
    if announced.is_some_and(|length: usize| length > limit) {
        return Err(too_large());
    }
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(_) => Err(Error::new(Code::InvalidRequest, "the body ended early")),
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
