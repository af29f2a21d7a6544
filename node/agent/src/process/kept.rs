use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;

use super::events::End;
use super::input::Input;
use super::output::{Channel, Output};
use super::pump::{self, Source};
use super::stream::{Card, EventStream};
use super::table::Table;
use super::terminal::Terminal;
use super::{Config, Process};
use crate::launcher::control::Exit;
use crate::patience::Limits;

/// A command as one agent leaves it to the next.
#[derive(Serialize, Deserialize)]
pub(crate) struct KeptProcess<O> {
    pid: i32,
    exit: Option<Exit>,
    tag: Option<String>,
    config: Config,
    cookie: String,
    stdin: Option<RawFd>,
    terminal: Option<RawFd>,
    sources: Vec<(Channel, RawFd)>,
    output: O,
    end: Option<End>,
    timed_out: bool,
    timeout_ms: Option<u64>,
    grace_ms: u64,
}

/// A client that watches, as one agent leaves it to the next.
#[derive(Serialize, Deserialize)]
pub(crate) struct KeptStream {
    /// Its connection, all that was said so far flushed.
    pub(crate) connection: RawFd,
    /// Which of the kept commands it watches.
    process: usize,
    watcher: u64,
    keepalive_ms: u64,
    deadline_ms: Option<u64>,
    kill_on_leave: bool,
}

impl<O> KeptProcess<O> {
    /// Its descriptors.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let terminal = self.terminal.into_iter();
        // A terminal is input and source at once, under one number.
        let sources = self.sources.iter().map(|(_, fd)| *fd).filter(|fd| Some(*fd) != self.terminal);
        terminal.chain(self.stdin).chain(sources).collect()
    }
}

fn left_ms(until: Option<Instant>) -> Option<u64> {
    let left = until?.saturating_duration_since(Instant::now());
    // Zero would read as none.
    Some(u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1))
}

/// All commands and their streams, for the next agent; `None` while one of them is in the middle of something.
pub(crate) fn keep(table: &Table) -> Option<(Vec<Rc<Process>>, Vec<KeptStream>)> {
    let processes = table.everyone();
    let mut streams = Vec::new();
    for card in table.streams() {
        let process = processes.iter().position(|process| Rc::ptr_eq(process, &card.process))?;
        if !card.begun.get() {
            return None;
        }
        streams.push(KeptStream {
            connection: card.connection,
            process,
            watcher: card.watcher,
            keepalive_ms: u64::try_from(card.limits.keepalive().as_millis()).unwrap_or(u64::MAX),
            deadline_ms: left_ms(card.until),
            kill_on_leave: card.kill_on_leave,
        });
    }
    let idle = processes.iter().all(|process| process.kills_running.get() == 0);
    idle.then_some((processes, streams))
}

impl Process {
    /// As it is left to the next agent.
    pub(crate) fn kept(&self) -> Option<KeptProcess<&RefCell<Output>>> {
        let input = self.input.try_lock().ok()?;
        let (stdin, mut terminal) = match &*input {
            Input::Closed => (None, None),
            Input::Pipe(pipe) => (Some(pipe.as_raw_fd()), None),
            Input::Terminal(terminal) => (None, Some(terminal.as_raw_fd())),
        };
        let sources: Vec<_> =
            self.sources.iter().filter_map(|source| Some((source.channel, source.descriptor()?))).collect();
        // Its own source keeps a terminal after its input is closed.
        terminal =
            terminal.or(sources.iter().find(|(channel, _)| *channel == Channel::Pty).map(|(_, fd)| *fd));
        Some(KeptProcess {
            pid: self.child.pid,
            exit: self.child.exit(),
            tag: self.tag.clone(),
            config: self.config.clone(),
            cookie: self.cookie.clone(),
            stdin,
            terminal,
            sources,
            output: &self.output,
            end: self.end.borrow().clone(),
            timed_out: self.timed_out.get(),
            timeout_ms: left_ms(self.timeout_at),
            grace_ms: u64::try_from(self.grace.as_millis()).unwrap_or(u64::MAX),
        })
    }
}

/// Takes over the commands of an earlier agent, and those who watch them.
pub(crate) fn take_over(
    table: &Rc<Table>,
    kept: Vec<KeptProcess<Output>>,
    streams: &[KeptStream],
) -> io::Result<Vec<EventStream>> {
    let mut processes = Vec::with_capacity(kept.len());
    for (index, kept) in kept.into_iter().enumerate() {
        let mut watchers =
            streams.iter().filter(|stream| stream.process == index).map(|stream| stream.watcher);
        processes.push(restore(table, kept, &mut watchers)?);
    }
    let streams = streams.iter().filter_map(|stream| {
        let process = processes.get(stream.process)?;
        let limits = Limits::of_ms(stream.keepalive_ms, stream.deadline_ms);
        let card =
            Card::new(Rc::clone(process), stream.watcher, limits, stream.kill_on_leave, stream.connection);
        card.begun.set(true);
        Some(EventStream::resuming(card, Rc::clone(table)))
    });
    Ok(streams.collect())
}

fn restore(
    table: &Rc<Table>,
    kept: KeptProcess<Output>,
    watchers: &mut dyn Iterator<Item = u64>,
) -> io::Result<Rc<Process>> {
    let terminal = kept.terminal.map(|fd| Terminal::adopt(crate::sys::adopt(fd)?)).transpose()?.map(Rc::new);
    let sources = kept.sources.iter().map(|(channel, fd)| match (channel, &terminal) {
        (Channel::Pty, Some(terminal)) => Ok(Source::terminal(Rc::clone(terminal))),
        _ => Ok(Source::pipe(*channel, pipe::Receiver::from_owned_fd(crate::sys::adopt(*fd)?)?)),
    });
    let sources = sources.collect::<io::Result<Vec<_>>>()?;
    let input = match (kept.stdin, &terminal) {
        (Some(fd), _) => Input::Pipe(pipe::Sender::from_owned_fd(crate::sys::adopt(fd)?)?),
        (None, Some(terminal)) if kept.end.is_none() => Input::Terminal(Rc::clone(terminal)),
        _ => Input::Closed,
    };
    let mut output = kept.output;
    output.keep_watchers(&watchers.collect::<Vec<_>>());
    let ended = kept.end.is_some();
    let timeout = kept.timeout_ms.map(Duration::from_millis);
    let process = Rc::new(Process {
        child: table.control.adopt(kept.pid, kept.exit),
        tag: kept.tag,
        config: kept.config,
        cookie: kept.cookie,
        input: Mutex::new(input),
        terminal: terminal.as_ref().map(Rc::downgrade),
        sources,
        output: output.into(),
        end: kept.end.into(),
        timed_out: kept.timed_out.into(),
        timeout_at: timeout.map(|timeout| Instant::now() + timeout),
        grace: Duration::from_millis(kept.grace_ms),
        kills_running: 0.into(),
        kill_ended: Notify::new(),
    });
    if ended {
        table.ended(&process, true);
    } else {
        table.add(Rc::clone(&process));
        process.limit_time();
        tokio::task::spawn_local(pump::run(Rc::clone(&process), Rc::clone(table)));
    }
    Ok(process)
}
