//! How the files this process may have open are shared out, so that no kind of traffic can take what another needs. Pure.

/// Files that a process has when nothing says how many: what most machines allow at least.
pub(crate) const FILES: u64 = 20_000;

/// Most of each at a time. All of them together leave room for the database, logs and kept connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Connections of clients.
    pub connections: usize,
    /// Requests that are at a node.
    pub forwards: usize,
    /// Requests and tunnels that are at apps, which need no token.
    pub apps: usize,
    /// Questions to nodes about names that were never seen.
    pub strangers: usize,
    /// Questions to nodes about spaces that were.
    pub known: usize,
}

/// More questions than this at once only wait for each other at the nodes.
const STRANGERS_MAX: u64 = 2048;
const KNOWN_MAX: u64 = 1024;

impl Budget {
    /// The shares of so many files.
    pub fn of(files: u64) -> Self {
        let share = |thousandths: u64, most: u64| {
            let share = (files / 1000 * thousandths + files % 1000 * thousandths / 1000).clamp(1, most);
            // Where a number of files does not fit, it is no limit.
            usize::try_from(share).unwrap_or(usize::MAX).min(tokio::sync::Semaphore::MAX_PERMITS)
        };
        Self {
            connections: share(600, u64::MAX),
            forwards: share(120, u64::MAX),
            apps: share(100, u64::MAX),
            strangers: share(80, STRANGERS_MAX),
            known: share(50, KNOWN_MAX),
        }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::of(FILES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shares_together_leave_room() {
        for files in [64, 256, 1024, 4096, 20_000, 65_536, 1 << 20] {
            let Budget { connections, forwards, apps, strangers, known } = Budget::of(files);
            let all = (connections + forwards + apps + strangers + known) as u64;
            assert!(all <= files - files / 32, "{files}: {all}");
            assert!(connections.min(forwards).min(apps).min(strangers).min(known) > 0, "{files}");
        }
        assert!(Budget::of(20_000).connections > 10_000, "ten thousand callers at a time");
        assert!(Budget::of(u64::MAX).forwards > 1 << 20);
    }
}
