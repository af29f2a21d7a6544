use std::{borrow::Cow, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::DropGuard;

use super::{CLOSE_STDIN, Outcome, Place, SEND_INPUT};
use crate::agent_client::{Error, Reply, dial, envelope::Envelopes};

/// Bytes of stdin in one message.
const STDIN_PIECE_BYTES: usize = 64 << 10;

/// A command that runs, and the connection on which it is heard.
pub struct Running {
    /// Its pid inside.
    pub pid: u32,
    /// When it was started, or joined.
    began: Instant,
    /// After how long nobody waits any more.
    limit: Option<Duration>,
    /// What it is still to read.
    stdin: Option<Bytes>,
    events: Envelopes,
    _cut: DropGuard,
}

/// What a command that runs says.
#[derive(Debug)]
pub enum Said {
    /// Output; in base64, as the agent gave it.
    Output(Channel, String),
    /// Its end.
    Ended(Ended),
    /// It is there, and quiet.
    Alive,
}

/// Where output came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The terminal.
    Terminal,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ended {
    /// 128 + n after signal n.
    pub exit_code: i32,
    /// Whether its time was up.
    pub timed_out: bool,
    /// How much it wrote in all to both streams, if the agent says so.
    pub written: Option<[u64; 2]>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    event: Event<'a>,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(default)]
    start: Option<Start>,
    #[serde(borrow, default)]
    data: Option<Data<'a>>,
    #[serde(default)]
    end: Option<End>,
}

#[derive(Deserialize)]
struct Start {
    pid: u32,
}

#[derive(Deserialize)]
struct Data<'a> {
    #[serde(borrow, default)]
    stdout: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    stderr: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pty: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct End {
    #[serde(default)]
    exit_code: i32,
    #[serde(default)]
    status: String,
    #[serde(default)]
    output_bytes: Option<Written>,
}

#[derive(Deserialize)]
struct Written {
    stdout: u64,
    stderr: u64,
}

impl Running {
    /// From an answer whose first event is the start.
    pub(super) async fn of(reply: Reply, place: &Place) -> Result<Self, Error> {
        let patience = place.patience;
        let mut events = Envelopes::new(reply.response.into_body(), patience);
        let message = tokio::time::timeout(patience, events.next())
            .await
            .map_err(|_| Error::Late { what: "start the command", after: patience })??
            .ok_or_else(|| Error::Nonsense("a stream without a start".to_owned()))?;
        let message: Message<'_> = serde_json::from_slice(&message).map_err(nonsense)?;
        let start =
            message.event.start.ok_or_else(|| Error::Nonsense("the first event is no start".to_owned()))?;
        let (pid, began) = (start.pid, Instant::now());
        Ok(Self { pid, began, limit: None, stdin: None, events, _cut: reply.cut })
    }

    pub(super) fn since(self, began: Instant) -> Self {
        Self { began, ..self }
    }

    pub(super) fn within(self, limit: Option<Duration>) -> Self {
        Self { limit, ..self }
    }

    pub(super) fn fed(self, stdin: Option<Bytes>) -> Self {
        Self { stdin, ..self }
    }

    /// What it says next. Nothing is read ahead: who does not ask, holds the command back.
    ///
    /// # Errors
    /// That the connection broke or the agent went silent.
    pub async fn next(&mut self) -> Result<Said, Error> {
        let message = self.events.next().await?;
        let message = message
            .ok_or_else(|| Error::Nonsense("the command's stream ended before the command".to_owned()))?;
        let Event { data, end, .. } =
            serde_json::from_slice::<Message<'_>>(&message).map_err(nonsense)?.event;
        if let Some(end) = end {
            return Ok(Said::Ended(Ended {
                exit_code: end.exit_code,
                timed_out: end.status == "timeout",
                written: end.output_bytes.map(|written| [written.stdout, written.stderr]),
            }));
        }
        let output = data.and_then(|Data { stdout, stderr, pty }| {
            let pieces = [(Channel::Stdout, stdout), (Channel::Stderr, stderr), (Channel::Terminal, pty)];
            pieces.into_iter().find_map(|(channel, text)| Some((channel, text?)))
        });
        Ok(output.map_or(Said::Alive, |(channel, text)| Said::Output(channel, text.into_owned())))
    }

    /// Since it was started, or joined.
    pub fn took(&self) -> Duration {
        self.began.elapsed()
    }

    /// After how long nobody waits for it any more; absent, if it may take as long as it likes.
    pub fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Gives it what it is to read, apart from hearing it.
    pub fn feed(&mut self, place: &Place) -> impl Future<Output = ()> + Send + 'static {
        let (place, pid, stdin) = (place.clone(), self.pid, self.stdin.take());
        async move {
            if let Some(stdin) = stdin {
                feed(&place, pid, stdin).await;
            }
        }
    }

    /// Hears it to its end. `alive` is told that something came out.
    ///
    /// # Errors
    /// That the connection broke, the agent went silent, or it takes longer than anybody waits.
    pub async fn to_end(mut self, place: &Place, alive: &impl Fn()) -> Result<Outcome, Error> {
        let mut outcome = Outcome { pid: self.pid, ..Outcome::default() };
        let feeding = self.feed(place);
        let limit = self.limit.unwrap_or(Duration::MAX);
        let heard = async {
            let hearing = hear(&mut self, &mut outcome, alive);
            let feeding = async {
                feeding.await;
                std::future::pending::<()>().await;
            };
            drowse_shared::select_biased! {
                ended = hearing => ended,
                () = feeding => Ok(()),
            }
        };
        tokio::time::timeout(limit, heard)
            .await
            .map_err(|_| Error::Late { what: "end the command", after: limit })??;
        outcome.took = self.took();
        Ok(outcome)
    }
}

async fn hear(running: &mut Running, outcome: &mut Outcome, alive: &impl Fn()) -> Result<(), Error> {
    loop {
        match running.next().await? {
            Said::Output(channel, text) => {
                alive();
                match channel {
                    Channel::Stdout | Channel::Terminal => outcome.stdout.add(&text)?,
                    Channel::Stderr => outcome.stderr.add(&text)?,
                }
            }
            Said::Ended(Ended { exit_code, timed_out, written }) => {
                outcome.exit_code = Some(exit_code);
                outcome.timed_out = timed_out;
                if let Some([stdout, stderr]) = written {
                    outcome.stdout.of(stdout);
                    outcome.stderr.of(stderr);
                }
                return Ok(());
            }
            Said::Alive => {}
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape `map_err` takes")]
fn nonsense(error: serde_json::Error) -> Error {
    Error::Nonsense(error.to_string())
}

/// Writes stdin piece by piece, then closes it. A command that does not read it, or has ended, is no error.
async fn feed(place: &Place, pid: u32, mut stdin: Bytes) {
    let fed = async {
        let mut line = dial(place).await?;
        let process = json!({ "pid": pid });
        while !stdin.is_empty() {
            let piece = stdin.split_to(stdin.len().min(STDIN_PIECE_BYTES));
            let message = json!({ "process": process, "input": { "stdin": STANDARD.encode(&piece) } });
            let _: Value = line.call(SEND_INPUT, None, &message).await?;
        }
        let _: Value = line.call(CLOSE_STDIN, None, &json!({ "process": process })).await?;
        Ok::<(), Error>(())
    };
    if let Err(error) = fed.await {
        tracing::debug!(%error, pid, "a command did not take its whole stdin");
    }
}
