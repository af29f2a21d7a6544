//! Taking another build, when a gateway says that it is this node's turn.
//!
//! The daemon only fetches the release and starts a program that replaces it, the one that the installer left here
//! (`DROWSE_UPGRADER`). That one goes on when this daemon ends, and has the installer of the new release do the work. What
//! came of it is read from what it left behind, by whichever daemon runs then.

/// What lies on disk of an upgrade.
mod files;

use std::{
    env::consts::ARCH,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use camino::Utf8PathBuf;
use drowse_shared::{
    api::{
        nodes::Build,
        upgrade::{BUILD_HEADER, LastUpgrade, PATH, Progress, SelfUpgrade, Tell},
    },
    http::{client, why},
    seams::Env,
};
use files::{Files, Status};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use tokio::{process::Command, time::timeout};

use crate::{door::error::chain, node::Node};

/// Longest wait until a release is fetched.
const FETCH: Duration = Duration::from_secs(600);
/// Before another try, when the gateway or the way to it failed: what its restart or a flicker of the net takes, and some.
const AGAIN_SECONDS: [u64; 6] = [1, 2, 4, 8, 15, 30];
/// Longest pause of a gateway that sends one.
const PAUSE: Duration = Duration::from_secs(30);
/// Largest release.
const RELEASE_BYTES_MAX: u64 = 2 << 30;
/// How much is written at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// Longest wait until the program has left the installer to itself.
const START: Duration = Duration::from_secs(60);
/// Longest wait for a sign of the installer after that.
const SIGN: Duration = Duration::from_secs(10);
/// Between two looks for it.
const LOOK: Duration = Duration::from_millis(100);

/// How this node takes another build.
#[derive(Debug)]
pub struct Upgrades {
    /// What replaces this daemon; none where nothing does.
    program: Option<Utf8PathBuf>,
    files: Files,
    /// This daemon is fetching a release, or waits for a sign of its installer.
    busy: AtomicBool,
}

/// Why an upgrade did not come about.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{what} failed")]
    Disk {
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("the release cannot be fetched from {gateway}: {why}")]
    Fetch { gateway: String, why: Unfetched },
    #[error("{program} cannot be started")]
    Start {
        program: Utf8PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{program} did not start an installer: {says}")]
    Refused { program: Utf8PathBuf, says: String },
    #[error("the installer gave no sign of life within {SIGN:?}")]
    NoSign,
}

/// Why a release is not here.
#[derive(Debug, thiserror::Error)]
enum Unfetched {
    /// The gateway or the way to it: that passes.
    #[error("{0}")]
    Cut(String),
    /// It would be so again.
    #[error("{0}")]
    Refused(String),
}

fn disk(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Disk { what, source }
}

impl Upgrades {
    /// By this program, with what it leaves in a directory of the state directory.
    pub fn new(program: Option<Utf8PathBuf>, state: &camino::Utf8Path) -> Self {
        Self { program, files: Files::within(state), busy: AtomicBool::new(false) }
    }

    /// What this node says of itself in a check-in.
    pub async fn say(self: &Arc<Self>, env: &Env) -> SelfUpgrade {
        if self.program.is_none() {
            let unavailable = "it was not installed by install.sh, or DROWSE_UPGRADER is empty".to_owned();
            return SelfUpgrade { arch: ARCH.to_owned(), unavailable: Some(unavailable), last: None };
        }
        let upgrades = self.clone();
        let last = env.blocking("upgrade", move || upgrades.last()).await.flatten();
        SelfUpgrade { arch: ARCH.to_owned(), unavailable: None, last }
    }

    /// The last upgrade that this node was told of, as its files say.
    fn last(&self) -> Option<LastUpgrade> {
        let tell = self.files.told()?;
        // Before the status is read: whoever ends in between has written how.
        let at_work = self.busy.load(Ordering::Acquire) || self.files.is_locked();
        let (state, error) = match self.files.status() {
            // Whatever was written meanwhile: one that is at work has not failed yet.
            _ if at_work => (Progress::Running, None),
            Some(Status { state, error }) if state != Progress::Running => (state, error),
            Some(_) => (Progress::Failed, Some("the installer was cut off".to_owned())),
            None => (Progress::Failed, Some("the daemon ended before it had the release".to_owned())),
        };
        Some(LastUpgrade { tell, state, error })
    }
}

/// Takes the build that a gateway tells of. It tells once; what was begun is not begun again.
pub fn take(node: &Arc<Node>, gateway: &str, tell: Tell) {
    let upgrades = node.upgrades.clone();
    let Some(program) = upgrades.program.clone() else { return };
    if upgrades.busy.swap(true, Ordering::AcqRel) {
        return;
    }
    let (worker, gateway) = (node.clone(), gateway.to_owned());
    node.env.spawn("upgrade", async move {
        tracing::info!(build = %tell.build, gateway, "taking another build");
        if let Err(error) = begin(&worker, &gateway, program, tell).await {
            let error = chain(&error);
            tracing::error!(error, "the upgrade did not come about");
            let files = upgrades.files.clone();
            let failed = Status { state: Progress::Failed, error: Some(error) };
            // An installer that is at work after all says for itself what comes of it.
            let write = move || if files.is_locked() { Ok(()) } else { files.set_status(&failed) };
            let written = worker.env.blocking("upgrade", write).await;
            if !matches!(written, Some(Ok(()))) {
                tracing::error!("nor can it be written down");
            }
        }
        upgrades.busy.store(false, Ordering::Release);
    });
}

async fn begin(node: &Node, gateway: &str, program: Utf8PathBuf, tell: Tell) -> Result<(), Error> {
    let (files, build) = (node.upgrades.files.clone(), tell.build.clone());
    let begun = node.env.blocking("upgrade", move || files.begin(&tell)).await;
    begun.unwrap_or_else(|| Err(torn())).map_err(disk("making room for a release"))?;
    let fetched = timeout(FETCH, fetch_patiently(node, gateway, &build)).await;
    fetched
        .unwrap_or_else(|_| Err(Unfetched::Cut(format!("it took longer than {FETCH:?}"))))
        .map_err(|why| Error::Fetch { gateway: gateway.to_owned(), why })?;
    start(node, program).await?;
    let sign = async {
        loop {
            let files = node.upgrades.files.clone();
            let seen = node.env.blocking("upgrade", move || files.is_locked() || files.status().is_some());
            if seen.await == Some(true) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    timeout(SIGN, sign).await.map_err(|_| Error::NoSign)
}

fn torn() -> std::io::Error {
    std::io::Error::other("the daemon ends")
}

/// Brings the release of a gateway. A connection that is cut, or a gateway that is restarted meanwhile, makes nobody stuck.
async fn fetch_patiently(node: &Node, gateway: &str, build: &Build) -> Result<(), Unfetched> {
    let mut pauses = AGAIN_SECONDS.map(Duration::from_secs).into_iter();
    loop {
        match (fetch(node, gateway, build).await, pauses.next()) {
            (Err(Unfetched::Cut(error)), Some(pause)) => {
                tracing::warn!(error, gateway, "the release was not fetched; trying again in {pause:?}");
                tokio::time::sleep(pause).await;
            }
            (done, _) => return done,
        }
    }
}

/// Brings it whole or not at all.
async fn fetch(node: &Node, gateway: &str, build: &Build) -> Result<(), Unfetched> {
    use Unfetched::{Cut, Refused};
    let client = client::<Full<Bytes>>(&node.env, node.config.limits);
    let request = Request::get(format!("{gateway}{PATH}"))
        .header(header::AUTHORIZATION, node.config.token.bearer())
        .body(Full::default())
        .map_err(|error| Refused(error.to_string()))?;
    let within = |_| Cut(format!("it sent nothing for {PAUSE:?}"));
    let response = timeout(PAUSE, client.request(request)).await.map_err(within)?;
    let response = response.map_err(|error| Cut(why(&error)))?;
    let status = response.status();
    if !status.is_success() {
        let says = format!("it answered {status}");
        let passes = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        return Err(if passes { Cut(says) } else { Refused(says) });
    }
    // A gateway of a version that does not say it is taken at its word.
    let offered = response.headers().get(BUILD_HEADER);
    if let Some(offered) = offered.and_then(|json| serde_json::from_slice::<Build>(json.as_bytes()).ok())
        && offered != *build
    {
        return Err(Refused(format!(
            "it hands out {offered} by now, and this node was told to take {build}"
        )));
    }
    let length = response.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let length = length.filter(|length| *length <= RELEASE_BYTES_MAX);
    let length =
        length.ok_or_else(|| Refused(format!("it does not say a length of at most {RELEASE_BYTES_MAX}")))?;
    on_disk(node, Files::anew).await?;
    let (mut body, mut chunk, mut got) = (response.into_body(), BytesMut::new(), 0);
    while let Some(frame) = timeout(PAUSE, body.frame()).await.map_err(within)? {
        let Ok(data) = frame.map_err(|error| Cut(why(&error)))?.into_data() else { continue };
        got += data.len() as u64;
        chunk.extend_from_slice(&data);
        if chunk.len() >= CHUNK_BYTES {
            append(node, chunk.split().freeze()).await?;
        }
    }
    append(node, chunk.freeze()).await?;
    if got != length {
        return Err(Cut(format!("it sent {got} of {length} bytes")));
    }
    on_disk(node, Files::whole).await
}

async fn append(node: &Node, chunk: Bytes) -> Result<(), Unfetched> {
    on_disk(node, move |files| files.append(&chunk)).await
}

async fn on_disk(
    node: &Node,
    work: impl FnOnce(&Files) -> std::io::Result<()> + Send + 'static,
) -> Result<(), Unfetched> {
    let files = node.upgrades.files.clone();
    let done = node.env.blocking("upgrade", move || work(&files)).await;
    done.unwrap_or_else(|| Err(torn())).map_err(|error| Unfetched::Refused(error.to_string()))
}

/// Starts the program that replaces this daemon. It ends as soon as its work goes on without it.
async fn start(node: &Node, program: Utf8PathBuf) -> Result<(), Error> {
    let files = &node.upgrades.files;
    let mut command = Command::new(&program);
    command.arg(files.release()).arg(files.directory()).stdin(Stdio::null()).kill_on_drop(true);
    // What this daemon was told in its environment is none of its business, and may be a secret.
    command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    let ended = timeout(START, command.output()).await;
    let refused = |says: String| Error::Refused { program: program.clone(), says };
    let ended = ended.map_err(|_| refused(format!("it did not end within {START:?}")))?;
    let ended = ended.map_err(|source| Error::Start { program: program.clone(), source })?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    Err(refused(said.lines().last().map_or_else(|| ended.status.to_string(), str::to_owned)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_of_an_upgrade_is_read_from_what_it_left() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = camino::Utf8Path::from_path(dir.path()).expect("UTF-8");
        let upgrades = Upgrades::new(Some("/bin/false".into()), state);
        assert_eq!(upgrades.last(), None, "nobody told it anything");
        let tell = Tell { build: Build::unreleased(), at: jiff::Timestamp::UNIX_EPOCH };
        let told = |state, says: &str| {
            let last = upgrades.last().expect("it was told");
            assert_eq!((last.state, &last.tell), (state, &tell), "{says}");
            assert!(last.error.unwrap_or_default().contains(says), "{says}");
        };
        upgrades.files.begin(&tell).expect("room");
        told(Progress::Failed, "before it had the release");
        upgrades.busy.store(true, Ordering::Release);
        told(Progress::Running, "");
        upgrades.busy.store(false, Ordering::Release);
        let running = Status { state: Progress::Running, error: None };
        upgrades.files.set_status(&running).expect("written");
        told(Progress::Failed, "cut off");
        let lock = upgrades.files.lock_for_tests();
        told(Progress::Running, "");
        let back = Status { state: Progress::RolledBack, error: Some("it did not serve".to_owned()) };
        upgrades.files.set_status(&back).expect("written");
        told(Progress::Running, "");
        assert!(upgrades.files.begin(&tell).is_err(), "nothing is taken from under an installer");
        drop(lock);
        told(Progress::RolledBack, "did not serve");
        // Told again, what came of the first time is no more.
        upgrades.files.begin(&tell).expect("room");
        told(Progress::Failed, "before it had the release");
    }
}
