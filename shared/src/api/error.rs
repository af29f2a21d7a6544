use std::{borrow::Cow, collections::BTreeMap, fmt};

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};

/// Seconds a caller is asked to wait before it tries again, when nothing better is known.
pub const RETRY_AFTER_SECONDS: u64 = 5;

macro_rules! codes {
    ($( #[doc = $says:literal] $name:ident = $text:literal, $status:ident; )*) => {
        /// What went wrong, as a stable word. Every code is explained in `docs/ERRORS.md`.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Code { $( #[doc = $says] $name, )*
            /// A code of a newer version.
            Other(String),
        }

        impl Code {
            /// Every code this version speaks.
            pub const ALL: &'static [Code] = &[ $( Code::$name, )* ];

            /// The code as it stands on the wire.
            pub fn as_str(&self) -> &str {
                match self { $( Code::$name => $text, )* Code::Other(text) => text }
            }

            /// What it means, in a sentence.
            pub fn says(&self) -> &'static str {
                match self { $( Code::$name => $says.trim_ascii(), )* Code::Other(_) => "A code of a newer version." }
            }

            /// The HTTP status it is sent with.
            pub fn status(&self) -> StatusCode {
                match self { $( Code::$name => StatusCode::$status, )* Code::Other(_) => StatusCode::INTERNAL_SERVER_ERROR }
            }

            fn read(text: Cow<'_, str>) -> Self {
                match &*text { $( $text => Code::$name, )* _ => Code::Other(text.into_owned()) }
            }
        }
    };
}

codes! {
    /// The request is malformed; the message names the field.
    InvalidRequest = "invalid_request", BAD_REQUEST;
    /// No token, or a wrong one.
    Unauthenticated = "unauthenticated", UNAUTHORIZED;
    /// The port of the space is private, and the request shows no token for it.
    PortPrivate = "port_private", UNAUTHORIZED;
    /// No such verb.
    UnknownVerb = "unknown_verb", NOT_FOUND;
    /// The verb exists and wants another HTTP method.
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED;
    /// There is no such space.
    SpaceNotFound = "space_not_found", NOT_FOUND;
    /// There is no such node.
    NodeNotFound = "node_not_found", NOT_FOUND;
    /// There is no such file in the space.
    FileNotFound = "file_not_found", NOT_FOUND;
    /// The path is a directory, a device, or otherwise no regular file.
    NotAFile = "not_a_file", BAD_REQUEST;
    /// The part of the file that was asked for does not exist.
    RangeBeyond = "range_beyond", RANGE_NOT_SATISFIABLE;
    /// The user inside the space may not do that.
    PermissionDenied = "permission_denied", FORBIDDEN;
    /// There is no such user in the space.
    UnknownUser = "unknown_user", BAD_REQUEST;
    /// The working directory does not exist in the space.
    UnknownDirectory = "unknown_directory", BAD_REQUEST;
    /// The program does not exist in the space or cannot be started.
    CommandNotFound = "command_not_found", BAD_REQUEST;
    /// The head or the body of the request did not come in time.
    RequestTimeout = "request_timeout", REQUEST_TIMEOUT;
    /// The body, the file or the list is larger than the limit.
    TooLarge = "too_large", PAYLOAD_TOO_LARGE;
    /// The space's own disk is full.
    SpaceDiskFull = "space_disk_full", INSUFFICIENT_STORAGE;
    /// The node's disk is full.
    NodeDiskFull = "node_disk_full", INSUFFICIENT_STORAGE;
    /// The template is unknown to this node or fleet.
    TemplateNotFound = "template_not_found", BAD_REQUEST;
    /// The space is in a state that does not allow the verb.
    WrongState = "wrong_state", CONFLICT;
    /// The space is broken; a person must choose.
    SpaceBroken = "space_broken", CONFLICT;
    /// Two nodes hold a space of this name; a person must choose.
    SpaceConflict = "space_conflict", CONFLICT;
    /// The domain leads to another space; a person must choose.
    DomainTaken = "domain_taken", CONFLICT;
    /// As many domains lead to spaces as may.
    TooManyDomains = "too_many_domains", CONFLICT;
    /// The idempotency key was used for another command.
    IdempotencyKeyReused = "idempotency_key_reused", CONFLICT;
    /// A command with an idempotency key may have run, and what came of it is not known.
    ExecUnknown = "exec_unknown", CONFLICT;
    /// No command with that pid runs in the space, and none that has ended is remembered.
    ProcessNotFound = "process_not_found", NOT_FOUND;
    /// The node is still live, or checked in a moment ago.
    NodeLive = "node_live", CONFLICT;
    /// Another ledger is live under this node id.
    NodeTwin = "node_twin", CONFLICT;
    /// The node's endpoint changed within one interval.
    NodeMoved = "node_moved", CONFLICT;
    /// The gateway was started from no release, and has none that nodes could take.
    NoRelease = "no_release", CONFLICT;
    /// The node's upgrade is not stuck, so there is nothing to try again.
    NotStuck = "not_stuck", CONFLICT;
    /// The node was removed and must be readmitted.
    NodeRemoved = "node_removed", CONFLICT;
    /// The daemons belong to different fleets.
    ForeignFleet = "foreign_fleet", CONFLICT;
    /// The node does not hold the space it was sent a request for. Never relayed to a client.
    NotMine = "not_mine", MISDIRECTED_REQUEST;
    /// The ticket of a forwarded create is unknown, used, or void.
    TicketVoid = "ticket_void", CONFLICT;
    /// A node that may hold the space did not answer.
    NodeSilent = "node_silent", SERVICE_UNAVAILABLE;
    /// The node that holds the space cannot be reached.
    NodeUnreachable = "node_unreachable", SERVICE_UNAVAILABLE;
    /// No node can take a new space.
    NoCapacity = "no_capacity", SERVICE_UNAVAILABLE;
    /// The space is waking, building or being destroyed; wait.
    SpaceBusy = "space_busy", SERVICE_UNAVAILABLE;
    /// The space runs, and nothing listens on the port; something may later.
    PortClosed = "port_closed", SERVICE_UNAVAILABLE;
    /// The space sleeps, and its policy does not let this request wake it.
    SpaceAsleep = "space_asleep", SERVICE_UNAVAILABLE;
    /// Requests for its ports have woken the space as often as its policy allows.
    TooManyWakes = "too_many_wakes", TOO_MANY_REQUESTS;
    /// The app in the space took a request and gave no answer that can be read.
    AppBroke = "app_broke", BAD_GATEWAY;
    /// The space is frozen by its node until a condition ends.
    SpaceSuspended = "space_suspended", SERVICE_UNAVAILABLE;
    /// The daemon has as many connections open as it may.
    TooManyConnections = "too_many_connections", SERVICE_UNAVAILABLE;
    /// Too many requests wait for this space.
    QueueFull = "queue_full", SERVICE_UNAVAILABLE;
    /// The gateway looks for as many spaces, or serves as many requests, as it can.
    GatewayBusy = "gateway_busy", SERVICE_UNAVAILABLE;
    /// The fleet is still learning which nodes it has.
    FleetStarting = "fleet_starting", SERVICE_UNAVAILABLE;
    /// The node starts as many spaces at once as it may, and the turn of this one did not come in time.
    NodeBusy = "node_busy", SERVICE_UNAVAILABLE;
    /// The runtime or the agent inside did not answer in time.
    RuntimeTimeout = "runtime_timeout", SERVICE_UNAVAILABLE;
    /// The runtime failed.
    RuntimeFailed = "runtime_failed", SERVICE_UNAVAILABLE;
    /// The daemon did not come to an end with the request in time.
    TimedOut = "timed_out", SERVICE_UNAVAILABLE;
    /// The daemon is shutting down.
    ShuttingDown = "shutting_down", SERVICE_UNAVAILABLE;
    /// Not built yet.
    NotImplemented = "not_implemented", NOT_IMPLEMENTED;
    /// A bug or a broken machine; the log says more.
    Internal = "internal", INTERNAL_SERVER_ERROR;
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self::read(<Cow<'de, str>>::deserialize(from)?))
    }
}

