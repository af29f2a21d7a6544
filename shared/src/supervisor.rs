//! Whoever started this daemon: systemd, or one that speaks like it. It is told when the daemon serves, that it still
//! moves, and that it ends. Without its variables nobody is told anything.
//!
//! The whole state is said again at every turn, so that a word that was lost is repaired by the next. A daemon of which a
//! loop stands still says nothing: then the supervisor's own patience decides when it is started anew.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use crate::{shutdown::Shutdown, watchdog::Watchdog};

/// Between two turns, if the supervisor does not want them closer together.
const TURN: Duration = Duration::from_secs(10);
/// How much longer than a turn a start may take, beyond what is said now.
const START_TURNS: u32 = 6;
/// Turns within the supervisor's patience.
const TURNS_WITHIN_PATIENCE: u32 = 3;
/// Shortest turn, whatever patience is asked.
const TURN_MIN: Duration = Duration::from_millis(20);

/// What the environment says of a supervisor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    /// `NOTIFY_SOCKET`.
    pub socket: Option<String>,
    /// `WATCHDOG_USEC`, if it is meant for this process.
    pub patience: Option<Duration>,
    /// `LISTEN_FDS`, if they are meant for this process.
    pub sockets: Option<u32>,
}

impl Given {
    /// Reads the environment. What spaces and other programs get is not inherited from it.
    pub fn read() -> Self {
        #[expect(clippy::disallowed_methods, reason = "these are no settings: only a supervisor writes them")]
        let variable = |name: &str| std::env::var(name).ok();
        Self::of(variable, std::process::id())
    }

    fn of(variable: impl Fn(&str) -> Option<String>, me: u32) -> Self {
        let number = |name: &str| variable(name).and_then(|text| text.parse::<u64>().ok());
        let mine = |name: &str| number(name).map(|pid| pid == u64::from(me));
        let patience = number("WATCHDOG_USEC").filter(|micros| *micros > 0).map(Duration::from_micros);
        let sockets = number("LISTEN_FDS").and_then(|count| u32::try_from(count).ok());
        Self {
            socket: variable("NOTIFY_SOCKET").filter(|path| !path.is_empty()),
            patience: patience.filter(|_| mine("WATCHDOG_PID") != Some(false)),
            sockets: sockets.filter(|count| *count > 0 && mine("LISTEN_PID") == Some(true)),
        }
    }
}

/// What a daemon is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Starting(String),
    Serving(String),
    Stopping,
}

/// Tells the supervisor. Clones share what is told.
#[derive(Debug, Clone)]
pub struct Supervisor {
    phase: Arc<watch::Sender<Phase>>,
    link: Option<Arc<Link>>,
}

#[derive(Debug)]
struct Link {
    socket: UnixDatagram,
    to: SocketAddr,
    /// Between two turns.
    turn: Duration,
}

impl Default for Supervisor {
    /// Nobody.
    fn default() -> Self {
        let (phase, _) = watch::channel(Phase::Starting("starting".to_owned()));
        Self { phase: Arc::new(phase), link: None }
    }
}

impl Supervisor {
    /// Whom the environment names. One that cannot be reached is said in the log, and is nobody.
    pub fn of(given: &Given) -> Self {
        let link = given.socket.as_deref().and_then(|path| match Link::to(path, given.patience) {
            Ok(link) => Some(Arc::new(link)),
            Err(error) => {
                tracing::warn!(%error, "NOTIFY_SOCKET cannot be used; the supervisor is told nothing");
                None
            }
        });
        Self { link, ..Self::default() }
    }

    /// What the start waits for.
    pub fn starts(&self, words: &str) {
        self.phase.send_replace(Phase::Starting(words.to_owned()));
    }

    /// The daemon serves from now on.
    pub fn serves(&self, words: String) {
        self.phase.send_replace(Phase::Serving(words));
    }

    /// Tells, until the daemon has ended.
    pub async fn attend(self, dog: Watchdog, shutdown: Shutdown) {
        let Some(link) = self.link else { return };
        let mut phase = self.phase.subscribe();
        let mut stopping = false;
        loop {
            let now = if stopping { Phase::Stopping } else { phase.borrow_and_update().clone() };
            let stalled = dog.stalled(Instant::now());
            let stands = stalled.first().map(|s| format!("{} stands still at {}", s.what, s.step));
            link.say(&state(&now, stands.as_deref(), link.turn));
            crate::select_biased! {
                () = shutdown.cutting() => return,
                () = shutdown.stopping(), if !stopping => stopping = true,
                _ = phase.changed() => {}
                () = tokio::time::sleep(link.turn) => {}
            }
        }
    }
}

/// What is said of a daemon in this phase. Pure.
fn state(phase: &Phase, stands: Option<&str>, turn: Duration) -> String {
    let words = match phase {
        Phase::Starting(words) | Phase::Serving(words) => words,
        Phase::Stopping => "stopping",
    };
    let words = stands.unwrap_or(words).replace('\n', " ");
    // One that does not move gets no more time and no sign of life, wherever it stands.
    let moves = match (stands, phase) {
        (Some(_), _) => String::new(),
        (None, Phase::Starting(_)) => {
            format!("EXTEND_TIMEOUT_USEC={}\n", (turn * START_TURNS).as_micros())
        }
        (None, _) => "WATCHDOG=1\n".to_owned(),
    };
    let first = match phase {
        Phase::Starting(_) => "",
        Phase::Serving(_) => "READY=1\n",
        Phase::Stopping => "STOPPING=1\n",
    };
    format!("{first}{moves}STATUS={words}\n")
}

