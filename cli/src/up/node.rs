use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use camino::Utf8Path;
use clap::Parser;
use drowse_node::{
    Config, Parts,
    config::{Args, Runs},
    executor::{
        self, Vitality,
        fake::{self, Fake},
        oci::Oci,
    },
    ledger::Database,
    milestone::unwatched,
    reading,
    service::oci_config,
};
use drowse_shared::{id::LedgerId, seams::Env, shutdown::Shutdown, supervisor::Supervisor, token::Token};
use serde::Deserialize;
use tokio::task::JoinSet;

use super::{Ended, Executor, Home, beside, first_line, is_root};
use crate::{
    failure::{Failure, Outcome},
    fleet::chain,
};

/// How long a space's processes may take to end by themselves.
const GRACE: Duration = Duration::from_secs(2);
/// Longest wait for the end of one space, its grace included.
const STOP: Duration = Duration::from_secs(20);

/// What one node is told.
pub(super) struct Settings<'a> {
    pub(super) id: &'a str,
    pub(super) port: u16,
    pub(super) gateway: &'a str,
    pub(super) check_in: Duration,
}

/// The bodies of one node: what ends them once its daemon has ended.
pub(crate) struct Bodies {
    node: String,
    opened: Arc<Mutex<Option<Opened>>>,
}

/// What bodies run on.
#[derive(Clone)]
enum Opened {
    Oci(Oci),
    Fake(Arc<Fake>),
}

impl Opened {
    fn executor(&self) -> Arc<dyn executor::Executor> {
        match self {
            Self::Oci(oci) => Arc::new(oci.clone()),
            Self::Fake(fake) => fake.clone(),
        }
    }
}

/// Starts one node.
pub(super) fn start(
    settings: &Settings<'_>,
    home: &Home,
    token: Token,
    env: &Env,
    shutdown: &Shutdown,
    daemons: &mut JoinSet<Ended>,
) -> Outcome<Bodies> {
    let config = configure(settings, home, token)?;
    fs_err::create_dir_all(&config.state)?;
    let meter = reading::Machine::new(config.state.clone())
        .map_err(|error| Failure::new(format!("this machine cannot be measured: {}", chain(&error))))?;
    let opened = Arc::new(Mutex::new(None));
    let keep = opened.clone();
    let (config_of, env_of) = (config.clone(), env.clone());
    let parts = Parts {
        database: Database::File,
        executor: Box::new(move |ledger_id| {
            Box::pin(async move {
                let opened = open(&env_of, &config_of, ledger_id).await?;
                let executor = opened.executor();
                *keep.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened);
                Ok(executor)
            })
        }),
        meter: Arc::new(meter),
        milestones: unwatched(),
        supervisor: Supervisor::default(),
    };
    let (env, shutdown, id) = (env.clone(), shutdown.clone(), settings.id.to_owned());
    daemons.spawn(async move {
        let ended = drowse_node::run(env, config, parts, shutdown).await;
        (id, ended.map_err(|error| chain(&error)))
    });
    Ok(Bodies { node: settings.id.to_owned(), opened })
}

/// The settings of a node: what is here decides where it is, the environment may set the rest.
fn configure(settings: &Settings<'_>, home: &Home, token: Token) -> Outcome<Config> {
    let state = home.node(settings.id);
    let address = format!("127.0.0.1:{}", settings.port);
    let endpoint = format!("http://{address}");
    let check_in = settings.check_in.as_secs_f64().to_string();
    let flags = [
        ("--id", settings.id),
        ("--listen", &address),
        ("--endpoint", &endpoint),
        ("--gateway", settings.gateway),
        ("--state", state.as_str()),
        ("--check-in-seconds", &check_in),
        ("--executor", home.layout.executor.as_str()),
    ];
    let words = ["drowse-node"].into_iter().chain(flags.iter().flat_map(|(flag, value)| [*flag, *value]));
    let args = Args::try_parse_from(words).map_err(|error| Failure::new(first_line(&error.to_string())))?;
    args.checked(token, beside().as_deref()).map_err(|error| Failure::new(chain(&error)))
}

/// Opens what a node's bodies run on.
async fn open(env: &Env, config: &Config, ledger_id: LedgerId) -> Result<Opened, executor::oci::OpenError> {
    if config.executor == Runs::Fake {
        return Ok(Opened::Fake(Fake::new(env, fake::Machine::default())));
    }
    let settings = oci_config(config.clone(), ledger_id, unwatched());
    Ok(Opened::Oci(Oci::open(env.clone(), settings).await?))
}

/// Refuses early what would fail at the first space.
pub(super) fn able(home: &Home) -> Outcome<()> {
    if home.layout.executor == Executor::Oci && !is_root() {
        return Err(Failure::new("containers need root on this machine").hint(
            "Run it as root; `drowse up --executor fake` needs no rights and keeps bodies in memory.",
        ));
    }
    Ok(())
}

/// The bodies of a node whose daemon does not run. `None` when it never had any.
pub(crate) async fn bodies(
    id: &str,
    port: u16,
    home: &Home,
    token: Token,
    env: &Env,
) -> Outcome<Option<Bodies>> {
    let settings = Settings { id, port, gateway: "http://127.0.0.1:1", check_in: Duration::from_secs(1) };
    let config = configure(&settings, home, token)?;
    let Some(ledger_id) = ledger_id(&config.state)? else { return Ok(None) };
    let opened = open(env, &config, ledger_id)
        .await
        .map_err(|error| Failure::new(format!("{id}: {}", chain(&error))))?;
    Ok(Some(Bodies { node: id.to_owned(), opened: Arc::new(Mutex::new(Some(opened))) }))
}

/// Whose bodies lie there.
fn ledger_id(state: &Utf8Path) -> Outcome<Option<LedgerId>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Identity {
        ledger_id: LedgerId,
    }
    let file = state.join("node.json");
    if !file.exists() {
        return Ok(None);
    }
    let text = fs_err::read_to_string(&file)?;
    let identity: Identity = serde_json::from_str(&text)
        .map_err(|error| Failure::new(format!("{file} cannot be read: {error}")))?;
    Ok(Some(identity.ledger_id))
}

/// Ends every process of every space of a node, several at a time. Answers how many there were, and what could not be
/// ended.
pub(crate) async fn stop_bodies(bodies: &Bodies) -> (usize, Vec<String>) {
    let opened = bodies.opened.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let Some(opened) = opened else { return (0, Vec::new()) };
    let executor = opened.executor();
    let found = match executor.list().await {
        Ok(found) => found,
        Err(error) => return (0, vec![format!("{}: {}", bodies.node, chain(&error))]),
    };
    let mut ending = JoinSet::new();
    for body in found.into_iter().filter(|body| body.vitality != Vitality::Stopped) {
        let executor = executor.clone();
        ending.spawn(async move {
            let named = body.card.map_or_else(|| body.id.to_string(), |card| card.name.to_string());
            match tokio::time::timeout(STOP, executor.stop(body.id, GRACE)).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(format!("{named}: {}", chain(&error))),
                Err(_) => Some(format!("{named}: did not end within {} s", STOP.as_secs())),
            }
        });
    }
    let ended = ending.join_all().await;
    let (count, mut left): (usize, Vec<String>) = (ended.len(), ended.into_iter().flatten().collect());
    if let (Opened::Oci(oci), true) = (&opened, left.is_empty()) {
        match oci.leave().await {
            Ok(true) => {}
            Ok(false) => left.push(format!("{}: some bodies are still there", bodies.node)),
            Err(error) => left.push(format!("{}: {}", bodies.node, chain(&error))),
        }
    }
    (count, left)
}
