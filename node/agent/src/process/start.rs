use std::collections::BTreeMap;
use std::os::fd::{OwnedFd, RawFd};
use std::rc::{Rc, Weak};
use std::time::Duration;

use http::{HeaderMap, Response};
use hyper::body::Incoming;
use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;
use rustix::termios::Winsize;
use serde::Deserialize;
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, Notify, oneshot};
use tokio::time::Instant;

use super::input::Input;
use super::output::{Channel, Output};
use super::pump::Source;
use super::stream::{EventStream, Wishes};
use super::table::{Selector, Table};
use super::terminal::{self, Terminal};
use super::{Config, Process, pump};
use crate::body::Body;
use crate::connect::{self, Code, Error};
use crate::launcher::control::{Child, Error as SpawnError};
use crate::launcher::wire::{Order, Stage};
use crate::users::User;

/// How long a command may take to start; a frozen or starved space cannot start any.
const START_WAIT: Duration = Duration::from_secs(30);
const GRACE_MS_DEFAULT: u64 = 2000;
/// Of a terminal nobody gave a size.
const SIZE_DEFAULT: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
const TERM_DEFAULT: &str = "xterm-256color";
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Arguments and environment beyond this are not repeated in lists.
const LISTED_CONFIG_BYTES_MAX: usize = 16 * 1024;
/// Tells which processes belong to a command even after they left its session.
pub(super) const COOKIE: &str = "DROWSE_EXEC_ID";

#[derive(Deserialize)]
struct StartRequest {
    process: Option<Config>,
    pty: Option<terminal::Request>,
    tag: Option<String>,
    stdin: Option<bool>,
}

#[derive(Deserialize)]
struct ConnectRequest {
    process: Option<Selector>,
}

/// Serves Start.
pub(crate) async fn start(
    table: &Rc<Table>,
    headers: &HeaderMap,
    body: Incoming,
    connection: RawFd,
) -> Result<Response<Body>, Error> {
    let wishes = Wishes::read(headers)?;
    let timeout = connect::number_header(headers, "drowse-timeout-ms")?;
    let timeout = timeout.filter(|ms| *ms > 0).map(Duration::from_millis);
    let grace = connect::number_header(headers, "drowse-kill-grace-ms")?.unwrap_or(GRACE_MS_DEFAULT);
    let request: StartRequest = connect::stream_request(body).await?;
    table.admit()?;
    let place = table.open_stream().await?;
    let user = connect::caller(headers)?;
    let config = request.process.filter(|process| !process.cmd.is_empty());
    let config = config.ok_or_else(|| Error::new(Code::InvalidArgument, "process.cmd is missing"))?;
    let cookie = crate::sys::random_hex();
    let memory = order(&config, &user, &cookie, request.pty.is_some())?;
    let ends = match request.pty {
        Some(pty) => Ends::terminal(pty, &user).map_err(|error| Error::from_io("the terminal", &error))?,
        None => {
            Ends::pipes(request.stdin.unwrap_or(true)).map_err(|error| Error::from_io("pipes", &error))?
        }
    };
    let spawned = table.control.spawn(memory, ends.theirs).map_err(|error| refusal(&config, error))?;
    let birth = Birth {
        table: Rc::clone(table),
        wishes,
        timeout,
        grace: Duration::from_millis(grace),
        tag: request.tag.filter(|tag| !tag.is_empty()),
        config,
        cookie,
        ours: ends.ours,
        connection,
    };
    // In a task of its own: a command that starts while its client leaves still needs somebody to look after it.
    let (ready, told) = oneshot::channel();
    tokio::task::spawn_local(birth.attend(spawned, ready));
    match tokio::time::timeout(START_WAIT, told).await {
        Ok(Ok(outcome)) => {
            Ok(connect::stream_response(Body::Events(Box::new(outcome?.in_place(Some(place))))))
        }
        Ok(Err(_)) => Err(Error::new(Code::Internal, "the start was given up")),
        Err(_) => Err(Error::new(Code::DeadlineExceeded, "the space starts no process: is it frozen?")),
    }
}

/// Serves Connect.
pub(crate) async fn join(
    table: &Rc<Table>,
    headers: &HeaderMap,
    body: Incoming,
    connection: RawFd,
) -> Result<Response<Body>, Error> {
    let wishes = Wishes::read(headers)?;
    let request: ConnectRequest = connect::stream_request(body).await?;
    let process = table.find(request.process.as_ref())?;
    let place = table.open_stream().await?;
    let stream = EventStream::joining(process, Rc::clone(table), &wishes, connection).in_place(Some(place));
    Ok(connect::stream_response(Body::Events(Box::new(stream))))
}

