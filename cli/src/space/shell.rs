use std::{
    io::{IsTerminal, Write},
    os::fd::AsFd,
};

use drowse_shared::{
    api::{
        Code,
        attach::{ATTACH, AttachEvent, AttachOrder, SIZE, Size},
        exec::ExecEnded,
        spaces::Resumed,
    },
    name::SpaceRef,
    select_biased,
};
use futures_util::{SinkExt, StreamExt};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::{
    io::AsyncReadExt,
    signal::unix::{Signal, SignalKind, signal},
};
use tokio_tungstenite::tungstenite::{Bytes, Message};

use crate::{
    args::Context,
    client::query_value,
    failure::{Exit, Failure, Outcome},
};

/// Ctrl-], which leaves.
const LEAVE: u8 = 0x1d;

/// `drowse space shell`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Everything typed goes to the space, Ctrl-C as well; Ctrl-] leaves. A terminal ends when it is left, unless it \
                  has a tag: then it goes on, and the same command comes back to it.\n\n\
                  Exit codes: that of what ran in the terminal; 0 when it was left; 125 drowse itself failed, \
                  64 wrong usage."
)]
pub(crate) struct Args {
    /// The space, by name or id
    name: SpaceRef,
    /// Who runs it [default: user]
    #[arg(long, short)]
    user: Option<String>,
    /// Where it begins [default: the user's home]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Come back to the terminal of this tag, or open it; it goes on when it is left
    #[arg(long, short, value_name = "TAG", conflicts_with = "pid")]
    tag: Option<String>,
    /// Attach to a command that runs, by its pid inside
    #[arg(long, value_name = "PID", conflicts_with_all = ["user", "cwd", "line"])]
    pid: Option<u32>,
    /// What runs in the terminal, a line for bash [default: a login shell]
    #[arg(value_name = "LINE")]
    line: Option<String>,
}

/// The terminal of this process, byte by byte; as it was once this is dropped.
struct Raw(Termios);

impl Raw {
    fn begin() -> std::io::Result<Self> {
        let before = tcgetattr(std::io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // There is nobody to tell.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Drain, &self.0);
    }
}

fn size() -> Size {
    let window = tcgetwinsize(std::io::stdout().as_fd()).or_else(|_| tcgetwinsize(std::io::stdin().as_fd()));
    let (rows, cols) = window.map_or(SIZE, |window| (window.ws_row, window.ws_col));
    if rows == 0 || cols == 0 { Size { rows: SIZE.0, cols: SIZE.1 } } else { Size { rows, cols } }
}

/// What ended it.
enum Over {
    Ended(ExecEnded),
    Left,
    Failed(Failure),
}

/// Becomes a terminal of the space until what runs there ends, or it is left.
pub(super) async fn run(args: Args, context: &Context) -> Outcome<Exit> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage("standard input is no terminal")
            .hint("`drowse space exec NAME -- PROGRAM` runs a command without one"));
    }
    let Size { rows, cols } = size();
    let mut path =
        format!("{ATTACH}?space={}&rows={rows}&cols={cols}", query_value(args.name.to_string().as_bytes()));
    let pid = args.pid.map(|pid| pid.to_string());
    for (key, value) in
        [("user", &args.user), ("cwd", &args.cwd), ("tag", &args.tag), ("command", &args.line), ("pid", &pid)]
    {
        if let Some(value) = value {
            path.push_str(&format!("&{key}={}", query_value(value.as_bytes())));
        }
    }
    let socket = match context.client.websocket(&path).await {
        Ok(socket) => socket,
        Err(failure) => {
            return Err(super::nearest::named(failure, &args.name, &context.client)
                .await
                .exit(Exit::NOT_RUN));
        }
    };
    let resized = signal(SignalKind::window_change())
        .map_err(|error| Failure::new(format!("signals cannot be heard: {error}")).exit(Exit::NOT_RUN))?;
    let over = {
        let _raw = Raw::begin().map_err(|error| {
            Failure::new(format!("the terminal cannot be set: {error}")).exit(Exit::NOT_RUN)
        })?;
        talk(socket, resized).await
    };
    match over {
        Over::Ended(ended) => Ok(Exit(u8::try_from(ended.exit_code).unwrap_or(u8::MAX))),
        Over::Left => {
            match &args.tag {
                Some(tag) => {
                    eprintln!("\ndrowse: left; `drowse space shell {} --tag {tag}` comes back", args.name);
                }
                None => eprintln!("\ndrowse: left"),
            }
            Ok(Exit::OK)
        }
        Over::Failed(failure) => {
            eprintln!();
            Err(failure.exit(Exit::NOT_RUN))
        }
    }
}

async fn talk<S>(socket: tokio_tungstenite::WebSocketStream<S>, mut resized: Signal) -> Over
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let (mut sink, mut stream) = socket.split();
    let mut input = tokio::io::stdin();
    let mut typed = vec![0; 16 << 10];
    loop {
        let message = select_biased! {
            heard = stream.next() => match hear(heard) {
                Some(over) => return over,
                None => continue,
            },
            _ = resized.recv() => order(&AttachOrder::Resize(size())),
            read = input.read(&mut typed) => match read {
                Ok(0) | Err(_) => return Over::Left,
                Ok(length) => match typed[..length].iter().position(|byte| *byte == LEAVE) {
                    Some(_) => return Over::Left,
                    None => Message::Binary(Bytes::copy_from_slice(&typed[..length])),
                },
            },
        };
        if let Err(error) = sink.send(message).await {
            return Over::Failed(Failure::new(format!("the connection was lost: {error}")));
        }
    }
}

fn order(order: &AttachOrder) -> Message {
    // Every one of these is plain JSON by construction.
    Message::text(serde_json::to_string(order).unwrap_or_default())
}

/// Passes on what was said; answers what ended it.
fn hear(heard: Option<Result<Message, tokio_tungstenite::tungstenite::Error>>) -> Option<Over> {
    let lost = |why: String| Some(Over::Failed(Failure::new(format!("the connection was lost: {why}"))));
    match heard {
        None => lost("it ended".to_owned()),
        Some(Err(error)) => lost(error.to_string()),
        Some(Ok(Message::Close(frame))) => {
            let why = frame.map(|frame| frame.reason.to_string()).filter(|reason| !reason.is_empty());
            lost(why.unwrap_or_else(|| "the fleet closed it".to_owned()))
        }
        Some(Ok(Message::Binary(bytes))) => show(&bytes),
        Some(Ok(Message::Text(text))) => match serde_json::from_str(&text) {
            Ok(AttachEvent::Ended(ended)) => Some(Over::Ended(ended)),
            Ok(AttachEvent::Failed(error)) if error.code == Code::InvalidRequest => None,
            Ok(AttachEvent::Failed(error)) => Some(Over::Failed(Failure::answered(error))),
            Ok(AttachEvent::Stderr(base64)) => {
                super::exec::decoded(&base64).ok().and_then(|bytes| show(&bytes))
            }
            Ok(AttachEvent::Started(started))
                if started.resumed == Some(Resumed::Restarted) && !started.joined =>
            {
                eprint!("drowse: the space was stopped; its processes have begun anew\r\n");
                None
            }
            // What a newer fleet says besides is not needed.
            Ok(AttachEvent::Started(_)) | Err(_) => None,
        },
        Some(Ok(_)) => None,
    }
}

fn show(bytes: &[u8]) -> Option<Over> {
    let mut out = std::io::stdout();
    let shown = out.write_all(bytes).and_then(|()| out.flush());
    shown.err().map(|_| Over::Left)
}
