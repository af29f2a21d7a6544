use std::sync::Arc;

use drowse_shared::{
    api::{
        Code, Error,
        attach::{AttachEvent, AttachOrder, AttachQuery, AttachStarted, SIZE, Size},
        exec::ExecEnded,
    },
    id::SpaceId,
    name::{SpaceName, SpaceRef},
};
use serde_json::json;

use crate::{
    agent_client::{
        self, Kind,
        process::{Channel, Command, Ended, Place, Running, Said, Terminal, Typist, begin, connect},
    },
    door::error,
    lifecycle::{usage::Usage, wake},
    node::Node,
};

/// The word for it where spaces say why they are awake.
pub const VERB: &str = "attach";

/// A terminal or a command, and its client's two ways to it. It keeps its space awake only while something is said.
pub struct Attached {
    /// Says what it is.
    pub started: AttachEvent,
    /// What it says.
    pub hears: Hears,
    /// What it is told.
    pub tells: Tells,
}

/// What a command says.
pub struct Hears {
    node: Arc<Node>,
    id: SpaceId,
    running: Running,
    usage: Usage,
}

/// What a command is told.
pub struct Tells {
    node: Arc<Node>,
    id: SpaceId,
    name: SpaceName,
    typist: Typist,
    usage: Usage,
}

/// What comes next from a command.
pub enum Next {
    /// Bytes of its terminal or its standard output, in base64.
    Bytes(String),
    /// Something to be said in words.
    Event(AttachEvent),
    /// The last word.
    Last(AttachEvent),
}

/// Wakes the space and attaches to what the query says; once more if its body had died unseen.
///
/// # Errors
/// Why there is nothing to attach to.
pub async fn attach(node: &Arc<Node>, space: &SpaceRef, wish: &AttachQuery) -> Result<Attached, Error> {
    let (mut row, mut resumed) = wake::used(node, space, VERB).await?;
    let place = node.place(row.id);
    let (running, typist, joined) = match reach(&place, wish).await {
        Err(agent_client::Error::Unreachable(why)) => {
            let revived = wake::revive(node, &row, &why, VERB).await?;
            (row, resumed) = (revived.0, revived.1.or(resumed));
            reach(&place, wish).await
        }
        reached => reached,
    }
    .map_err(|why| refused(&why, wish))?;
    let (usage, id) = (Usage::now(node, row.id), row.id);
    Ok(Attached {
        started: AttachEvent::Started(AttachStarted { pid: running.pid, joined, resumed }),
        hears: Hears { node: node.clone(), id, running, usage },
        tells: Tells { node: node.clone(), id, name: row.name, typist, usage },
    })
}

/// Finds what runs, or opens a terminal; and whether it ran before.
async fn reach(place: &Place, wish: &AttachQuery) -> Result<(Running, Typist, bool), agent_client::Error> {
    let size = Size { rows: wish.rows.unwrap_or(SIZE.0), cols: wish.cols.unwrap_or(SIZE.1) };
    let found = match (wish.pid, &wish.tag) {
        (Some(pid), _) => Some(connect(place, json!({ "pid": pid }), true).await?),
        (None, Some(tag)) => match connect(place, json!({ "tag": tag }), true).await {
            Ok(running) => Some(running),
            Err(agent_client::Error::Refused { kind: Kind::Missing, .. }) => None,
            Err(why) => return Err(why),
        },
        (None, None) => None,
    };
    let joined = found.is_some();
    let running = match found {
        Some(running) => running,
        None => {
            let terminal = Terminal {
                command: wish.command.as_deref(),
                size,
                user: wish.user.as_deref(),
                cwd: wish.cwd.as_deref(),
                tag: wish.tag.as_deref(),
            };
            begin(place, Command::from(terminal)).await?
        }
    };
    // Whether it has a terminal shows when it is given a size.
    let mut typist = Typist::of(place, running.pid, true).await?;
    if joined {
        match typist.resize(size).await {
            Ok(()) => {}
            Err(agent_client::Error::Refused { .. }) => {
                typist = Typist::of(place, running.pid, false).await?;
            }
            Err(why) => return Err(why),
        }
    }
    Ok((running, typist, joined))
}

fn refused(why: &agent_client::Error, wish: &AttachQuery) -> Error {
    match (why, wish.pid) {
        (agent_client::Error::Refused { kind: Kind::Missing, .. }, Some(pid)) => Error::new(
            Code::ProcessNotFound,
            format!("no command with the pid {pid} runs in the space, and none that has ended is remembered"),
        ),
        _ => error::agent(why),
    }
}

impl Hears {
    /// What comes next. Nothing is read ahead: who does not ask, holds the command back.
    pub async fn next(&mut self) -> Next {
        match self.running.next().await {
            Ok(Said::Output(channel, base64)) => {
                self.usage.heard(&self.node, self.id);
                match channel {
                    Channel::Terminal | Channel::Stdout => Next::Bytes(base64),
                    Channel::Stderr => Next::Event(AttachEvent::Stderr(base64)),
                }
            }
            Ok(Said::Alive) => Next::Bytes(String::new()),
            Ok(Said::Ended(Ended { exit_code, timed_out, .. })) => {
                let duration_ms = u64::try_from(self.running.took().as_millis()).unwrap_or(u64::MAX);
                Next::Last(AttachEvent::Ended(ExecEnded { exit_code, timed_out, duration_ms }))
            }
            Err(agent_client::Error::Broken(_) | agent_client::Error::Nonsense(_)) => {
                let message = "the space was stopped, or what runs in it ended with its agent";
                Next::Last(AttachEvent::Failed(Error::new(Code::SpaceBusy, message).retry_after(1)))
            }
            Err(why) => Next::Last(AttachEvent::Failed(error::agent(&why))),
        }
    }
}

impl Tells {
    /// Types bytes, and wakes the space for it.
    ///
    /// # Errors
    /// Why they were not taken.
    pub async fn bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.awake().await?;
        self.typist.bytes(bytes).await.map_err(|why| error::agent(&why))
    }

    /// Does as it is told.
    ///
    /// # Errors
    /// Why it was not done.
    pub async fn order(&mut self, order: AttachOrder) -> Result<(), Error> {
        let done = match order {
            // A window that changes its size wakes nobody.
            AttachOrder::Resize(size) => self.typist.resize(size).await,
            AttachOrder::Signal(name) => {
                self.awake().await?;
                self.typist.signal(number(&name)).await
            }
            AttachOrder::CloseStdin(_) => {
                self.awake().await?;
                self.typist.close().await
            }
        };
        done.map_err(|why| error::agent(&why))
    }

    async fn awake(&mut self) -> Result<(), Error> {
        if !self.usage.is_fresh(&self.node, self.id) {
            self.usage = Usage::again(&self.node, (self.id, &self.name), VERB).await?;
        }
        Ok(())
    }
}

/// The number of a signal that was checked.
fn number(name: &str) -> i32 {
    match name.strip_prefix("SIG").unwrap_or(name) {
        "HUP" => libc::SIGHUP,
        "INT" => libc::SIGINT,
        "QUIT" => libc::SIGQUIT,
        "KILL" => libc::SIGKILL,
        "USR1" => libc::SIGUSR1,
        "USR2" => libc::SIGUSR2,
        _ => libc::SIGTERM,
    }
}