struct Ours {
    input: Input,
    terminal: Option<Weak<Terminal>>,
    sources: Vec<Source>,
}

/// Both ends of what a command is connected to.
struct Ends {
    ours: Ours,
    theirs: [OwnedFd; 3],
}

impl Ends {
    fn pipes(with_stdin: bool) -> std::io::Result<Self> {
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
        let (input, stdin) = if with_stdin {
            let (read, write) = pipe()?;
            rustix::io::ioctl_fionbio(&write, true)?;
            (Input::Pipe(pipe::Sender::from_owned_fd(write)?), read)
        } else {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            (Input::Closed, rustix::fs::open(c"/dev/null", flags, Mode::empty())?)
        };
        let (stdout, output) = pipe()?;
        let (stderr, error) = pipe()?;
        rustix::io::ioctl_fionbio(&stdout, true)?;
        rustix::io::ioctl_fionbio(&stderr, true)?;
        let sources = vec![
            Source::pipe(Channel::Stdout, pipe::Receiver::from_owned_fd(stdout)?),
            Source::pipe(Channel::Stderr, pipe::Receiver::from_owned_fd(stderr)?),
        ];
        Ok(Self { ours: Ours { input, terminal: None, sources }, theirs: [stdin, output, error] })
    }

    fn terminal(request: terminal::Request, user: &User) -> std::io::Result<Self> {
        let (terminal, theirs) = Terminal::open(request.size().unwrap_or(SIZE_DEFAULT), user)?;
        let terminal = Rc::new(terminal);
        let ours = Ours {
            input: Input::Terminal(Rc::clone(&terminal)),
            terminal: Some(Rc::downgrade(&terminal)),
            sources: vec![Source::terminal(terminal)],
        };
        Ok(Self { ours, theirs })
    }
}

/// A command between the launcher and its first event.
struct Birth {
    table: Rc<Table>,
    wishes: Wishes,
    timeout: Option<Duration>,
    grace: Duration,
    tag: Option<String>,
    config: Config,
    cookie: String,
    ours: Ours,
    connection: RawFd,
}

impl Birth {
    async fn attend(
        self,
        spawned: oneshot::Receiver<Result<Rc<Child>, SpawnError>>,
        mut ready: oneshot::Sender<Result<EventStream, Error>>,
    ) {
        // Without a tag nobody could ever find a command whose pid was told to no one.
        let needs_client = self.wishes.kill_on_leave || self.tag.is_none();
        let outcome = tokio::select! {
            biased;
            outcome = spawned => outcome,
            () = ready.closed(), if needs_client => return,
        };
        let told = match outcome {
            Ok(Ok(child)) => ready.send(Ok(self.watch(child))),
            Ok(Err(error)) => ready.send(Err(refusal(&self.config, error))),
            Err(_) => return,
        };
        // A client that has left just now: dropping its stream does what leaving means.
        drop(told);
    }

    fn watch(self, child: Rc<Child>) -> EventStream {
        let process = Rc::new(Process {
            child,
            output: Output::new(self.tag.is_some()).into(),
            tag: self.tag,
            config: listed(self.config),
            cookie: self.cookie,
            input: Mutex::new(self.ours.input),
            terminal: self.ours.terminal,
            sources: self.ours.sources,
            timeout_at: self.timeout.map(|timeout| Instant::now() + timeout),
            grace: self.grace,
            end: None.into(),
            timed_out: false.into(),
            kills_running: 0.into(),
            kill_ended: Notify::new(),
        });
        self.table.add(Rc::clone(&process));
        let stream =
            EventStream::starting(Rc::clone(&process), Rc::clone(&self.table), &self.wishes, self.connection);
        process.limit_time();
        tokio::task::spawn_local(pump::run(process, self.table));
        stream
    }
}

fn listed(config: Config) -> Config {
    let args = config.args.iter().flatten().map(String::len).sum::<usize>();
    let envs = config.envs.iter().flatten().map(|(name, value)| name.len() + value.len()).sum::<usize>();
    if args + envs <= LISTED_CONFIG_BYTES_MAX { config } else { Config { args: None, envs: None, ..config } }
}

