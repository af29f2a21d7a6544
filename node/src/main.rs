//! `drowse-node`: arguments, settings, logs, run, exit code.

use std::process::ExitCode;

use anyhow::Context;
use camino::Utf8PathBuf;
use clap::Parser as _;
use drowse_node::{
    Config, Parts, adopt,
    config::{Args, Command},
    run,
};
use drowse_shared::{
    limits::{open_files, raise_open_files},
    seams::Env,
    shutdown::{Shutdown, signalled},
    supervisor::{Given, Supervisor},
    telemetry,
};

/// Files that are no connections of clients: database, logs, listeners, programs.
const RESERVED_FILES: u64 = 256;
/// Most files for one connection of a client: itself and those of an agent; and beside it a tunnel to an app, with two.
const FILES_PER_CONNECTION: u64 = 6;

/// Bad usage: a setting that cannot be read.
const USAGE: u8 = 64;

fn main() -> ExitCode {
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
        return match drowse_node::ledger::schema() {
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
    telemetry::init(&args.telemetry);
    if let Some(Command::Adopt(args)) = args.command {
        return match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(adopt::command::run(args)),
            Err(error) => {
                eprintln!("error: starting the runtime: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let here = std::env::current_exe().ok().and_then(|exe| Utf8PathBuf::from_path_buf(exe).ok());
    let config = match args.check(here.as_deref().and_then(camino::Utf8Path::parent)) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("error: {:#}", anyhow::Error::new(error));
            return ExitCode::from(USAGE);
        }
    };
    match start(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(mut config: Config) -> anyhow::Result<()> {
    raise_open_files();
    let connections = open_files().saturating_sub(RESERVED_FILES) / FILES_PER_CONNECTION;
    config.limits = config.limits.within(usize::try_from(connections).unwrap_or(usize::MAX));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
    let ended = runtime.block_on(async {
        tracing::info!("{config}");
        let env = Env::with_patience(config.limits.peer_timeout);
        let mut parts = Parts::open(&env, &config)?;
        parts.supervisor = Supervisor::of(&Given::read());
        let shutdown = Shutdown::new();
        let signal = shutdown.clone();
        env.spawn("signals", async move {
            signalled().await;
            signal.stop();
        });
        Ok(run(env, config, parts, shutdown).await?)
    });
    // A wedged runtime call may hold a thread: nobody waits for it.
    runtime.shutdown_background();
    ended
}
