use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use drowse_shared::{
    api::{Code, Error, nodes::Reading, spaces::State as Word, verbs::counted},
    seams::Counts,
};
use http::header;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use crate::{node::Node, reading};

/// Content type of the text format.
const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Upper bounds of the buckets of request durations, in seconds.
const BUCKETS: [f64; 10] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    verb: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Named {
    name: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    end: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InState {
    state: String,
}

/// Counters of one daemon. Nothing is shared with another one in this process.
pub struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    seconds: Histogram,
    tunnels: Family<Ended, Counter>,
    starts: Family<Ended, Counter>,
    paged_out: Counter,
    starts_waiting: Gauge,
    spaces: Family<InState, Gauge>,
    old_agents: Gauge,
    memory_available: Gauge,
    disk_available: Gauge,
    cpu_percent: Gauge<f64, AtomicU64>,
    loops_stalled: Gauge,
    tasks: Family<Named, Gauge>,
    connections: Family<Named, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("drowse_node");
        let metrics = Self {
            requests: Family::default(),
            seconds: Histogram::new(BUCKETS),
            tunnels: Family::default(),
            starts: Family::default(),
            paged_out: Counter::default(),
            starts_waiting: Gauge::default(),
            spaces: Family::default(),
            old_agents: Gauge::default(),
            memory_available: Gauge::default(),
            disk_available: Gauge::default(),
            cpu_percent: Gauge::default(),
            loops_stalled: Gauge::default(),
            tasks: Family::default(),
            connections: Family::default(),
            registry: Registry::default(),
        };
        registry.register("requests", "Requests answered, by verb and status", metrics.requests.clone());
        registry.register_with_unit(
            "request",
            "Time to the head of the answer",
            Unit::Seconds,
            metrics.seconds.clone(),
        );
        registry.register("tunnels_ended", "Tunnels to apps that ended, by how", metrics.tunnels.clone());
        registry.register("starts", "Starts of spaces, by how they ended", metrics.starts.clone());
        let paged_out = metrics.paged_out.clone();
        let says = "Memory of sleeping spaces that went to swap";
        registry.register_with_unit("paged_out", says, Unit::Bytes, paged_out);
        let waiting = metrics.starts_waiting.clone();
        registry.register("starts_waiting", "Spaces that wait for their turn to start", waiting);
        registry.register("spaces", "Spaces by state", metrics.spaces.clone());
        let old = metrics.old_agents.clone();
        registry.register("old_agents", "Spaces whose agent is of another build than this daemon", old);
        let memory = metrics.memory_available.clone();
        registry.register_with_unit("memory_available", "Memory that could be had", Unit::Bytes, memory);
        let disk = metrics.disk_available.clone();
        registry.register_with_unit("disk_available", "Room for disks", Unit::Bytes, disk);
        registry.register("cpu_percent", "Processor time in use, of all cores", metrics.cpu_percent.clone());
        let loops = metrics.loops_stalled.clone();
        registry.register("loops_stalled", "Loops of this daemon that make no progress", loops);
        registry.register("tasks", "Tasks and blocking jobs under way, by name", metrics.tasks.clone());
        let connections = metrics.connections.clone();
        registry.register("connections", "Open connections, by who opened them", connections);
        Self { registry, ..metrics }
    }
}

impl Metrics {
    /// A request was answered.
    pub fn asked(&self, path: &str, status: u16, took: Duration) {
        // What strangers type must not make labels.
        self.answered(counted(path).unwrap_or("other"), status, took);
    }

    /// The same, by a word of ours.
    pub fn answered(&self, verb: &'static str, status: u16, took: Duration) {
        self.requests.get_or_create(&Answered { verb, status }).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    /// A tunnel to an app ended.
    pub fn tunnel(&self, end: &'static str) {
        self.tunnels.get_or_create(&Ended { end }).inc();
    }

    /// Counts the memory of sleeping spaces that went to swap.
    pub fn paged_out(&self) -> Counter {
        self.paged_out.clone()
    }

    /// A start ended, or its turn did not come.
    pub fn started(&self, end: &'static str) {
        self.starts.get_or_create(&Ended { end }).inc();
    }

    fn measured(&self, reading: &Reading) {
        for state in Word::ALL {
            let count = reading.spaces.get(&state).copied().unwrap_or(0);
            self.spaces.get_or_create(&InState { state: state.as_str().to_owned() }).set(signed(count));
        }
        self.memory_available.set(signed(reading.memory_available_bytes));
        self.disk_available.set(signed(reading.disk.map_or(0, |disk| disk.available_bytes)));
        self.cpu_percent.set(reading.cpu_percent.unwrap_or(0.0));
    }

    fn open(&self, counts: &Counts) {
        for (name, count) in counts.tasks() {
            self.tasks.get_or_create(&Named { name }).set(signed(count));
        }
        for (name, count) in [("accepted", counts.accepted()), ("dialled", counts.dialled())] {
            self.connections.get_or_create(&Named { name }).set(signed(count));
        }
    }

    fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Looking never wakes: counts come from the ledger.
pub(super) async fn show(State(node): State<Arc<Node>>) -> Result<Response, Error> {
    if let Some(reading) = reading::reading(&node).await {
        node.metrics.measured(&reading);
    }
    node.metrics.open(&node.counts);
    node.metrics.old_agents.set(signed(node.live.old_agents().len() as u64));
    node.metrics.starts_waiting.set(signed(node.starts.waiting() as u64));
    let stalled = node.watchdog.stalled(tokio::time::Instant::now()).len();
    node.metrics.loops_stalled.set(signed(stalled as u64));
    let text =
        node.metrics.text().map_err(|_| Error::new(Code::Internal, "the metrics could not be written"))?;
    Ok(([(header::CONTENT_TYPE, TEXT)], text).into_response())
}
