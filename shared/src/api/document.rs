//! The OpenAPI document of the native API, as both doors serve it. It is generated from the types beside this file by a
//! test, kept in the clone, and compiled in as it is: serving it costs nothing but its bytes.

use axum::response::{IntoResponse, Response};
use http::header;

/// The document.
pub const TEXT: &str = include_str!("../../../docs/openapi.json");

/// The handler of [`OPENAPI`](super::verbs::OPENAPI), at both doors.
pub async fn serve() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], TEXT).into_response()
}

#[cfg(test)]
mod generate;
/// What the types that write themselves as text look like in the document.
#[cfg(test)]
mod texts;

#[cfg(test)]
pub(crate) use texts::Moment;
