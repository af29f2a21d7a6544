use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use tokio::net::unix::pipe;

use super::output::Channel;
use super::table::Table;
use super::terminal::Terminal;
use super::{Input, Process, events};

const PIECE_BYTES: usize = 32 * 1024;
/// More than the kernel holds of a terminal's output.
const TERMINAL_BYTES_MAX: usize = 256 * 1024;

thread_local! {
    /// One buffer for all pumps: reads never overlap on the single thread.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE_BYTES]);
}

/// Where output of one channel comes from; `None` once it reached its end.
pub(super) struct Source {
    /// Which it is.
    pub(super) channel: Channel,
    end: RefCell<Option<Rc<End>>>,
}

enum End {
    Pipe(pipe::Receiver),
    Terminal(Rc<Terminal>),
}

enum Read {
    Piece(Vec<u8>),
    Nothing,
}

impl Source {
    fn new(channel: Channel, end: End) -> Self {
        Self { channel, end: RefCell::new(Some(Rc::new(end))) }
    }

    /// Its descriptor, while it is open.
    pub(super) fn descriptor(&self) -> Option<RawFd> {
        self.end.borrow().as_deref().map(|end| match end {
            End::Pipe(pipe) => pipe.as_raw_fd(),
            End::Terminal(terminal) => terminal.as_raw_fd(),
        })
    }

    /// A command's standard output or error.
    pub(super) fn pipe(channel: Channel, pipe: pipe::Receiver) -> Self {
        Self::new(channel, End::Pipe(pipe))
    }

    /// A command's terminal.
    pub(super) fn terminal(terminal: Rc<Terminal>) -> Self {
        Self::new(Channel::Pty, End::Terminal(terminal))
    }

    async fn readable(&self) {
        let end = self.end.borrow().clone();
        match end.as_deref() {
            // An error shows again when reading.
            Some(End::Pipe(pipe)) => drop(pipe.readable().await),
            Some(End::Terminal(terminal)) => terminal.readable().await,
            None => std::future::pending().await,
        }
    }

    /// Reads what the runtime was told of.
    fn read(&self, limit: usize) -> Read {
        self.read_with(limit, |end, scratch| match end {
            End::Pipe(pipe) => pipe.try_read(scratch),
            End::Terminal(terminal) => terminal.try_read(scratch),
        })
    }

    /// Reads without asking the runtime: it may not have been told of what a command wrote last.
    fn read_now(&self, limit: usize) -> Read {
        self.read_with(limit, |end, scratch| match end {
            End::Pipe(pipe) => Ok(rustix::io::read(pipe, scratch)?),
            End::Terminal(terminal) => terminal.read_now(scratch),
        })
    }

    fn read_with(&self, limit: usize, read: impl Fn(&End, &mut [u8]) -> std::io::Result<usize>) -> Read {
        let Some(end) = self.end.borrow().clone() else { return Read::Nothing };
        let read = SCRATCH.with_borrow_mut(|scratch| {
            let length = scratch.len().min(limit);
            let scratch = &mut scratch[..length];
            read(&end, scratch).map(|got| scratch[..got].to_vec())
        });
        match read {
            Ok(piece) if !piece.is_empty() => return Read::Piece(piece),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => *self.end.borrow_mut() = None,
        }
        Read::Nothing
    }

    /// How much was written by now. A terminal does not tell, but what it holds has a bound.
    fn waiting_bytes(&self) -> usize {
        match self.end.borrow().as_deref() {
            Some(End::Pipe(pipe)) => rustix::io::ioctl_fionread(pipe)
                .map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            Some(End::Terminal(_)) => TERMINAL_BYTES_MAX,
            None => 0,
        }
    }
}

/// Carries the output of a command to its watchers and ends with its end. Runs as its own task.
pub(super) async fn run(process: Rc<Process>, table: Rc<Table>) {
    let exit = loop {
        if let Some(exit) = process.child.exit() {
            break exit;
        }
        // A full channel is not read: the command waits for its slowest watcher.
        let readable = async {
            room(&process).await;
            match process.sources.as_slice() {
                [first, second] => tokio::select! {
                    biased;
                    () = first.readable() => {}
                    () = second.readable() => {}
                },
                [only] => only.readable().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            exit = process.child.wait() => break exit,
            () = readable => {}
        }
        for source in &process.sources {
            if let Read::Piece(piece) = source.read(PIECE_BYTES) {
                process.output.borrow_mut().push(source.channel, &piece, table.tail_bytes());
            }
        }
    };
    drain(&process, &table).await;
    if process.kills_running.get() > 0 {
        // The end says that nothing of it is left; what it wrote meanwhile belongs before that.
        process.wait_for_kills().await;
        drain(&process, &table).await;
    }
    if let Ok(mut input) = process.input.try_lock() {
        *input = Input::Closed;
    }
    finish(&process, &table, process.make_end(exit));
    linger(&process, &table);
}

/// Waits until every watcher is close enough behind.
async fn room(process: &Process) {
    let taken = Rc::clone(&process.output.borrow().taken);
    loop {
        let more = taken.notified();
        if process.output.borrow().has_room() {
            return;
        }
        more.await;
    }
}

/// Reads what was written by now. The end of a pipe is not awaited: background children may hold it for ever.
async fn drain(process: &Rc<Process>, table: &Rc<Table>) {
    for source in &process.sources {
        let mut waiting = source.waiting_bytes();
        while waiting > 0 {
            room(process).await;
            let Read::Piece(piece) = source.read_now(waiting) else { break };
            waiting = waiting.saturating_sub(piece.len());
            process.output.borrow_mut().push(source.channel, &piece, table.tail_bytes());
        }
    }
}

fn finish(process: &Rc<Process>, table: &Table, end: events::End) {
    *process.end.borrow_mut() = Some(end);
    table.ended(process, true);
    process.output.borrow_mut().wake();
}

/// Background children keep their pipes: closing them would end a server at its next line of log. A terminal goes with the
/// command that led its session, as one does whose window is closed.
fn linger(process: &Process, table: &Rc<Table>) {
    for source in &process.sources {
        let end = source.end.take();
        if let Some(end) = end.filter(|end| matches!(**end, End::Pipe(_))) {
            outlive(table, Source { channel: source.channel, end: RefCell::new(Some(end)) });
        }
    }
}

/// A pipe that an earlier agent kept open for the children of a command that has ended.
pub(crate) fn take_over(table: &Rc<Table>, pipe: OwnedFd) -> std::io::Result<()> {
    outlive(table, Source::pipe(Channel::Stdout, pipe::Receiver::from_owned_fd(pipe)?));
    Ok(())
}

fn outlive(table: &Rc<Table>, source: Source) {
    let Some(place) = table.linger() else { return };
    let (source, table) = (Rc::new(source), Rc::clone(table));
    table.outlive(&source, true);
    tokio::task::spawn_local(async move {
        while source.descriptor().is_some() {
            source.readable().await;
            // One piece at a time, so that a busy writer leaves room for everyone else.
            source.read(PIECE_BYTES);
            tokio::task::yield_now().await;
        }
        table.outlive(&source, false);
        drop(place);
    });
}
