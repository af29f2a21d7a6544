use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use drowse_shared::seams::{BoxFuture, Env};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use super::rng;

/// What runs on a host, from each of its starts.
pub(super) type Main = Arc<dyn Fn(Env) -> BoxFuture<'static, ()> + Send + Sync>;

/// How a host goes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fall {
    /// The process dies; its kernel resets what was open and refuses what comes.
    Process,
    /// The machine loses power: nobody hears anything until it is back.
    Power,
}

/// One life of a host, from a start to a fall. What belongs to a dead life neither acts nor resolves.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) host: String,
    /// What the host's streams of chance go by.
    pub(super) key: u64,
    pub(super) generation: u64,
    /// How far this life's wall clock is off, in milliseconds.
    pub(super) clock_off_ms: i64,
    dead: AtomicBool,
    power_lost: AtomicBool,
}

impl Life {
    pub(super) fn new(host: &str, generation: u64, clock_off_ms: i64) -> Arc<Self> {
        Arc::new(Self {
            host: host.to_owned(),
            key: rng::key(host),
            generation,
            clock_off_ms,
            dead: AtomicBool::new(false),
            power_lost: AtomicBool::new(false),
        })
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    /// Whether nobody said goodbye for it.
    pub(super) fn has_lost_power(&self) -> bool {
        self.power_lost.load(Relaxed)
    }

    pub(super) fn end(&self, fall: Fall) {
        self.power_lost.store(fall == Fall::Power, Relaxed);
        self.dead.store(true, Relaxed);
    }
}

/// A machine of the world.
pub(super) struct Host {
    pub(super) life: Arc<Life>,
    pub(super) main: Main,
    /// The life's tasks that may still run, in the order they were started.
    pub(super) tasks: Vec<JoinHandle<()>>,
    /// Effects this life has had.
    pub(super) steps: u64,
    /// The step that is its last, and how it falls.
    pub(super) falls_at: Option<(u64, Fall)>,
    /// How the last life fell.
    pub(super) fell: Option<Fall>,
    /// How the life before this one fell.
    pub(super) rose_from: Option<Fall>,
    /// Somebody is starting it again.
    pub(super) restarts: bool,
}
