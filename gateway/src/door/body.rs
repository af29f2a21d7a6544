//! Reading bodies within bounds of size and time, and of a JSON body only what the gateway needs.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
pub(super) use drowse_shared::http::drain;
use drowse_shared::{
    api::{Code, Error, quiet},
    name::SpaceRef,
};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::Deserialize;

/// Longest wait for a small body.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads a body of at most `bytes_max`.
pub(super) async fn read(mut body: Body, bytes_max: usize) -> Result<Bytes, Error> {
    let too_large = || Error::new(Code::TooLarge, format!("the body is larger than {bytes_max} bytes"));
    if http_body::Body::size_hint(&body).lower() > bytes_max as u64 {
        drain(body).await;
        return Err(too_large());
    }
    match tokio::time::timeout(PATIENCE, Limited::new(&mut body, bytes_max).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            drain(body).await;
            Err(too_large())
        }
        Ok(Err(_)) => Err(Error::new(Code::InvalidRequest, "the body ended early")),
        Err(_) => Err(Error::new(
            Code::InvalidRequest,
            format!("the body did not arrive within {} s", PATIENCE.as_secs()),
        )),
    }
}

/// Of a JSON body, the space it is about. Everything else is the node's to judge.
pub(super) fn space(body: &[u8]) -> Result<SpaceRef, Error> {
    #[derive(Deserialize)]
    struct About {
        name: SpaceRef,
    }
    let about: Result<About, _> = serde_json::from_slice(body);
    about.map(|about| about.name).map_err(|error| {
        Error::new(Code::InvalidRequest, format!("the body is not a valid request: {}", quiet(&error)))
    })
}
