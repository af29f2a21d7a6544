use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener as StdListener;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use hyper::rt::Write;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use rustix::fs::Mode;
use rustix::process::DumpableBehavior;
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Semaphore;

use crate::connection::Watched;
use crate::gate::Gate;
use crate::launcher::control::Control;
use crate::metrics::{Metrics, Told};
use crate::process::output::Output;
use crate::process::table::Table;
use crate::process::{kept, pump, tree};
use crate::reap::reap;
use crate::relay::{self, Relays};
use crate::replace::resumed;
use crate::replace::state::State;
use crate::server::Agent;
use crate::watch::Watchers;

const LISTENER_FD: i32 = 3;
/// File work runs on few threads with small stacks: memory here is charged to the space.
const FILE_THREADS_MAX: usize = 4;
const THREAD_STACK_BYTES: usize = 256 * 1024;
const THREAD_KEEP: Duration = Duration::from_secs(2);
const CONNECTIONS_MAX: usize = 512;
const CONNECTION_BUFFER_BYTES: usize = 64 * 1024;
/// How long commands may take to end at SIGTERM, and the kernel at SIGKILL.
const TERM_WAIT: Duration = Duration::from_secs(2);
const KILL_WAIT: Duration = Duration::from_secs(1);

/// Pid 1 could not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// An inherited descriptor is missing.
    #[error("descriptor {fd} is not open: the listening socket is 3, work/cgroup.procs files follow")]
    Descriptor {
        /// Its number.
        fd: i32,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// One of the first steps failed.
    #[error("cannot {what}: {source}")]
    Setup {
        /// The step.
        what: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

fn setup(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Setup { what, source }
}

/// Runs pid 1 until SIGTERM. `limits` are memory in bytes and thousandths of a core; then files that tell the use follow.
pub(crate) fn run(procs_count: i32, limits: Option<(u64, u64)>) -> Result<(), Error> {
    prepare()?;
    let listener = StdListener::from(adopt(LISTENER_FD)?);
    let first = LISTENER_FD + 1;
    let behind = first.saturating_add(procs_count);
    let procs = (first..behind).map(adopt).collect::<Result<Vec<_>, _>>()?;
    let told = limits.map(|(memory, cpu)| Told::new(memory, cpu, behind));
    live(listener, procs, told, None)
}

/// Goes on as pid 1 where an earlier agent left off: its state is in the memory file `state`.
pub(crate) fn resume(state: i32) -> Result<(), Error> {
    prepare()?;
    let state = State::read(adopt(state)?).map_err(setup("read the state"))?;
    let listener = StdListener::from(adopt(state.listener)?);
    let procs = state.procs.iter().copied().map(adopt).collect::<Result<Vec<_>, _>>()?;
    live(listener, procs, state.measured, Some(state))
}

/// Tells whether this agent could go on from the state on its standard input.
pub(crate) fn check() -> Result<(), Error> {
    State::<Output>::read(adopt(0)?).map_err(setup("read the state"))?;
    Ok(())
}

fn adopt(fd: i32) -> Result<OwnedFd, Error> {
    crate::sys::adopt(fd).map_err(|source| Error::Descriptor { fd, source })
}

fn prepare() -> Result<(), Error> {
    // A process that is not dumpable cannot be traced or read through /proc, not even by root of the space.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|errno| setup("become undumpable")(errno.into()))?;
    crate::sys::keep_from_children(LISTENER_FD);
    Ok(())
}

fn live(
    listener: StdListener,
    procs: Vec<OwnedFd>,
    told: Option<Told>,
    state: Option<State<Output>>,
) -> Result<(), Error> {
    let metrics = told.map(Metrics::adopt).transpose().map_err(setup("measure the space"))?;
    // Outside a space (in tests) orphans would go to a stranger.
    if std::process::id() != 1 {
        let this = Some(rustix::process::getpid());
        rustix::process::set_child_subreaper(this).map_err(|errno| setup("become a reaper")(errno.into()))?;
    }
    rustix::process::umask(Mode::from_bits_truncate(0o022));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(FILE_THREADS_MAX)
        .thread_stack_size(THREAD_STACK_BYTES)
        .thread_keep_alive(THREAD_KEEP)
        .build()
        .map_err(setup("build the runtime"))?;
    let local = tokio::task::LocalSet::new();
    let served = local.block_on(&runtime, serve(listener, procs, metrics, state));
    // Nothing is unwound: with pid 1 the space ends, and a client in mid-stream must see its stream cut, not ended.
    // A file thread may be stuck in the kernel; nothing waits for it.
    std::mem::forget(local);
    runtime.shutdown_background();
    served
}

async fn serve(
    listener: StdListener,
    procs: Vec<OwnedFd>,
    metrics: Option<Metrics>,
    state: Option<State<Output>>,
) -> Result<(), Error> {
    listener.set_nonblocking(true).map_err(setup("prepare the listening socket"))?;
    let listener = UnixListener::from_std(listener).map_err(setup("watch the listening socket"))?;
    // Handlers stand before the first child exists, so no exit is missed.
    let mut children = signal(SignalKind::child()).map_err(setup("watch SIGCHLD"))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(setup("watch SIGTERM"))?;
    crate::sys::hold_terminate(false);
    let control = Control::start(procs).map_err(setup("start the launcher"))?;
    // Until here complaints go where the runtime keeps them; afterwards those are the host's files and nobody's business.
    crate::sys::close_stdio().map_err(setup("open /dev/null"))?;
    let gate = Gate::new();
    let agent = Rc::new(Agent {
        table: Table::new(Rc::clone(&control), Rc::clone(&gate)),
        control: Rc::clone(&control),
        watchers: Watchers::new(),
        relays: Relays::new(),
        metrics,
        listener: listener.as_raw_fd(),
        gate: Rc::clone(&gate),
        replacing: tokio::sync::Mutex::default(),
        connections: RefCell::default(),
    });
    let connections = Rc::new(Semaphore::new(CONNECTIONS_MAX));
    if let Some(state) = state {
        take_over(&agent, &connections, state).map_err(setup("go on from the state"))?;
        // Of those that ended meanwhile nobody tells any more.
        reap(&control);
    }
    loop {
        tokio::select! {
            biased;
            _ = terminate.recv() => break,
            _ = children.recv() => { reap(&control); }
            // Whoever comes while the gate is held is left for the next agent to accept.
            () = gate.changes() => {}
            (stream, permit) = accept(&listener, &connections), if !gate.is_held() => {
                tokio::task::spawn_local(attend(Rc::clone(&agent), stream, permit));
            }
        }
    }
    end_everything(&agent, &mut children).await;
    Ok(())
}

/// Serves a connection to its end.
async fn attend(agent: Rc<Agent>, stream: tokio::net::UnixStream, permit: Permit) {
    let (io, connection) = Watched::new(stream, Rc::clone(&agent.gate));
    let fd = connection.fd;
    agent.connections.borrow_mut().insert(fd, Rc::clone(&connection));
    let (serving, served) = (Rc::clone(&agent), Rc::clone(&connection));
    let service = service_fn(move |request| {
        Box::pin(crate::server::handle(Rc::clone(&serving), Rc::clone(&served), request))
    });
    let mut http = http1::Builder::new().max_buf_size(CONNECTION_BUFFER_BYTES).serve_connection(io, service);
    let served = poll_fn(|cx| http.poll_without_shutdown(cx)).await;
    let mut parts = http.into_parts();
    // From here it is no connection that another agent could serve on.
    agent.connections.borrow_mut().remove(&fd);
    match connection.take_relay() {
        Some(dialled) if served.is_ok() => relay::run(parts.io.into_inner(), parts.read_buf, dialled).await,
        // A client that left in the middle is ordinary; there is nobody to tell.
        _ => drop(poll_fn(|cx| Pin::new(&mut parts.io).poll_shutdown(cx)).await),
    }
    drop(permit);
}

/// Goes on with everything an earlier agent left.
fn take_over(agent: &Rc<Agent>, places: &Rc<Semaphore>, state: State<Output>) -> io::Result<()> {
    for connection in state.connections {
        let connection = std::os::unix::net::UnixStream::from(crate::sys::adopt(connection)?);
        let connection = tokio::net::UnixStream::from_std(connection)?;
        // There were no more places before.
        let Ok(slot) = places.try_acquire() else { break };
        slot.forget();
        tokio::task::spawn_local(attend(Rc::clone(agent), connection, Permit(Rc::clone(places))));
    }
    for stream in kept::take_over(&agent.table, state.processes, &state.streams)? {
        let connection = std::os::unix::net::UnixStream::from(crate::sys::adopt(stream.connection())?);
        let connection = tokio::net::UnixStream::from_std(connection)?;
        let stream = stream.in_place(agent.table.place_now());
        tokio::task::spawn_local(resumed::send(connection, stream, Rc::clone(&agent.gate)));
    }
    for pipe in state.lingering {
        pump::take_over(&agent.table, crate::sys::adopt(pipe)?)?;
    }
    // One that has left does not hear it.
    let _left = resumed::answer(crate::sys::adopt(state.asker)?);
    Ok(())
}

async fn accept(listener: &UnixListener, connections: &Rc<Semaphore>) -> (tokio::net::UnixStream, Permit) {
    loop {
        let Ok(slot) = connections.acquire().await else { std::future::pending().await };
        slot.forget();
        let permit = Permit(Rc::clone(connections));
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            // Out of descriptors, most likely; some connection will end.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// One connection's place.
struct Permit(Rc<Semaphore>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

/// The node stops the space: every process is asked, then made, to end.
async fn end_everything(agent: &Rc<Agent>, children: &mut Signal) {
    agent.control.close();
    for (number, wait) in [(libc::SIGTERM, TERM_WAIT), (libc::SIGKILL, KILL_WAIT)] {
        signal_everything(agent, number);
        let ended = async {
            while reap(&agent.control) {
                children.recv().await;
            }
        };
        if tokio::time::timeout(wait, ended).await.is_ok() {
            return;
        }
    }
}

fn signal_everything(agent: &Agent, number: i32) {
    if std::process::id() == 1 {
        crate::sys::signal_everything(number);
        if number == libc::SIGTERM {
            crate::sys::signal_everything(libc::SIGCONT);
        }
    } else {
        tree::signal_descendants(agent.control.launcher_pid(), number);
    }
}
