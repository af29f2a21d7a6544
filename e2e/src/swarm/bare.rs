use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use rustix::{
    event::{Timespec, epoll},
    time::{ClockId, clock_gettime},
};

/// Longest wait for the next answer.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// What one round cost.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    /// From the first byte sent to the last one received.
    pub wall: Duration,
    /// Processor time of the thread.
    pub cpu: Duration,
}

struct Peer {
    stream: TcpStream,
    got: Vec<u8>,
    answered: bool,
}

/// Kept connections and one epoll loop in one thread: the least that asking costs.
pub struct Loop {
    peers: Vec<Peer>,
    poll: rustix::fd::OwnedFd,
}

impl Loop {
    /// Connects to everybody.
    ///
    /// # Errors
    /// When somebody cannot be reached.
    pub fn to(addresses: &[SocketAddr]) -> io::Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut peers = Vec::new();
        for (n, address) in addresses.iter().enumerate() {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll::add(&poll, &stream, epoll::EventData::new_u64(n as u64), epoll::EventFlags::IN)?;
            peers.push(Peer { stream, got: Vec::new(), answered: false });
        }
        Ok(Self { peers, poll })
    }

    /// Sends everybody a request and reads every answer.
    ///
    /// # Errors
    /// When somebody does not answer.
    pub fn round(&mut self, requests: &[Vec<u8>]) -> io::Result<Round> {
        let began = (now(ClockId::Monotonic), now(ClockId::ThreadCPUTime));
        for (peer, request) in self.peers.iter_mut().zip(requests) {
            // A request fits into the socket's buffer.
            peer.stream.write_all(request)?;
            peer.answered = false;
            peer.got.clear();
        }
        let mut open = self.peers.len();
        let mut events = Vec::with_capacity(256);
        while open > 0 {
            events.clear();
            epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), Some(&PATIENCE))?;
            if events.is_empty() {
                return Err(ErrorKind::TimedOut.into());
            }
            for event in &events {
                let peer = &mut self.peers[usize::try_from(event.data.u64()).map_err(io::Error::other)?];
                if !peer.answered && peer.read()? {
                    peer.answered = true;
                    open -= 1;
                }
            }
        }
        let ended = (now(ClockId::Monotonic), now(ClockId::ThreadCPUTime));
        Ok(Round { wall: ended.0 - began.0, cpu: ended.1 - began.1 })
    }
}

impl Peer {
    /// Whether the answer is whole.
    fn read(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.got.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let Some(end) = self.got.windows(4).position(|window| window == b"\r\n\r\n") else {
            return Ok(false);
        };
        let head = std::str::from_utf8(&self.got[..end]).map_err(io::Error::other)?;
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        let length: usize = length.unwrap_or("0").parse().map_err(io::Error::other)?;
        Ok(self.got.len() >= end + 4 + length)
    }
}

fn now(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}
