//! A gateway and its nodes in one process, on loopback.

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Parser, ValueEnum};
use drowse_shared::{
    api::nodes::{ListNodes, NodeList, NodeState},
    seams::Env,
    shutdown::Shutdown,
    telemetry,
    token::Token,
    units,
};
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinSet,
    time::Instant,
};

use crate::{
    client::Client,
    failure::{Exit, Failure, Outcome},
    fleet::{Fleet, chain},
    output::{self, units::count},
};

/// The directory it lives in.
mod home;
/// One node of it.
mod node;

pub(crate) use home::Home;
pub(crate) use node::{bodies, stop_bodies};

/// Nodes of a new fleet.
const NODES: usize = 2;
/// Where a new fleet listens.
const LISTEN: &str = "127.0.0.1:4677";
/// Longest wait until every node takes spaces.
const READY: Duration = Duration::from_secs(30);
/// Signals that come within this after the first one say the same as it.
const SECOND_SIGNAL: Duration = Duration::from_secs(1);
/// Longest wait for the daemons to end.
const END: Duration = Duration::from_secs(20);

/// What runs the bodies of spaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Executor {
    /// OCI containers
    Oci,
    /// Nothing: bodies in memory, for trying out the API
    Fake,
}

impl Executor {
    fn as_str(self) -> &'static str {
        match self {
            Self::Oci => "oci",
            Self::Fake => "fake",
        }
    }
}

/// `drowse up`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Keeps everything in --state DIR (default ./.drowse): token, auth (a header file: curl -H @DIR/auth), \
                  endpoint while it runs, and the state of gateway and nodes. Runs until Ctrl-C or SIGTERM, which ends \
                  the processes of all its spaces; their disks stay in DIR, and the next `drowse up` finds them. \
                  Containers need root, runc, and the base image that deploy/base/build makes."
)]
pub(crate) struct Args {
    /// How many nodes [default: as many as DIR has, 2 in a new one]
    #[arg(long, value_name = "NUMBER")]
    nodes: Option<usize>,
    /// What runs the spaces [default: as DIR says, oci in a new one]
    #[arg(long, value_enum)]
    executor: Option<Executor>,
    /// Where the gateway listens [default: as DIR says, 127.0.0.1:4677 in a new one]
    #[arg(long, env = "DROWSE_GATEWAY_LISTEN", value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Domain under which spaces have hosts: PORT-ID.DOMAIN and NAME.DOMAIN
    #[arg(long, env = "DROWSE_DOMAIN", default_value = "localhost", value_name = "DOMAIN")]
    domain: String,
    /// Seconds between check-ins of the nodes
    #[arg(long, env = "DROWSE_CHECK_IN_SECONDS", default_value = "1", value_name = "SECONDS", value_parser = units::duration)]
    check_in_seconds: Duration,
    /// What is logged on standard error
    #[arg(long, env = "DROWSE_LOG", default_value = "warn", value_name = "FILTER")]
    log: String,
}

/// Signals that tell it to end. Held from the start, so that none is lost between two waits.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Outcome<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// The next one.
    async fn next(&mut self) {
        drowse_shared::select_biased! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// One that is meant as a second one: a terminal and a script may both pass on the first.
    async fn again(&mut self) {
        tokio::time::sleep(SECOND_SIGNAL).await;
        while self.next().now_or_never().is_some() {}
        self.next().await;
    }
}

/// A daemon that ended, and how.
type Ended = (String, Result<(), String>);

