/// Events as JSON.
mod event;
/// The stream a watching client reads.
pub(crate) mod stream;
/// What the kernel tells of a tree, made complete.
mod tree;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, Response, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::body::Body;
use crate::connect::{self, Code, Error};
use crate::files::{as_user, path};
use crate::patience::Limits;
use crate::users::User;
use stream::WatchStream;
use tree::{Scope, Tree};

/// Watchers at once: each takes one of the kernel's 128 queues a user may have.
const WATCHERS_MAX: usize = 64;
/// A watcher whose events nobody has fetched for so long is nobody's.
const UNFETCHED_MAX: Duration = Duration::from_secs(900);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WatchRequest {
    #[serde(default)]
    path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default)]
    include_entry: bool,
    #[serde(default)]
    allow_network_mounts: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WatcherRequest {
    #[serde(default)]
    watcher_id: String,
}

/// One directory under watch, for one user.
struct Watch {
    tree: Arc<Mutex<Tree>>,
    user: User,
    queue: AsyncFd<OwnedFd>,
}

impl Watch {
    async fn arm(request: WatchRequest, user: User) -> Result<Self, Error> {
        let root = path::absolute(&user, request.path.as_bytes())?;
        let scope = Scope { recursive: request.recursive, with_entry: request.include_entry };
        let remote_allowed = request.allow_network_mounts;
        let tree = as_user(&user, move || {
            check(&root, remote_allowed)?;
            Tree::arm(root, scope)
        });
        let tree = tree.await?;
        let queue = tree.descriptor().and_then(crate::sys::watch);
        let queue = queue.map_err(|error| Error::from_io("the watch", &error))?;
        Ok(Self { tree: Arc::new(Mutex::new(tree)), user, queue })
    }

    /// Waits until something may have happened.
    async fn happened(&self) -> Result<(), Error> {
        let ready = self.queue.readable().await;
        ready.map_err(|error| Error::from_io("the watch", &error))?.clear_ready();
        Ok(())
    }

    /// Takes over what happened, and all that waits.
    async fn fetch(&self) -> Result<VecDeque<Box<str>>, Error> {
        self.with_tree(|tree| {
            while tree.gather() {}
            tree.fetch()
        })
        .await
    }

    /// Takes over what happened, for later.
    async fn gather(&self) -> Result<(), Error> {
        while self.with_tree(|tree| Ok(tree.gather())).await? {}
        Ok(())
    }

    /// New directories are entered as the user, so this too is file work.
    async fn with_tree<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Tree) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let tree = Arc::clone(&self.tree);
        as_user(&self.user, move || match tree.lock() {
            Ok(mut tree) => work(&mut tree),
            Err(_) => Err(Error::new(Code::Internal, "the watch broke")),
        })
        .await
    }
}

/// A watcher whose events are fetched by calls.
struct Fetched {
    watch: Watch,
    fetched: Cell<Instant>,
    removed: Notify,
    _place: OwnedSemaphorePermit,
}

/// All watchers.
pub(crate) struct Watchers {
    places: Arc<Semaphore>,
    fetched: RefCell<BTreeMap<String, Rc<Fetched>>>,
    ended: Rc<Notify>,
}

impl Watchers {
    /// None yet.
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self {
            places: Arc::new(Semaphore::new(WATCHERS_MAX)),
            fetched: RefCell::default(),
            ended: Rc::default(),
        })
    }

    /// Ends every stream in words: what it was told of the tree does not outlive this agent.
    pub(crate) fn end_streams(&self) {
        self.ended.notify_waiters();
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, Error> {
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let words = format!("{WATCHERS_MAX} watchers are there already: remove one");
            Error::new(Code::ResourceExhausted, words)
        })
    }

    fn find(&self, id: &str) -> Result<Rc<Fetched>, Error> {
        self.fetched.borrow().get(id).cloned().ok_or_else(|| {
            Error::new(Code::NotFound, format!("there is no watcher {id:?}; one that nobody asks is removed"))
        })
    }

    fn remove(&self, id: &str) {
        if let Some(watcher) = self.fetched.borrow_mut().remove(id) {
            watcher.removed.notify_one();
        }
    }

    /// Keeps a watcher's queue short until it is removed, by its client or for want of one.
    async fn attend(self: Rc<Self>, id: String) {
        while let Ok(watcher) = self.find(&id) {
            let forgotten = tokio::time::sleep_until(watcher.fetched.get() + UNFETCHED_MAX);
            tokio::select! {
                () = watcher.removed.notified() => return,
                happened = watcher.watch.happened() => {
                    let gathered = match happened {
                        Ok(()) => watcher.watch.gather().await,
                        Err(error) => Err(error),
                    };
                    if gathered.is_err() {
                        // Whoever asks next is told why.
                        return;
                    }
                }
                () = forgotten => {
                    if watcher.fetched.get().elapsed() >= UNFETCHED_MAX {
                        self.remove(&id);
                    }
                }
            }
        }
    }
}

