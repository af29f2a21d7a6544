//! In memory, for tests and simulation only.
//!
//! The `Machine` holds the bodies and outlives a daemon: hand the same one to the next life and it finds them as a real
//! machine would. The `Fake` is one life's way to it. Calls can be slowed, hung and failed by a test through
//! `Machine::on`.

use std::{io, sync::Arc, time::Duration};

use drowse_shared::{
    api::spaces::Template,
    id::SpaceId,
    seams::{BoxFuture, BoxIo, Env},
};
use tokio_util::sync::CancellationToken;

use super::{Capabilities, Card, Error, Executor, Found, Renewal, Result, Stats, Vitality};

/// The small agent inside a body.
mod agent;
/// The machine and its bodies.
mod machine;
/// The commands it knows.
mod process;

pub use machine::{Fault, Machine, Snapshot};

/// Size of the pipe to an agent, each way.
const PIPE_BYTES: usize = 64 << 10;

/// One life's way to a machine.
pub struct Fake {
    env: Env,
    machine: Machine,
}

impl Fake {
    /// Over this machine.
    pub fn new(env: &Env, machine: Machine) -> Arc<Self> {
        Arc::new(Self { env: env.clone(), machine })
    }

    async fn pass(&self, call: &'static str, id: Option<SpaceId>) -> Result<()> {
        let (delay, fault) = self.machine.meet(call, id);
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
        match fault {
            None => Ok(()),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Fail) => Err(Error::Runtime { what: call, says: "told to fail".to_owned() }),
            Some(Fault::DiskFull) => Err(Error::DiskFull),
            Some(Fault::Timeout) => Err(Error::Timeout { what: call, after: Duration::ZERO }),
        }
    }
}

impl Executor for Fake {
    fn capabilities(&self) -> Capabilities {
        Capabilities { freeze: true, survives_restart: true }
    }

    fn template(&self, name: &str) -> BoxFuture<'_, Result<Option<Template>>> {
        let found = self.machine.template(name);
        Box::pin(async move {
            self.pass("template", None).await?;
            Ok(found)
        })
    }

    fn create(&self, card: Card) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.pass("create", Some(card.id)).await?;
            self.machine.create(card);
            Ok(())
        })
    }

    fn write_card(&self, card: Card) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.pass("write_card", Some(card.id)).await?;
            self.machine.with(card.id, |body| body.card = Some(card))
        })
    }

    fn start(&self, card: Card) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.pass("start", Some(card.id)).await?;
            self.machine.start(&card)
        })
    }

    fn freeze(&self, id: SpaceId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.pass("freeze", Some(id)).await?;
            self.machine.turn(id, Vitality::Frozen)?;
            // A fault here is one of a freeze that was had.
            self.pass("frozen", Some(id)).await
        })
    }

    fn thaw(&self, id: SpaceId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.pass("thaw", Some(id)).await?;
            self.machine.turn(id, Vitality::Running)
        })
    }

    fn renew_agent(&self, _id: SpaceId) -> BoxFuture<'_, Result<Renewal>> {
        Box::pin(async { Ok(Renewal::Current) })
    }

    fn clear_agents(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn has_swap(&self) -> bool {
        false
    }

    fn page_out(&self, _id: SpaceId, _enough: CancellationToken) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async { Ok(0) })
    }

    fn stop(&self, id: SpaceId, _grace: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.pass("stop", Some(id)).await?;
            self.machine.stop(id)?;
            // A fault here is one of a stop that was had.
            self.pass("stopped", Some(id)).await
        })
    }

    fn destroy(&self, id: SpaceId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.pass("destroy", Some(id)).await?;
            self.machine.destroy(id);
            Ok(())
        })
    }

    fn stats(&self, id: SpaceId) -> BoxFuture<'_, Result<Stats>> {
        Box::pin(async move {
            self.pass("stats", Some(id)).await?;
            self.machine.with(id, |_| Stats { memory_bytes: 1 << 20, pids: 1, ..Stats::default() })
        })
    }

    fn vitality(&self, id: SpaceId) -> BoxFuture<'_, Result<Vitality>> {
        Box::pin(async move {
            self.pass("vitality", Some(id)).await?;
            self.machine.with(id, |body| body.vitality)
        })
    }

    fn ran_out_of_memory(&self, _id: SpaceId) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async { Ok(false) })
    }

    fn agent(&self, id: SpaceId) -> BoxFuture<'_, io::Result<BoxIo>> {
        Box::pin(async move {
            self.pass("agent", Some(id)).await.map_err(io::Error::other)?;
            if !matches!(
                self.machine.with(id, |body| body.vitality),
                Ok(Vitality::Running | Vitality::Frozen)
            ) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (near, far) = tokio::io::duplex(PIPE_BYTES);
            self.env.spawn("fake agent", agent::serve(self.machine.clone(), id, far));
            Ok(Box::new(near) as BoxIo)
        })
    }

    fn dial(&self, _id: SpaceId, _port: u16) -> BoxFuture<'_, io::Result<BoxIo>> {
        Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Found>>> {
        Box::pin(async move {
            self.pass("list", None).await?;
            Ok(self.machine.list())
        })
    }
}
