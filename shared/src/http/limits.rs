use std::{fmt, time::Duration};

use crate::{seams::PEER_TIMEOUT, units};

/// How much a server takes on, and how long it waits for whom it serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most open connections; further ones are refused in words.
    pub connections_max: usize,
    /// Longest pause of a client: until the head of a request is complete, between the pieces of a body it sends, and
    /// between the pieces of an answer it reads. The whole of a body that is no stream gets no longer either.
    pub client_timeout: Duration,
    /// How long a connection is kept on which nothing is asked. Clients and peers of ours give it up a little earlier.
    pub idle_timeout: Duration,
    /// How long whoever is on the other side of a connection may give no sign of life.
    pub peer_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_MAX as usize,
            client_timeout: CLIENT_TIMEOUT_MAX,
            idle_timeout: IDLE_TIMEOUT,
            peer_timeout: PEER_TIMEOUT,
        }
    }
}

const CONNECTIONS_MAX: u32 = 16_384;
/// The kernel gives a connection up whose reader takes nothing for so long.
const CLIENT_TIMEOUT_MAX: Duration = Duration::from_secs(60);

const PEER_TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The limits, as settings.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Most open connections; further ones are refused
    #[arg(long, env = "DROWSE_CONNECTIONS_MAX", default_value_t = CONNECTIONS_MAX, value_parser = clap::value_parser!(u32).range(8..))]
    pub connections_max: u32,
    /// Longest pause of a client that sends a request or reads an answer, at most 60s
    #[arg(long, env = "DROWSE_CLIENT_TIMEOUT", default_value = "60s", value_parser = client_timeout)]
    pub client_timeout: Duration,
    /// How long a connection is kept on which nothing is asked; the same for all daemons of a fleet
    #[arg(long, env = "DROWSE_IDLE_TIMEOUT", default_value = "60s", value_parser = positive)]
    pub idle_timeout: Duration,
    /// How long whoever is on the other side of a connection may give no sign of life; a tunnel to a client that vanished ends then
    #[arg(long, env = "DROWSE_PEER_TIMEOUT", default_value = "60s", value_parser = peer_timeout)]
    pub peer_timeout: Duration,
}

fn peer_timeout(text: &str) -> Result<Duration, String> {
    match positive(text) {
        Ok(timeout) if !PEER_TIMEOUTS.contains(&timeout) => Err("it is 1 s to 1 h".to_owned()),
        read => read,
    }
}

fn positive(text: &str) -> Result<Duration, String> {
    match units::duration(text) {
        Ok(timeout) if timeout.is_zero() => Err("it must be longer than 0".to_owned()),
        read => read.map_err(|error| error.to_string()),
    }
}

fn client_timeout(text: &str) -> Result<Duration, String> {
    match positive(text) {
        Ok(timeout) if timeout > CLIENT_TIMEOUT_MAX => {
            Err(format!("it is at most {} s", CLIENT_TIMEOUT_MAX.as_secs()))
        }
        read => read,
    }
}

impl Args {
    /// The limits.
    pub fn limits(&self) -> Limits {
        Limits {
            connections_max: self.connections_max as usize,
            client_timeout: self.client_timeout,
            idle_timeout: self.idle_timeout,
            peer_timeout: self.peer_timeout,
        }
    }
}

impl Limits {
    /// No more connections than this many, which the limit of open files leaves for them.
    #[must_use]
    pub fn within(self, most: usize) -> Self {
        let most = most.max(8);
        if self.connections_max > most {
            tracing::warn!(connections_max = most, "the limit of open files allows fewer connections");
        }
        Self { connections_max: self.connections_max.min(most), ..self }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections_max, client_timeout, idle_timeout, peer_timeout } = self;
        write!(
            f,
            "connections_max={connections_max} client_timeout_ms={} idle_timeout_ms={} peer_timeout_ms={}",
            client_timeout.as_millis(),
            idle_timeout.as_millis(),
            peer_timeout.as_millis()
        )
    }
}
