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

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
    sync::watch,
};

use crate::wait::eventually;

/// A stretch of wire between two daemons that a test can bend.
#[derive(Clone)]
pub struct Relay {
    wire: Arc<Wire>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    Forward,
    Delay(Duration),
    /// Packets vanish: connects hang, open connections fall silent.
    BlackHole,
}

struct Wire {
    address: SocketAddr,
    target: Mutex<SocketAddr>,
    listener: TcpListener,
    mode: watch::Sender<Mode>,
    /// A beginning of what the client says; the next time it is seen, it is held back.
    hold: Mutex<Option<Vec<u8>>>,
    held: AtomicU64,
    /// Held pieces with a smaller number go on.
    released: watch::Sender<u64>,
    /// After so many more bytes from the server the connection is cut. `u64::MAX` = never.
    cut_after: AtomicU64,
    answered: AtomicU64,
    /// Connections that keep the backlog full while packets vanish.
    fillers: Mutex<Vec<std::net::TcpStream>>,
}

const BACKLOG: i32 = 128;

impl Relay {
    /// A relay on a free port that leads to `target`.
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let wire = Arc::new(Wire {
            address,
            target: Mutex::new(target),
            listener,
            mode: watch::channel(Mode::Forward).0,
            hold: Mutex::new(None),
            held: AtomicU64::new(0),
            released: watch::channel(0).0,
            cut_after: AtomicU64::new(u64::MAX),
            answered: AtomicU64::new(0),
            fillers: Mutex::new(Vec::new()),
        });
        tokio::spawn(accept(wire.clone()));
        Self { wire }
    }

    /// `http://host:port` of this end.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.wire.address)
    }

    /// Lets everything pass at once.
    pub fn forward(&self) {
        rustix::net::listen(&self.wire.listener, BACKLOG).expect("it listens already");
        self.wire.fillers.lock().expect("no panics inside").clear();
        self.wire.mode.send_replace(Mode::Forward);
    }

    /// Every piece arrives so much later.
    pub fn delay(&self, by: Duration) {
        self.wire.mode.send_replace(Mode::Delay(by));
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

    /// Holds back the next piece from the client that begins with `beginning`.
    pub fn hold(&self, beginning: &str) {
        *self.wire.hold.lock().expect("no panics inside") = Some(beginning.as_bytes().to_vec());
    }

    /// Forgets a hold that nothing has met.
    pub fn stop_holding(&self) {
        *self.wire.hold.lock().expect("no panics inside") = None;
    }

    /// How many pieces were ever held back.
    pub fn held(&self) -> u64 {
        self.wire.held.load(Ordering::SeqCst)
    }

    /// Waits until something is held back.
    pub async fn until_held(&self) {
        eventually("the relay holds something back", Duration::from_secs(10), || async {
            (self.held() > 0).then_some(())
        })
        .await;
    }

    /// Lets go what is held back.
    pub fn release(&self) {
        self.wire.released.send_replace(self.held());
    }

    /// Cuts the connection that carries the next `bytes` bytes from the server.
    pub fn cut_after(&self, bytes: u64) {
        self.wire.cut_after.store(bytes, Ordering::SeqCst);
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
            tokio::spawn(carry(wire.clone(), client));
        }
    }
}

async fn carry(wire: Arc<Wire>, client: TcpStream) {
    let target = *wire.target.lock().expect("no panics inside");
    // A client of a dead server sees its connection closed.
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let up = tokio::spawn(upwards(wire.clone(), client_read, server_write));
    let _ = downwards(&wire, server_read, client_write).await;
    up.abort();
}

/// Client to server. What was held goes on even if its client has left.
async fn upwards(wire: Arc<Wire>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    let mut has_held = false;
    loop {
        let length = from.read(&mut buffer).await?;
        pass(&wire).await;
        if length == 0 && has_held {
            // The news that the client has left is held for good: the server acts on what it got.
            return std::future::pending().await;
        }
        if length == 0 {
            return to.shutdown().await;
        }
        let piece = &buffer[..length];
        if wire.holds(piece) {
            has_held = true;
            let number = wire.held.fetch_add(1, Ordering::SeqCst);
            let _ = wire.released.subscribe().wait_for(|released| *released > number).await;
        }
        to.write_all(piece).await?;
    }
}

/// Server to client.
async fn downwards(wire: &Wire, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = from.read(&mut buffer).await?;
        wire.answered.fetch_add(length as u64, Ordering::SeqCst);
        pass(wire).await;
        if length == 0 {
            return to.shutdown().await;
        }
        let left = wire.cut_after.load(Ordering::SeqCst);
        if (length as u64) > left {
            wire.cut_after.store(u64::MAX, Ordering::SeqCst);
            let part = usize::try_from(left).expect("smaller than a buffer");
            return to.write_all(&buffer[..part]).await;
        }
        if left != u64::MAX {
            wire.cut_after.store(left - length as u64, Ordering::SeqCst);
        }
        // A client that has left does not keep the server from being heard out.
        let _ = to.write_all(&buffer[..length]).await;
    }
}

/// Waits as the mode says.
async fn pass(wire: &Wire) {
    let mut mode = wire.mode.subscribe();
    let now = *mode.borrow_and_update();
    match now {
        Mode::Forward => {}
        Mode::Delay(by) => tokio::time::sleep(by).await,
        Mode::BlackHole => {
            let _ = mode.wait_for(|m| *m != Mode::BlackHole).await;
        }
    }
}

impl Wire {
    fn holds(&self, piece: &[u8]) -> bool {
        let mut hold = self.hold.lock().expect("no panics inside");
        let met = hold.as_ref().is_some_and(|beginning| piece.starts_with(beginning));
        if met {
            *hold = None;
        }
        met
    }
}
