//! Spaces, one file per event.

use clap::Subcommand;
use drowse_shared::name::SpaceRef;

use crate::{
    args::Context,
    failure::{Exit, Outcome},
};

mod acquire;
mod cp;
mod events;
mod exec;
mod ls;
mod nearest;
mod policy;
mod rm;
mod shell;
mod show;
mod sleep;
mod watch;

/// What can be done with spaces.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Get the space of this name, made now or long ago, in whatever state it was
    Acquire(acquire::Args),
    /// Run a command inside; standard input and output and the exit code pass through
    Exec(exec::Args),
    /// Open a terminal inside; Ctrl-] leaves it
    Shell(shell::Args),
    /// Copy files and directories to or from a space
    Cp(cp::Args),
    /// Print what changes in a directory, as it does
    Watch(watch::Args),
    /// List spaces. Looking never wakes one
    Ls(ls::Args),
    /// Show one space. Looking never wakes it
    Show(One),
    /// Show why a space woke, slept or ended, the newest first. Looking never wakes it
    Events(events::Args),
    /// Suspend the processes of spaces
    Freeze(Several),
    /// End the processes of spaces; their disks stay
    Stop(Several),
    /// Make spaces active
    Wake(Several),
    /// Change when a space sleeps, and who reaches and wakes it by its hosts
    Policy(policy::Args),
    /// Destroy spaces and everything in them
    Rm(rm::Args),
}

/// One space.
#[derive(Debug, clap::Args)]
pub(crate) struct One {
    /// The space, by name or id
    name: SpaceRef,
}

/// One or more spaces.
#[derive(Debug, clap::Args)]
pub(crate) struct Several {
    /// The spaces, by name or id
    #[arg(required = true, value_name = "NAME")]
    names: Vec<SpaceRef>,
}

/// Does it.
pub(crate) async fn run(command: Command, context: &Context) -> Outcome<Exit> {
    match command {
        Command::Acquire(args) => acquire::run(args, context).await,
        Command::Exec(args) => exec::run(args, context).await,
        Command::Shell(args) => shell::run(args, context).await,
        Command::Cp(args) => cp::run(args, context).await,
        Command::Watch(args) => watch::run(args, context).await,
        Command::Ls(args) => ls::run(args, context).await,
        Command::Show(one) => show::run(&one.name, context).await,
        Command::Events(args) => events::run(args, context).await,
        Command::Freeze(several) => sleep::run("freezeSpace", &several.names, context).await,
        Command::Stop(several) => sleep::run("stopSpace", &several.names, context).await,
        Command::Wake(several) => sleep::run("wakeSpace", &several.names, context).await,
        Command::Policy(args) => policy::run(args, context).await,
        Command::Rm(args) => rm::run(args, context).await,
    }
}