/// The body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[error("{message}")]
pub struct Error {
    /// A stable word for programs.
    pub code: Code,
    /// What happened and what would make it succeed, for people.
    pub message: String,
    /// When trying again makes sense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u64>,
    /// Facts for programs: node ids, states, limits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, serde_json::Value>,
}

impl Error {
    /// An error with this code. What a 503 asks for, waiting, is filled in.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let waits = code.status() == StatusCode::SERVICE_UNAVAILABLE;
        Self {
            code,
            message: message.into(),
            retry_after_seconds: waits.then_some(RETRY_AFTER_SECONDS),
            details: BTreeMap::new(),
        }
    }

    /// Adds a fact.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<serde_json::Value>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    /// Says when to try again.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut response = (self.code.status(), axum::Json(&self)).into_response();
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        // Lets a layer log what was answered without reading the body back.
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_words_and_503_always_says_when() {
        let mut seen = std::collections::BTreeSet::new();
        for code in Code::ALL {
            assert!(seen.insert(code.as_str()), "{code} twice");
            let error = Error::new(code.clone(), "x");
            let wire = serde_json::to_string(&error).expect("plain data");
            assert_eq!(serde_json::from_str::<Error>(&wire).expect("same shape"), error);
            let is_503 = code.status() == StatusCode::SERVICE_UNAVAILABLE;
            assert_eq!(error.into_response().headers().contains_key(header::RETRY_AFTER), is_503, "{code}");
        }
    }

    #[test]
    fn a_code_of_a_newer_version_survives() {
        let error: Error = serde_json::from_str(r#"{"code":"new_one","message":"m"}"#).expect("readable");
        assert_eq!(error.code.as_str(), "new_one");
    }
}
