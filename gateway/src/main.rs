//! `drowse-gateway`: arguments, configuration, logs, run, exit code.

use std::process::ExitCode;

use camino::{Utf8Path, Utf8PathBuf};
use clap::Parser as _;
use drowse_gateway::{Budget, Config, Parts, config::Args, run};
use drowse_shared::{
    limits::{open_files, raise_open_files},
    seams::{Env, inherited},
    shutdown::{Shutdown, signalled},
    supervisor::{Given, Supervisor},
    telemetry,
};

/// A request passes through many small allocations, and the system's allocator took a quarter of the processor time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Bad usage: a setting that cannot be read.
const USAGE: u8 = 64;

#[tokio::main]
async fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version come this way too.
            let code = if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
            let _ = error.print();
            return code;
        }
    };
    if args.schema {
        return match drowse_gateway::schema() {
            Ok(version) => {
                println!("{version}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("error: {:#}", anyhow::Error::new(error));
                ExitCode::FAILURE
            }
        };
    }
    let here = std::env::current_exe().ok().and_then(|exe| Utf8PathBuf::from_path_buf(exe).ok());
    let config = match Config::read(args, here.as_deref().and_then(Utf8Path::parent)) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("error: {:#}", anyhow::Error::new(error));
            return ExitCode::from(USAGE);
        }
    };
    telemetry::init(&config.log);
    match start(config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn start(mut config: Config) -> anyhow::Result<()> {
    raise_open_files();
    config.budget = Budget::of(open_files());
    config.limits = config.limits.within(config.budget.connections);
    // Whoever is at an app needs no token: half of the connections stay for those who show one.
    config.budget.apps = config.budget.apps.min((config.limits.connections_max / 2).max(1));
    let patience = config.limits.peer_timeout;
    let mut env = Env::with_patience(patience);
    tracing::info!("{config}");
    let given = Given::read();
    if let Some(socket) = inherited(given.sockets)? {
        env = env.inheriting(socket, patience);
    }
    let mut parts = Parts::open(&env, &config)?;
    parts.supervisor = Supervisor::of(&given);
    let shutdown = Shutdown::new();
    let signal = shutdown.clone();
    env.spawn("signals", async move {
        signalled().await;
        signal.stop();
    });
    Ok(run(env, config, parts, shutdown).await?)
}
