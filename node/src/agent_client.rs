//! Speaks to the agent inside a space: envd's protocol, HTTP/1.1 over a fresh connection the executor gives.
//!
//! A connection lives as long as its `Line` or the body of its answer: when the handler that holds it is dropped because
//! its client left, the connection is cut, and the agent sees that. Every wait has a deadline.

use std::{io, time::Duration};

use axum::body::Body;
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::{body::Incoming, client::conn::http1::SendRequest};
use hyper_util::rt::TokioIo;
use process::Place;
use serde::{Deserialize, de::DeserializeOwned};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The envelopes of a stream.
mod envelope;
/// Reading, writing and listing files.
pub mod files;
/// Running commands.
pub mod process;
/// Watching directories.
pub mod watch;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Largest answer of one call: a list of 100,000 entries fits.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Why the agent did not do it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no connection to be had.
    #[error("the agent of the space cannot be reached")]
    Unreachable(#[source] io::Error),
    /// It did not answer in time.
    #[error("the agent of the space did not {what} within {after:?}")]
    Late {
        /// What it was asked.
        what: &'static str,
        /// How long it was given.
        after: Duration,
    },
    /// The connection broke.
    #[error("the connection to the agent of the space broke")]
    Broken(#[source] hyper::Error),
    /// It answered what cannot be understood.
    #[error("the agent of the space answered nonsense: {0}")]
    Nonsense(String),
    /// It said no.
    #[error("{message}")]
    Refused {
        /// What kind of no.
        kind: Kind,
        /// In its words.
        message: String,
    },
    /// The caller's own body broke off.
    #[error("the upload ended early; nothing was changed")]
    UploadCut,
    /// The caller's own body stood still.
    #[error("the upload paused for more than {0:?}; nothing was changed")]
    UploadPaused(Duration),
}

/// What kind of no an agent says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The request makes no sense to it.
    Invalid,
    /// No such working directory.
    Directory,
    /// No such program.
    Program,
    /// No such user.
    User,
    /// No such file.
    Missing,
    /// Something else than a regular file.
    NotAFile,
    /// No such part of a file.
    Beyond,
    /// Not allowed.
    Denied,
    /// More than it answers at once.
    TooMuch,
    /// No room on the disk.
    DiskFull,
    /// No process, memory or descriptor left inside.
    Exhausted,
    /// More happened than it could tell.
    Lost,
    /// It took too long inside.
    Deadline,
    /// Anything else.
    Failed,
}

/// One connection to an agent.
pub struct Line {
    sender: SendRequest<Body>,
    cut: DropGuard,
    /// Longest wait for whatever the agent does.
    patience: Duration,
}

/// The head of an answer, and what keeps its connection open.
pub struct Reply {
    response: Response<Incoming>,
    cut: DropGuard,
    patience: Duration,
}

/// Opens a connection to the agent of a space.
///
/// # Errors
/// When there is none in time.
pub async fn dial(place: &Place) -> Result<Line, Error> {
    let io = tokio::time::timeout(CONNECT, place.executor.agent(place.id))
        .await
        .map_err(|_| Error::Unreachable(io::ErrorKind::TimedOut.into()))?
        .map_err(Error::Unreachable)?;
    let (sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(io)).await.map_err(Error::Broken)?;
    let token = CancellationToken::new();
    let cut = token.clone().drop_guard();
    place.env.spawn("agent", async move {
        // Dropping the connection closes it, whatever was under way.
        drowse_shared::select_biased! {
            () = token.cancelled() => {}
            ended = connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection to an agent ended early");
                }
            }
        }
    });
    Ok(Line { sender, cut, patience: place.patience })
}

impl Line {
    /// Sends a request and waits for the head of its answer; the connection then belongs to the answer.
    async fn send(mut self, request: Request<Body>) -> Result<Reply, Error> {
        let response = self.ask(request).await?;
        Ok(Reply { response, cut: self.cut, patience: self.patience })
    }

    async fn ask(&mut self, request: Request<Body>) -> Result<Response<Incoming>, Error> {
        let answer = async {
            self.sender.ready().await.map_err(Error::Broken)?;
            self.sender.send_request(request).await.map_err(Error::Broken)
        };
        let answer = tokio::time::timeout(self.patience, answer).await;
        answer.map_err(|_| Error::Late { what: "answer", after: self.patience })?
    }

    /// One unary call; the connection can be used again.
    async fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        user: Option<&str>,
        message: &serde_json::Value,
    ) -> Result<T, Error> {
        let mut request = request("POST", method.to_owned(), Body::from(message.to_string()))?;
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        identify(&mut request, user);
        let response = self.ask(request).await?;
        let status = response.status();
        let body = whole(response.into_body(), ANSWER_BYTES_MAX, self.patience).await?;
        if !status.is_success() {
            return Err(refused(status, &body));
        }
        serde_json::from_slice(&body).map_err(|error| Error::Nonsense(error.to_string()))
    }
}

