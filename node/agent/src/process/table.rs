use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Process;
use super::pump::Source;
use super::stream::Card;
use crate::connect::{Code, Error};
use crate::gate::Gate;
use crate::launcher::control::Control;

/// Commands that run at once.
const RUNNING_MAX: usize = 1024;
/// Streams that are open at once: each holds a connection, and many must be left for files, signals and who waits.
const STREAMS_MAX: usize = 256;
/// How long one more may wait for another's end.
const STREAM_WAIT: Duration = Duration::from_secs(5);
/// Ended commands that are remembered.
const RECORDS_MAX: usize = 64;
/// Pipes of ended commands that background children still hold.
const LINGERING_MAX: usize = 256;
/// Kept output: per channel, at least, and over all running and all ended commands.
const TAIL_BYTES_MAX: usize = 256 * 1024;
const TAIL_BYTES_MIN: usize = 4 * 1024;
const TAILS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Names a command.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Selector {
    /// By pid.
    pub(crate) pid: Option<i32>,
    /// By the tag it was started with.
    pub(crate) tag: Option<String>,
}

/// All commands. Those that ended unheard, or carry a tag, are remembered for a while.
pub(crate) struct Table {
    /// Pid 1's hold on the launcher.
    pub(crate) control: Rc<Control>,
    lingering: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    running: RefCell<BTreeMap<i32, Rc<Process>>>,
    records: RefCell<VecDeque<Rc<Process>>>,
    open: RefCell<Vec<Rc<Card>>>,
    outliving: RefCell<Vec<Rc<Source>>>,
    /// Held while this agent makes way for another.
    pub(crate) gate: Rc<Gate>,
}

impl Table {
    /// No commands yet.
    pub(crate) fn new(control: Rc<Control>, gate: Rc<Gate>) -> Rc<Self> {
        Rc::new(Self {
            control,
            lingering: Arc::new(Semaphore::new(LINGERING_MAX)),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            running: RefCell::default(),
            records: RefCell::default(),
            open: RefCell::default(),
            outliving: RefCell::default(),
            gate,
        })
    }

    /// Whether one more may start.
    pub(crate) fn admit(&self) -> Result<(), Error> {
        if self.running.borrow().len() < RUNNING_MAX {
            return Ok(());
        }
        Err(Error::new(Code::ResourceExhausted, format!("{RUNNING_MAX} commands are running already")))
    }

    /// A place for one more stream: it holds a connection. A burst waits a little for one; beyond that it is told, for
    /// whoever waited in the queue of the socket would keep files and signals waiting too.
    pub(crate) async fn open_stream(&self) -> Result<OwnedSemaphorePermit, Error> {
        let place = Arc::clone(&self.streams).acquire_owned();
        if let Ok(Ok(place)) = tokio::time::timeout(STREAM_WAIT, place).await {
            return Ok(place);
        }
        let words = format!("{STREAMS_MAX} commands are being waited for already: wait for one, or detach");
        Err(Error::new(Code::ResourceExhausted, words))
    }

