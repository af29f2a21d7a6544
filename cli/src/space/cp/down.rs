use std::{fs::Permissions, io::Write, os::unix::fs::PermissionsExt};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::api::files::{FileEntry, FileKind};

use super::{
    Progress, STALL, There,
    remote::{self, Remote, base_name},
};
use crate::{
    args::Context,
    client::Client,
    failure::{Failure, Outcome},
    output,
};

/// Copies a file or a directory out of a space.
pub(super) async fn to_path(
    there: &There,
    here: &Utf8Path,
    context: &Context,
    progress: &mut Progress,
) -> Outcome<()> {
    let target = match base_name(&there.path) {
        Some(name) if here.is_dir() || here.as_str().ends_with('/') => here.join(name),
        _ => here.to_owned(),
    };
    match remote::look(there, &context.client).await? {
        Remote::Absent => Err(Failure::new(format!("there is no {} in {}", there.path, there.space))),
        Remote::File => file(there, there.path.as_bytes(), None, &target, &context.client, progress).await,
        Remote::Directory(entries) => directory(there, entries, &target, &context.client, progress).await,
    }
}

/// Copies a file out of a space to standard output.
pub(super) async fn to_pipe(there: &There, context: &Context, progress: &mut Progress) -> Outcome<()> {
    let mut out = std::io::stdout();
    receive(there, there.path.as_bytes(), &context.client, progress, |bytes| out.write_all(bytes)).await?;
    out.flush().map_err(|error| Failure::new(format!("standard output cannot be written: {error}")))
}

/// Copies one file; it appears whole under its name or not at all.
async fn file(
    there: &There,
    path: &[u8],
    mode: Option<u32>,
    target: &Utf8Path,
    client: &Client,
    progress: &mut Progress,
) -> Outcome<()> {
    let failed = |error: std::io::Error| Failure::new(format!("{target} cannot be written: {error}"));
    let directory = match target.parent() {
        Some(parent) if !parent.as_str().is_empty() => parent,
        _ => Utf8Path::new("."),
    };
    fs_err::create_dir_all(directory)?;
    // The kernel takes the caller's umask off these bits.
    let bits = Permissions::from_mode(mode.unwrap_or(0o666));
    let mut builder = tempfile::Builder::new();
    let mut part = builder.prefix(".drowse-").permissions(bits).tempfile_in(directory).map_err(failed)?;
    receive(there, path, client, progress, |bytes| part.write_all(bytes)).await?;
    part.persist(target).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Streams a file to `sink`.
async fn receive(
    there: &There,
    path: &[u8],
    client: &Client,
    progress: &mut Progress,
    mut sink: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Outcome<()> {
    let shown = String::from_utf8_lossy(path);
    let stalled = |_| Failure::new(format!("{} stopped sending {shown}", client.endpoint()));
    let asked = client.post(&remote::streaming("readFile", there, path, None));
    let mut response = tokio::time::timeout(STALL, client.send(asked)).await.map_err(stalled)??;
    progress.file(&shown, response.content_length());
    loop {
        let chunk = tokio::time::timeout(STALL, response.chunk()).await.map_err(stalled)?;
        let Some(chunk) = chunk.map_err(|error| client.lost(&error))? else { return Ok(()) };
        sink(&chunk).map_err(|error| Failure::new(format!("the copy cannot be written: {error}")))?;
        progress.more(chunk.len() as u64);
    }
}

async fn directory(
    there: &There,
    entries: Vec<FileEntry>,
    target: &Utf8Path,
    client: &Client,
    progress: &mut Progress,
) -> Outcome<()> {
    fs_err::create_dir_all(target)?;
    let mut left: Vec<(Vec<FileEntry>, Utf8PathBuf)> = vec![(entries, target.to_owned())];
    while let Some((entries, target)) = left.pop() {
        for entry in entries {
            let shown = output::plain(&entry.path);
            // Whoever owns the space chose the name; it must not lead out of the target.
            let Some(name) = base_name(&entry.name).filter(|name| *name == entry.name) else {
                eprintln!("note: {shown} has a name that cannot be used here and was left out");
                continue;
            };
            let target = target.join(name);
            match entry.kind {
                FileKind::File => {
                    let path = bytes_of(&entry)?;
                    let mode = u32::from_str_radix(&entry.mode, 8).ok().map(|mode| mode & 0o777);
                    file(there, &path, mode, &target, client, progress).await?;
                }
                FileKind::Directory if entry.symlink_target.is_some() => {
                    eprintln!("note: {shown} is a link to a directory and was left out");
                }
                FileKind::Directory if entry.path_base64.is_some() => {
                    eprintln!("note: {shown} is a directory not named in UTF-8 and was left out");
                }
                FileKind::Directory => {
                    fs_err::create_dir_all(&target)?;
                    let inner = There { path: entry.path, ..there.clone() };
                    left.push((remote::list(&inner, client).await?, target));
                }
                FileKind::Symlink | FileKind::Other => {
                    eprintln!("note: {shown} is no regular file and was left out");
                }
            }
        }
    }
    Ok(())
}

/// The path of an entry, byte for byte.
fn bytes_of(entry: &FileEntry) -> Outcome<Vec<u8>> {
    match &entry.path_base64 {
        Some(text) => BASE64
            .decode(text)
            .map_err(|error| Failure::new(format!("the path of {} came damaged: {error}", entry.path))),
        None => Ok(entry.path.clone().into_bytes()),
    }
}