fn order(config: &Config, user: &User, cookie: &str, terminal: bool) -> Result<(OwnedFd, u64), Error> {
    let bad = |words: String| Error::new(Code::InvalidArgument, words);
    let home = user.home.to_string_lossy().into_owned();
    let mut env: BTreeMap<&str, &str> = BTreeMap::from([
        ("HOME", home.as_str()),
        ("USER", &user.name),
        ("LOGNAME", &user.name),
        ("SHELL", &user.shell),
        ("PATH", PATH_DEFAULT),
    ]);
    if terminal {
        env.insert("TERM", TERM_DEFAULT);
    }
    for (name, value) in config.envs.iter().flatten() {
        if name.is_empty() || name.contains('=') {
            return Err(bad(format!("envs: {name:?} is no name of a variable")));
        }
        env.insert(name, value);
    }
    env.insert(COOKIE, cookie);
    let directory = config.cwd.as_deref().filter(|cwd| !cwd.is_empty());
    let wanted = directory.unwrap_or("~").as_bytes();
    let directory_bytes = crate::files::path::absolute(user, wanted)?;
    let args = config.args.iter().flatten();
    let args: Vec<Vec<u8>> =
        std::iter::once(&config.cmd).chain(args).map(|arg| arg.as_bytes().to_vec()).collect();
    let candidates = candidates(&config.cmd, env.get("PATH").copied().unwrap_or_default());
    let env: Vec<Vec<u8>> = env.iter().map(|(name, value)| format!("{name}={value}").into_bytes()).collect();
    if args.iter().chain(&env).any(|text| text.contains(&0)) {
        return Err(bad("arguments and environment must not contain NUL".to_owned()));
    }
    let order = Order {
        uid: user.uid,
        gid: user.gid,
        groups: &user.groups,
        directory: std::os::unix::ffi::OsStrExt::as_bytes(directory_bytes.as_os_str()),
        directory_is_a_wish: directory.is_none(),
        terminal,
        candidates: &candidates,
        args: &args,
        env: &env,
    };
    order.into_memory().map_err(|error| Error::from_io("the command's memory file", &error))
}

/// Where a program of that name may be, in the order of the command's own PATH.
fn candidates(cmd: &str, path: &str) -> Vec<Vec<u8>> {
    if cmd.contains('/') {
        return vec![cmd.as_bytes().to_vec()];
    }
    let directories = path.split(':').map(|directory| if directory.is_empty() { "." } else { directory });
    directories.map(|directory| format!("{directory}/{cmd}").into_bytes()).collect()
}

fn refusal(config: &Config, error: SpawnError) -> Error {
    let SpawnError::Refused { stage, errno } = error else {
        return Error::new(Code::ResourceExhausted, error.to_string());
    };
    let words = crate::sys::errno_text(errno);
    let exhausted = matches!(errno, libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE);
    let denied = matches!(errno, libc::EACCES | libc::EPERM);
    let code = if exhausted {
        Code::ResourceExhausted
    } else if denied {
        Code::PermissionDenied
    } else {
        Code::InvalidArgument
    };
    let cwd = config.cwd.as_deref().unwrap_or("~");
    match (stage, errno) {
        (Stage::Fork, _) if exhausted || denied => {
            Error::new(code, format!("cannot start a process: {words}"))
        }
        (Stage::Fork, _) => Error::new(Code::Internal, format!("cannot start a process: {words}")),
        (Stage::Directory, libc::ENOENT) => Error::new(code, format!("cwd {cwd:?} does not exist")),
        (Stage::Directory, libc::ENOTDIR) => Error::new(code, format!("cwd {cwd:?} is not a directory")),
        (Stage::Directory, _) => Error::new(code, format!("cwd {cwd:?}: {words}")),
        (Stage::Exec, _) => Error::new(code, format!("cmd {:?}: {words}", config.cmd)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_sought_along_path() {
        let found = |cmd, path| {
            candidates(cmd, path).into_iter().map(|path| String::from_utf8(path).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(found("ls", "/bin::/x"), ["/bin/ls", "./ls", "/x/ls"]);
        assert_eq!(found("./ls", "/bin"), ["./ls"]);
    }

    #[test]
    fn refusals_name_what_was_wrong() {
        let config = Config { cmd: "nope".to_owned(), cwd: Some("/gone".to_owned()), ..Config::default() };
        let words = |stage, errno| refusal(&config, SpawnError::Refused { stage, errno });
        let gone = words(Stage::Directory, libc::ENOENT);
        assert_eq!(
            (gone.code, gone.message.as_str()),
            (Code::InvalidArgument, r#"cwd "/gone" does not exist"#)
        );
        let missing = words(Stage::Exec, libc::ENOENT);
        assert_eq!(missing.message, r#"cmd "nope": No such file or directory"#);
        assert_eq!(words(Stage::Exec, libc::EACCES).code, Code::PermissionDenied);
        assert_eq!(words(Stage::Fork, libc::EAGAIN).code, Code::ResourceExhausted);
    }
}
