use axum::body::Body;
use drowse_shared::api::watch::{Change, FileChange, WatchFiles};
use http::{HeaderValue, header};
use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::DropGuard;

use super::{
    Error, Reply, dial,
    envelope::{Envelopes, wrap},
    identify,
    process::{KEEPALIVE, Place},
    refused, request, whole,
};

const WATCH: &str = "/filesystem.Filesystem/WatchDir";
/// A refusal is short.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// A directory under watch, and the connection on which it is told what happens there. The watch ends with it.
pub struct Watching {
    events: Envelopes,
    _cut: DropGuard,
}

/// What a watch tells.
#[derive(Debug)]
pub enum Told {
    /// Something changed.
    Changed(FileChange),
    /// Nothing happens.
    Alive,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    start: Option<Start>,
    #[serde(default)]
    filesystem: Option<Event>,
}

#[derive(Deserialize)]
struct Start {}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    name: String,
    #[serde(default)]
    name_base64: Option<String>,
    r#type: Type,
}

#[derive(Deserialize)]
enum Type {
    #[serde(rename = "EVENT_TYPE_CREATE")]
    Create,
    #[serde(rename = "EVENT_TYPE_WRITE")]
    Write,
    #[serde(rename = "EVENT_TYPE_REMOVE")]
    Remove,
    #[serde(rename = "EVENT_TYPE_RENAME")]
    Rename,
    #[serde(rename = "EVENT_TYPE_CHMOD")]
    Chmod,
}

impl From<Event> for FileChange {
    fn from(event: Event) -> Self {
        let change = match event.r#type {
            Type::Create => Change::Create,
            Type::Write => Change::Write,
            Type::Remove => Change::Remove,
            Type::Rename => Change::Rename,
            Type::Chmod => Change::Chmod,
        };
        Self { change, path: event.name, path_base64: event.name_base64 }
    }
}

/// Puts a directory under watch. What happens once this has answered is told.
///
/// # Errors
/// Why it cannot be watched, or that the agent went silent.
pub async fn watch(place: &Place, wish: &WatchFiles) -> Result<Watching, Error> {
    let line = dial(place).await?;
    let message = json!({ "path": wish.path.as_deref().unwrap_or_default(), "recursive": wish.recursive });
    let mut request = request("POST", WATCH.to_owned(), Body::from(wrap(message.to_string().as_bytes())))?;
    identify(&mut request, wish.user.as_deref());
    let headers = request.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/connect+json"));
    headers.insert(KEEPALIVE, place.keepalive());
    let Reply { response, cut, patience } = line.send(request).await?;
    let status = response.status();
    if !status.is_success() {
        return Err(refused(status, &whole(response.into_body(), REFUSAL_BYTES_MAX, patience).await?));
    }
    let mut watching = Watching { events: Envelopes::new(response.into_body(), patience), _cut: cut };
    match watching.message().await?.start {
        Some(Start {}) => Ok(watching),
        None => Err(Error::Nonsense("the first event of a watch is no start".to_owned())),
    }
}

impl Watching {
    /// What it tells next. Nothing is read ahead.
    ///
    /// # Errors
    /// That events were lost, the connection broke, or the agent went silent.
    pub async fn next(&mut self) -> Result<Told, Error> {
        Ok(self.message().await?.filesystem.map_or(Told::Alive, |event| Told::Changed(event.into())))
    }

    async fn message(&mut self) -> Result<Message, Error> {
        let message = self.events.next().await?;
        let message = message.ok_or_else(|| Error::Nonsense("a watch ended without a word".to_owned()))?;
        serde_json::from_slice(&message).map_err(|error| Error::Nonsense(error.to_string()))
    }
}
