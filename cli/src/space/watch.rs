use drowse_shared::{
    api::watch::{Change, FileChange, WatchEvent, WatchFiles, WatchOverflow},
    name::SpaceRef,
};

use crate::{
    args::Context,
    failure::{Exit, Failure, Outcome},
    lines::Lines,
    output,
};

/// `drowse space watch`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each line is what happened (create, write, remove, rename, chmod), a tab, and the path below the directory. \
                  A moved name is a rename of the old one and a create of the new one. \
                  Once it watches it says so on standard error; with --json it prints what the fleet says, first `started`. \
                  Ends with 1 when more happened than could be told: watch anew, then list the directory."
)]
pub(crate) struct Args {
    /// The space, by name or id
    name: SpaceRef,
    /// The directory [default: the user's home]
    path: Option<String>,
    /// Also in all directories below
    #[arg(long, short)]
    recursive: bool,
    /// Whose rights apply [default: user]
    #[arg(long, short)]
    user: Option<String>,
}

/// Prints what changes until it is interrupted.
pub(super) async fn run(args: Args, context: &Context) -> Outcome<Exit> {
    let request =
        WatchFiles { name: args.name.clone(), path: args.path, recursive: args.recursive, user: args.user };
    let lines = Lines::of(&context.client, "watchFiles", &request).await;
    let mut lines = match lines {
        Ok(lines) => lines,
        Err(failure) => return Err(super::nearest::named(failure, &args.name, &context.client).await),
    };
    loop {
        let event = lines.next::<WatchEvent>().await?.ok_or_else(|| Failure::new("the watch was cut"))?;
        let text = match event {
            WatchEvent::Started(_) | WatchEvent::Changed(_) if context.json => {
                serde_json::to_string(&event).unwrap_or_default()
            }
            WatchEvent::Started(_) => {
                eprintln!("drowse: watching; Ctrl-C ends it");
                continue;
            }
            WatchEvent::Alive {} => continue,
            WatchEvent::Changed(FileChange { change, path, .. }) => {
                format!("{}\t{}", word(change), output::plain(&path))
            }
            WatchEvent::Overflow(WatchOverflow { message }) => return Err(Failure::new(message)),
            WatchEvent::Failed(error) => return Err(Failure::answered(error)),
        };
        if !output::page(&format!("{text}\n"))? {
            // Nobody reads any more.
            return Ok(Exit::OK);
        }
    }
}

fn word(change: Change) -> &'static str {
    match change {
        Change::Create => "create",
        Change::Write => "write",
        Change::Remove => "remove",
        Change::Rename => "rename",
        Change::Chmod => "chmod",
    }
}
