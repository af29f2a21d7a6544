use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, Response, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;

use super::entry::Entry;
use super::{as_user, list, moving, path};
use crate::body::Body;
use crate::connect::{self, Code, Error};
use crate::users::{Names, User};

/// All requests of the service in one: each method takes what it needs. A path that is not UTF-8 is given in base64.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    #[serde(default)]
    path: String,
    path_base64: Option<String>,
    #[serde(default)]
    depth: Option<u32>,
    #[serde(default)]
    source: String,
    source_base64: Option<String>,
    #[serde(default)]
    destination: String,
    destination_base64: Option<String>,
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::from_io("file", &error)
    }
}

/// Serves the unary calls of the file service.
pub(crate) async fn call(method: &str, headers: &HeaderMap, body: Incoming) -> Result<Response<Body>, Error> {
    let request: Request = connect::unary_request(body).await?;
    let user = connect::caller(headers)?;
    let path = resolve(&user, &request.path, request.path_base64.as_deref())?;
    match method {
        "Stat" => {
            let entry = as_user(&user, move || describe(&path)).await?;
            Ok(connect::json_response(StatusCode::OK, &json!({"entry": entry})))
        }
        "ListDir" => {
            let depth = request.depth.unwrap_or(1);
            let entries = as_user(&user, move || list::list(&path, depth, &Names::load())).await?;
            Ok(connect::json_bytes_response(StatusCode::OK, entries))
        }
        "MakeDir" => {
            let entry = as_user(&user, move || make(&path)).await?;
            Ok(connect::json_response(StatusCode::OK, &json!({"entry": entry})))
        }
        "Move" => {
            let from = resolve(&user, &request.source, request.source_base64.as_deref())?;
            let to = resolve(&user, &request.destination, request.destination_base64.as_deref())?;
            if request.source.is_empty() && request.source_base64.is_none()
                || request.destination.is_empty() && request.destination_base64.is_none()
            {
                return Err(Error::new(Code::InvalidArgument, "source and destination are needed"));
            }
            let moved = as_user(&user, move || {
                moving::rename(&from, &to).map_err(|error| refuse(&from, &error))?;
                describe(&to)
            });
            Ok(connect::json_response(StatusCode::OK, &json!({"entry": moved.await?})))
        }
        "Remove" => {
            if path == Path::new("/") || request.path.is_empty() && request.path_base64.is_none() {
                return Err(Error::new(Code::InvalidArgument, "name what to remove; / is not removed"));
            }
            as_user(&user, move || moving::remove(&path).map_err(|error| refuse(&path, &error))).await?;
            Ok(connect::json_response(StatusCode::OK, &json!({})))
        }
        _ => Err(Error::new(Code::Unimplemented, format!("filesystem.Filesystem has no method {method:?}"))),
    }
}

fn resolve(user: &User, text: &str, exact: Option<&str>) -> Result<PathBuf, Error> {
    match exact {
        None => path::absolute(user, text.as_bytes()),
        Some(exact) => {
            let bytes = STANDARD.decode(exact);
            let bytes =
                bytes.map_err(|error| Error::new(Code::InvalidArgument, format!("bad base64: {error}")))?;
            path::absolute(user, &bytes)
        }
    }
}

fn refuse(path: &Path, error: &io::Error) -> Error {
    Error::from_io(&path.display().to_string(), error)
}

fn describe(path: &Path) -> Result<Entry, Error> {
    Entry::describe(path, &Names::load()).map_err(|error| refuse(path, &error))
}

fn make(path: &Path) -> Result<Entry, Error> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            return Err(Error::new(Code::AlreadyExists, format!("{} exists already", path.display())));
        }
        Ok(_) => {
            let words = format!("{} exists and is not a directory", path.display());
            return Err(Error::new(Code::InvalidArgument, words));
        }
        Err(_) => {}
    }
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|error| refuse(path, &error))?;
    describe(path)
}
