//! Rolling the nodes to the gateway's build. Who was told is on disk before it hears of it.

use std::sync::Arc;

use drowse_shared::{
    api::{
        Error,
        upgrade::{FleetUpgrade, Tell},
    },
    id::{LedgerId, NodeId},
};

use super::{
    Fleet,
    state::{Next, State},
    torn_down,
};

impl Fleet {
    /// What a node that has just checked in is told, if its turn has come. Nothing is told that could not be written.
    pub(crate) async fn turn(self: &Arc<Self>, ledger: LedgerId) -> Option<Tell> {
        if !self.state().has_step(&ledger, self.env.clock.wall()) {
            return None;
        }
        let fleet = self.clone();
        let task = async move {
            let _order = fleet.order.lock().await;
            // One that moved on may be behind again, and the first; or the last that was waited for.
            for _ in 0..2 {
                let (next, tell) = fleet.state().stepped(&ledger, fleet.env.clock.wall())?;
                let kept = fleet.keep(&next).await;
                let mut state = fleet.state();
                state.set_written(ledger, kept.as_ref().copied(), fleet.env.clock.wall());
                if kept.is_err() {
                    return None;
                }
                state.install(next);
                drop(state);
                if let Some(tell) = tell {
                    tracing::info!(%ledger, build = %tell.build, "a node is told to take another build");
                    return Some(tell);
                }
            }
            None
        };
        self.env.finish("roll", task).await.flatten()
    }

    /// `getUpgrade`.
    pub(crate) fn upgrade(&self) -> Result<FleetUpgrade, Error> {
        self.state().upgrade(self.env.clock.wall())
    }

    /// `upgradeFleet`.
    pub(crate) async fn roll(self: &Arc<Self>) -> Result<FleetUpgrade, Error> {
        self.change_roll(|state, fleet| state.rolled(fleet.env.clock.wall())).await
    }

    /// `stopUpgrade`.
    pub(crate) async fn halt(self: &Arc<Self>) -> Result<FleetUpgrade, Error> {
        self.change_roll(|state, _| state.halted()).await
    }

    /// `retryUpgrade`.
    pub(crate) async fn retry(self: &Arc<Self>, id: NodeId) -> Result<FleetUpgrade, Error> {
        self.change_roll(move |state, fleet| state.retried(&id, fleet.env.clock.wall()).map(Some)).await
    }

    async fn change_roll(
        self: &Arc<Self>,
        change: impl FnOnce(&State, &Self) -> Result<Option<Next>, Error> + Send + 'static,
    ) -> Result<FleetUpgrade, Error> {
        let fleet = self.clone();
        let task = async move {
            let _order = fleet.order.lock().await;
            let next = change(&fleet.state(), &fleet)?;
            if let Some(next) = next {
                fleet.keep(&next).await?;
                fleet.state().install(next);
            }
            fleet.upgrade()
        };
        self.env.finish("roll", task).await.unwrap_or_else(|| Err(torn_down()))
    }
}
