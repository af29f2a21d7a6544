//! Which domains lead to spaces. They are part of the fleet's configuration, so that every node keeps a copy of them.

use std::sync::Arc;

use drowse_shared::{
    api::{
        Code, Error,
        domains::{Binding, Domains},
    },
    domain::Domain,
};

use super::{Fleet, state::State, torn_down};
use crate::authority;

impl Fleet {
    /// Where a host leads, if it is bound.
    pub(crate) fn bound(&self, host: &str) -> Option<Binding> {
        self.state().bundle().and_then(|bundle| bundle.domains.get(host).copied())
    }

    /// Which domains there are.
    pub(crate) fn domains(&self) -> Result<Arc<Domains>, Error> {
        let state = self.state();
        state.bundle().map(|bundle| bundle.domains.clone()).ok_or_else(unlearned)
    }

    /// `bindDomain`: durable once it is answered. Answers how it is bound now, and whether it was.
    pub(crate) async fn bind(
        self: &Arc<Self>,
        domain: Domain,
        binding: Binding,
    ) -> Result<(Binding, bool), Error> {
        self.rebind(move |domains| authority::bind(domains, domain, binding)).await
    }

    /// `unbindDomain`. Answers whether it was bound.
    pub(crate) async fn unbind(self: &Arc<Self>, domain: Domain) -> Result<bool, Error> {
        self.rebind(move |domains| Ok(domains.remove(&domain).is_some())).await
    }

    async fn rebind<T: Send + 'static>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Domains) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let fleet = self.clone();
        let task = async move {
            let _order = fleet.order.lock().await;
            let (answer, next) = fleet.state().rebound(change)?;
            if let Some(next) = next {
                fleet.keep_in_need(&next).await?;
                fleet.state().install(next);
            }
            Ok(answer)
        };
        self.env.finish("domains", task).await.unwrap_or_else(|| Err(torn_down()))
    }
}

impl State {
    /// What holds after a change of the domains, if it is one.
    fn rebound<T>(
        &self,
        change: impl FnOnce(&mut Domains) -> Result<T, Error>,
    ) -> Result<(T, Option<super::Next>), Error> {
        self.knows_its_nodes()?;
        // Built on what is older than what a node holds, it would be lost as soon as the node is heard again.
        let Some(bundle) = self.bundle().filter(|bundle| !self.is_behind(bundle.version)) else {
            return Err(unlearned());
        };
        let mut domains = Domains::clone(&bundle.domains);
        let answer = change(&mut domains)?;
        if domains == *bundle.domains {
            return Ok((answer, None));
        }
        let mut next = self.next();
        if let Some(bundle) = next.change_bundle() {
            bundle.domains = Arc::new(domains);
        }
        Ok((answer, Some(next)))
    }
}

fn unlearned() -> Error {
    Error::new(
        Code::FleetStarting,
        "the gateway is learning the fleet's configuration from its nodes; try again",
    )
}