    /// The same without waiting, for a stream that had one in an earlier agent.
    pub(crate) fn place_now(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.streams).try_acquire_owned().ok()
    }

    /// A command runs.
    pub(crate) fn add(&self, process: Rc<Process>) {
        self.running.borrow_mut().insert(process.pid(), process);
    }

    /// A command ended; `keep` it as a record.
    pub(crate) fn ended(&self, process: &Rc<Process>, keep: bool) {
        let mut running = self.running.borrow_mut();
        // The pid may be another command's by now.
        if running.get(&process.pid()).is_some_and(|current| Rc::ptr_eq(current, process)) {
            running.remove(&process.pid());
        }
        if keep {
            let mut records = self.records.borrow_mut();
            records.push_back(Rc::clone(process));
            if records.len() > RECORDS_MAX {
                records.pop_front();
            }
            let mut kept: usize = records.iter().map(|record| record.output.borrow().kept_bytes()).sum();
            for record in records.iter().take_while(|record| !Rc::ptr_eq(record, process)) {
                if kept <= TAILS_BYTES_MAX {
                    break;
                }
                let mut output = record.output.borrow_mut();
                if output.is_watched() {
                    continue;
                }
                kept -= output.kept_bytes();
                let lost = output.forget();
                if let Some(end) = record.end.borrow_mut().as_mut() {
                    end.add_dropped(lost);
                }
            }
        }
    }

    /// Forgets the record of a command without a tag, once somebody heard it to the end.
    pub(crate) fn heard(&self, process: &Rc<Process>) {
        if process.tag.is_none() {
            self.records.borrow_mut().retain(|record| !Rc::ptr_eq(record, process));
        }
    }

    /// Finds a running command.
    pub(crate) fn running(&self, selector: Option<&Selector>) -> Result<Rc<Process>, Error> {
        let selector = selector.ok_or_else(no_selector)?;
        let running = self.running.borrow();
        let mut newest_first = running.values().rev();
        newest_first.find(|process| selects(selector, process)).cloned().ok_or_else(|| not_found(selector))
    }

    /// Finds a command, running or remembered, the newest first.
    pub(crate) fn find(&self, selector: Option<&Selector>) -> Result<Rc<Process>, Error> {
        self.running(selector).or_else(|error| {
            let selector = selector.ok_or_else(no_selector)?;
            let records = self.records.borrow();
            records.iter().rev().find(|process| selects(selector, process)).cloned().ok_or(error)
        })
    }

    /// A stream begins.
    pub(super) fn open(&self, card: Rc<Card>) {
        self.open.borrow_mut().push(card);
    }

    /// A stream is over.
    pub(super) fn close(&self, card: &Rc<Card>) {
        self.open.borrow_mut().retain(|other| !Rc::ptr_eq(other, card));
    }

    /// All open streams.
    pub(super) fn streams(&self) -> Vec<Rc<Card>> {
        self.open.borrow().clone()
    }

    /// The gate was opened again: the streams go on.
    pub(crate) fn wake_streams(&self) {
        for card in self.streams() {
            card.wake();
        }
    }

    /// All commands, the remembered ones first, oldest first.
    pub(super) fn everyone(&self) -> Vec<Rc<Process>> {
        self.records.borrow().iter().chain(self.running.borrow().values()).cloned().collect()
    }

    /// A pipe that outlives its command, or did.
    pub(super) fn outlive(&self, source: &Rc<Source>, outlives: bool) {
        let mut outliving = self.outliving.borrow_mut();
        if outlives {
            outliving.push(Rc::clone(source));
        } else {
            outliving.retain(|other| !Rc::ptr_eq(other, source));
        }
    }

    /// Descriptors of pipes that outlived their commands.
    pub(crate) fn lingering(&self) -> Vec<RawFd> {
        self.outliving.borrow().iter().filter_map(|source| source.descriptor()).collect()
    }

    /// All running commands.
    pub(crate) fn all(&self) -> Vec<Rc<Process>> {
        self.running.borrow().values().cloned().collect()
    }

    /// A place for a pipe that outlives its command, if there is one.
    pub(crate) fn linger(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.lingering).try_acquire_owned().ok()
    }

    /// How much of one channel is kept: less for each when there are many.
    pub(crate) fn tail_bytes(&self) -> usize {
        let commands = self.running.borrow().len().max(1);
        (TAILS_BYTES_MAX / (2 * commands)).clamp(TAIL_BYTES_MIN, TAIL_BYTES_MAX)
    }
}

fn selects(selector: &Selector, process: &Process) -> bool {
    match (selector.pid, &selector.tag) {
        (Some(pid), _) => process.pid() == pid,
        (None, tag) => tag.is_some() && process.tag == *tag,
    }
}

fn no_selector() -> Error {
    Error::new(Code::InvalidArgument, "process: name one by pid or by tag")
}

fn not_found(selector: &Selector) -> Error {
    let name = match (selector.pid, &selector.tag) {
        (Some(pid), _) => format!("pid {pid}"),
        (None, Some(tag)) => format!("tag {tag:?}"),
        (None, None) => return no_selector(),
    };
    Error::new(Code::NotFound, format!("there is no process with {name}"))
}
