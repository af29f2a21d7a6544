use std::sync::{Arc, Mutex, PoisonError};

use axum::{body::Body, response::Response};
use drowse_shared::{
    http::{hop, tunnel},
    seams::{BoxFuture, Env},
    shutdown::Shutdown,
};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use tokio::sync::OwnedSemaphorePermit;

/// The far side of a tunnel.
pub(crate) struct Tunnel {
    far: OnUpgrade,
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
        if let Some(to) = granted {
            hop::set_upgrade(response.headers_mut(), to);
        }
        (response, Self { far, lost, place })
    }

    /// Joins it with the caller's side until either ends or the node is lost.
    pub(crate) fn open(self, env: &Env, shutdown: &Shutdown, near: OnUpgrade) {
        let Self { far, lost, place } = self;
        // It keeps its place among what is at nodes until it ends.
        let lost = async move {
            let _place = place;
            lost.await;
        };
        tunnel::open(env, shutdown, near, far, lost);
    }
}

/// The caller's side of a tunnel that may come to be.
#[derive(Clone)]
pub(crate) struct Near {
    side: Arc<Mutex<Option<OnUpgrade>>>,
    env: Env,
    shutdown: Shutdown,
}

impl Near {
    /// From a request that is about to be answered.
    pub(crate) fn of<B>(request: &mut http::Request<B>, env: &Env, shutdown: &Shutdown) -> Self {
        let side = Arc::new(Mutex::new(Some(hyper::upgrade::on(request))));
        Self { side, env: env.clone(), shutdown: shutdown.clone() }
    }

    /// The caller is about to be told; there is one tunnel for one request.
    pub(super) fn join(&self, tunnel: Tunnel) {
        let near = self.side.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(near) = near {
            tunnel.open(&self.env, &self.shutdown, near);
        }
    }
}
