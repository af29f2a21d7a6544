//! Settings: from flags and environment, checked before anything is bound, printed once with secrets masked.

use std::{fmt, time::Duration};

use camino::{Utf8Path, Utf8PathBuf};
use clap::Parser;
use drowse_shared::{
    api::nodes::{Build, ReleaseError},
    http::{LimitArgs, Limits, deadline},
    telemetry,
    token::{self, Token},
    units,
};

use crate::{budget::Budget, door::host, find, place::Gates};

/// Longest that any verb is waited for at a node.
const ANSWER_TIMEOUT_MAX: Duration = deadline::FORWARD_MAX;

/// What a person may set. Secrets come from the environment or a file, never from a flag.
#[derive(Debug, Clone, Parser)]
#[command(name = "drowse-gateway", version, about = "The front door of a Drowse fleet")]
pub struct Args {
    /// Print the version of the database this program writes, and end
    #[arg(long)]
    pub schema: bool,
    /// Where to listen, host:port
    #[arg(long, env = "DROWSE_GATEWAY_LISTEN", default_value = "127.0.0.1:4677", value_name = "HOST:PORT")]
    pub listen: String,
    /// Directory of the gateway's database
    #[arg(long, env = "DROWSE_STATE", default_value = "/var/lib/drowse/gateway", value_name = "DIR")]
    pub state: Utf8PathBuf,
    /// File that holds the fleet token; DROWSE_TOKEN may hold the token itself instead
    #[arg(long, env = "DROWSE_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<Utf8PathBuf>,
    /// This is the first gateway of a new fleet: with an empty database, do not wait for nodes that know more
    #[arg(long, env = "DROWSE_NEW_FLEET")]
    pub new_fleet: bool,
    /// Domain under which spaces have hosts: PORT-ID.DOMAIN and NAME.DOMAIN; none without it
    #[arg(long, env = "DROWSE_DOMAIN", value_name = "DOMAIN")]
    pub domain: Option<String>,
    /// How nodes are asked for a space
    #[command(flatten)]
    pub lookup: LookupArgs,
    /// Which nodes take new spaces
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// How much it takes on at once, and how long it waits for clients
    #[command(flatten)]
    pub serve: LimitArgs,
    /// Longest wait for a node's answer, besides what the request itself asks for (waitSeconds, timeoutSeconds); at most 110s
    #[arg(long, env = "DROWSE_ANSWER_TIMEOUT", default_value = "110s", value_parser = units::duration)]
    pub answer_timeout: Duration,
    /// Logs
    #[command(flatten)]
    pub log: telemetry::Config,
}

/// How nodes are asked for a space.
#[derive(Debug, Clone, clap::Args)]
pub struct LookupArgs {
    /// Longest wait for a node's answer to a lookup, connecting included
    #[arg(long, env = "DROWSE_LOOKUP_DEADLINE", default_value = "2s", value_parser = units::duration)]
    pub lookup_deadline: Duration,
    /// How long other live nodes may still answer once one said yes
    #[arg(long, env = "DROWSE_LOOKUP_GRACE", default_value = "150ms", value_parser = units::duration)]
    pub lookup_grace: Duration,
    /// Most spaces whose node is remembered
    #[arg(long, env = "DROWSE_CACHE_ENTRIES", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=find::CACHE_ENTRIES_MAX))]
    pub cache_entries: u32,
    /// How long a space's node is remembered
    #[arg(long, env = "DROWSE_CACHE_AGE", default_value = "60s", value_parser = units::duration)]
    pub cache_age: Duration,
}

/// Which nodes take new spaces.
#[derive(Debug, Clone, clap::Args)]
pub struct PlacementArgs {
    /// A node whose processors are busier than this, in percent, takes no new space
    #[arg(long, env = "DROWSE_CPU_PERCENT_MAX", default_value_t = 70.0, value_parser = percent)]
    pub cpu_percent_max: f64,
    /// A node with so many active spaces takes no new one
    #[arg(long, env = "DROWSE_ACTIVE_MAX", default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..))]
    pub active_max: u64,
    /// A node whose data disk has less than this left takes no new space (5 % of a small disk)
    #[arg(long, env = "DROWSE_DISK_FLOOR", default_value = "10GiB", value_parser = units::bytes)]
    pub disk_floor: u64,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=100.0).contains(&value) => Ok(value),
        _ => Err("a percentage is a number from 0 to 100".to_owned()),
    }
}

