//! Settings of a node: read once, judged before anything is bound.

use std::{fmt, time::Duration};

use camino::Utf8PathBuf;
use clap::{Parser, Subcommand, ValueEnum};
use drowse_shared::{
    api::nodes::{Build, ReleaseError, origin},
    http::{LimitArgs, Limits},
    id::{self, NodeId},
    telemetry,
    token::{self, Token},
    units,
};
use http::Uri;

use crate::{adopt, starts};

/// Longest pause between two check-ins.
const CHECK_IN_MAX: Duration = Duration::from_secs(3600);

/// Which executor runs the bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Runs {
    /// OCI containers.
    #[default]
    Oci,
    /// Nothing: bodies in memory, for tests.
    Fake,
}

/// What may be said on the command line or in the environment.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "drowse-node",
    version,
    about = "Runs spaces on this machine",
    disable_help_subcommand = true,
    args_conflicts_with_subcommands = true
)]
pub struct Args {
    /// Print the version of the ledger this program writes, and end
    #[arg(long)]
    pub schema: bool,
    /// Something else than running spaces.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// File that holds the fleet token; DROWSE_TOKEN may hold the token itself instead
    #[arg(long, env = "DROWSE_TOKEN_FILE", value_name = "PATH")]
    token_file: Option<Utf8PathBuf>,
    /// Address this node listens on
    #[arg(
        long = "listen",
        env = "DROWSE_NODE_LISTEN",
        default_value = "127.0.0.1:4676",
        value_name = "HOST:PORT"
    )]
    listen: String,
    /// What this node is called in its fleet
    #[arg(long = "id", env = "DROWSE_NODE_ID", value_name = "ID")]
    node_id: Option<String>,
    /// Gateways to check in with, separated by commas; none makes this node a fleet of one
    #[arg(long, env = "DROWSE_GATEWAY", value_delimiter = ',', value_name = "URL")]
    gateway: Vec<String>,
    /// Where the gateways reach this node
    #[arg(long = "endpoint", env = "DROWSE_NODE_ENDPOINT", value_name = "URL")]
    endpoint: Option<String>,
    /// A label for placement
    #[arg(long = "region", env = "DROWSE_NODE_REGION", value_name = "REGION")]
    region: Option<String>,
    /// Where the ledger and the disks are kept
    #[arg(long, env = "DROWSE_STATE", default_value = "/var/lib/drowse/node", value_name = "DIR")]
    state: Utf8PathBuf,
    /// Where sockets and mounts are kept
    #[arg(long, env = "DROWSE_RUN", default_value = "/run/drowse", value_name = "DIR")]
    run: Utf8PathBuf,
    /// The OCI runtime
    #[arg(long, env = "DROWSE_RUNTIME", default_value = "runc", value_name = "PROGRAM")]
    runtime: String,
    /// The cgroup under which spaces run
    #[arg(long, env = "DROWSE_CGROUP_PARENT", default_value = "drowse", value_name = "NAME")]
    cgroup_parent: String,
    /// Seconds between check-ins
    #[arg(long, env = "DROWSE_CHECK_IN_SECONDS", default_value = "5", value_name = "SECONDS", value_parser = units::duration)]
    check_in_seconds: Duration,
    /// What runs the bodies
    #[arg(long, env = "DROWSE_EXECUTOR", value_enum, default_value_t)]
    executor: Runs,
    /// Where templates are kept
    #[arg(long, env = "DROWSE_TEMPLATES", default_value = "/var/lib/drowse/templates", value_name = "DIR")]
    templates: Utf8PathBuf,
    /// The agent that is pid 1 of every space; beside this program when not given
    #[arg(long, env = "DROWSE_AGENT", value_name = "PATH")]
    agent: Option<Utf8PathBuf>,
    /// How much it takes on at once, and how long it waits for clients
    #[command(flatten)]
    serve: LimitArgs,
    /// Longest wait for the agent inside a space to answer
    #[arg(long, env = "DROWSE_AGENT_TIMEOUT", default_value = "40s", value_parser = units::duration)]
    agent_timeout: Duration,
    /// Program that replaces this daemon when a gateway hands out another build; the units of install.sh name one
    #[arg(long, env = "DROWSE_UPGRADER", value_name = "PATH")]
    upgrader: Option<Utf8PathBuf>,
    /// How many spaces it starts at once.
    #[command(flatten)]
    starts: starts::Args,
    /// Logs.
    #[command(flatten)]
    pub telemetry: telemetry::Config,
}

/// What the program does beside running spaces.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Take over the spaces of a dead node, from its disks
    Adopt(adopt::command::Args),
}

