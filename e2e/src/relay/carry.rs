#![expect(clippy::disallowed_methods, reason = "a test's own network, outside the daemons and their seams")]

use std::{
    future::pending,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use socket2::{SockFilter, SockRef};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

use super::{
    PATIENCE, Wire,
    fault::{Fault, Lot, Mode, Then, Way},
};

/// One connection through the relay.
struct Line {
    wire: Arc<Wire>,
    /// What its current request has met, if anything.
    fault: Mutex<Option<Fault>>,
    /// Bytes of it are lost: it can never be used again.
    torn: AtomicBool,
    /// A request is held back.
    holding: AtomicBool,
    /// A request that was held is on its way.
    late: AtomicBool,
    /// The server closed its end meanwhile.
    orphaned: AtomicBool,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    /// As the two ends wish.
    Closed,
    Reset,
}

/// What became of a piece.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Gone {
    On,
    /// On, after it was held.
    Late,
    /// Its reader is not there any more.
    Nowhere,
    Lost,
    End(End),
}

/// Carries one connection to its end.
pub(super) async fn carry(wire: Arc<Wire>, client: TcpStream) {
    // A client of a dead server sees its connection closed.
    let Ok(server) = TcpStream::connect(wire.target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let vanished = wire.vanished.subscribe();
    let sockets =
        [&client, &server].map(|end| end.as_fd().try_clone_to_owned().expect("a descriptor is left"));
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let line = Line::new(wire);
    let (mut client, mut server) = ((client_read, client_write), (server_read, server_write));
    let end = drowse_shared::select_biased! {
        end = line.upwards(&mut client.0, &mut server.1) => end,
        end = line.downwards(&mut server.0, &mut client.1) => end,
        () = line.healed() => End::Reset,
        () = vanishing(vanished, &sockets) => End::Closed,
    };
    if end == End::Reset {
        for (read, write) in [client, server] {
            reset(&read, write);
        }
    }
}

/// Once it is told so, the kernel drops every packet that arrives for these. Never ends.
async fn vanishing(mut told: watch::Receiver<u64>, sockets: &[OwnedFd; 2]) {
    if told.changed().await.is_ok() {
        for socket in sockets {
            // BPF_RET | BPF_K, 0: of every packet, nothing is kept.
            let nothing = SockFilter::new(0x06, 0, 0, 0);
            SockRef::from(socket).attach_filter(&[nothing]).expect("Linux has filters");
        }
    }
    pending::<()>().await;
}

/// Closes with a reset instead of an orderly end.
fn reset(read: &OwnedReadHalf, write: OwnedWriteHalf) {
    let stream: &TcpStream = read.as_ref();
    rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).expect("an open socket");
    // Dropped, it would close its way in order first.
    write.forget();
}

impl Line {
    fn new(wire: Arc<Wire>) -> Self {
        let fault = Mutex::new(None);
        let (torn, holding, late, orphaned) = Default::default();
        Self { wire, fault, torn, holding, late, orphaned }
    }

    /// Client to server. What was held goes on even if its client has left.
    async fn upwards(&self, from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf) -> End {
        let (mut buffer, mut passed, mut has_held) = (vec![0; 64 << 10], 0, false);
        loop {
            let length = self.next(from, &mut buffer, Way::Request).await.unwrap_or(0);
            if length == 0 {
                if !has_held {
                    let _ = to.shutdown().await;
                }
                // Else the news that the client has left is held for good: the server acts on what it got.
                return pending().await;
            }
            let piece = &buffer[..length];
            if let Some(fault) = self.wire.meets(piece) {
                (*self.fault(), passed) = (Some(fault), 0);
            }
            match self.go(Way::Request, piece, passed, to).await {
                Gone::On => {}
                Gone::Late => has_held = true,
                // What it has answered meanwhile is still on its way down.
                Gone::Nowhere => return pending().await,
                Gone::Lost => return self.swallow(from).await,
                Gone::End(end) => return end,
            }
            passed += length as u64;
        }
    }

    /// Server to client.
    async fn downwards(&self, from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf) -> End {
        let (mut buffer, mut passed, mut met) = (vec![0; 64 << 10], 0, None);
        loop {
            let length = self.next(from, &mut buffer, Way::Answer).await.unwrap_or(0);
            if length == 0 {
                self.orphaned.store(true, Ordering::SeqCst);
                let _ = to.shutdown().await;
                if self.holding.load(Ordering::SeqCst) {
                    return pending().await;
                }
                return End::Closed;
            }
            self.answered(length);
            let now = *self.fault();
            if now != met {
                (met, passed) = (now, 0);
            }
            match self.go(Way::Answer, &buffer[..length], passed, to).await {
                // A client that has left does not keep the server from being heard out.
                Gone::On | Gone::Late | Gone::Nowhere => {}
                Gone::Lost => return self.swallow(from).await,
                Gone::End(end) => return end,
            }
            passed += length as u64;
        }
    }