/// Runs a whole fleet until a signal comes.
pub(crate) async fn run(args: Args, state: Option<Utf8PathBuf>) -> Outcome<Exit> {
    drowse_shared::limits::raise_open_files();
    telemetry::init(&telemetry::Config { log_format: telemetry::Format::Plain, log: args.log.clone() });
    let env = Env::real();
    let mut signals = Signals::new()?;
    let fresh = || {
        home::Layout::new(
            args.executor.unwrap_or(Executor::Oci),
            args.listen.clone().unwrap_or_else(|| LISTEN.to_owned()),
        )
    };
    let mut home = Home::take(state, fresh)?;
    node::able(&home)?;
    home.withdraw();
    settle(&mut home, &args, &env).await?;
    let token = home.token(&env)?;

    let shutdown = Shutdown::new();
    let mut daemons: JoinSet<Ended> = JoinSet::new();
    let mut bodies = Vec::new();
    gateway(&home, &args.domain, &token, &env, &shutdown, &mut daemons)?;
    let endpoint = format!("http://{}", home.layout.listen);
    for (id, port) in home.layout.node_ids() {
        let settings = node::Settings { id: &id, port, gateway: &endpoint, check_in: args.check_in_seconds };
        match node::start(&settings, &home, token.clone(), &env, &shutdown, &mut daemons) {
            Ok(body) => bodies.push(body),
            Err(failure) => {
                end(&shutdown, &mut daemons, &bodies).await;
                return Err(failure);
            }
        }
    }

    let client = Client::new(Fleet { endpoint: endpoint.clone(), token })?;
    let watched = drowse_shared::select_biased! {
        () = signals.next() => Ok(Exit::INTERRUPTED),
        ended = daemons.join_next() => Err(early(ended)),
        ready = ready(&client, home.layout.node_ports.len()) => ready.map(|()| Exit::OK),
    };
    let watched = match watched {
        Ok(Exit::OK) => home.founded().map(|()| Exit::OK),
        other => other,
    };
    let outcome = match watched {
        Ok(Exit::OK) => serve(&home, &endpoint, &mut daemons, &mut signals).await,
        other => other,
    };
    home.withdraw();
    let stopping = end(&shutdown, &mut daemons, &bodies);
    let left = drowse_shared::select_biased! {
        left = stopping => left,
        () = signals.again() => {
            eprintln!("drowse: ended at once; `drowse down --state {}` clears what is left", home.shown());
            return Ok(Exit::INTERRUPTED);
        }
    };
    // A fleet that was told to stop and left nothing did what it should.
    let exit = outcome?;
    if !left.is_empty() {
        return Err(Failure::new("not everything could be stopped").hint(format!(
            "{}\n`drowse down --state {}` tries again.",
            left.join("\n"),
            home.shown()
        )));
    }
    Ok(if exit == Exit::INTERRUPTED { Exit::OK } else { exit })
}

/// Says where the fleet is and waits for its end.
async fn serve(
    home: &Home,
    endpoint: &str,
    daemons: &mut JoinSet<Ended>,
    signals: &mut Signals,
) -> Outcome<Exit> {
    home.announce(endpoint)?;
    let nodes = count(home.layout.node_ports.len(), "node");
    output::line(&format!("  fleet         gateway {endpoint}, {nodes}, state in {}", home.shown()))?;
    output::line("Ctrl-C stops it. Spaces stay where they are.")?;
    drowse_shared::select_biased! {
        () = signals.next() => Ok(Exit::INTERRUPTED),
        ended = daemons.join_next() => Err(early(ended)),
    }
}

/// Brings what is asked and what the directory says together, and finds free ports.
async fn settle(home: &mut Home, args: &Args, env: &Env) -> Outcome<()> {
    let shown = home.shown().to_owned();
    let layout = &mut home.layout;
    if let Some(executor) = args.executor.filter(|executor| *executor != layout.executor) {
        return Err(Failure::new(format!(
            "{shown} holds a fleet of --executor {}, not {}; name another directory with --state",
            layout.executor.as_str(),
            executor.as_str()
        )));
    }
    let kept = layout.node_ports.len();
    let wanted = args.nodes.unwrap_or(if kept == 0 { NODES } else { kept });
    if wanted == 0 || wanted > 16 {
        return Err(Failure::usage("--nodes is 1 to 16"));
    }
    if wanted < kept {
        return Err(Failure::new(format!("{shown} has {}, and each may hold spaces", count(kept, "node")))
            .hint(format!("Start with --nodes {kept}, or name another directory with --state.")));
    }
    if let Some(listen) = &args.listen {
        layout.listen.clone_from(listen);
    }
    let taken = env.net.bind(&layout.listen).await.map(|listener| listener.local());
    layout.listen = taken.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            Failure::new(format!("{} is in use by another program", layout.listen))
                .hint("Choose another address with --listen, for example --listen 127.0.0.1:4688")
        }
        _ => Failure::new(format!("{} cannot be listened on: {error}", layout.listen)),
    })?;
    layout.node_ports.resize(wanted, 0);
    for port in &mut layout.node_ports {
        // A port that another program took meanwhile is given up.
        for candidate in [*port, 0] {
            if let Ok(listener) = env.net.bind(&format!("127.0.0.1:{candidate}")).await {
                let bound = listener.local();
                *port = bound.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0);
                break;
            }
        }
    }
    home.save()
}