/// Settings that were checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen.
    pub listen: String,
    /// Where the database is.
    pub state: Utf8PathBuf,
    /// The fleet token.
    pub token: Token,
    /// Whether it was told that it is the first gateway of a new fleet.
    pub new_fleet: bool,
    /// Under which spaces have hosts.
    pub domain: Option<String>,
    /// How nodes are asked.
    pub find: find::Limits,
    /// Which nodes take new spaces.
    pub gates: Gates,
    /// How much it takes on at once, and how long it waits for clients.
    pub limits: Limits,
    /// Longest wait for a node's answer, besides what the request itself asks for.
    pub answer_timeout: Duration,
    /// How open files are shared out.
    pub budget: Budget,
    /// Which build this is.
    pub build: Build,
    /// Where its programs are, and beside them the release that nodes may take.
    pub release: Option<Utf8PathBuf>,
    /// Logs.
    pub log: telemetry::Config,
}

/// Why a setting is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The token.
    #[error(transparent)]
    Token(#[from] token::Error),
    /// What the release says of itself.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// Where to listen.
    #[error("DROWSE_GATEWAY_LISTEN is {0:?}; write it as host:port, for example 127.0.0.1:4677")]
    Listen(String),
    /// The domain.
    #[error(
        "DROWSE_DOMAIN is {0:?}; write a lower-case domain name without port, for example spaces.example.com"
    )]
    Domain(String),
    /// A deadline that leaves no time.
    #[error("{variable} must be longer than 0; its default is {default}")]
    Zero {
        /// Which setting.
        variable: &'static str,
        /// What it is when it is not set.
        default: &'static str,
    },
    /// A wait that outlasts the call.
    #[error(
        "DROWSE_ANSWER_TIMEOUT is {given:?}; it must be at most {most:?}, so that a gateway answers before its own deadline"
    )]
    AnswerTimeout {
        /// As it was given.
        given: Duration,
        /// Longest there may be.
        most: Duration,
    },
}

impl Config {
    /// Checks the settings. `beside` is the directory of this program.
    ///
    /// # Errors
    /// Naming the variable and the fix.
    pub fn read(args: Args, beside: Option<&Utf8Path>) -> Result<Self, Error> {
        #[expect(clippy::disallowed_methods, reason = "a secret is never a flag, so clap does not see it")]
        let value = std::env::var("DROWSE_TOKEN").ok();
        let token = Token::load(value.as_deref(), args.token_file.as_deref())?;
        let build = beside.map_or_else(|| Ok(Build::unreleased()), Build::beside)?;
        Ok(Self { build, release: beside.map(Utf8Path::to_owned), ..Self::checked(args, token)? })
    }

    /// Checks the settings, with a token that is already at hand.
    ///
    /// # Errors
    /// Naming the variable and the fix.
    pub fn checked(args: Args, token: Token) -> Result<Self, Error> {
        let port = args.listen.rsplit_once(':').and_then(|(host, port)| {
            let port = port.parse::<u16>().ok()?;
            (!host.is_empty()).then_some(port)
        });
        if port.is_none() {
            return Err(Error::Listen(args.listen));
        }
        // A line of a settings file that says nothing sets nothing.
        let domain = args.domain.filter(|domain| !domain.is_empty());
        if let Some(domain) = domain.as_deref().filter(|domain| !host::is_domain(domain)) {
            return Err(Error::Domain(domain.to_owned()));
        }
        if args.lookup.lookup_deadline.is_zero() {
            return Err(Error::Zero { variable: "DROWSE_LOOKUP_DEADLINE", default: "2s" });
        }
        if args.answer_timeout.is_zero() {
            return Err(Error::Zero { variable: "DROWSE_ANSWER_TIMEOUT", default: "110s" });
        }
        if args.answer_timeout > ANSWER_TIMEOUT_MAX {
            return Err(Error::AnswerTimeout { given: args.answer_timeout, most: ANSWER_TIMEOUT_MAX });
        }
        Ok(Self {
            listen: args.listen,
            state: args.state,
            token,
            new_fleet: args.new_fleet,
            domain,
            find: find::Limits {
                deadline: args.lookup.lookup_deadline,
                grace: args.lookup.lookup_grace,
                cache_entries: args.lookup.cache_entries as usize,
                cache_age: args.lookup.cache_age,
            },
            gates: Gates {
                cpu_percent_max: args.placement.cpu_percent_max,
                active_max: args.placement.active_max,
                disk_floor_bytes: args.placement.disk_floor,
            },
            limits: args.serve.limits(),
            answer_timeout: args.answer_timeout,
            budget: Budget::default(),
            build: Build::unreleased(),
            release: None,
            log: args.log,
        })
    }