/// Serves WatchDir.
pub(crate) async fn stream(
    watchers: &Rc<Watchers>,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Response<Body>, Error> {
    let limits = Limits::read(headers)?;
    let request: WatchRequest = connect::stream_request(body).await?;
    let user = connect::caller(headers)?;
    let place = watchers.place()?;
    let watch = Rc::new(Watch::arm(request, user).await?);
    let stream = WatchStream::new(watch, Rc::clone(&watchers.ended), limits.begin(), place);
    Ok(connect::stream_response(Body::Watch(Box::new(stream))))
}

/// Serves the unary calls for watchers that are asked.
pub(crate) async fn call(
    watchers: &Rc<Watchers>,
    method: &str,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Response<Body>, Error> {
    if method == "CreateWatcher" {
        let request: WatchRequest = connect::unary_request(body).await?;
        let user = connect::caller(headers)?;
        let place = watchers.place()?;
        let watch = Watch::arm(request, user).await?;
        let id = crate::sys::random_hex();
        let watcher =
            Fetched { watch, fetched: Cell::new(Instant::now()), removed: Notify::new(), _place: place };
        watchers.fetched.borrow_mut().insert(id.clone(), Rc::new(watcher));
        tokio::task::spawn_local(Rc::clone(watchers).attend(id.clone()));
        return Ok(connect::json_response(StatusCode::OK, &json!({"watcherId": id})));
    }
    let WatcherRequest { watcher_id } = connect::unary_request(body).await?;
    let watcher = watchers.find(&watcher_id)?;
    if method == "RemoveWatcher" {
        watchers.remove(&watcher_id);
        return Ok(connect::json_response(StatusCode::OK, &json!({})));
    }
    watcher.fetched.set(Instant::now());
    let events = watcher.watch.fetch().await.inspect_err(|_| {
        // It will never tell more than this error.
        watchers.remove(&watcher_id);
    })?;
    let events: Vec<&str> = events.iter().map(|event| &**event).collect();
    let answer = format!(r#"{{"events":[{}]}}"#, events.join(","));
    Ok(connect::json_bytes_response(StatusCode::OK, answer.into_bytes()))
}

fn check(root: &Path, remote_allowed: bool) -> Result<(), Error> {
    let refuse = |error: &std::io::Error| Error::from_io(&root.display().to_string(), error);
    let found = std::fs::metadata(root).map_err(|error| refuse(&error))?;
    if !found.is_dir() {
        return Err(Error::new(Code::InvalidArgument, format!("{} is not a directory", root.display())));
    }
    if !remote_allowed && is_remote(root).map_err(|error| refuse(&error))? {
        let words = format!(
            "{} is on a network mount, where changes from elsewhere are not seen: set allowNetworkMounts",
            root.display()
        );
        return Err(Error::new(Code::InvalidArgument, words));
    }
    Ok(())
}

/// Whether changes may be made behind this kernel's back.
fn is_remote(root: &Path) -> std::io::Result<bool> {
    const NFS: u64 = 0x6969;
    const CIFS: u64 = 0xff53_4d42;
    const SMB2: u64 = 0xfe53_4d42;
    const FUSE: u64 = 0x6573_5546;
    let kind = u64::try_from(rustix::fs::statfs(root)?.f_type).unwrap_or(0) & 0xffff_ffff;
    Ok([NFS, CIFS, SMB2, FUSE].contains(&kind))
}
