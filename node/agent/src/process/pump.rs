use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use tokio::net::unix::pipe;

use super::Process;
use super::events;
use super::output::{Channel, Item};
use super::table::Table;

const PIECE_BYTES: usize = 32 * 1024;

thread_local! {
    /// One buffer for all pumps: reads never overlap on the single thread.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE_BYTES]);
}

/// One output pipe; `None` once it reached its end.
struct Source {
    channel: Channel,
    pipe: Option<pipe::Receiver>,
}

enum Read {
    Piece(Vec<u8>),
    Nothing,
}

impl Source {
    async fn readable(&self) {
        match &self.pipe {
            // An error shows again when reading.
            Some(pipe) => drop(pipe.readable().await),
            None => std::future::pending().await,
        }
    }

    fn read(&mut self, limit: usize) -> Read {
        let Some(pipe) = &self.pipe else { return Read::Nothing };
        let read = SCRATCH.with_borrow_mut(|scratch| {
            let length = scratch.len().min(limit);
            pipe.try_read(&mut scratch[..length]).map(|got| scratch[..got].to_vec())
        });
        match read {
            Ok(piece) if !piece.is_empty() => return Read::Piece(piece),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => self.pipe = None,
        }
        Read::Nothing
    }

    fn waiting_bytes(&self) -> usize {
        let waiting = self.pipe.as_ref().and_then(|pipe| rustix::io::ioctl_fionread(pipe).ok());
        waiting.map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }
}

/// Carries the output of a command to its watchers and ends with its end. Runs as its own task.
pub(super) async fn run(
    process: Rc<Process>,
    table: Rc<Table>,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
) {
    let mut sources = [
        Source { channel: Channel::Stdout, pipe: Some(stdout) },
        Source { channel: Channel::Stderr, pipe: Some(stderr) },
    ];
    let exit = loop {
        if let Some(exit) = process.child.exit() {
            break exit;
        }
        let [first, second] = &sources;
        tokio::select! {
            biased;
            exit = process.child.wait() => break exit,
            () = first.readable() => {}
            () = second.readable() => {}
        }
        for source in &mut sources {
            if let Read::Piece(piece) = source.read(PIECE_BYTES) {
                deliver(&process, &table, source.channel, &piece).await;
            }
        }
    };
    drain(&process, &table, &mut sources).await;
    if process.kills_running.get() > 0 {
        // The end says that nothing of it is left; what it wrote meanwhile belongs before that.
        process.wait_for_kills().await;
        drain(&process, &table, &mut sources).await;
    }
    if let Ok(mut stdin) = process.stdin.try_lock() {
        *stdin = None;
    }
    finish(&process, &table, process.make_end(exit)).await;
    linger(&table, sources);
}

/// Reads what is in the pipes now. Their end is not awaited: background children may hold them for ever.
async fn drain(process: &Rc<Process>, table: &Rc<Table>, sources: &mut [Source]) {
    for source in sources {
        let mut waiting = source.waiting_bytes();
        while waiting > 0 {
            let Read::Piece(piece) = source.read(waiting) else { break };
            waiting = waiting.saturating_sub(piece.len());
            deliver(process, table, source.channel, &piece).await;
        }
    }
}

async fn deliver(process: &Process, table: &Table, channel: Channel, piece: &[u8]) {
    let senders = process.output.borrow_mut().note(channel, piece, table.tail_bytes());
    if senders.is_empty() {
        return;
    }
    let event = events::data(channel, piece);
    for sender in senders {
        // Waits for a slow watcher; one that left meanwhile is no reason to stop.
        drop(sender.send(Item::Event(Bytes::clone(&event))).await);
    }
}

async fn finish(process: &Rc<Process>, table: &Table, end: events::End) {
    let last = end.last_message();
    *process.end.borrow_mut() = Some(end);
    table.ended(process, true);
    let senders = process.output.borrow_mut().senders();
    for sender in senders {
        drop(sender.send(Item::Last(Bytes::clone(&last))).await);
    }
}

/// Background children keep their pipes: closing them would end a server at its next line of log.
fn linger(table: &Rc<Table>, sources: [Source; 2]) {
    for mut source in sources.into_iter().filter(|source| source.pipe.is_some()) {
        let Some(place) = table.linger() else { return };
        tokio::task::spawn_local(async move {
            while source.pipe.is_some() {
                source.readable().await;
                // One piece at a time, so that a busy writer leaves room for everyone else.
                source.read(PIECE_BYTES);
                tokio::task::yield_now().await;
            }
            drop(place);
        });
    }
}
