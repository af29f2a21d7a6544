#![expect(clippy::disallowed_methods, reason = "a test's own network, outside the daemons and their seams")]

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{net::TcpListener, sync::watch};

use crate::wait::eventually;

/// One connection, carried to its end.
mod carry;
/// What may happen to a request, and to the whole wire.
mod fault;

pub use fault::{Fault, Then, Way};
use fault::{Lot, Mode};

/// A stretch of wire between two daemons that a test can bend.
#[derive(Clone)]
pub struct Relay {
    wire: Arc<Wire>,
}

struct Wire {
    address: SocketAddr,
    target: SocketAddr,
    listener: TcpListener,
    mode: watch::Sender<Mode>,
    /// The next request that begins so meets this.
    armed: Mutex<Vec<(Vec<u8>, Fault)>>,
    met: AtomicU64,
    /// What met its fault with a smaller number goes on.
    released: watch::Sender<u64>,
    answered: AtomicU64,
    /// Held requests that were answered after they were let go.
    late: AtomicU64,
    /// Connections that keep the backlog full while packets vanish.
    fillers: Mutex<Vec<std::net::TcpStream>>,
    /// Counts how often whoever was connected vanished.
    vanished: watch::Sender<u64>,
}

const BACKLOG: i32 = 128;
/// What a relay is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

impl Relay {
    /// A relay on a free port that leads to `target`.
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let wire = Arc::new(Wire {
            address,
            target,
            listener,
            mode: watch::channel(Mode::Forward).0,
            armed: Mutex::new(Vec::new()),
            met: AtomicU64::new(0),
            released: watch::channel(0).0,
            answered: AtomicU64::new(0),
            late: AtomicU64::new(0),
            fillers: Mutex::new(Vec::new()),
            vanished: watch::channel(0).0,
        });
        tokio::spawn(accept(wire.clone()));
        Self { wire }
    }

    /// `http://host:port` of this end.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.wire.address)
    }

    // What happens to everything.

    /// Lets everything pass at once. What was lost on the way is not made up for: its connections are reset.
    pub fn forward(&self) {
        rustix::net::listen(&self.wire.listener, BACKLOG).expect("it listens already");
        self.wire.fillers.lock().expect("no panics inside").clear();
        self.wire.mode.send_replace(Mode::Forward);
    }

    /// Every piece arrives so much later.
    pub fn delay(&self, by: Duration) {
        self.wire.mode.send_replace(Mode::Delay(by));
    }

    /// Connections succeed, and on these ways nothing is read: what is sent waits in the windows, then its sender does.
    pub fn stall(&self, ways: &[Way]) {
        let (request, answer) = (ways.contains(&Way::Request), ways.contains(&Way::Answer));
        self.wire.mode.send_replace(Mode::Stall { request, answer });
    }

    /// Connections succeed, and what is sent on these ways is taken and never arrives.
    pub fn lose(&self, ways: &[Way]) {
        let (request, answer) = (ways.contains(&Way::Request), ways.contains(&Way::Answer));
        self.wire.mode.send_replace(Mode::Lose { request, answer });
    }

    /// Packets vanish from now on: what is connected falls silent, and a new connect gets no answer at all.
    ///
    /// # Panics
    /// When this kernel answers a connect all the same.
    pub fn black_hole(&self) {
        self.wire.mode.send_replace(Mode::BlackHole);
        // With a backlog of 0 that is full, the kernel drops every further SYN.
        rustix::net::listen(&self.wire.listener, 0).expect("it listens already");
        let mut fillers = self.wire.fillers.lock().expect("no panics inside");
        for _ in 0..64 {
            match std::net::TcpStream::connect_timeout(&self.wire.address, Duration::from_millis(100)) {
                Ok(filler) => fillers.push(filler),
                Err(e) if e.kind() == io::ErrorKind::TimedOut => return,
                Err(e) => panic!("a full backlog refuses instead of dropping: {e}"),
            }
        }
        panic!("the backlog of a black hole never fills");
    }

    /// To both ends of every connection that is open now, the other one has vanished without a word, for good: nothing
    /// arrives or is acknowledged any more. New ones go through.
    pub fn vanish(&self) {
        self.wire.vanished.send_modify(|times| *times += 1);
    }

    // What happens to one request.

    /// The next request that begins with `beginning` meets this fault.
    pub fn arm(&self, beginning: &str, fault: Fault) {
        self.wire.armed.lock().expect("no panics inside").push((beginning.as_bytes().to_vec(), fault));
    }

    /// Forgets what no request has met.
    pub fn disarm(&self) {
        self.wire.armed.lock().expect("no panics inside").clear();
    }

    /// How many faults were ever met.
    pub fn met(&self) -> u64 {
        self.wire.met.load(Ordering::SeqCst)
    }

    /// Waits until so many faults were met.
    pub async fn until_met(&self, count: u64) {
        eventually("the relay bends what it was told to", PATIENCE, || async {
            (self.met() >= count).then_some(())
        })
        .await;
    }

    /// Lets go what is held; what has lost bytes is reset.
    pub fn release(&self) {
        self.wire.released.send_replace(self.met());
    }

    /// How many held requests were ever answered once they were let go.
    pub fn late(&self) -> u64 {
        self.wire.late.load(Ordering::SeqCst)
    }

    /// Waits until so many were.
    pub async fn until_late(&self, count: u64) {
        eventually("what was held is answered", PATIENCE, || async { (self.late() >= count).then_some(()) })
            .await;
    }

    /// Bytes the server has sent so far, whether or not anybody was left to read them.
    pub fn answered(&self) -> u64 {
        self.wire.answered.load(Ordering::SeqCst)
    }
}

async fn accept(wire: Arc<Wire>) {
    let mut mode = wire.mode.subscribe();
    loop {
        if mode.wait_for(|m| *m != Mode::BlackHole).await.is_err() {
            return;
        }
        let client = drowse_shared::select_biased! {
            accepted = wire.listener.accept() => accepted,
            _ = mode.changed() => continue,
        };
        if let Ok((client, _)) = client {
            tokio::spawn(carry::carry(wire.clone(), client));
        }
    }
}

impl Wire {
    /// The fault that a piece from the client meets, if it is the beginning of such a request.
    fn meets(&self, piece: &[u8]) -> Option<Fault> {
        let mut armed = self.armed.lock().expect("no panics inside");
        let met = armed.iter().position(|(beginning, _)| piece.starts_with(beginning))?;
        Some(armed.remove(met).1)
    }

    fn lot(&self, way: Way) -> Lot {
        self.mode.borrow().lot(way)
    }

    async fn until_readable(&self, way: Way) {
        // The sender lives in this wire.
        let _ = self.mode.subscribe().wait_for(|mode| mode.lot(way) != Lot::Wait).await;
    }

    async fn until_released(&self, number: u64) {
        let _ = self.released.subscribe().wait_for(|released| *released > number).await;
    }
}