impl Link {
    fn to(path: &str, patience: Option<Duration>) -> io::Result<Self> {
        let to = match path.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(path)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let turn = patience.map_or(TURN, |patience| (patience / TURNS_WITHIN_PATIENCE).min(TURN));
        Ok(Self { socket, to, turn: turn.max(TURN_MIN) })
    }

    fn say(&self, words: &str) {
        if let Err(error) = self.socket.send_to_addr(words.as_bytes(), &self.to) {
            tracing::debug!(%error, "the supervisor could not be told; the next turn says it again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::seams::Env;

    fn given(variables: &[(&str, &str)]) -> Given {
        let variables: BTreeMap<_, _> = variables.iter().copied().collect();
        Given::of(|name| variables.get(name).map(|value| (*value).to_owned()), 7)
    }

    #[test]
    fn what_is_meant_for_another_process_is_not_taken() {
        let second = Some(Duration::from_secs(1));
        for (variables, patience, sockets) in [
            (vec![], None, None),
            (vec![("WATCHDOG_USEC", "1000000")], second, None),
            (vec![("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", "7")], second, None),
            (vec![("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", "8")], None, None),
            (vec![("WATCHDOG_USEC", "0")], None, None),
            (vec![("WATCHDOG_USEC", "soon")], None, None),
            (vec![("LISTEN_FDS", "1"), ("LISTEN_PID", "7")], None, Some(1)),
            (vec![("LISTEN_FDS", "2"), ("LISTEN_PID", "7")], None, Some(2)),
            (vec![("LISTEN_FDS", "1"), ("LISTEN_PID", "8")], None, None),
            (vec![("LISTEN_FDS", "1")], None, None),
            (vec![("LISTEN_FDS", "0"), ("LISTEN_PID", "7")], None, None),
        ] {
            let expected = Given { socket: None, patience, sockets };
            assert_eq!(given(&variables), expected, "{variables:?}");
        }
        assert_eq!(given(&[("NOTIFY_SOCKET", "")]).socket, None);
    }

    #[test]
    fn a_phase_is_said_in_full_and_who_stands_still_gives_no_sign_of_life() {
        let starting = Phase::Starting("waiting".to_owned());
        let serving = Phase::Serving("serves\nhere".to_owned());
        let second = Duration::from_secs(1);
        for (phase, stands, expected) in [
            (&starting, None, "EXTEND_TIMEOUT_USEC=6000000\nSTATUS=waiting\n"),
            (&starting, Some("x stands"), "STATUS=x stands\n"),
            (&serving, None, "READY=1\nWATCHDOG=1\nSTATUS=serves here\n"),
            (&serving, Some("x stands"), "READY=1\nSTATUS=x stands\n"),
            (&Phase::Stopping, None, "STOPPING=1\nWATCHDOG=1\nSTATUS=stopping\n"),
            (&Phase::Stopping, Some("x stands"), "STOPPING=1\nSTATUS=x stands\n"),
        ] {
            assert_eq!(state(phase, stands, second), expected);
        }
    }

    struct Ear(tokio::net::UnixDatagram);

    impl Ear {
        async fn until(&self, says: impl Fn(&str) -> bool) -> String {
            let heard = async {
                let mut bytes = [0; 512];
                loop {
                    let length = self.0.recv(&mut bytes).await.expect("received");
                    let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
                    if says(&text) {
                        return text;
                    }
                }
            };
            tokio::time::timeout(Duration::from_secs(20), heard).await.expect("it is said")
        }
    }

    #[tokio::test]
    async fn the_supervisor_hears_of_start_service_stall_and_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let ear = Ear(tokio::net::UnixDatagram::bind(&path).expect("bound"));
        let socket = Some(path.to_str().expect("UTF-8").to_owned());
        let given = Given { socket, patience: Some(Duration::from_millis(60)), sockets: None };
        let (supervisor, dog, shutdown) = (Supervisor::of(&given), Watchdog::default(), Shutdown::new());
        let env = Env::real();
        env.spawn("supervisor", supervisor.clone().attend(dog.clone(), shutdown.clone()));
        supervisor.starts("looking around");
        ear.until(|said| said.contains("STATUS=looking around") && !said.contains("READY")).await;
        supervisor.serves("serves".to_owned());
        for _ in 0..3 {
            ear.until(|said| said.starts_with("READY=1\nWATCHDOG=1\n")).await;
        }
        let pulse = dog.watch("idle", Duration::ZERO);
        pulse.at("looking");
        ear.until(|said| said.contains("idle stands still at looking")).await;
        let next = ear.until(|_| true).await;
        assert!(!next.contains("WATCHDOG"), "{next}");
        pulse.rests();
        ear.until(|said| said.contains("WATCHDOG=1")).await;
        shutdown.stop();
        ear.until(|said| said.starts_with("STOPPING=1\n")).await;
    }

    #[tokio::test]
    async fn without_a_supervisor_nothing_is_waited_for() {
        let supervisor = Supervisor::of(&Given::default());
        supervisor.serves("serves".to_owned());
        supervisor.attend(Watchdog::default(), Shutdown::new()).await;
        let nowhere = Given { socket: Some("/".repeat(200)), ..Given::default() };
        Supervisor::of(&nowhere).attend(Watchdog::default(), Shutdown::new()).await;
    }
}
