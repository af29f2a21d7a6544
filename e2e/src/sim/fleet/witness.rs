use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use drowse_node::executor::{
    Capabilities, Card, Error, Executor, Found, Renewal, Result, Stats, Vitality, fake::Machine,
};
use drowse_shared::{
    api::spaces::Template,
    id::SpaceId,
    seams::{BoxFuture, BoxIo},
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{
    Laws,
    unsynced::{Change, Unsynced},
};
use crate::sim::{Chance, World, world::Pulse};

/// A file in every body that says which one it is.
pub(super) const BODY_FILE: &str = "/home/user/body";

/// A life's way to its machine that takes time, can be its last, and is seen by the laws.
pub(super) struct Witness {
    pub(super) inner: Arc<dyn Executor>,
    pub(super) machine: Machine,
    pub(super) unsynced: Unsynced,
    pub(super) world: World,
    pub(super) laws: Laws,
    pub(super) pulse: Pulse,
    pub(super) host: &'static str,
    /// One call in so many fails, before or after its effect; 0 = none.
    pub(super) fails_one_in: Arc<AtomicU64>,
}

impl Witness {
    /// A call begins: it takes its time, and its effect may never come.
    async fn begin(&self, what: &'static str) -> Result<()> {
        let ms = self.world.draw(Chance::Runtime, self.host, |rng| {
            if rng.one_in(25) { rng.below(3000) } else { rng.below(20) }
        });
        sleep(Duration::from_millis(ms)).await;
        self.pulse.beat(what).await;
        self.fails(what)
    }

    /// The effect was had; the caller may never hear of it.
    async fn end<T>(&self, what: &'static str, outcome: Result<T>) -> Result<T> {
        self.pulse.beat(what).await;
        self.fails(what)?;
        outcome
    }

    /// The same for what is on the disk once the call returns.
    async fn sync<T>(&self, id: SpaceId, what: &'static str, outcome: Result<T>) -> Result<T> {
        let ended = self.end(what, outcome).await;
        self.unsynced.returned(id);
        ended
    }

    fn fails(&self, what: &'static str) -> Result<()> {
        let one_in = self.fails_one_in.load(Relaxed);
        if self.world.draw(Chance::Runtime, self.host, |rng| rng.one_in(one_in)) {
            self.world.note(&format!("{} runtime fails: {what}", self.host));
            return Err(Error::Runtime { what, says: "the seed says no".to_owned() });
        }
        Ok(())
    }
}

impl Executor for Witness {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn template(&self, name: &str) -> BoxFuture<'_, Result<Option<Template>>> {
        self.inner.template(name)
    }

    fn create(&self, card: Card) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.begin("create").await?;
            let (id, name, was) = (card.id, card.name.clone(), self.machine.snapshot(card.id));
            let made = self.inner.create(card).await;
            if made.is_ok() {
                self.machine.write(id, BODY_FILE.to_owned(), id.to_string().into());
                self.unsynced.changed(id, Change::Created, was);
                self.laws.born(self.host, self.pulse.life(), id, name.as_str());
            }
            self.sync(id, "created", made).await
        })
    }

    fn write_card(&self, card: Card) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.begin("write card").await?;
            let (id, was) = (card.id, self.machine.snapshot(card.id));
            let written = self.inner.write_card(card).await;
            if written.is_ok() {
                self.unsynced.changed(id, Change::Carded, was);
            }
            self.sync(id, "card written", written).await
        })
    }

    fn start(&self, card: Card) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.begin("start").await?;
            let (id, was) = (card.id, self.machine.vitality(card.id));
            let started = self.inner.start(card).await;
            if started.is_ok() && was != Some(Vitality::Running) {
                self.laws.woken(self.host, id);
            }
            self.end("started", started).await
        })
    }

    fn freeze(&self, id: SpaceId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.begin("freeze").await?;
            let was = self.machine.vitality(id);
            let frozen = self.inner.freeze(id).await;
            if frozen.is_ok() && was == Some(Vitality::Running) {
                self.laws.frozen(self.host, id, self.machine.running(id));
            }
            self.end("frozen", frozen).await
        })
    }

    fn thaw(&self, id: SpaceId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.begin("thaw").await?;
            let was = self.machine.vitality(id);
            let thawed = self.inner.thaw(id).await;
            if thawed.is_ok() && was == Some(Vitality::Frozen) {
                self.laws.woken(self.host, id);
            }
            self.end("thawed", thawed).await
        })
    }

    fn has_swap(&self) -> bool {
        self.inner.has_swap()
    }

    fn page_out(&self, id: SpaceId, enough: CancellationToken) -> BoxFuture<'_, Result<u64>> {
        self.inner.page_out(id, enough)
    }

    fn stop(&self, id: SpaceId, grace: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.begin("stop").await?;
            let stopped = self.inner.stop(id, grace).await;
            self.end("stopped", stopped).await
        })
    }

    fn destroy(&self, id: SpaceId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.begin("destroy").await?;
            let was = self.machine.snapshot(id);
            let removed = self.inner.destroy(id).await;
            if removed.is_ok() {
                self.unsynced.changed(id, Change::Destroyed, was);
                self.laws.gone(self.host, id);
            }
            self.sync(id, "destroyed", removed).await
        })
    }

    fn renew_agent(&self, id: SpaceId) -> BoxFuture<'_, Result<Renewal>> {
        self.inner.renew_agent(id)
    }

    fn clear_agents(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.clear_agents()
    }

    fn stats(&self, id: SpaceId) -> BoxFuture<'_, Result<Stats>> {
        self.inner.stats(id)
    }

    fn vitality(&self, id: SpaceId) -> BoxFuture<'_, Result<Vitality>> {
        self.inner.vitality(id)
    }

    fn ran_out_of_memory(&self, id: SpaceId) -> BoxFuture<'_, Result<bool>> {
        self.inner.ran_out_of_memory(id)
    }

    fn agent(&self, id: SpaceId) -> BoxFuture<'_, io::Result<BoxIo>> {
        Box::pin(async move {
            let reached = self.inner.agent(id).await;
            if reached.is_ok() {
                self.laws.reached(self.host, id, self.machine.vitality(id) == Some(Vitality::Frozen));
            }
            reached
        })
    }

    fn dial(&self, id: SpaceId, port: u16) -> BoxFuture<'_, io::Result<BoxIo>> {
        self.inner.dial(id, port)
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Found>>> {
        Box::pin(async move {
            // A node that cannot see its disks believes its ledger; that is not what is tried here.
            sleep(Duration::from_millis(5)).await;
            self.pulse.beat("list").await;
            self.inner.list().await
        })
    }
}
