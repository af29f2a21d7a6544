/// Events as JSON.
pub(crate) mod events;
/// Bytes on their way to a command.
pub(crate) mod input;
/// What one agent leaves to the next.
pub(crate) mod kept;
/// Output on its way: kept tails and watchers.
pub(crate) mod output;
/// From the pipes of one command to its watchers, until its end.
pub(crate) mod pump;
/// The unary calls: list, stdin, signals.
pub(crate) mod rpc;
/// Starting a command.
pub(crate) mod start;
/// The stream a watcher reads.
pub(crate) mod stream;
/// All commands, running and just ended.
pub(crate) mod table;
/// Terminals.
mod terminal;
/// Everything a command started, wherever it went.
pub(crate) mod tree;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;

use crate::launcher::control::{Child, Exit};
use events::End;
use input::Input;
use output::Output;
use pump::Source;
use terminal::Terminal;

/// What a client asked to run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Config {
    /// Program, by path or by name.
    #[serde(default)]
    pub(crate) cmd: String,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) args: Option<Vec<String>>,
    /// Additions to its environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) envs: Option<BTreeMap<String, String>>,
    /// Its working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cwd: Option<String>,
}

/// One command, from its start until its record is forgotten.
pub(crate) struct Process {
    child: Rc<Child>,
    tag: Option<String>,
    config: Config,
    /// Value of `DROWSE_EXEC_ID` in its environment, which its descendants inherit wherever they go.
    cookie: String,
    input: Mutex<Input>,
    /// Its terminal, if it was given one.
    terminal: Option<Weak<Terminal>>,
    sources: Vec<Source>,
    output: RefCell<Output>,
    end: RefCell<Option<End>>,
    timed_out: Cell<bool>,
    /// When its time is up, and how long it then has to end by itself.
    timeout_at: Option<Instant>,
    grace: Duration,
    kills_running: Cell<u32>,
    kill_ended: Notify,
}

impl Process {
    /// Its pid.
    pub(crate) fn pid(&self) -> i32 {
        self.child.pid
    }

    fn target(&self) -> tree::Target {
        tree::Target { pid: self.child.pid, cookie: self.cookie.clone() }
    }

    /// Kills it and everything it started. Its end event waits until that is done.
    async fn kill_tree(&self) {
        self.during_kill(tree::kill(self.target())).await;
    }

    /// Sees to it that it ends in time.
    fn limit_time(self: &Rc<Self>) {
        let Some(at) = self.timeout_at else { return };
        let process = Rc::clone(self);
        tokio::task::spawn_local(async move {
            if tokio::time::timeout_at(at, process.child.wait()).await.is_err() {
                process.time_out(process.grace).await;
            }
        });
    }

    /// Its time is up: asks the whole tree to end, then makes it.
    async fn time_out(&self, grace: Duration) {
        self.timed_out.set(true);
        self.during_kill(tree::terminate(self.target(), grace)).await;
    }

    async fn during_kill(&self, kill: impl Future<Output = ()>) {
        self.kills_running.set(self.kills_running.get() + 1);
        kill.await;
        self.kills_running.set(self.kills_running.get() - 1);
        self.kill_ended.notify_waiters();
    }

    async fn wait_for_kills(&self) {
        loop {
            let ended = self.kill_ended.notified();
            if self.kills_running.get() == 0 {
                return;
            }
            ended.await;
        }
    }

    fn make_end(&self, exit: Exit) -> End {
        let output = self.output.borrow();
        End::new(exit, self.timed_out.get(), output.dropped_bytes(), output.written())
    }
}
