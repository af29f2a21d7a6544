//! What the two halves of a server's connection, the one that reads and the one that serves, tell each other.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU8, Ordering},
};

use super::framing::Fault;

const OPEN: u8 = 0;
const REFUSED: u8 = 1;
const GRANTED: u8 = 2;

/// Whose turn it is on a connection of a server. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Turn(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    serving: AtomicBool,
    /// A head became complete since somebody looked.
    complete: AtomicBool,
    late: AtomicBool,
    /// What became of a request for another protocol, until somebody looked.
    upgrade: AtomicU8,
    fault: OnceLock<Fault>,
    /// Nobody has told the client of the fault.
    untold: AtomicBool,
}

impl Turn {
    /// A request's head is complete.
    pub(super) fn serve(&self) -> Serving {
        self.0.serving.store(true, Ordering::Relaxed);
        self.0.complete.store(true, Ordering::Relaxed);
        Serving(Some(self.clone()))
    }

    /// Whether a request is being served, the last of its answer included.
    pub(super) fn is_serving(&self) -> bool {
        self.0.serving.load(Ordering::Relaxed)
    }

    /// Whether a head became complete since this was asked.
    pub(super) fn take_complete(&self) -> bool {
        self.0.complete.swap(false, Ordering::Relaxed)
    }

    /// The rest of a head did not come.
    pub(super) fn be_late(&self) {
        self.0.late.store(true, Ordering::Relaxed);
    }

    /// Whether the connection was ended for a head that did not become complete.
    pub(super) fn is_late(&self) -> bool {
        self.0.late.load(Ordering::Relaxed)
    }

    /// A request for another protocol is answered.
    pub(super) fn settle(&self, granted: bool) {
        self.0.upgrade.store(if granted { GRANTED } else { REFUSED }, Ordering::Relaxed);
    }

    /// What became of a request for another protocol since this was asked.
    pub(super) fn take_settled(&self) -> Option<bool> {
        match self.0.upgrade.swap(OPEN, Ordering::Relaxed) {
            OPEN => None,
            settled => Some(settled == GRANTED),
        }
    }

    /// What the client sends next has no one reading. In a body, whoever reads that tells.
    pub(super) fn fail(&self, fault: Fault, in_body: bool) {
        let _ = self.0.fault.set(fault);
        self.0.untold.store(!in_body, Ordering::Relaxed);
    }

    /// Why nothing more is read, if nothing is.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.0.fault.get().copied()
    }

    /// Whether somebody has to tell the client of the fault.
    pub(super) fn is_untold(&self) -> bool {
        self.0.untold.load(Ordering::Relaxed)
    }

    /// The fault, for whoever tells the client of it.
    pub(super) fn take_untold(&self) -> Option<Fault> {
        self.fault().filter(|_| self.0.untold.swap(false, Ordering::Relaxed))
    }
}

/// A request is being served while this lives.
pub(super) struct Serving(Option<Turn>);

impl Serving {
    /// No request follows: what comes on this connection is no head.
    pub(super) fn for_good(mut self) -> Self {
        self.0 = None;
        self
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(turn) = &self.0 {
            turn.0.serving.store(false, Ordering::Relaxed);
        }
    }
}
