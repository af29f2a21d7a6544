/// What an entry is, as the protocol describes it.
pub(crate) mod entry;
/// A body in parts.
mod form;
/// Giving out a file compressed.
pub(crate) mod gzip;
/// The plain HTTP side: queries and refusals.
pub(crate) mod http;
/// The body of an upload on its way into files.
mod intake;
/// Walking a directory.
mod list;
/// What clients noted about files.
mod metadata;
/// Moving, also across file systems.
mod moving;
/// From what a client wrote to an absolute path.
pub(crate) mod path;
/// Giving out a file.
pub(crate) mod read;
/// The unary calls: stat, list, make, move, remove.
pub(crate) mod rpc;
/// A file that is not there yet.
pub(crate) mod upload;
/// Taking in files.
pub(crate) mod write;

use std::io;

use crate::identity::Identity;
use crate::users::User;

/// Does file work on a pool thread as `user`.
pub(crate) async fn as_user<T: Send + 'static, E: From<io::Error> + Send + 'static>(
    user: &User,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let user = user.clone();
    aside(move || {
        let _identity = Identity::enter(&user)?;
        work()
    })
    .await
}

/// Does file work on a pool thread, on files that are open already.
pub(crate) async fn aside<T: Send + 'static, E: From<io::Error> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error).into()))
}
