//! What a shell offers when a person presses Tab.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::{
    args,
    failure::{Exit, Outcome},
    output,
};

/// `drowse completions`
#[derive(Debug, clap::Args)]
#[command(after_help = "bash: drowse completions bash > /etc/bash_completion.d/drowse\n\
                        zsh:  drowse completions zsh > \"${fpath[1]}/_drowse\"\n\
                        fish: drowse completions fish > ~/.config/fish/completions/drowse.fish")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(args: &Args) -> Outcome<Exit> {
    let mut script = Vec::new();
    generate(args.shell, &mut args::Args::command(), "drowse", &mut script);
    output::bytes(&script)?;
    Ok(Exit::OK)
}