/// Why the settings cannot be used. Each says what to set.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No usable token.
    #[error(transparent)]
    Token(#[from] token::Error),
    /// What the release says of itself.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// The node id is malformed.
    #[error("DROWSE_NODE_ID {given:?}: {source}")]
    NodeId {
        /// As it was given.
        given: String,
        /// Which rule it breaks.
        #[source]
        source: id::Error,
    },
    /// The gateway is elsewhere and this node would call itself what every node calls itself.
    #[error(
        "DROWSE_NODE_ID is not set and the gateway {gateway} is on another machine.\n       \
         Set it to a name no other node of the fleet has, for example {example}"
    )]
    DefaultId {
        /// Which gateway.
        gateway: String,
        /// A name to take.
        example: String,
    },
    /// The gateway is elsewhere and would not find this node.
    #[error(
        "DROWSE_NODE_ENDPOINT is not set and the gateway {gateway} is on another machine.\n       \
         Set it to the address the gateway can reach this node at, for example http://10.0.0.7:4676"
    )]
    NoEndpoint {
        /// Which gateway.
        gateway: String,
    },
    /// A URL is no origin.
    #[error("{variable} {given:?} {why}; write it like http://10.0.0.7:4676")]
    Origin {
        /// Which setting.
        variable: &'static str,
        /// As it was given.
        given: String,
        /// Which rule it breaks.
        why: String,
    },
    /// The listen address is malformed.
    #[error("DROWSE_NODE_LISTEN {0:?} is not host:port; write it like 127.0.0.1:4676")]
    Listen(String),
    /// The interval is out of range.
    #[error("DROWSE_CHECK_IN_SECONDS is {0:?}; it must be more than 0 and at most one hour")]
    CheckIn(Duration),
    /// No time at all.
    #[error("DROWSE_AGENT_TIMEOUT must be longer than 0; its default is 40s")]
    AgentTimeout,
    /// The agent is not said and cannot be guessed.
    #[error(
        "DROWSE_AGENT is not set and the directory of this program is unknown; set it to the path of drowse-agent"
    )]
    Agent,
}

/// Settings that passed.
#[derive(Debug, Clone)]
pub struct Config {
    /// The fleet token.
    pub token: Token,
    /// `host:port` to listen on.
    pub listen: String,
    /// What this node is called.
    pub node_id: NodeId,
    /// Origins of the gateways; none = alone.
    pub gateways: Vec<String>,
    /// Where gateways reach this node; derived from the bound address when absent.
    pub endpoint: Option<String>,
    /// A label for placement.
    pub region: Option<String>,
    /// Ledger and disks.
    pub state: Utf8PathBuf,
    /// Sockets and mounts.
    pub run: Utf8PathBuf,
    /// The OCI runtime.
    pub runtime: String,
    /// The cgroup under which spaces run.
    pub cgroup_parent: String,
    /// Between check-ins.
    pub check_in: Duration,
    /// What runs the bodies.
    pub executor: Runs,
    /// Templates.
    pub templates: Utf8PathBuf,
    /// Pid 1 of every space.
    pub agent: Utf8PathBuf,
    /// How much it takes on at once, and how long it waits for clients.
    pub limits: Limits,
    /// Longest wait for the agent inside a space to answer.
    pub agent_timeout: Duration,
    /// How many spaces it starts at once.
    pub starts: starts::Limits,
    /// What replaces this daemon; none where nothing does.
    pub upgrader: Option<Utf8PathBuf>,
    /// Which build this is.
    pub build: Build,
}

impl Args {
    /// Judges the settings, and takes the token from them. `beside` is the directory of this program.
    ///
    /// # Errors
    /// What is wrong, with the variable and the fix.
    pub fn check(self, beside: Option<&camino::Utf8Path>) -> Result<Config, Error> {
        #[expect(clippy::disallowed_methods, reason = "a secret is never a flag, so clap does not see it")]
        let value = std::env::var("DROWSE_TOKEN").ok();
        let token = Token::load(value.as_deref(), self.token_file.as_deref())?;
        self.checked(token, beside)
    }

    /// Judges the settings, with a token that is already at hand.
    ///
    /// # Errors
    /// What is wrong, with the variable and the fix.
    pub fn checked(self, token: Token, beside: Option<&camino::Utf8Path>) -> Result<Config, Error> {
        let said = |text: Option<String>| text.filter(|text| !text.is_empty());
        let gateways: Vec<String> = self.gateway.into_iter().filter(|url| !url.is_empty()).collect();
        for gateway in &gateways {
            check_origin("DROWSE_GATEWAY", gateway)?;
        }
        let endpoint = said(self.endpoint);
        if let Some(endpoint) = &endpoint {
            check_origin("DROWSE_NODE_ENDPOINT", endpoint)?;
        }
        let node_id = said(self.node_id);
        let remote = gateways.iter().find(|url| !is_loopback(url));
        if let (Some(gateway), None) = (remote, &endpoint) {
            return Err(Error::NoEndpoint { gateway: gateway.clone() });
        }
        let named = node_id.as_deref().is_some_and(|id| id != NodeId::DEFAULT);
        if let (Some(gateway), false) = (remote, named) {
            let example = self.region.as_deref().map_or("node-a".to_owned(), |region| format!("{region}-a"));
            return Err(Error::DefaultId { gateway: gateway.clone(), example });
        }
        let given = node_id.unwrap_or_else(|| NodeId::DEFAULT.to_owned());
        let node_id = given.parse().map_err(|source| Error::NodeId { given, source })?;
        if self
            .listen
            .rsplit_once(':')
            .is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err())
        {
            return Err(Error::Listen(self.listen));
        }
        if self.check_in_seconds.is_zero() || self.check_in_seconds > CHECK_IN_MAX {
            return Err(Error::CheckIn(self.check_in_seconds));
        }
        if self.agent_timeout.is_zero() {
            return Err(Error::AgentTimeout);
        }
        let agent = self.agent.or_else(|| beside.map(|dir| dir.join("drowse-agent"))).ok_or(Error::Agent)?;
        Ok(Config {
            token,
            listen: self.listen,
            node_id,
            gateways,
            endpoint,
            region: said(self.region),
            state: self.state,
            run: self.run,
            runtime: self.runtime,
            cgroup_parent: self.cgroup_parent,
            check_in: self.check_in_seconds,
            executor: self.executor,
            templates: self.templates,
            agent,
            limits: self.serve.limits(),
            agent_timeout: self.agent_timeout,
            starts: self.starts.limits(),
            upgrader: self.upgrader.filter(|path| !path.as_str().is_empty()),
            build: beside.map_or_else(|| Ok(Build::unreleased()), Build::beside)?,
        })
    }
}