    /// Every default, with this token. For a fleet inside one process, and for tests.
    ///
    /// # Panics
    /// Never: the defaults are tested.
    pub fn with_defaults(token: Token) -> Self {
        let args = Args::parse_from(["drowse-gateway"]);
        Self::checked(args, token).expect("the defaults are valid")
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            listen,
            state,
            token: _,
            new_fleet,
            domain,
            find,
            gates,
            limits,
            answer_timeout,
            budget,
            build,
            release: _,
            log: _,
        } = self;
        write!(
            f,
            "configuration: build={build} listen={listen} state={state} token=*** new_fleet={new_fleet} domain={} {limits} answer_timeout_ms={} \
             lookup_deadline_ms={} lookup_grace_ms={} cache_entries={} cache_age_seconds={} \
             cpu_percent_max={} active_max={} disk_floor_bytes={} forwards_max={} apps_max={}",
            domain.as_deref().unwrap_or("-"),
            answer_timeout.as_millis(),
            find.deadline.as_millis(),
            find.grace.as_millis(),
            find.cache_entries,
            find.cache_age.as_secs(),
            gates.cpu_percent_max,
            gates.active_max,
            gates.disk_floor_bytes,
            budget.forwards,
            budget.apps,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token::checked("0123456789abcdef0123456789abcdef", "test").expect("long enough")
    }

    #[test]
    fn the_defaults_are_valid_and_the_token_is_not_printed() {
        let shown = Config::with_defaults(token()).to_string();
        assert!(shown.contains("lookup_deadline_ms=2000") && shown.contains("token=***"), "{shown}");
        assert!(!shown.contains("0123456789abcdef"), "{shown}");
    }

    #[test]
    fn a_domain_that_says_nothing_is_none() {
        let args = Args::parse_from(["drowse-gateway", "--domain", ""]);
        assert_eq!(Config::checked(args, token()).expect("fine").domain, None);
    }

    #[test]
    fn a_bad_setting_names_its_variable() {
        for (flags, says) in [
            (["--listen", "4677"], "DROWSE_GATEWAY_LISTEN"),
            (["--listen", ":4677"], "DROWSE_GATEWAY_LISTEN"),
            (["--domain", "Example.com"], "DROWSE_DOMAIN"),
            (["--domain", "example.com:443"], "DROWSE_DOMAIN"),
            (["--lookup-deadline", "0"], "DROWSE_LOOKUP_DEADLINE"),
            (["--answer-timeout", "0"], "DROWSE_ANSWER_TIMEOUT"),
            (["--answer-timeout", "111s"], "at most 110s"),
        ] {
            let args = Args::parse_from(["drowse-gateway"].into_iter().chain(flags));
            let error = Config::checked(args, token()).expect_err("refused").to_string();
            assert!(error.contains(says), "{error}");
        }
        for flags in [
            ["--cpu-percent-max", "101"],
            ["--disk-floor", "10GB"],
            ["--cache-entries", "0"],
            ["--cache-entries", "100000001"],
            ["--client-timeout", "61s"],
            ["--client-timeout", "0"],
            ["--connections-max", "0"],
        ] {
            assert!(Args::try_parse_from(["drowse-gateway"].into_iter().chain(flags)).is_err(), "{flags:?}");
        }
    }
}