    fn answered(&self, bytes: usize) {
        self.wire.answered.fetch_add(bytes as u64, Ordering::SeqCst);
        if self.late.swap(false, Ordering::SeqCst) {
            self.wire.late.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn fault(&self) -> std::sync::MutexGuard<'_, Option<Fault>> {
        self.fault.lock().expect("no panics inside")
    }

    /// Reads the next piece that is to go on, as the mode of the whole wire says.
    async fn next(&self, from: &mut OwnedReadHalf, buffer: &mut [u8], way: Way) -> io::Result<usize> {
        loop {
            self.wire.until_readable(way).await;
            let length = from.read(buffer).await?;
            self.wire.until_readable(way).await;
            match self.wire.lot(way) {
                Lot::Vanish => {
                    self.torn.store(true, Ordering::SeqCst);
                    if way == Way::Answer {
                        self.answered(length);
                    }
                    if length == 0 {
                        // Nobody hears that it was closed.
                        return pending().await;
                    }
                }
                Lot::Later(by) => {
                    tokio::time::sleep(by).await;
                    return Ok(length);
                }
                Lot::Pass | Lot::Wait => return Ok(length),
            }
        }
    }

    /// Sends a piece on, as far as its fault lets it.
    async fn go(&self, way: Way, piece: &[u8], passed: u64, to: &mut OwnedWriteHalf) -> Gone {
        let fault = *self.fault();
        let stopped = fault.and_then(|fault| Some((fault.passes(way, passed, piece.len())?, fault.then)));
        let Some((part, then)) = stopped else {
            return if to.write_all(piece).await.is_ok() { Gone::On } else { Gone::Nowhere };
        };
        // What matters is what comes after.
        let _ = to.write_all(&piece[..part]).await;
        let number = self.wire.met.fetch_add(1, Ordering::SeqCst);
        match then {
            Then::Cut => Gone::End(End::Closed),
            Then::Reset => Gone::End(End::Reset),
            Then::Lose => Gone::Lost,
            Then::Hold | Then::Later(_) => {
                self.holding.store(way == Way::Request, Ordering::SeqCst);
                let by_itself = async {
                    match then {
                        Then::Later(by) => tokio::time::sleep(by).await,
                        _ => pending().await,
                    }
                };
                drowse_shared::select_biased! {
                    () = self.wire.until_released(number) => {}
                    () = by_itself => {}
                }
                self.holding.store(false, Ordering::SeqCst);
                *self.fault() = None;
                self.late.store(way == Way::Request, Ordering::SeqCst);
                if way == Way::Request && self.orphaned.load(Ordering::SeqCst) {
                    return self.deliver_anew(&piece[part..]).await;
                }
                if to.write_all(&piece[part..]).await.is_ok() { Gone::Late } else { Gone::Nowhere }
            }
        }
    }

    /// The server's process is another one by now: what was held reaches it as a proxy between would bring it.
    async fn deliver_anew(&self, piece: &[u8]) -> Gone {
        let delivered = async {
            let mut server = self.connect_again().await?;
            server.write_all(piece).await?;
            let mut buffer = vec![0; 64 << 10];
            let length = server.read(&mut buffer).await?;
            self.answered(length);
            Ok::<(), io::Error>(())
        };
        // The server may be gone for good.
        let _ = delivered.await;
        Gone::End(End::Closed)
    }

    /// Connects to a server that may be on its way back.
    async fn connect_again(&self) -> io::Result<TcpStream> {
        let again = async {
            loop {
                match TcpStream::connect(self.wire.target).await {
                    Ok(server) => return server,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        tokio::time::timeout(PATIENCE / 2, again).await.map_err(io::Error::from)
    }

    /// Takes and drops whatever comes, until a release ends the connection.
    async fn swallow(&self, from: &mut OwnedReadHalf) -> End {
        let number = self.wire.met.load(Ordering::SeqCst) - 1;
        let taken = async {
            let mut buffer = vec![0; 64 << 10];
            while from.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
            pending::<()>().await;
        };
        drowse_shared::select_biased! {
            () = taken => {}
            () = self.wire.until_released(number) => {}
        }
        End::Reset
    }

    /// Resolves when a wire that has lost bytes is whole again: nobody can go on with what is missing.
    async fn healed(&self) {
        let mut mode = self.wire.mode.subscribe();
        loop {
            let whole = mode.wait_for(|mode| !matches!(mode, Mode::Lose { .. })).await.is_ok();
            if whole && self.torn.load(Ordering::SeqCst) {
                return;
            }
            if mode.changed().await.is_err() {
                return pending().await;
            }
        }
    }
}