fn check_origin(variable: &'static str, given: &str) -> Result<(), Error> {
    let refused = |why: String| {
        // What stands before an @ may be a password.
        let given = given.rsplit_once('@').map_or_else(|| given.to_owned(), |(_, host)| format!("…@{host}"));
        Error::Origin { variable, given, why }
    };
    origin(given, &()).map_err(|why| refused(why.to_string()))?;
    if given.starts_with("https:") {
        let why = "wants TLS, which gateway and nodes do not speak to each other yet";
        return Err(refused(why.to_owned()));
    }
    Ok(())
}

/// Whether a URL points at this machine.
fn is_loopback(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let Some(host) = uri.host() else { return false };
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for Config {
    /// Printed once at start; the token shows itself masked.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "id={} listen={} endpoint={} gateways={} region={} state={} run={} executor={:?} runtime={} \
             cgroup_parent={} check_in={:?} templates={} agent={} {} agent_timeout={:?} {} upgrader={} build={} token={:?}",
            self.node_id,
            self.listen,
            self.endpoint.as_deref().unwrap_or("-"),
            if self.gateways.is_empty() { "-".to_owned() } else { self.gateways.join(",") },
            self.region.as_deref().unwrap_or("-"),
            self.state,
            self.run,
            self.executor,
            self.runtime,
            self.cgroup_parent,
            self.check_in,
            self.templates,
            self.agent,
            self.limits,
            self.agent_timeout,
            self.starts,
            self.upgrader.as_deref().map_or("-", |path| path.as_str()),
            self.build,
            self.token,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(flags: &[&str]) -> Result<Config, Error> {
        let args = Args::try_parse_from(["drowse-node"].iter().chain(flags)).expect("flags");
        let token = Token::checked("0123456789abcdef0123456789abcdef", "a test").expect("long enough");
        args.checked(token, Some("/opt/drowse".into()))
    }

    #[test]
    fn a_node_that_could_not_be_told_apart_or_found_is_refused() {
        let cases: &[(&[&str], &str)] = &[
            (&["--gateway", "http://fleet.example", "--id", "a"], "DROWSE_NODE_ENDPOINT is not set"),
            (&["--gateway", "https://fleet.example"], "wants TLS"),
            (&["--endpoint", "https://10.0.0.7"], "wants TLS"),
            (
                &["--gateway", "http://10.0.0.1:4677", "--endpoint", "http://10.0.0.7:4676"],
                "DROWSE_NODE_ID is not set",
            ),
            (
                &["--gateway", "http://10.0.0.1", "--endpoint", "http://a:1", "--id", "node-1"],
                "DROWSE_NODE_ID",
            ),
            (&["--endpoint", "http://10.0.0.7/path"], "DROWSE_NODE_ENDPOINT"),
            (&["--gateway", "10.0.0.7:80"], "DROWSE_GATEWAY"),
            (&["--id", "Node_1"], "DROWSE_NODE_ID"),
            (&["--listen", "4676"], "DROWSE_NODE_LISTEN"),
            (&["--check-in-seconds", "0"], "DROWSE_CHECK_IN_SECONDS"),
            (&["--agent-timeout", "0"], "DROWSE_AGENT_TIMEOUT"),
        ];
        for (flags, says) in cases {
            let error = read(flags).expect_err(says).to_string();
            assert!(error.contains(says), "{flags:?}: {error}");
        }
        let error = read(&["--gateway", "http://me:hunter2@10.0.0.1"]).expect_err("refused").to_string();
        assert!(error.contains("no credentials") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn a_node_of_this_machine_needs_nothing_but_a_token() {
        let config = read(&["--gateway", "http://127.0.0.1:4677,http://[::1]:4677"]).expect("fine");
        assert_eq!(config.gateways.len(), 2);
        assert_eq!(config.node_id.as_str(), "node-1");
        assert_eq!(config.agent, "/opt/drowse/drowse-agent");
        assert!(!config.to_string().contains("0123456789"), "secrets are masked");
        assert_eq!(read(&["--check-in-seconds", "0.2"]).expect("fine").check_in, Duration::from_millis(200));
    }
}
