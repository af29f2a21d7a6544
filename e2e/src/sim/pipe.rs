use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

use super::{
    host::Life,
    rng,
    story::{self, Kind},
    world::{State, World},
};

/// Bytes on their way after which a writer waits.
const WINDOW_BYTES: usize = 256 << 10;

/// A connection on which nothing can arrive for so long is given up by the kernel of whoever waits: keepalive.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// One direction of a connection.
pub(super) struct Pipe {
    pub(super) from: Arc<Life>,
    pub(super) to: Arc<Life>,
    /// What is on its way, and when it arrives.
    segments: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    /// When the last thing sent arrives; nothing overtakes it.
    last: Option<Instant>,
    fin: Option<Instant>,
    pub(super) reset: Option<Instant>,
    /// Nothing leaves this pipe, by a hold's number.
    pub(super) held: Option<u64>,
    /// Nothing leaves this pipe, and nobody is told.
    pub(super) silent: bool,
    /// Since when the reader's kernel gets no answer.
    unheard_since: Option<Instant>,
    /// Nobody reads any more.
    deaf: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn new(from: &Arc<Life>, to: &Arc<Life>) -> Self {
        Self {
            from: from.clone(),
            to: to.clone(),
            segments: VecDeque::new(),
            bytes: 0,
            last: None,
            fin: None,
            reset: None,
            held: None,
            silent: false,
            unheard_since: None,
            deaf: false,
            reader: None,
            writer: None,
        }
    }

    /// What its stream of chance goes by.
    fn link(&self) -> u64 {
        rng::link(self.from.key, self.to.key)
    }

    /// Bytes wait for a life that ended.
    pub(super) fn is_unanswered(&self) -> bool {
        !self.segments.is_empty() || self.fin.is_some()
    }

    /// Loses what is on its way.
    pub(super) fn forget(&mut self) {
        self.segments.clear();
        self.bytes = 0;
        self.fin = None;
    }

    /// Tells both ends that something about this pipe changed.
    pub(super) fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }
}

/// Two pipes: from the dialler, and to it.
pub(super) struct Connection {
    pub(super) pipes: [Pipe; 2],
    /// Ends that are not dropped yet.
    pub(super) ends: u8,
}

impl Connection {
    pub(super) fn new(dialler: &Arc<Life>, listener: &Arc<Life>) -> Self {
        Self { pipes: [Pipe::new(dialler, listener), Pipe::new(listener, dialler)], ends: 2 }
    }
}

enum Received {
    Bytes,
    End,
    Reset,
    Later(Option<Instant>),
}

/// One end of a connection.
pub(super) struct Stream {
    world: World,
    life: Arc<Life>,
    connection: u64,
    /// Which pipe this end writes to; it reads from the other.
    side: usize,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Stream {
    pub(super) fn new(world: &World, life: &Arc<Life>, connection: u64, side: usize) -> Self {
        Self { world: world.clone(), life: life.clone(), connection, side, alarm: None }
    }
}

impl State {
    /// Whether what this pipe carries is kept from arriving.
    fn is_blocked(&self, pipe: &Pipe) -> bool {
        pipe.held.is_some() || self.is_lost(pipe)
    }

    /// Whether the network loses what this pipe carries.
    fn is_lost(&self, pipe: &Pipe) -> bool {
        pipe.silent || self.is_cut(&pipe.from.host, &pipe.to.host)
    }

    fn receive(&mut self, number: u64, incoming: usize, buf: &mut ReadBuf<'_>, waker: &Waker) -> Received {
        let now = Instant::now();
        let Some(connection) = self.connections.get(&number) else { return Received::End };
        let blocked = self.is_blocked(&connection.pipes[incoming]);
        // The questions and the answers of keepalive travel both ways.
        let unheard = connection.pipes.iter().any(|pipe| self.is_lost(pipe) || pipe.from.has_lost_power());
        let Some(connection) = self.connections.get_mut(&number) else { return Received::End };
        let pipe = &mut connection.pipes[incoming];
        pipe.reader = Some(waker.clone());
        let given_up = unheard.then(|| *pipe.unheard_since.get_or_insert(now) + KEEPALIVE);
        match given_up {
            Some(at) if at <= now => {
                let line = format!("{}<{} c{number} GIVEN UP", pipe.to.host, pipe.from.host);
                self.log(Kind::Wire, line);
                return Received::Reset;
            }
            Some(_) => {}
            None => pipe.unheard_since = None,
        }
        if blocked {
            return Received::Later(given_up);
        }
        let mut due = pipe.reset.into_iter().chain(given_up).min();
        if let Some((at, _)) = pipe.segments.front() {
            if *at <= now {
                let (at, mut bytes) = pipe.segments.pop_front().unwrap_or((now, Vec::new()));
                let taken = bytes.len().min(buf.remaining());
                buf.put_slice(&bytes[..taken]);
                pipe.bytes -= taken;
                let line =
                    format!("{}<{} c{number} got {}", pipe.to.host, pipe.from.host, gist(&bytes[..taken]));
                if taken < bytes.len() {
                    bytes.drain(..taken);
                    pipe.segments.push_front((at, bytes));
                }
                if let Some(writer) = pipe.writer.take() {
                    writer.wake();
                }
                let reader = pipe.to.clone();
                self.log(Kind::Wire, line);
                if incoming == 0 {
                    let read = buf.filled();
                    self.heard(number, &reader, true, &read[read.len() - taken..]);
                }
                return Received::Bytes;
            }
            due = Some(due.map_or(*at, |reset| reset.min(*at)));
        } else if let Some(fin) = pipe.fin {
            if fin <= now {
                return Received::End;
            }
            due = Some(due.map_or(fin, |reset| reset.min(fin)));
        }
        if pipe.reset.is_some_and(|at| at <= now) {
            return Received::Reset;
        }
        Received::Later(due)
    }

