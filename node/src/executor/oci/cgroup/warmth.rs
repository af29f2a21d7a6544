use std::{
    fs::OpenOptions,
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use camino::Utf8PathBuf;
use drowse_shared::seams::Env;
use tokio::time::Instant;

use super::tree::{Tree, Version};

/// Shorter than the grace period after which the kernel's lock cools down.
const PAUSE: Duration = Duration::from_millis(2);
/// No start takes longer; a count that was lost must not keep a thread busy for ever.
const LONGEST: Duration = Duration::from_secs(60);

/// Keeps the kernel's lock for cgroup moves warm while bodies start.
///
/// The first move after a quiet moment waits for a grace period of the kernel, around ten milliseconds; moves that
/// follow each other closely do not. A start makes three bursts of them. So while one is under way this moves the daemon,
/// again and again, to where it is already: the wait then overlaps with other work.
#[derive(Debug, Default)]
pub(crate) struct Warmth {
    starting: Arc<AtomicU32>,
}

/// One start under way.
#[derive(Debug)]
pub(crate) struct Warm(Arc<AtomicU32>);

impl Drop for Warm {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Warmth {
    /// Keeps warm until the answer is dropped.
    pub(crate) fn keep(&self, env: &Env, own: Option<Utf8PathBuf>) -> Warm {
        let warm = Warm(self.starting.clone());
        if self.starting.fetch_add(1, Ordering::Relaxed) == 0
            && let Some(own) = own
        {
            let (starting, blocking) = (self.starting.clone(), env.clone());
            env.spawn("keep cgroup moves warm", async move {
                let work = move || {
                    // Only a help: where it cannot be done, starts are a little slower.
                    let _ = repeat(&own, &starting);
                };
                blocking.blocking("keep cgroup moves warm", work).await;
            });
        }
        warm
    }
}

fn repeat(own: &Utf8PathBuf, starting: &AtomicU32) -> io::Result<()> {
    let mut procs = OpenOptions::new().write(true).open(own)?;
    let end = Instant::now() + LONGEST;
    while starting.load(Ordering::Relaxed) > 0 && Instant::now() < end {
        procs.write_all(b"0")?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// `cgroup.procs` of the cgroup this process is in.
pub(crate) fn own_procs(tree: &Tree) -> Option<Utf8PathBuf> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own_path(&text, tree)?;
    Some(tree.root.join(path.trim_start_matches('/')).join("cgroup.procs"))
}

fn own_path<'a>(text: &'a str, tree: &Tree) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (controllers, path) = (parts.nth(1)?, parts.next()?);
        let ours = match tree.version {
            Version::V1 => controllers.split(',').any(|c| tree.controllers.iter().any(|ours| ours == c)),
            Version::V2 => controllers.is_empty(),
        };
        // A path outside our view of the tree cannot be opened.
        (ours && !path.contains("/..")).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_cgroup_is_found() {
        let tree = |version, controllers: &[&str]| Tree {
            root: "/sys/fs/cgroup".into(),
            version,
            controllers: controllers.iter().map(|&c| c.to_owned()).collect(),
        };
        let text = "4:pids:/a/b\n2:cpu,cpuacct:/c\n1:name=systemd:/d\n0::/e\n";
        assert_eq!(own_path(text, &tree(Version::V1, &["pids"])), Some("/a/b"));
        assert_eq!(own_path(text, &tree(Version::V1, &["cpuacct"])), Some("/c"));
        assert_eq!(own_path(text, &tree(Version::V2, &["cpu"])), Some("/e"));
        assert_eq!(own_path("0::/../x\n", &tree(Version::V2, &[])), None);
    }
}