/// A request to an agent.
fn request(method: &str, target: String, body: Body) -> Result<Request<Body>, Error> {
    Request::builder()
        .method(method)
        .uri(target)
        .header(header::HOST, "agent")
        .body(body)
        .map_err(|error| Error::Nonsense(error.to_string()))
}

/// Says as whom.
fn identify(request: &mut Request<Body>, user: Option<&str>) {
    let Some(user) = user else { return };
    let text = format!("Basic {}", STANDARD.encode(format!("{user}:")));
    if let Ok(value) = HeaderValue::from_str(&text) {
        request.headers_mut().insert(header::AUTHORIZATION, value);
    }
}

async fn whole(body: Incoming, limit: usize, patience: Duration) -> Result<Bytes, Error> {
    let collect = Limited::new(body, limit).collect();
    match tokio::time::timeout(patience, collect).await {
        Err(_) => Err(Error::Late { what: "finish its answer", after: patience }),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            let message = format!("the answer is larger than {limit} bytes");
            Err(Error::Refused { kind: Kind::TooMuch, message })
        }
        Ok(Err(error)) => Err(match error.downcast::<hyper::Error>() {
            Ok(error) => Error::Broken(*error),
            Err(error) => Error::Nonsense(error.to_string()),
        }),
    }
}

/// `{"code": …, "message": …}`: the code is a word in Connect, a number elsewhere.
#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    code: serde_json::Value,
    #[serde(default)]
    message: String,
}

/// What an answer that is no success says.
fn refused(status: StatusCode, body: &[u8]) -> Error {
    let Ok(refusal) = serde_json::from_slice::<Refusal>(body) else {
        return Error::Nonsense(format!("status {status}"));
    };
    let kind = match refusal.code.as_str() {
        Some(word) => kind_of_word(word, &refusal.message),
        None => kind_of_status(status, &refusal.message),
    };
    Error::Refused { kind, message: refusal.message }
}

fn kind_of_word(word: &str, message: &str) -> Kind {
    match word {
        "invalid_argument" if message.starts_with("cwd ") => Kind::Directory,
        "invalid_argument" if message.starts_with("cmd ") => Kind::Program,
        "invalid_argument" if message.contains("is not a directory") => Kind::NotAFile,
        "invalid_argument" | "failed_precondition" | "already_exists" => Kind::Invalid,
        "unauthenticated" => Kind::User,
        "not_found" => Kind::Missing,
        "permission_denied" => Kind::Denied,
        "resource_exhausted" if message.contains("entries") => Kind::TooMuch,
        "resource_exhausted" if message.contains("No space left") || message.contains("quota") => {
            Kind::DiskFull
        }
        "resource_exhausted" if message.starts_with("events were lost") => Kind::Lost,
        "resource_exhausted" => Kind::Exhausted,
        "deadline_exceeded" => Kind::Deadline,
        _ => Kind::Failed,
    }
}

fn kind_of_status(status: StatusCode, message: &str) -> Kind {
    match status.as_u16() {
        400 if message.contains("is a directory") || message.contains("regular file") => Kind::NotAFile,
        400 | 406 | 408 | 415 => Kind::Invalid,
        416 => Kind::Beyond,
        401 => Kind::User,
        403 => Kind::Denied,
        404 => Kind::Missing,
        413 => Kind::TooMuch,
        503 => Kind::Exhausted,
        507 => Kind::DiskFull,
        _ => Kind::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_no_is_understood_by_its_code_and_words() {
        let cases: [(u16, &str, Kind); 10] = [
            (400, r#"{"code":"invalid_argument","message":"cwd \"/x\" does not exist"}"#, Kind::Directory),
            (
                400,
                r#"{"code":"invalid_argument","message":"cmd \"x\": No such file or directory"}"#,
                Kind::Program,
            ),
            (401, r#"{"code":"unauthenticated","message":"unknown user \"x\""}"#, Kind::User),
            (
                429,
                r#"{"code":"resource_exhausted","message":"more than 100000 entries: list less"}"#,
                Kind::TooMuch,
            ),
            (429, r#"{"code":"resource_exhausted","message":"cannot start a process"}"#, Kind::Exhausted),
            (404, r#"{"code":404,"message":"/x: No such file or directory"}"#, Kind::Missing),
            (400, r#"{"code":400,"message":"/x is a directory"}"#, Kind::NotAFile),
            (400, r#"{"code":400,"message":"path is missing"}"#, Kind::Invalid),
            (401, r#"{"code":401,"message":"unknown user"}"#, Kind::User),
            (507, r#"{"code":507,"message":"No space left on device"}"#, Kind::DiskFull),
        ];
        for (status, body, expected) in cases {
            let status = StatusCode::from_u16(status).expect("a status");
            match refused(status, body.as_bytes()) {
                Error::Refused { kind, .. } => assert_eq!(kind, expected, "{body}"),
                other => panic!("{body}: {other}"),
            }
        }
        assert!(matches!(refused(StatusCode::BAD_GATEWAY, b"<html>"), Error::Nonsense(_)));
    }
}
