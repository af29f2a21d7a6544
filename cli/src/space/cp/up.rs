use std::os::unix::fs::PermissionsExt;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::api::exec::{ExecCommand, ExecResult, OutputEncoding};
use futures_util::StreamExt;
use reqwest::{Body, header};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::watch,
};
use tokio_util::io::ReaderStream;

use super::{
    Progress, STALL, There,
    remote::{self, Remote, base_name, join},
};
use crate::{
    args::Context,
    client::Client,
    failure::{Failure, Outcome},
};

/// Copies a file or a directory into a space.
pub(super) async fn from_path(
    here: &Utf8Path,
    there: There,
    context: &Context,
    progress: &mut Progress,
) -> Outcome<()> {
    let found = std::fs::metadata(here)
        .map_err(|error| Failure::new(format!("{here} cannot be read: {}", why(&error))))?;
    // A path like `.` or `..` has the name of what it leads to.
    let name = match here.file_name() {
        Some(name) => name.to_owned(),
        None => {
            let whole = here.canonicalize_utf8().map_err(|e| Failure::new(format!("{here}: {e}")))?;
            whole.file_name().unwrap_or_default().to_owned()
        }
    };
    let path = target(&there, &name, found.is_dir(), &context.client).await?;
    let there = There { path, ..there };
    if found.is_dir() {
        directory(here, &there, &context.client, progress).await
    } else {
        file(here, &there, &context.client, progress).await
    }
}

/// Copies standard input into a file in a space.
pub(super) async fn from_pipe(there: There, context: &Context, progress: &mut Progress) -> Outcome<()> {
    if base_name(&there.path).is_none() || there.path.ends_with('/') {
        return Err(Failure::usage("standard input needs the name of a file: NAME:PATH"));
    }
    progress.file(&there.path, None);
    send(tokio::io::stdin(), None, None, &there, &context.client, progress).await
}

/// An error of the system without its number.
fn why(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Where the copy goes.
async fn target(there: &There, name: &str, is_directory: bool, client: &Client) -> Outcome<String> {
    let inside = || join(&there.path, name);
    match remote::look(there, client).await? {
        Remote::Directory(_) => Ok(inside()),
        _ if there.path.ends_with('/') => Ok(inside()),
        Remote::File if is_directory => Err(Failure::new(format!(
            "{} in {} is a file, and the source a directory",
            there.path, there.space
        ))),
        Remote::File | Remote::Absent => Ok(there.path.clone()),
    }
}

async fn file(here: &Utf8Path, there: &There, client: &Client, progress: &mut Progress) -> Outcome<()> {
    let failed = |error: std::io::Error| Failure::new(format!("{here} cannot be read: {}", why(&error)));
    let opened = tokio::fs::File::open(here).await.map_err(failed)?;
    let found = opened.metadata().await.map_err(failed)?;
    if !found.is_file() {
        return Err(Failure::new(format!("{here} is no regular file")));
    }
    let size = found.len();
    progress.file(here.file_name().unwrap_or(here.as_str()), Some(size));
    // What is appended meanwhile is not sent; what is cut off meanwhile ends the transfer, and the old file stays.
    let mode = found.permissions().mode() & 0o777;
    send(opened.take(size), Some(size), Some(mode), there, client, progress).await
}

/// Streams `from` into a file, and gives up when nothing moves any more.
async fn send(
    from: impl AsyncRead + Send + 'static,
    size: Option<u64>,
    mode: Option<u32>,
    there: &There,
    client: &Client,
    progress: &mut Progress,
) -> Outcome<()> {
    let (moved, mut moves) = watch::channel(0u64);
    let counted = ReaderStream::with_capacity(from, 128 << 10).inspect(move |chunk| {
        if let Ok(chunk) = chunk {
            moved.send_modify(|total| *total += chunk.len() as u64);
        }
    });
    let mut request = client
        .post(&remote::streaming("writeFile", there, there.path.as_bytes(), mode))
        .header(header::CONTENT_TYPE, "application/octet-stream")
        .body(Body::wrap_stream(counted));
    if let Some(size) = size {
        request = request.header(header::CONTENT_LENGTH, size);
    }
    let mut sending = std::pin::pin!(client.send(request));
    let mut seen = 0;
    let mut open = true;
    loop {
        drowse_shared::select_biased! {
            sent = sending.as_mut() => {
                progress.more(*moves.borrow() - seen);
                return sent.map(drop);
            }
            changed = moves.changed(), if open => {
                open = changed.is_ok();
                let total = *moves.borrow_and_update();
                progress.more(total - seen);
                seen = total;
            }
            () = tokio::time::sleep(STALL) => {
                return Err(Failure::new(format!("{} stopped taking {}", client.endpoint(), there.path)));
            }
        }
    }
}

async fn directory(here: &Utf8Path, there: &There, client: &Client, progress: &mut Progress) -> Outcome<()> {
    let mut empty = Vec::new();
    let mut left: Vec<(Utf8PathBuf, String)> = vec![(here.to_owned(), there.path.clone())];
    while let Some((directory, target)) = left.pop() {
        let paths = entries(&directory)?;
        if paths.is_empty() {
            empty.push(target);
            continue;
        }
        for path in paths {
            let target = join(&target, path.file_name().unwrap_or_default());
            let is_link = fs_err::symlink_metadata(&path)?.is_symlink();
            let Ok(found) = fs_err::metadata(&path) else {
                eprintln!("note: {path} leads nowhere and was left out");
                continue;
            };
            if found.is_dir() && is_link {
                eprintln!("note: {path} is a link to a directory and was left out");
            } else if found.is_dir() {
                left.push((path, target));
            } else if found.is_file() {
                file(&path, &There { path: target, ..there.clone() }, client, progress).await?;
            } else {
                eprintln!("note: {path} is no regular file and was left out");
            }
        }
    }
    make(&empty, there, client).await
}

/// What is in a directory here, in byte order.
fn entries(directory: &Utf8Path) -> Outcome<Vec<Utf8PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs_err::read_dir(directory)? {
        match Utf8PathBuf::from_path_buf(entry?.path()) {
            Ok(path) => paths.push(path),
            Err(path) => eprintln!("note: {} is not named in UTF-8 and was left out", path.display()),
        }
    }
    paths.sort();
    Ok(paths)
}

/// Makes directories that no file made.
async fn make(directories: &[String], there: &There, client: &Client) -> Outcome<()> {
    for some in directories.chunks(500) {
        let argv = ["mkdir", "-p", "--"].into_iter().map(str::to_owned).chain(some.iter().cloned()).collect();
        let request = ExecCommand {
            name: there.space.clone(),
            command: None,
            argv: Some(argv),
            stdin: None,
            stdin_base64: None,
            env: std::collections::BTreeMap::new(),
            cwd: None,
            user: there.user.clone(),
            timeout_seconds: Some(60),
            detach: false,
            output_encoding: OutputEncoding::Base64,
            idempotency_key: None,
        };
        let made: ExecResult = client.call("execCommand", &request).await?;
        if made.exit_code != Some(0) {
            let says = BASE64.decode(&made.stderr).unwrap_or_default();
            return Err(Failure::new(String::from_utf8_lossy(&says).trim().to_owned()));
        }
    }
    Ok(())
}
