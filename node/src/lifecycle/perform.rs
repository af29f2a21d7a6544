use std::{future::Future, sync::Arc, time::Duration};

use drowse_shared::id::SpaceId;

use super::STOP_GRACE;
use crate::{
    executor::{self, Executor},
    node::Node,
    space::{Space, state::Effect},
    starts::Turn,
};

impl Effect {
    /// After how long the space is shown as unresponsive, and after how long nobody waits any more.
    fn patience(self) -> (Duration, Duration) {
        let (shown, given_up) = match self {
            Self::Create | Self::Start => (10, 90),
            Self::Freeze | Self::Thaw => (2, 20),
            Self::Stop => (12, 45),
            Self::Destroy => (5, 45),
        };
        (Duration::from_secs(shown), Duration::from_secs(given_up))
    }
}

impl Node {
    /// One call into the executor. It goes on in its own task if it takes too long; the space is marked meanwhile.
    async fn call<T: Send + 'static>(
        &self,
        id: SpaceId,
        effect: Effect,
        call: impl Future<Output = executor::Result<T>> + Send + 'static,
    ) -> executor::Result<T> {
        let (shown, given_up) = effect.patience();
        let guard = self.live.call(id, effect.word(), shown);
        let call = self.env.finish(effect.word(), async move {
            let answer = call.await;
            guard.answered(!matches!(answer, Err(executor::Error::Timeout { .. })));
            answer
        });
        match tokio::time::timeout(given_up, call).await {
            Ok(Some(answer)) => answer,
            Ok(None) | Err(_) => Err(executor::Error::Timeout { what: effect.word(), after: given_up }),
        }
    }

    pub(super) async fn perform(&self, space: &Space, effect: Effect) -> executor::Result<()> {
        // A call that did not come back may still do something; only a removal goes past it.
        if let (Some((what, after)), true) = (self.live.stuck(space.id), effect != Effect::Destroy) {
            return Err(executor::Error::Timeout { what, after });
        }
        self.page_outs.cancel(space.id);
        let executor: Arc<dyn Executor> = self.executor.clone();
        let (id, card) = (space.id, space.card(self.ledger_id));
        self.call(id, effect, async move {
            match effect {
                Effect::Create => executor.create(card).await,
                Effect::Start => executor.start(card).await,
                Effect::Freeze => executor.freeze(id).await,
                Effect::Thaw => executor.thaw(id).await,
                Effect::Stop => executor.stop(id, STOP_GRACE).await,
                Effect::Destroy => executor.destroy(id).await,
            }
        })
        .await
    }

    /// The same, and gives the turn to start back once it is overdue: who hangs holds up nobody who starts.
    pub(super) async fn perform_in_turn(
        &self,
        space: &Space,
        effect: Effect,
        turn: &mut Option<Turn>,
    ) -> executor::Result<()> {
        let mut doing = std::pin::pin!(self.perform(space, effect));
        let (overdue, _) = effect.patience();
        match tokio::time::timeout(overdue, doing.as_mut()).await {
            Ok(done) => done,
            Err(_) => {
                *turn = None;
                doing.await
            }
        }
    }
}
