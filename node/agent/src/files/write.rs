use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, Uri, header};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use serde_json::json;

use super::http::{Query, Refusal};
use super::{as_user, path};
use crate::body::Body;
use crate::connect;

const BATCH_BYTES: usize = 128 * 1024;
/// How long an upload may pause.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// How much of a refused upload is still read, and how long.
const REFUSED_BYTES_MAX: usize = 64 * 1024 * 1024;
const REFUSED_WAIT: Duration = Duration::from_secs(2);
const MODE_DEFAULT: u32 = 0o644;
const LINKS_MAX: usize = 40;

/// Serves POST /files with one file as the body.
///
/// The bytes go to a nameless file beside the target, which takes the target's name only once all have arrived: a cut
/// upload leaves the old file as it was, and nothing else.
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
    check_content_type(headers)?;
    let query = Query::read(uri)?;
    let user = connect::find_user(query.username.as_deref())?;
    let given = query.path.filter(|path| !path.is_empty());
    let given = given.ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, "path is missing"))?;
    let path = path::absolute(&user, &given)?;
    let upload = Arc::new(
        as_user(&user, {
            let (path, mode) = (path.clone(), query.mode);
            move || Upload::begin(&path, mode)
        })
        .await?,
    );
    let mut size: u64 = 0;
    let mut batch = Vec::new();
    while let Some(frame) = next_frame(body).await? {
        let cut = |_| Refusal::new(StatusCode::BAD_REQUEST, "the upload ended early; nothing was changed");
        let Ok(piece) = frame.map_err(cut)?.into_data() else { continue };
        size += piece.len() as u64;
        batch.extend_from_slice(&piece);
        if batch.len() >= BATCH_BYTES {
            batch = write(&upload, batch).await?;
        }
    }
    write(&upload, batch).await?;
    as_user(&user, move || upload.finish()).await?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let written = json!([{
        "path": path.to_string_lossy(),
        "name": name,
        "type": "file",
        "size": size.to_string(),
    }]);
    Ok(connect::json_response(StatusCode::OK, &written))
}

async fn next_frame(body: &mut Incoming) -> Result<Option<hyper::Result<Frame<Bytes>>>, Refusal> {
    let paused =
        |_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the upload paused too long; nothing was changed");
    tokio::time::timeout(PAUSE_MAX, body.frame()).await.map_err(paused)
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim();
    if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "compressed uploads are not served yet",
        ));
    }
    if essence.is_empty() || essence.eq_ignore_ascii_case("application/octet-stream") {
        return Ok(());
    }
    let words = format!("send the file as application/octet-stream, not {essence:?}");
    Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, words))
}

/// Writes a batch and gives the emptied buffer back.
async fn write(upload: &Arc<Upload>, mut batch: Vec<u8>) -> Result<Vec<u8>, Refusal> {
    let upload = Arc::clone(upload);
    super::aside(move || {
        (&upload.file).write_all(&batch).map_err(|error| Refusal::from_io(&upload.target, &error))?;
        batch.clear();
        Ok(batch)
    })
    .await
}

/// A file that has no name yet.
struct Upload {
    /// Where it will be, symbolic links resolved.
    target: PathBuf,
    directory: OwnedFd,
    name: OsString,
    file: File,
    mode: u32,
    /// Its hidden name, where the file system has no nameless files.
    hidden: Option<OsString>,
}

impl Upload {
    fn begin(path: &Path, mode: Option<u32>) -> Result<Self, Refusal> {
        let target = follow(path).map_err(|error| Refusal::from_io(path, &error))?;
        let refuse = |error: io::Error| Refusal::from_io(&target, &error);
        let old_mode = match std::fs::metadata(&target) {
            Ok(old) if old.is_file() => Some(old.permissions().mode() & 0o777),
            Ok(old) => {
                let what = if old.is_dir() { "is a directory" } else { "is not a regular file" };
                return Err(Refusal::new(StatusCode::BAD_REQUEST, format!("{} {what}", target.display())));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(refuse(error)),
        };
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "path names no file"));
        };
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(refuse)?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let directory = match rustix::fs::open(parent, flags, Mode::empty()) {
            // A directory one may enter and write but not list.
            Err(rustix::io::Errno::ACCESS) => {
                let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
                rustix::fs::open(parent, flags, Mode::empty())
            }
            opened => opened,
        };
        let directory = directory.map_err(|errno| refuse(errno.into()))?;
        let (file, hidden) = create(&directory).map_err(refuse)?;
        let mode = mode.or(old_mode).unwrap_or(MODE_DEFAULT);
        Ok(Self { name: name.to_owned(), directory, file, mode, hidden, target })
    }

    fn finish(&self) -> Result<(), Refusal> {
        let refuse = |error: rustix::io::Errno| Refusal::from_io(&self.target, &error.into());
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(self.mode)).map_err(refuse)?;
        let linked;
        let hidden = match &self.hidden {
            Some(hidden) => hidden,
            None => {
                let nameless = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                linked = hidden_name();
                let follow = AtFlags::SYMLINK_FOLLOW;
                rustix::fs::linkat(CWD, nameless.as_str(), &self.directory, &linked, follow)
                    .map_err(refuse)?;
                &linked
            }
        };
        let renamed = rustix::fs::renameat(&self.directory, hidden, &self.directory, &self.name);
        if renamed.is_err() {
            remove(&self.directory, hidden);
        }
        renamed.map_err(refuse)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // After a rename the hidden name is gone and this finds nothing.
        if let Some(hidden) = &self.hidden {
            remove(&self.directory, hidden);
        }
    }
}

fn remove(directory: &OwnedFd, name: &OsString) {
    // Missing is as good.
    let _gone = rustix::fs::unlinkat(directory, name, AtFlags::empty());
}

fn create(directory: &OwnedFd) -> io::Result<(File, Option<OsString>)> {
    let private = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(directory, ".", flags, private) {
        Ok(file) => return Ok((file.into(), None)),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR | rustix::io::Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let hidden = hidden_name();
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, &hidden, flags, private)?;
    Ok((file.into(), Some(hidden)))
}

fn hidden_name() -> OsString {
    format!(".drowse-upload-{}", crate::sys::random_hex()).into()
}

/// Follows symbolic links in the last part, to where writing would write; that may not exist yet.
fn follow(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match std::fs::read_link(&path) {
            Ok(link) => {
                let parent = path.parent().unwrap_or(Path::new("/"));
                path = parent.join(link);
            }
            // EINVAL: it is no link.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path),
            Err(error) => return Err(error),
        }
    }
    debug_assert!(path.as_os_str().as_bytes().starts_with(b"/"), "parents are absolute");
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}