    fn send(&mut self, number: u64, side: usize, bytes: &[u8], waker: &Waker) -> Poll<io::Result<usize>> {
        let now = Instant::now();
        let Some(connection) = self.connections.get(&number) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let (there, here) = (connection.pipes[side].link(), connection.pipes[1 - side].link());
        let (lag, back) = (self.lag(there), self.lag(here));
        let Some(connection) = self.connections.get(&number) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let incoming = &connection.pipes[1 - side];
        let outgoing = &connection.pipes[side];
        let knows_reset = incoming.reset.is_some_and(|at| at <= now) && !self.is_blocked(incoming);
        if knows_reset || outgoing.fin.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // Nobody is there to take it: its machine answers with a reset, if there is a machine that runs.
        let unheard = outgoing.deaf || outgoing.to.is_dead();
        let silent = outgoing.to.is_dead() && self.is_off(&outgoing.to.host);
        let (from, to) = (outgoing.from.host.clone(), outgoing.to.host.clone());
        let gist = gist(bytes);
        let hold = self.hold_for(&from, &to, bytes);
        let Some(connection) = self.connections.get_mut(&number) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        if unheard && !silent {
            connection.pipes[1 - side].reset.get_or_insert(now + lag + back);
            connection.pipes[1 - side].wake();
        }
        let pipe = &mut connection.pipes[side];
        if pipe.bytes >= WINDOW_BYTES && !unheard {
            pipe.writer = Some(waker.clone());
            return Poll::Pending;
        }
        if !unheard || silent {
            let at = pipe.last.map_or(now + lag, |last| last.max(now + lag));
            pipe.last = Some(at);
            pipe.bytes += bytes.len();
            pipe.segments.push_back((at, bytes.to_vec()));
            if let Some(reader) = pipe.reader.take() {
                reader.wake();
            }
        }
        let writer = pipe.from.clone();
        if let Some(hold) = hold {
            pipe.held = Some(hold);
            self.hold_caught(hold, number, side, story::words(&gist));
        }
        self.log(Kind::Wire, format!("{from}>{to} c{number} send {gist}"));
        if side == 1 {
            self.heard(number, &writer, false, bytes);
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn finish(&mut self, number: u64, side: usize) {
        let Some(link) = self.connections.get(&number).map(|connection| connection.pipes[side].link()) else {
            return;
        };
        let at = Instant::now() + self.lag(link);
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let pipe = &mut connection.pipes[side];
        if pipe.fin.is_some() {
            return;
        }
        pipe.fin = Some(pipe.last.map_or(at, |last| last.max(at)));
        pipe.wake();
        let line = format!("{}>{} c{number} FIN", pipe.from.host, pipe.to.host);
        self.log(Kind::Wire, line);
    }

    /// One end is gone.
    pub(super) fn leave(&mut self, number: u64, side: usize) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.pipes[1 - side].deaf = true;
        connection.pipes[1 - side].wake();
        connection.ends -= 1;
        if connection.ends == 0 {
            self.connections.remove(&number);
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.life.is_dead() {
            return Poll::Pending;
        }
        let received = this.world.lock().receive(this.connection, 1 - this.side, buf, cx.waker());
        match received {
            Received::Bytes | Received::End => Poll::Ready(Ok(())),
            Received::Reset => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Received::Later(due) => {
                this.alarm = due.map(|at| Box::pin(tokio::time::sleep_until(at)));
                if this.alarm.as_mut().is_some_and(|alarm| alarm.as_mut().poll(cx).is_ready()) {
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !self.world.step(&self.life, "write") {
            return Poll::Pending;
        }
        self.world.lock().send(self.connection, self.side, bytes, cx.waker())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.life.is_dead() {
            self.world.lock().finish(self.connection, self.side);
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.world.lock();
        if !self.life.is_dead() {
            state.finish(self.connection, self.side);
        }
        state.leave(self.connection, self.side);
    }
}

/// Bytes as a story tells them: how many, a hash of all, the first line, and the body if it is short text.
fn gist(bytes: &[u8]) -> String {
    let hash = blake3::hash(bytes);
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4096)]);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&*text, ""));
    let clean = |text: &str, most: usize| -> String {
        text.chars().take(most).map(|c| if c.is_control() { '.' } else { c }).collect()
    };
    let first = clean(head.lines().next().unwrap_or(""), 80);
    format!("{}B {} {first} {}", bytes.len(), &hash.to_hex()[..8], clean(body, 200)).trim_end().to_owned()
}
