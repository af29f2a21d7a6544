use std::cell::Cell;
use std::rc::Rc;

use tokio::sync::Notify;

/// Where requests pass, so that for a moment none is under way: then one agent can become another.
#[derive(Default)]
pub(crate) struct Gate {
    held: Cell<bool>,
    /// Requests that have passed and are not answered yet.
    under_way: Cell<usize>,
    /// Connections with bytes that are not handed to the kernel yet.
    unflushed: Cell<usize>,
    changed: Notify,
}

impl Gate {
    /// Open.
    pub(crate) fn new() -> Rc<Self> {
        Rc::default()
    }

    /// Waits while the gate is held, then counts as under way.
    pub(crate) async fn pass(self: &Rc<Self>) -> Pass {
        loop {
            let changed = self.changed.notified();
            if !self.held.get() {
                self.under_way.set(self.under_way.get() + 1);
                return Pass(Rc::clone(self));
            }
            changed.await;
        }
    }

    /// Whether nothing may begin.
    pub(crate) fn is_held(&self) -> bool {
        self.held.get()
    }

    /// Holds or opens the gate.
    pub(crate) fn hold(&self, held: bool) {
        self.held.set(held);
        self.changed.notify_waiters();
    }

    /// Waits until it is held or opened.
    pub(crate) async fn changes(&self) {
        self.changed.notified().await;
    }

    /// Why it is not quiet, if it is not.
    pub(crate) fn why_busy(&self) -> Option<&'static str> {
        if self.under_way.get() > 0 {
            Some("requests are under way")
        } else if self.unflushed.get() > 0 {
            Some("a client does not read its answer")
        } else {
            None
        }
    }

    pub(crate) fn count_unflushed(&self, more: bool) {
        let now = self.unflushed.get();
        self.unflushed.set(if more { now + 1 } else { now.saturating_sub(1) });
    }
}

/// A request under way.
pub(crate) struct Pass(Rc<Gate>);

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get().saturating_sub(1));
    }
}
