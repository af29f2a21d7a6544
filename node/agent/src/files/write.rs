use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, Uri, header};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use serde_json::{Value, json};

use super::as_user;
use super::http::{Query, Refusal};
use super::intake::{Intake, Taken, Wish};
use super::metadata::{self, Notes};
use crate::body::Body;
use crate::connect;

const BATCH_BYTES: usize = 128 * 1024;
/// How long an upload may pause.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// How much of a refused upload is still read, and how long.
const REFUSED_BYTES_MAX: usize = 64 * 1024 * 1024;
const REFUSED_WAIT: Duration = Duration::from_secs(2);

/// Serves POST /files: the body is one file, or a form of several, compressed or not.
pub(crate) async fn serve(
    uri: &Uri,
    headers: &HeaderMap,
    mut body: Incoming,
) -> Result<Response<Body>, Refusal> {
    let taken = take(uri, headers, &mut body).await;
    if taken.is_err() {
        // A client that is still sending may not look for the answer before it is done, so some of the rest is read.
        drop(tokio::time::timeout(REFUSED_WAIT, discard(&mut body)).await);
    }
    taken
}

async fn discard(body: &mut Incoming) {
    let mut left = REFUSED_BYTES_MAX;
    while let Some(Ok(frame)) = body.frame().await {
        left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        if left == 0 {
            return;
        }
    }
}

async fn take(uri: &Uri, headers: &HeaderMap, body: &mut Incoming) -> Result<Response<Body>, Refusal> {
    let query = Query::read(uri)?;
    let user = connect::find_user(query.username.as_deref())?;
    let metadata = metadata::from_headers(headers)?;
    let gzip = is_gzip(headers)?;
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content_type = given.unwrap_or_default().to_owned();
    let path = query.path.filter(|path| !path.is_empty());
    let wish = Wish { user: user.clone(), path, mode: query.mode, metadata: metadata.clone() };
    let mut intake = as_user(&user, move || Intake::new(wish, &content_type, gzip)).await?;
    let mut batch = Vec::new();
    loop {
        let frame = next_frame(body).await?;
        let ended = frame.is_none();
        if let Some(frame) = frame {
            let cut =
                |_| Refusal::new(StatusCode::BAD_REQUEST, "the upload ended early; nothing was changed");
            let Ok(piece) = frame.map_err(cut)?.into_data() else { continue };
            batch.extend_from_slice(&piece);
        }
        if ended || batch.len() >= BATCH_BYTES {
            (intake, batch) = as_user(&user, move || {
                intake.feed(&batch)?;
                batch.clear();
                Ok::<_, Refusal>((intake, batch))
            })
            .await?;
        }
        if ended {
            break;
        }
    }
    let taken = as_user(&user, move || intake.finish()).await?;
    let written: Vec<Value> = taken.iter().map(|taken| describe(taken, &metadata)).collect();
    Ok(connect::json_response(StatusCode::OK, &written))
}

fn describe(taken: &Taken, metadata: &Notes) -> Value {
    let name = taken.path.file_name().unwrap_or_default().to_string_lossy();
    let path = taken.path.to_string_lossy();
    let mut written = json!({"path": path, "name": name, "type": "file", "size": taken.size.to_string()});
    if !metadata.is_empty() {
        written["metadata"] = json!(metadata);
    }
    written
}

async fn next_frame(body: &mut Incoming) -> Result<Option<hyper::Result<Frame<Bytes>>>, Refusal> {
    let paused =
        |_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the upload paused too long; nothing was changed");
    tokio::time::timeout(PAUSE_MAX, body.frame()).await.map_err(paused)
}

fn is_gzip(headers: &HeaderMap) -> Result<bool, Refusal> {
    let given = headers.get(header::CONTENT_ENCODING).map_or(&b"identity"[..], |value| value.as_bytes());
    match given.to_ascii_lowercase().as_slice() {
        b"identity" => Ok(false),
        b"gzip" => Ok(true),
        other => {
            let words =
                format!("content-encoding {:?}: send gzip or identity", String::from_utf8_lossy(other));
            Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, words))
        }
    }
}
