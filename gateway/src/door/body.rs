//! Reading bodies within bounds of size and time, and of a JSON body only what the gateway needs.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
pub(super) use drowse_shared::http::drain;
use drowse_shared::{
    api::{
        Code, Error,
        exec::{TIMEOUT_SECONDS, TIMEOUT_SECONDS_MAX},
        quiet,
    },
    http::pace::Paused,
    name::SpaceRef,
};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::Deserialize;
use serde_json::Value;

use super::room::Room;

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
        Ok(Err(error)) => Err(match Paused::caused(&*error) {
            Some(paused) => Error::new(Code::RequestTimeout, paused.to_string()),
            None => Error::new(Code::InvalidRequest, "the body ended early"),
        }),
        Err(_) => Err(Error::new(
            Code::RequestTimeout,
            format!("the body did not arrive within {} s", PATIENCE.as_secs()),
        )),
    }
}

/// Reads the body of a caller's request, in the room there is for all of them.
pub(super) async fn read_in(room: &Room, body: Body, bytes_max: usize) -> Result<Bytes, Error> {
    let announced = http_body::Body::size_hint(&body).upper();
    let most = announced.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(bytes_max).min(bytes_max);
    match room.take(most) {
        Ok(place) => Ok(place.keep(read(body, bytes_max).await?)),
        Err(busy) => {
            drain(body).await;
            Err(busy.into())
        }
    }
}

/// How long a command may run, as far as its body says so; whether it says so well is the node's to judge.
pub(super) fn runs_for(body: &[u8]) -> Duration {
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct About {
        timeout_seconds: Value,
        detach: Value,
    }
    let about: About = serde_json::from_slice(body).unwrap_or_default();
    if about.detach == Value::Bool(true) {
        return Duration::ZERO;
    }
    Duration::from_secs(about.timeout_seconds.as_u64().unwrap_or(TIMEOUT_SECONDS).min(TIMEOUT_SECONDS_MAX))
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
