use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use drowse_shared::id::SpaceId;
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Machine, agent::No};

/// Pieces of stdin that wait for a command.
const STDIN_PIECES: usize = 4;
/// How long a stream is quiet when its reader does not say.
const KEEPALIVE: Duration = Duration::from_secs(90);
/// Directories a command may start in.
const DIRECTORIES: [&str; 4] = ["/", "/home", "/home/user", "/tmp"];

/// A command the fake agent knows.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Act {
    /// Prints and exits.
    Print(Vec<u8>, Vec<u8>, i32),
    /// Prints its stdin.
    Cat,
    /// Waits.
    Sleep(Duration),
    /// Prints the id of the space.
    Hostname,
}

/// A command as it was asked for.
#[derive(Debug)]
pub(super) struct Order {
    act: Act,
    stdin: bool,
    timeout: Option<Duration>,
    /// How long it may be quiet before it says that it is there.
    pub(super) keepalive: Duration,
}

impl Order {
    /// Reads it, or says no as the real agent would.
    pub(super) fn read(process: &Value, stdin: bool, timeout_ms: Option<u64>) -> Result<Self, No> {
        let cwd = process["cwd"].as_str().unwrap_or("/home/user");
        if !DIRECTORIES.contains(&cwd) {
            return Err((400, "invalid_argument", format!("cwd {cwd:?} does not exist")));
        }
        let program = process["cmd"].as_str().unwrap_or_default();
        let arguments: Vec<&str> =
            process["args"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let shell = program.ends_with("/bash") && arguments.first() == Some(&"-c");
        let words: Vec<&str> = if shell {
            arguments.get(1).copied().unwrap_or_default().split_whitespace().collect()
        } else {
            std::iter::once(program).chain(arguments).collect()
        };
        let act = match act(&words, cwd) {
            Some(act) => act,
            None if shell => {
                let name = words.first().copied().unwrap_or_default();
                Act::Print(Vec::new(), format!("bash: {name}: command not found\n").into_bytes(), 127)
            }
            None => {
                return Err((400, "invalid_argument", format!("cmd {program:?}: No such file or directory")));
            }
        };
        let timeout = timeout_ms.map(Duration::from_millis);
        Ok(Self { act, stdin, timeout, keepalive: KEEPALIVE })
    }
}

fn act(words: &[&str], cwd: &str) -> Option<Act> {
    let print = |text: String| Act::Print(text.into_bytes(), Vec::new(), 0);
    Some(match words {
        ["true" | ":"] => print(String::new()),
        ["false"] => Act::Print(Vec::new(), Vec::new(), 1),
        ["exit", code] => Act::Print(Vec::new(), Vec::new(), code.parse().ok()?),
        ["echo", words @ ..] => print(format!("{}\n", words.join(" "))),
        ["hostname"] => Act::Hostname,
        ["pwd"] => print(format!("{cwd}\n")),
        ["cat"] => Act::Cat,
        ["sleep", seconds] => Act::Sleep(Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?),
        // So many bytes: for output that is capped.
        ["yes", bytes] => Act::Print(b"y\n".repeat(bytes.parse::<usize>().ok()? / 2), Vec::new(), 0),
        _ => return None,
    })
}

/// One envelope.
pub(super) fn envelope(flags: u8, payload: &[u8]) -> Bytes {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut bytes = vec![flags];
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes.into()
}

fn event(event: &Value) -> Bytes {
    envelope(0, json!({ "event": event }).to_string().as_bytes())
}

fn data(channel: &str, bytes: &[u8]) -> Bytes {
    event(&json!({ "data": { channel: STANDARD.encode(bytes) } }))
}

/// The events of a command, from its start to its end. The command goes when its stream is dropped.
pub(super) fn run(
    machine: Machine,
    id: SpaceId,
    order: Order,
    tag: Option<String>,
) -> impl Stream<Item = Bytes> + Send {
    let (send, stdin) = mpsc::channel(STDIN_PIECES);
    let (pid, killed) = machine.spawn(id, order.stdin.then_some(send), tag);
    let running = Running { machine: machine.clone(), id, pid };
    let started = stream::iter([event(&json!({ "start": { "pid": pid } }))]);
    let keepalive = order.keepalive;
    let rest =
        stream::unfold(Some(Box::pin(work(machine, id, order, stdin, killed))), move |work| async move {
            let mut work = work?;
            Some(drowse_shared::select_biased! {
                events = &mut work => (events, None),
                () = tokio::time::sleep(keepalive) => (vec![event(&json!({ "keepalive": {} }))], Some(work)),
            })
        });
    let rest = rest.flat_map(stream::iter);
    started.chain(rest).chain(stream::once(async move {
        drop(running);
        envelope(2, b"{}")
    }))
}

/// Stands still while the body is frozen, but for its time limit.
async fn work(
    machine: Machine,
    id: SpaceId,
    order: Order,
    mut stdin: mpsc::Receiver<Bytes>,
    killed: CancellationToken,
) -> Vec<Bytes> {
    let mut events = Vec::new();
    let act = async {
        machine.goes_on(id).await;
        let code = match order.act {
            Act::Print(out, err, code) => {
                events.extend(out.chunks(64 << 10).map(|piece| data("stdout", piece)));
                events.extend(err.chunks(64 << 10).map(|piece| data("stderr", piece)));
                code
            }
            Act::Cat => {
                while let Some(piece) = stdin.recv().await {
                    events.push(data("stdout", &piece));
                }
                0
            }
            Act::Sleep(time) => {
                tokio::time::sleep(time).await;
                0
            }
            Act::Hostname => {
                events.push(data("stdout", format!("{id}\n").as_bytes()));
                0
            }
        };
        machine.goes_on(id).await;
        code
    };
    let ended = async {
        match order.timeout {
            Some(limit) => tokio::time::timeout(limit, act).await.ok(),
            None => Some(act.await),
        }
    };
    let ended = drowse_shared::select_biased! {
        () = killed.cancelled() => Err(()),
        ended = ended => Ok(ended),
    };
    let end = match ended {
        Err(()) => {
            json!({ "exitCode": 137, "exited": false, "status": "signal: killed", "error": "signal: killed" })
        }
        Ok(Some(code)) => {
            json!({ "exitCode": code, "exited": true, "status": format!("exit status {code}") })
        }
        Ok(None) => json!({ "exitCode": 137, "exited": false, "status": "timeout", "error": "timeout" }),
    };
    events.push(event(&json!({ "end": end })));
    events
}

/// A process of a body while this lives.
struct Running {
    machine: Machine,
    id: SpaceId,
    pid: u32,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.machine.reap(self.id, self.pid);
    }
}
