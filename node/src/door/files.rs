use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use drowse_shared::{
    api::{
        Code, Error, WRITE_FILES_BODY_BYTES_MAX,
        files::{
            FileContent, FileList, FilesWritten, JSON_FILE_BYTES_MAX, ListFiles, ReadFile, WriteFile,
            WriteFiles,
        },
        spaces::Resumed,
    },
    http::{deadline::Deadline, pace::Pace},
    name::SpaceRef,
};
use http::{HeaderMap, header};

use super::{
    error,
    expect::Sender,
    request::{BigJson, Json, Stream, read as read_json},
};
use crate::{
    agent_client::{
        Line, dial,
        files::{self, Target},
    },
    lifecycle::wake,
    node::Node,
    space::Space,
};

/// Wakes the space and opens a connection to its agent; once more if its body died unseen.
async fn reach(
    node: &Arc<Node>,
    sender: Sender,
    space: &SpaceRef,
    verb: &'static str,
) -> Result<(Line, Space, Option<Resumed>), Error> {
    let (row, resumed) = wake::used(node, &sender.meant(space), verb).await.map_err(sender.misled(space))?;
    match dial(&node.place(row.id)).await {
        Ok(line) => Ok((line, row, resumed)),
        Err(crate::agent_client::Error::Unreachable(why)) => {
            let (row, again) = wake::revive(node, &row, &why, verb).await?;
            let line = dial(&node.place(row.id)).await.map_err(|why| error::agent(&why))?;
            Ok((line, row, again.or(resumed)))
        }
        Err(why) => Err(error::agent(&why)),
    }
}

pub(super) async fn read(
    State(node): State<Arc<Node>>,
    sender: Sender,
    request: Request,
) -> Result<Response, Error> {
    let (parts, body) = request.into_parts();
    if let Some(stream) = Stream::read(&parts)? {
        let (line, row, _) = reach(&node, sender, &stream.space, "readFile").await?;
        let target = Target { path: &stream.path, user: stream.user.as_deref(), mode: None };
        let content = files::read(line, target, &parts.headers).await.map_err(|why| error::agent(&why))?;
        let running = node.live.run(row.id, "readFile".to_owned(), node.env.clock.wall());
        return Ok(content.into_response().map(|body| hold(body, running)));
    }
    let wish: ReadFile = read_json(&parts.headers, body, drowse_shared::api::JSON_BODY_BYTES_MAX).await?;
    let (line, _, resumed) = reach(&node, sender, &wish.name, "readFile").await?;
    let target = Target { path: wish.path.as_bytes(), user: wish.user.as_deref(), mode: None };
    let content = files::read(line, target, &HeaderMap::new()).await.map_err(|why| error::agent(&why))?;
    let content = content.whole(JSON_FILE_BYTES_MAX).await.map_err(|why| error::agent(&why))?;
    let answer = FileContent {
        path: wish.path,
        size_bytes: u64::try_from(content.len()).unwrap_or(u64::MAX),
        content_base64: STANDARD.encode(content),
        resumed,
    };
    Ok(axum::Json(answer).into_response())
}

pub(super) async fn write(
    State(node): State<Arc<Node>>,
    sender: Sender,
    request: Request,
) -> Result<axum::Json<FilesWritten>, Error> {
    let (parts, body) = request.into_parts();
    if let Some(stream) = Stream::read(&parts)? {
        let (mut line, row, resumed) = reach(&node, sender, &stream.space, "writeFile").await?;
        let _running = node.live.run(row.id, "writeFile".to_owned(), node.env.clock.wall());
        let target =
            Target { path: &stream.path, user: stream.user.as_deref(), mode: stream.mode.as_deref() };
        let pace = parts.extensions.get::<Pace>().cloned().unwrap_or_default();
        if let Some(deadline) = parts.extensions.get::<Deadline>() {
            deadline.lift();
        }
        let written = files::write(&mut line, target, body, length(&parts.headers), &pace)
            .await
            .map_err(|why| error::agent(&why))?;
        node.touch(&row, "writeFile");
        return Ok(axum::Json(FilesWritten { files: vec![written], resumed }));
    }
    let wish: WriteFile = read_json(&parts.headers, body, WRITE_FILES_BODY_BYTES_MAX).await?;
    let content = content(wish.content, wish.content_base64.as_deref())?;
    let (mut line, _, resumed) = reach(&node, sender, &wish.name, "writeFile").await?;
    let target =
        Target { path: wish.path.as_bytes(), user: wish.user.as_deref(), mode: wish.mode.as_deref() };
    let written = files::write(&mut line, target, Body::from(content), None, &Pace::default())
        .await
        .map_err(|why| error::agent(&why))?;
    Ok(axum::Json(FilesWritten { files: vec![written], resumed }))
}

pub(super) async fn write_many(
    State(node): State<Arc<Node>>,
    sender: Sender,
    BigJson(wish): BigJson<WriteFiles>,
) -> Result<axum::Json<FilesWritten>, Error> {
    let mut contents = Vec::with_capacity(wish.files.len());
    for file in wish.files {
        let bytes = content(file.content, file.content_base64.as_deref())?;
        contents.push((file.path, file.mode, bytes));
    }
    let (mut line, _, resumed) = reach(&node, sender, &wish.name, "writeFiles").await?;
    let mut written = Vec::with_capacity(contents.len());
    for (path, mode, bytes) in contents {
        let target = Target { path: path.as_bytes(), user: wish.user.as_deref(), mode: mode.as_deref() };
        let file = files::write(&mut line, target, Body::from(bytes), None, &Pace::default())
            .await
            .map_err(|why| error::agent(&why).with("written", written.len()).with("path", path.clone()))?;
        written.push(file);
    }
    Ok(axum::Json(FilesWritten { files: written, resumed }))
}

pub(super) async fn list(
    State(node): State<Arc<Node>>,
    sender: Sender,
    Json(wish): Json<ListFiles>,
) -> Result<axum::Json<FileList>, Error> {
    let (mut line, _, resumed) = reach(&node, sender, &wish.name, "listFiles").await?;
    let entries = files::list(&mut line, wish.path.as_deref(), wish.depth, wish.user.as_deref())
        .await
        .map_err(|why| error::agent(&why))?;
    Ok(axum::Json(FileList { entries, resumed }))
}

fn content(text: Option<String>, base64: Option<&str>) -> Result<Bytes, Error> {
    match (text, base64) {
        (Some(text), _) => Ok(text.into_bytes().into()),
        (None, base64) => STANDARD
            .decode(base64.unwrap_or_default())
            .map(Bytes::from)
            .map_err(|why| Error::new(Code::InvalidRequest, format!("contentBase64: {why}"))),
    }
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok())
}

/// A body that counts as running until its last byte was taken, or nobody wants it any more.
fn hold(body: Body, running: crate::live::RunGuard) -> Body {
    use http_body_util::BodyExt;
    Body::new(body.map_frame(move |frame| {
        let _ = &running;
        frame
    }))
}
