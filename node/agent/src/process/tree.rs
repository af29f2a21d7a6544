use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::start::COOKIE;
use crate::identity::Identity;

/// How long killing may take before it is given up: frozen processes die at their thaw.
const KILL_DEADLINE: Duration = Duration::from_secs(5);
const PASS_PAUSE: Duration = Duration::from_millis(2);
const GRACE_PAUSE: Duration = Duration::from_millis(10);
const THREAD_STACK_BYTES: usize = 256 * 1024;
/// A larger environment is searched only that far.
const ENVIRON_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// A command and what it started: its session, its descendants, and whoever carries its cookie.
///
/// A process that clears its environment, forks twice and makes its own session escapes all three.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Pid and session of the command.
    pub(crate) pid: i32,
    /// Its cookie.
    pub(crate) cookie: String,
}

/// Sends `signal` once to everything there is now.
pub(crate) async fn signal(target: Target, signal: i32) {
    aside(move || {
        send(&target.members(), signal);
    })
    .await;
}

/// Kills until a pass finds nothing more.
pub(crate) async fn kill(target: Target) {
    aside(move || kill_now(&target)).await;
}

/// Asks everything to end, waits up to `grace`, kills the rest.
pub(crate) async fn terminate(target: Target, grace: Duration) {
    aside(move || {
        let asked = target.members();
        send(&asked, libc::SIGTERM);
        // A stopped process would not hear it.
        send(&asked, libc::SIGCONT);
        let deadline = Instant::now() + grace;
        while Instant::now() < deadline {
            if target.members().is_empty() {
                return;
            }
            std::thread::sleep(GRACE_PAUSE.min(deadline.saturating_duration_since(Instant::now())));
        }
        kill_now(&target);
    })
    .await;
}

/// Sends `signal` to every descendant of this process but `except`. For an agent that is not pid 1.
pub(crate) fn signal_descendants(except: Option<i32>, signal: i32) {
    let this = i32::try_from(std::process::id()).unwrap_or(0);
    let seen = scan();
    let mut marked = BTreeSet::from([this]);
    spread(&seen, &mut marked);
    marked.remove(&this);
    marked.retain(|pid| Some(*pid) != except);
    send(&marked, signal);
}

fn kill_now(target: &Target) {
    let deadline = Instant::now() + KILL_DEADLINE;
    loop {
        let members = target.members();
        if members.is_empty() || Instant::now() > deadline {
            return;
        }
        send(&members, libc::SIGKILL);
        std::thread::sleep(PASS_PAUSE);
    }
}

fn send(pids: &BTreeSet<i32>, number: i32) {
    for pid in pids {
        // Gone meanwhile is as good.
        let _gone = crate::sys::signal(*pid, number);
    }
}

/// Scanning /proc takes a while where there are many processes, so it has a thread of its own for as long as it lasts.
async fn aside(work: impl FnOnce() + Send + 'static) {
    let (done, finished) = oneshot::channel::<()>();
    let work: Work = Box::new(move || {
        work();
        drop(done);
    });
    let shared = Arc::new(Mutex::new(Some(work)));
    let there = Arc::clone(&shared);
    let thread = std::thread::Builder::new().name("kill".to_owned()).stack_size(THREAD_STACK_BYTES);
    if thread.spawn(move || run_once(&there)).is_err() {
        // No room for a thread; then it is all the more urgent.
        run_once(&shared);
    }
    // Nothing is ever sent: the sender's end is the message.
    drop(finished.await);
}

type Work = Box<dyn FnOnce() + Send>;

fn run_once(shared: &Mutex<Option<Work>>) {
    let work = shared.lock().ok().and_then(|mut work| work.take());
    if let Some(work) = work {
        work();
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Seen {
    pid: i32,
    parent: i32,
    session: i32,
}

impl Target {
    fn members(&self) -> BTreeSet<i32> {
        let seen = scan();
        let this = i32::try_from(std::process::id()).unwrap_or(0);
        let mut marked: BTreeSet<i32> = seen
            .iter()
            .filter(|process| process.pid > 1 && process.pid != this)
            .filter(|process| {
                process.pid == self.pid || process.session == self.pid || carries(process.pid, &self.cookie)
            })
            .map(|process| process.pid)
            .collect();
        spread(&seen, &mut marked);
        marked
    }
}

/// Adds the descendants of what is marked.
fn spread(seen: &[Seen], marked: &mut BTreeSet<i32>) {
    loop {
        let before = marked.len();
        marked.extend(
            seen.iter().filter(|process| marked.contains(&process.parent)).map(|p| p.pid).collect::<Vec<_>>(),
        );
        if marked.len() == before {
            return;
        }
    }
}

/// Every process but the dead ones.
fn scan() -> Vec<Seen> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| parse_stat(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?)).collect()
}

fn parse_stat(pid: i32, stat: &[u8]) -> Option<Seen> {
    // The name in parentheses may hold anything, parentheses included.
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let text = std::str::from_utf8(&stat[after_name..]).ok()?;
    let mut fields = text.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    let mut number = || fields.next()?.parse::<i32>().ok();
    let (parent, _group, session) = (number()?, number()?, number()?);
    Some(Seen { pid, parent, session })
}

fn carries(pid: i32, cookie: &str) -> bool {
    let path = PathBuf::from(format!("/proc/{pid}/environ"));
    let read = || -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        std::fs::File::open(&path)?.take(ENVIRON_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let environ = read().or_else(|_| {
        // Root of a space may not look into other users' processes, but they themselves may.
        let owner = std::fs::metadata(format!("/proc/{pid}"))?;
        let _identity = Identity::enter_ids(owner.uid(), owner.gid(), &[])?;
        read()
    });
    let wanted = format!("{COOKIE}={cookie}").into_bytes();
    environ.is_ok_and(|bytes| bytes.split(|byte| *byte == 0).any(|variable| variable == wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_with_odd_names_parse() {
        let seen = parse_stat(7, b"7 (a) S (b)) S 3 7 5 0 -1 4").unwrap();
        assert_eq!(seen, Seen { pid: 7, parent: 3, session: 5 });
        assert_eq!(parse_stat(7, b"7 (a) Z 3 7 5 0"), None);
        assert_eq!(parse_stat(7, b""), None);
    }

    #[test]
    fn marks_spread_to_grandchildren() {
        let seen = [(5, 4), (4, 3), (9, 1)].map(|(pid, parent)| Seen { pid, parent, session: 0 });
        let mut marked = BTreeSet::from([3]);
        spread(&seen, &mut marked);
        assert_eq!(marked, BTreeSet::from([3, 4, 5]));
    }
}
