use camino::Utf8PathBuf;
use clap::{Parser, Subcommand};

use crate::{
    client::Client,
    completions, demo, doctor, domain, down,
    failure::{Exit, Outcome},
    fleet, node, space, up, upgrade,
};

/// Named, permanent Linux spaces that cost next to nothing while nobody uses them
#[derive(Debug, Parser)]
#[command(
    name = "drowse",
    version,
    propagate_version = true,
    after_help = "The fleet a command talks to is found by --state DIR, else by DROWSE_ENDPOINT with DROWSE_TOKEN or \
                  DROWSE_TOKEN_FILE, else in ./.drowse, else in /etc/drowse, where install.sh leaves it. A token is never an argument.\n\n\
                  Exit codes: 0 done, 1 failed (the error says why), 64 wrong usage, 130 interrupted; \
                  `drowse space exec --help` lists those of exec."
)]
pub(crate) struct Args {
    /// Print what the fleet answered as JSON, and errors as one line of JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// The directory of a fleet that `drowse up` started
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) state: Option<Utf8PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a whole fleet on this machine: a gateway and nodes in one process, until Ctrl-C
    Up(up::Args),
    /// Clear what a killed `drowse up` left running; disks and ledgers stay
    Down,
    /// Use spaces
    #[command(subcommand)]
    Space(space::Command),
    /// Look after nodes
    #[command(subcommand)]
    Node(node::Command),
    /// Look after the fleet as a whole
    #[command(subcommand)]
    Fleet(upgrade::Command),
    /// Have domains of your own lead to spaces
    #[command(subcommand)]
    Domain(domain::Command),
    /// Look at this machine: what it lacks for a fleet, and what mends it
    Doctor(doctor::Args),
    /// Print what a shell needs to complete commands, flags and their values
    Completions(completions::Args),
    /// Show acquire, exec, freeze and wake with their times
    #[command(hide = true)]
    Demo(demo::Args),
}

/// What every client command is given.
pub(crate) struct Context {
    /// The fleet.
    pub(crate) client: Client,
    /// Whether a program reads the answer.
    pub(crate) json: bool,
}

/// Runs the command. A signal drops what it was doing, which ends it on the fleet's side as well.
pub(crate) async fn run(args: Args) -> Outcome<Exit> {
    let Args { json, state, command } = args;
    match command {
        Command::Up(up) => return up::run(up, state).await,
        Command::Down => return down::run(state).await,
        Command::Completions(args) => return completions::run(&args),
        Command::Doctor(args) => return doctor::run(args, state.as_deref(), json).await,
        _ => {}
    }
    let context = Context { client: Client::new(fleet::find(state.as_deref())?)?, json };
    let work = async {
        match command {
            Command::Space(command) => space::run(command, &context).await,
            Command::Node(command) => node::run(command, &context).await,
            Command::Domain(command) => domain::run(command, &context).await,
            Command::Fleet(command) => upgrade::run(command, &context).await,
            Command::Demo(args) => demo::run(&args, &context).await,
            Command::Up(_) | Command::Down | Command::Completions(_) | Command::Doctor(_) => Ok(Exit::OK),
        }
    };
    drowse_shared::select_biased! {
        outcome = work => outcome,
        () = drowse_shared::shutdown::signalled() => Ok(Exit::INTERRUPTED),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn no_flag_takes_a_token() {
        fn walk(command: &clap::Command) {
            for arg in command.get_arguments() {
                let id = arg.get_id().as_str();
                // A file that holds one may be named.
                let holds = arg.get_action().takes_values() && !id.ends_with("_file");
                let secret = id.contains("token") || id.contains("secret");
                assert!(!(holds && secret), "--{id} of {}", command.get_name());
            }
            command.get_subcommands().for_each(walk);
        }
        walk(&Args::command());
    }
}
