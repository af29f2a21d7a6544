use std::{fmt::Write, time::Duration};

use drowse_shared::{
    api::{Code, Error},
    http as shared_http,
};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Upgraded, header};
use serde::{Serialize, de::DeserializeOwned};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        handshake::{client::generate_key, derive_accept_key},
        protocol::Role,
    },
};

use crate::{
    failure::{Failure, Outcome},
    fleet::Fleet,
};

/// Longest wait for a connection to the fleet.
const CONNECT: Duration = Duration::from_secs(10);
/// A fleet that gives no sign of life for ten seconds is asked for one four times, every five seconds: one that vanished
/// is noticed after half a minute.
const ASK_AFTER: Duration = Duration::from_secs(10);
const ASK_EVERY: Duration = Duration::from_secs(5);
const ASK_TIMES: u32 = 4;
/// What a verb may take beyond what it was told to wait.
pub(crate) const SLACK: Duration = Duration::from_secs(60);

/// A connection to one fleet.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    fleet: std::sync::Arc<Fleet>,
}

/// A successful answer: its status, and its body as it came.
pub(crate) struct Answer {
    /// 200, or 202 when the space needs longer than the caller waits.
    pub(crate) status: StatusCode,
    /// The body, with fields this version may not know.
    pub(crate) body: serde_json::Value,
}

impl Answer {
    /// The body as this version knows it.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Outcome<T> {
        serde::Deserialize::deserialize(&self.body).map_err(|error| {
            Failure::new(format!("the fleet answered something this drowse cannot read: {error}"))
        })
    }
}

impl Client {
    /// Reaches a fleet. Nothing is sent yet.
    pub(crate) fn new(fleet: Fleet) -> Outcome<Self> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .tcp_keepalive(ASK_AFTER)
            .tcp_keepalive_interval(ASK_EVERY)
            .tcp_keepalive_retries(ASK_TIMES)
            .tcp_user_timeout(ASK_AFTER + ASK_EVERY * ASK_TIMES)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("drowse/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| Failure::new(format!("no HTTP client: {error}")))?;
        Ok(Self { http, fleet: fleet.into() })
    }

    /// Where the fleet is.
    pub(crate) fn endpoint(&self) -> &str {
        &self.fleet.endpoint
    }

    /// Calls a verb and reads what it answers.
    pub(crate) async fn call<T: DeserializeOwned>(&self, verb: &str, request: &impl Serialize) -> Outcome<T> {
        self.answer(verb, request, Duration::ZERO).await?.read()
    }

    /// Calls a verb that may take `wait` by itself.
    pub(crate) async fn answer(
        &self,
        verb: &str,
        request: &impl Serialize,
        wait: Duration,
    ) -> Outcome<Answer> {
        let sent = self.post(verb).timeout(wait + SLACK).json(request);
        let response = self.send(sent).await?;
        let status = response.status();
        let body = response.json().await.map_err(|error| self.lost(&error))?;
        Ok(Answer { status, body })
    }

    /// A request to a verb, with the token on it.
    pub(crate) fn post(&self, verb: &str) -> RequestBuilder {
        self.http
            .request(Method::POST, format!("{}/{verb}", self.fleet.endpoint))
            .header(header::AUTHORIZATION, self.fleet.token.bearer())
    }

    /// Opens a websocket.
    pub(crate) async fn websocket(&self, path: &str) -> Outcome<WebSocketStream<Upgraded>> {
        let key = generate_key();
        let request = self
            .http
            .request(Method::GET, format!("{}{path}", self.fleet.endpoint))
            .header(header::AUTHORIZATION, self.fleet.token.bearer())
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, &key);
        let response = self.send_for(request, |status| status == StatusCode::SWITCHING_PROTOCOLS).await?;
        let accepted = response.headers().get(header::SEC_WEBSOCKET_ACCEPT);
        if accepted.is_none_or(|accepted| accepted.as_bytes() != derive_accept_key(key.as_bytes()).as_bytes())
        {
            return Err(Failure::new(format!("{} answered, and not with a websocket", self.endpoint())));
        }
        let upgraded = response.upgrade().await.map_err(|error| self.lost(&error))?;
        Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await)
    }

    /// Sends, and turns every answer that is no success into a failure.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Outcome<Response> {
        self.send_for(request, |status| status.is_success()).await
    }

    async fn send_for(
        &self,
        request: RequestBuilder,
        wanted: impl Fn(StatusCode) -> bool,
    ) -> Outcome<Response> {
        let response = request.send().await.map_err(|error| self.lost(&error))?;
        if wanted(response.status()) {
            return Ok(response);
        }
        let status = response.status();
        let text = response.text().await.unwrap_or_default();
        let error = serde_json::from_str::<Error>(&text).unwrap_or_else(|_| {
            let short: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
            Error {
                code: Code::Other("not_drowse".to_owned()),
                message: format!(
                    "{} answered {status}, not as a Drowse fleet does: {short}",
                    self.endpoint()
                ),
                retry_after_seconds: None,
                details: std::collections::BTreeMap::new(),
            }
        });
        Err(Failure::answered(error))
    }

    /// No answer came.
    pub(crate) fn lost(&self, error: &reqwest::Error) -> Failure {
        let why = shared_http::why(error);
        let failure = if has_vanished(error) {
            let silent = (ASK_AFTER + ASK_EVERY * ASK_TIMES).as_secs();
            Failure::new(format!(
                "the connection to {} was lost: no sign of life for {silent} s",
                self.endpoint()
            ))
        } else if error.is_timeout() && !error.is_connect() {
            Failure::new(format!("{} did not answer in time", self.endpoint()))
        } else if error.is_connect() {
            Failure::new(format!("{} cannot be reached: {why}", self.endpoint()))
        } else {
            Failure::new(format!("the connection to {} was lost: {why}", self.endpoint()))
        };
        if error.is_connect() {
            failure.hint("Is the fleet running? `drowse up` starts one here.")
        } else {
            failure
        }
    }
}

/// Whether the kernel gave up a connection on which nothing came back.
fn has_vanished(error: &reqwest::Error) -> bool {
    let mut causes = std::iter::successors(Some(error as &dyn std::error::Error), |cause| cause.source());
    !error.is_connect()
        && causes.any(|cause| {
            let cause = cause.downcast_ref::<std::io::Error>();
            cause.and_then(std::io::Error::raw_os_error) == Some(rustix::io::Errno::TIMEDOUT.raw_os_error())
        })
}

/// Percent-encodes bytes for a query, so that names that are not UTF-8 arrive as they are.
pub(crate) fn query_value(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(char::from(*byte));
            }
            _ => {
                // Writing to a String cannot fail.
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_survives_the_query_byte_for_byte() {
        assert_eq!(query_value(b"/home/a b&c=%\xff"), "/home/a%20b%26c%3D%25%FF");
    }
}