fn gateway(
    home: &Home,
    domain: &str,
    token: &Token,
    env: &Env,
    shutdown: &Shutdown,
    daemons: &mut JoinSet<Ended>,
) -> Outcome<()> {
    let state = home.gateway();
    fs_err::create_dir_all(&state)?;
    let mut flags = vec!["drowse-gateway", "--listen", &home.layout.listen, "--state", state.as_str()];
    // On one machine there is nowhere else to go while its processors are busy.
    flags.extend(["--cpu-percent-max", "100", "--domain", domain]);
    if !home.layout.founded {
        flags.push("--new-fleet");
    }
    let args = drowse_gateway::config::Args::try_parse_from(flags)
        .map_err(|error| Failure::new(first_line(&error.to_string())))?;
    let config =
        drowse_gateway::Config::checked(args, token.clone()).map_err(|error| Failure::new(chain(&error)))?;
    let parts = drowse_gateway::Parts::open(env, &config).map_err(|error| Failure::new(chain(&error)))?;
    let (env, shutdown) = (env.clone(), shutdown.clone());
    daemons.spawn(async move {
        let ended = drowse_gateway::run(env, config, parts, shutdown).await;
        ("the gateway".to_owned(), ended.map_err(|error| chain(&error)))
    });
    Ok(())
}

/// A message of clap without its decoration.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// A daemon ended without being told to.
fn early(ended: Option<Result<Ended, tokio::task::JoinError>>) -> Failure {
    match ended {
        Some(Ok((who, Err(why)))) => Failure::new(format!("{who} failed: {why}")),
        Some(Ok((who, Ok(())))) => Failure::new(format!("{who} ended by itself")),
        Some(Err(error)) => Failure::new(format!("a daemon broke down: {error}")),
        None => Failure::new("no daemon runs"),
    }
}

/// Waits until every node takes spaces. One that refuses for another reason than being new is said, not waited for.
async fn ready(client: &Client, nodes: usize) -> Outcome<()> {
    let until = Instant::now() + READY;
    let mut last = String::new();
    while Instant::now() < until {
        match client.call::<NodeList>("listNodes", &ListNodes {}).await {
            Ok(list) => {
                let live = list.nodes.iter().filter(|node| node.state == NodeState::Live).count();
                let refusing: Vec<String> = list
                    .nodes
                    .iter()
                    .filter_map(|node| node.refuses.as_ref().map(|why| format!("{}: {why}", node.id)))
                    .collect();
                if live >= nodes && refusing.is_empty() {
                    return Ok(());
                }
                last = if refusing.is_empty() {
                    format!("{live} of {nodes} nodes are live")
                } else {
                    refusing.join("; ")
                };
            }
            Err(failure) => last = failure.sentence().to_owned(),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eprintln!("warning: not every node takes new spaces yet: {last}");
    Ok(())
}

/// Ends the daemons, then every process of every space. Answers what is left.
async fn end(shutdown: &Shutdown, daemons: &mut JoinSet<Ended>, bodies: &[node::Bodies]) -> Vec<String> {
    shutdown.stop();
    let all = async { while daemons.join_next().await.is_some() {} };
    let mut left = Vec::new();
    if tokio::time::timeout(END, all).await.is_err() {
        left.push(format!("a daemon did not end within {} s", END.as_secs()));
    }
    daemons.abort_all();
    for body in bodies {
        left.extend(stop_bodies(body).await.1);
    }
    left
}

/// Whether this process may do what containers need.
pub(crate) fn is_root() -> bool {
    fs_err::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0)
}

/// The directory of this program, where the agent lies.
pub(crate) fn beside() -> Option<Utf8PathBuf> {
    let program = std::env::current_exe().ok()?.canonicalize().ok()?;
    Utf8Path::from_path(program.parent()?).map(Utf8Path::to_owned)
}
