//! Rolling the fleet: `upgradeFleet getUpgrade retryUpgrade stopUpgrade`, and the release that nodes fetch.

use std::{io::Read as _, sync::Arc};

use axum::{
    Json,
    body::Body,
    extract::{Request, State},
    response::Response,
};
use bytes::Bytes;
use camino::Utf8Path;
use drowse_shared::{
    api::{
        Code, Error, JSON_BODY_BYTES_MAX,
        nodes::OneNode,
        parse,
        upgrade::{BUILD_HEADER, Everybody, FleetUpgrade},
    },
    seams::Env,
};
use futures_util::stream;
use http::{HeaderValue, header};

use super::body;
use crate::{fleet::no_release, service::Gateway};

/// What a release is packed into, beside its programs, by `install.sh`.
const ARCHIVE: &str = "release.tar.gz";
/// How much of it is in memory at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// `upgradeFleet`.
pub(super) async fn begin(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Json<FleetUpgrade>, Error> {
    let Everybody {} = parse(&read(request).await?)?;
    // Nobody is told to take what is not there.
    open(&gateway).await?;
    gateway.nodes.fleet.roll().await.map(Json)
}

/// `getUpgrade`.
pub(super) async fn show(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Json<FleetUpgrade>, Error> {
    let Everybody {} = parse(&read(request).await?)?;
    gateway.nodes.fleet.upgrade().map(Json)
}

/// `retryUpgrade`.
pub(super) async fn retry(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Json<FleetUpgrade>, Error> {
    let OneNode { node_id } = parse(&read(request).await?)?;
    gateway.nodes.fleet.retry(node_id).await.map(Json)
}

/// `stopUpgrade`.
pub(super) async fn halt(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Json<FleetUpgrade>, Error> {
    let Everybody {} = parse(&read(request).await?)?;
    gateway.nodes.fleet.halt().await.map(Json)
}

async fn read(request: Request) -> Result<Bytes, Error> {
    body::read(request.into_body(), JSON_BODY_BYTES_MAX).await
}

/// The release this gateway was started from.
pub(super) async fn release(State(gateway): State<Arc<Gateway>>) -> Result<Response, Error> {
    let Ok(place) = gateway.releases.clone().try_acquire_owned() else {
        let message = "the release is being fetched by as many as may fetch it at a time; try again";
        return Err(Error::new(Code::GatewayBusy, message));
    };
    let (file, length) = open(&gateway).await?;
    let env = gateway.env.clone();
    let chunks = stream::try_unfold((file, env, place), |(file, env, place)| async move {
        let read = env.blocking("release", move || {
            let mut file = file;
            let mut chunk = vec![0; CHUNK_BYTES];
            file.read(&mut chunk).map(|length| {
                chunk.truncate(length);
                (chunk, file)
            })
        });
        let (chunk, file) = read.await.unwrap_or_else(|| Err(std::io::Error::other("reading ended")))?;
        let more = (!chunk.is_empty()).then(|| (Bytes::from(chunk), (file, env, place)));
        Ok::<_, std::io::Error>(more)
    });
    let mut response = Response::new(Body::from_stream(chunks));
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/gzip"));
    // A build is JSON of ASCII but for what somebody may have put into its version.
    let build = serde_json::to_vec(&gateway.build).ok();
    if let Some(build) = build.and_then(|json| HeaderValue::from_bytes(&json).ok()) {
        response.headers_mut().insert(BUILD_HEADER, build);
    }
    Ok(response)
}

/// The archive and its length in bytes.
async fn open(gateway: &Gateway) -> Result<(fs_err::File, u64), Error> {
    let directory = gateway.release.clone().ok_or_else(no_release)?;
    opened(&gateway.env, &directory).await
}

async fn opened(env: &Env, directory: &Utf8Path) -> Result<(fs_err::File, u64), Error> {
    let path = directory.join(ARCHIVE);
    let opened = env.blocking("release", move || {
        let file = fs_err::File::open(path)?;
        let length = file.metadata()?.len();
        Ok((file, length))
    });
    opened.await.unwrap_or_else(|| Err(std::io::Error::other("opening ended"))).map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            return no_release();
        }
        tracing::error!(%error, "the release cannot be read");
        Error::new(Code::Internal, "the release cannot be read; the gateway's log says why")
    })
}
