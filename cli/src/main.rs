//! `drowse`: for users and operators of a fleet, and a whole fleet in one process.

use std::process::ExitCode;

use clap::Parser;

/// The command line: every command, its help, and where it leads.
mod args;
/// Talks to a fleet over the native API.
mod client;
/// Completions for shells.
mod completions;
/// What the README's first minute shows.
mod demo;
/// What a machine lacks.
mod doctor;
/// Domains: bind, list, unbind.
mod domain;
/// Clears what a killed fleet left on this machine.
mod down;
/// Why a command failed, and what would help.
mod failure;
/// Finds the fleet a command is meant for, and its token.
mod fleet;
/// Answers that come line by line.
mod lines;
/// Nodes: list, remove, readmit.
mod node;
/// Tables, units and JSON.
mod output;
/// Spaces: acquire, run in, copy to and from, list, put to sleep, wake, destroy.
mod space;
/// A gateway and its nodes in one process.
mod up;
/// Rolling the fleet to another build.
mod upgrade;

use failure::{Exit, Failure};

fn main() -> ExitCode {
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version are asked for and come on standard output; anything else is wrong usage.
            let code = if error.use_stderr() { Exit::USAGE } else { Exit::OK };
            let _ = error.print();
            return code.into();
        }
    };
    // The only provider that is compiled in, so a second installation cannot differ from the first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let json = args.json;
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::new(format!("no threads can be started: {error}")).report(json).into(),
    };
    let exit = runtime.block_on(args::run(args)).unwrap_or_else(|failure| failure.report(json));
    // A thread may still wait for standard input; it must not hold the process.
    runtime.shutdown_background();
    exit.into()
}
