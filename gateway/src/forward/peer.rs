//! Connections to nodes. Our own calls have a hard deadline that includes connecting. No redirects, and no retries of what
//! was sent.

use std::{fmt, sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use drowse_shared::{
    api::Error,
    http::{Fault, HttpClient, Limits, client, pace::Paused, patient_client, why},
    seams::Env,
    token::Token,
};
use http::{Method, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use serde::{Serialize, de::DeserializeOwned};

use crate::fleet::Fleet;

/// Largest page of a list: all the metadata of a page, each byte of it written as six, and 1,000 spaces around it.
pub(crate) const LIST_BYTES_MAX: usize = 64 << 20;
/// Most of a strange answer that is quoted.
const QUOTE_CHARACTERS: usize = 200;

/// Why a node gave no usable answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Failure {
    /// No connection: nothing was sent.
    Unreached(String),
    /// Something may have been sent, and no whole answer came.
    Cut(String),
    /// The caller's own body paused for too long; it is told so.
    Paused(Paused),
    /// The caller's own body has no one reading; it is told so.
    Broken(Fault),
    /// It answered an error.
    Refused(Box<Error>, http::StatusCode),
    /// It answered what nobody understands.
    Nonsense(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreached(why) | Self::Cut(why) | Self::Nonsense(why) => f.write_str(why),
            Self::Paused(paused) => paused.fmt(f),
            Self::Broken(fault) => fault.fmt(f),
            Self::Refused(error, status) => write!(f, "answered {}: {}", status.as_u16(), error.message),
        }
    }
}

/// The nodes' doors.
pub(crate) struct Peers {
    client: HttpClient<Body>,
    /// For what callers ask: a node that is being restarted is waited for.
    patient: HttpClient<Body>,
    token: Token,
}

impl Peers {
    pub(crate) fn new(env: &Env, limits: Limits, token: Token, fleet: &Arc<Fleet>) -> Self {
        let fleet = Arc::downgrade(fleet);
        // One that checked in a moment ago and refuses connections is about to be back.
        let expected = move |uri: &Uri| fleet.upgrade().is_some_and(|fleet| fleet.is_live_at(uri));
        let patient = patient_client(env, limits, Arc::new(expected));
        Self { client: client(env, limits), patient, token }
    }

    /// The same doors, at which our own calls wait too, within their deadline.
    pub(crate) fn patiently(&self) -> Self {
        Self { client: self.patient.clone(), patient: self.patient.clone(), token: self.token.clone() }
    }

    /// The credential nodes take.
    pub(crate) fn bearer(&self) -> http::HeaderValue {
        self.token.bearer()
    }

    /// Sends a caller's request on and waits for the head of its answer.
    pub(crate) async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, Failure> {
        Self::sent(&self.patient, request).await
    }

    async fn sent(client: &HttpClient<Body>, request: Request<Body>) -> Result<Response<Incoming>, Failure> {
        client.request(request).await.map_err(|error| {
            if let Some(paused) = Paused::caused(&error) {
                return Failure::Paused(paused);
            }
            if let Some(fault) = Fault::caused(&error) {
                return Failure::Broken(fault);
            }
            let reason = why(&error);
            if error.is_connect() || was_never_sent(&error) {
                Failure::Unreached(reason)
            } else {
                Failure::Cut(reason)
            }
        })
    }

    /// Calls a verb of a node.
    pub(crate) async fn call<T: Serialize, R: DeserializeOwned>(
        &self,
        endpoint: &str,
        verb: &str,
        body: &T,
        deadline: Duration,
        bytes_max: usize,
    ) -> Result<R, Failure> {
        let body =
            serde_json::to_vec(body).map_err(|error| Failure::Nonsense(format!("not sent: {error}")))?;
        self.call_written(endpoint, verb, body.into(), deadline, bytes_max).await
    }

    /// The same, with a body that is written down already, as when many are sent one.
    pub(crate) async fn call_written<R: DeserializeOwned>(
        &self,
        endpoint: &str,
        verb: &str,
        body: Bytes,
        deadline: Duration,
        bytes_max: usize,
    ) -> Result<R, Failure> {
        let answered = tokio::time::timeout(deadline, async {
            let request = Request::builder()
                .method(Method::POST)
                .uri(format!("{endpoint}/{verb}"))
                .header(header::AUTHORIZATION, self.bearer())
                .header(header::CONTENT_TYPE, "application/json")
                .body(Body::from(body))
                .map_err(|error| Failure::Nonsense(format!("not sent: {error}")))?;
            let response = Self::sent(&self.client, request).await?;
            let status = response.status();
            let read = Limited::new(response.into_body(), bytes_max).collect().await;
            let bytes = read.map_err(|error| Failure::Cut(why(&*error)))?.to_bytes();
            understood(status, &bytes)
        });
        match answered.await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::Cut(format!("no answer within {} ms", deadline.as_millis()))),
        }
    }
}

fn understood<R: DeserializeOwned>(status: http::StatusCode, bytes: &Bytes) -> Result<R, Failure> {
    if status != http::StatusCode::OK {
        let quote = || String::from_utf8_lossy(bytes).chars().take(QUOTE_CHARACTERS).collect::<String>();
        return Err(match serde_json::from_slice::<Error>(bytes) {
            Ok(error) => Failure::Refused(Box::new(error), status),
            Err(_) => Failure::Nonsense(format!("answered {}: {}", status.as_u16(), quote())),
        });
    }
    serde_json::from_slice(bytes)
        .map_err(|error| Failure::Nonsense(format!("its answer is unreadable: {error}")))
}

/// A kept connection was closed before the request was written to it.
fn was_never_sent(error: &hyper_util::client::legacy::Error) -> bool {
    use std::error::Error as _;
    error
        .source()
        .and_then(|cause| cause.downcast_ref::<hyper::Error>())
        .is_some_and(hyper::Error::is_canceled)
}
