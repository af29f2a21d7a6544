use std::sync::{Arc, Mutex, PoisonError};

use axum::{body::Body, response::Response};
use drowse_shared::{
    http::{hop, tunnel},
    seams::{BoxFuture, Env},
    shutdown::Shutdown,
};
use http::HeaderValue;
use hyper::{body::Incoming, upgrade::OnUpgrade};
use tokio::sync::OwnedSemaphorePermit;

use crate::{metrics::Metrics, service::Gateway};

/// The far side of a tunnel.
pub(crate) struct Tunnel {
    far: OnUpgrade,
    to: Option<HeaderValue>,
    lost: BoxFuture<'static, ()>,
    place: OwnedSemaphorePermit,
}

impl Tunnel {
    /// From an answer that changes the protocol: the answer as it goes back, and what comes after it.
    pub(super) fn of(
        mut response: Response<Incoming>,
        lost: BoxFuture<'static, ()>,
        place: OwnedSemaphorePermit,
    ) -> (Response, Self) {
        let far = hyper::upgrade::on(&mut response);
        let granted = hop::upgrade(response.headers());
        let mut response = response.map(|_| Body::empty());
        hop::strip_for_streams(response.headers_mut());
        if let Some(to) = granted.clone() {
            hop::set_upgrade(response.headers_mut(), to);
        }
        (response, Self { far, to: granted, lost, place })
    }

    /// Joins it with the caller's side until either ends or the node is lost.
    /// `ended` is told how.
    pub(crate) fn open(
        self,
        env: &Env,
        shutdown: &Shutdown,
        near: OnUpgrade,
        ended: impl FnOnce(tunnel::End) + Send + 'static,
    ) {
        let Self { far, to, lost, place } = self;
        // It keeps its place among what is at nodes until it ends.
        let lost = async move {
            let _place = place;
            lost.await;
        };
        tunnel::open(env, shutdown, near, (far, to.as_ref()), lost, ended);
    }
}

/// The caller's side of a tunnel that may come to be.
#[derive(Clone)]
pub(crate) struct Near {
    side: Arc<Mutex<Option<OnUpgrade>>>,
    env: Env,
    shutdown: Shutdown,
    metrics: Arc<Metrics>,
}

impl Near {
    /// From a request that is about to be answered.
    pub(crate) fn of<B>(request: &mut http::Request<B>, gateway: &Gateway) -> Self {
        let side = Arc::new(Mutex::new(Some(hyper::upgrade::on(request))));
        let (env, shutdown, metrics) =
            (gateway.env.clone(), gateway.shutdown.clone(), gateway.metrics.clone());
        Self { side, env, shutdown, metrics }
    }

    /// The caller is about to be told; there is one tunnel for one request.
    pub(super) fn join(&self, tunnel: Tunnel) {
        let near = self.side.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(near) = near {
            let metrics = self.metrics.clone();
            tunnel.open(&self.env, &self.shutdown, near, move |end| metrics.tunnel(end.as_str()));
        }
    }
}
