//! Counters for operators, in a registry of their own: two gateways in one process do not mix.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use drowse_shared::{
    api::nodes::{Intent, NodeState},
    seams::Counts,
    watchdog::Watchdog,
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, text},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

use tokio::time::Instant;

use crate::fleet::Fleet;

/// What is counted. Ordered maps, so that two runs of one simulation print the same.
#[derive(Debug, Default)]
struct Counted {
    requests: BTreeMap<(&'static str, u16), u64>,
    rounds: BTreeMap<&'static str, u64>,
    lookups: BTreeMap<&'static str, u64>,
    cache: BTreeMap<&'static str, u64>,
    placements: BTreeMap<&'static str, u64>,
    tunnels: BTreeMap<&'static str, u64>,
}

/// The counters.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<Counted>);

impl Metrics {
    fn with(&self, count: impl FnOnce(&mut Counted)) {
        count(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// A request was answered.
    pub(crate) fn request(&self, verb: &'static str, status: u16) {
        self.with(|counted| *counted.requests.entry((verb, status)).or_default() += 1);
    }

    /// Every node is asked for a space.
    pub(crate) fn round(&self, intent: Intent) {
        let intent = match intent {
            Intent::Read => "read",
            Intent::Create => "create",
            Intent::Compare => "compare",
        };
        self.with(|counted| *counted.rounds.entry(intent).or_default() += 1);
    }

    /// A node answered a lookup, or did not.
    pub(crate) fn lookup(&self, answer: &'static str) {
        self.with(|counted| *counted.lookups.entry(answer).or_default() += 1);
    }

    /// The cache was asked.
    pub(crate) fn cache(&self, hit: bool) {
        self.with(|counted| *counted.cache.entry(if hit { "hit" } else { "miss" }).or_default() += 1);
    }

    /// A new space was placed, and what came of it.
    pub(crate) fn placement(&self, outcome: &'static str) {
        self.with(|counted| *counted.placements.entry(outcome).or_default() += 1);
    }

    /// A tunnel to an app ended.
    pub(crate) fn tunnel(&self, end: &'static str) {
        self.with(|counted| *counted.tunnels.entry(end).or_default() += 1);
    }

    /// How tunnels to apps ended, for the log of a gateway that ends: nobody reads its counters after that.
    pub(crate) fn tunnels(&self) -> String {
        let counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let each: Vec<String> = counted.tunnels.iter().map(|(how, count)| format!("{how} {count}")).collect();
        each.join(", ")
    }

    /// Everything, as Prometheus reads it.
    pub(crate) fn text(
        self: &Arc<Self>,
        fleet: &Arc<Fleet>,
        watchdog: &Watchdog,
        tables: Vec<(&'static str, usize)>,
        counts: &Counts,
    ) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("drowse_gateway");
        registry.register_collector(Box::new(Shown {
            metrics: self.clone(),
            fleet: fleet.clone(),
            watchdog: watchdog.clone(),
            tables,
            counts: counts.clone(),
        }));
        let mut out = String::new();
        text::encode(&mut out, &registry)?;
        Ok(out)
    }
}

struct Shown {
    metrics: Arc<Metrics>,
    fleet: Arc<Fleet>,
    watchdog: Watchdog,
    tables: Vec<(&'static str, usize)>,
    counts: Counts,
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

impl Collector for Shown {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let census = self.fleet.census();
        let counted = self.metrics.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut requests = to.encode_descriptor(
            "requests",
            "Requests answered, by verb and status",
            None,
            MetricType::Counter,
        )?;
        for ((verb, status), count) in &counted.requests {
            let labels = [("verb", (*verb).to_owned()), ("status", status.to_string())];
            ConstCounter::new(*count).encode(requests.encode_family(&labels)?)?;
        }
        for (name, help, label, counts) in [
            ("lookup_rounds", "Times every node was asked for a space, by intent", "intent", &counted.rounds),
            ("lookups", "Lookups sent to nodes, by answer", "answer", &counted.lookups),
            ("cache", "Questions to the cache, by outcome", "outcome", &counted.cache),
            ("placements", "New spaces placed, by outcome", "outcome", &counted.placements),
            ("tunnels_ended", "Tunnels to apps that ended, by how", "end", &counted.tunnels),
        ] {
            let mut family = to.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (value, count) in counts {
                ConstCounter::new(*count).encode(family.encode_family(&[(label, *value)])?)?;
            }
        }
        let mut tables = to.encode_descriptor(
            "table_entries",
            "What is kept in memory or waits, by table; each has a bound",
            None,
            MetricType::Gauge,
        )?;
        for (table, count) in &self.tables {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            ConstGauge::new(count).encode(tables.encode_family(&[("table", *table)])?)?;
        }
        let stalled = i64::try_from(self.watchdog.stalled(Instant::now()).len()).unwrap_or(i64::MAX);
        let loops = to.encode_descriptor(
            "loops_stalled",
            "Loops of this daemon that make no progress",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(stalled).encode(loops)?;
        let tasks: Vec<_> = self.counts.tasks().into_iter().collect();
        let connections = vec![("accepted", self.counts.accepted()), ("dialled", self.counts.dialled())];
        for (name, help, counts) in [
            ("tasks", "Tasks and blocking jobs under way, by name", tasks),
            ("connections", "Open connections, by who opened them", connections),
        ] {
            let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (value, count) in counts {
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                ConstGauge::new(count).encode(family.encode_family(&[("name", value)])?)?;
            }
        }
        let mut nodes = to.encode_descriptor("nodes", "Nodes, by state", None, MetricType::Gauge)?;
        for (state, count) in census {
            let state = match state {
                NodeState::Live => "live",
                NodeState::Down => "down",
                NodeState::Silent => "silent",
                NodeState::Removed => "removed",
            };
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            ConstGauge::new(count).encode(nodes.encode_family(&[("state", state)])?)?;
        }
        Ok(())
    }
}
