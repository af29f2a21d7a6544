use std::{collections::BTreeMap, fs, sync::Mutex, time::Duration};

use crate::{daemon::Daemon, door::Door, wait::eventually};

/// How much more memory a daemon may hold after a storm than before: allocators keep what they were given.
const RSS_SLACK_BYTES: u64 = 48 << 20;
/// How many more descriptors: its database opens a few more when many ask at once.
const FILES_SLACK: usize = 12;

/// What one daemon has open and holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Census {
    /// Tasks and blocking jobs that have not ended, by name, by its own word.
    pub tasks: BTreeMap<String, u64>,
    /// Connections that others opened to it, by its own word; the one that asks is among them.
    pub accepted: u64,
    /// Connections that it opened to others, by its own word.
    pub dialled: u64,
    /// Descriptors, by the kernel's.
    pub files: usize,
    /// Resident memory, by the kernel's.
    pub rss_bytes: u64,
}

impl Census {
    /// Counts. `None` when it does not answer.
    ///
    /// # Panics
    /// When it does not run.
    pub async fn of(daemon: &Daemon, door: &Door) -> Option<Self> {
        let door = door.apart();
        let request = door.request(http::Method::GET, "/metrics");
        let page = door.send::<()>("metrics", request).await.ok()?.text();
        let mut tasks = BTreeMap::new();
        let (mut accepted, mut dialled) = (None, None);
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let Some((metric, labels)) = series.split_once('{') else { continue };
            let name = labels.trim_start_matches("name=\"").trim_end_matches("\"}");
            let count: u64 = value.parse().unwrap_or(0);
            if metric.ends_with("_tasks") && count > 0 {
                tasks.insert(name.to_owned(), count);
            } else if metric.ends_with("_connections") {
                *(if name == "accepted" { &mut accepted } else { &mut dialled }) = Some(count);
            }
        }
        let proc = format!("/proc/{}", daemon.pid());
        let files = fs::read_dir(format!("{proc}/fd")).expect("it runs").count();
        let status = fs::read_to_string(format!("{proc}/status")).expect("it runs");
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("every process has one");
        let rss_kib: u64 = rss.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number");
        Some(Self {
            tasks,
            accepted: accepted.expect("a gauge of connections"),
            dialled: dialled.expect("a gauge of connections"),
            files,
            rss_bytes: rss_kib * 1024,
        })
    }

    /// What it has beyond `before`, in words.
    fn beyond(&self, before: &Self) -> Vec<String> {
        let mut more = Vec::new();
        for (name, count) in &self.tasks {
            let had = before.tasks.get(name).copied().unwrap_or(0);
            if *count > had {
                more.push(format!("{count} tasks `{name}`, had {had}"));
            }
        }
        for (what, is, was) in [
            ("accepted connections", self.accepted, before.accepted),
            ("dialled connections", self.dialled, before.dialled),
            ("descriptors", self.files as u64, (before.files + FILES_SLACK) as u64),
            ("bytes resident", self.rss_bytes, before.rss_bytes + RSS_SLACK_BYTES),
        ] {
            if is > was {
                more.push(format!("{is} {what}, at most {was}"));
            }
        }
        more
    }

    /// Waits until a daemon has nothing more than `before`: no task, connection, descriptor or memory is left behind.
    ///
    /// # Panics
    /// When it still has after `within`; says what.
    pub async fn until_back(before: &Self, daemon: &Daemon, door: &Door, within: Duration) -> Self {
        let left = Mutex::new(Vec::new());
        let back = tokio::time::timeout(
            within,
            eventually("the daemon is as it was", within * 2, || async {
                let now = Self::of(daemon, door).await?;
                let more = now.beyond(before);
                let is_back = more.is_empty();
                *left.lock().expect("no panics inside") = more;
                is_back.then_some(now)
            }),
        )
        .await;
        back.unwrap_or_else(|_| {
            panic!(
                "{} has more than before: {}",
                daemon.name,
                left.lock().expect("no panics inside").join("; ")
            )
        })
    }
}
