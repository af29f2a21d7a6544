use drowse_shared::{
    api::spaces::{Destroyed, OneSpace, WAIT_SECONDS},
    name::SpaceRef,
};
use tokio::time::Duration;

use super::nearest;
use crate::{
    args::Context,
    failure::{Exit, Failure, Outcome},
    output::{self, units::count},
};

/// `drowse space rm`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Asks first on a terminal. What is destroyed is gone for good; what is not there is no failure."
)]
pub(crate) struct Args {
    /// The spaces, by name or id
    #[arg(required = true, value_name = "NAME")]
    names: Vec<SpaceRef>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

/// Destroys.
pub(super) async fn run(args: Args, context: &Context) -> Outcome<Exit> {
    if !args.yes && !output::confirmed(&question(&args.names)).await? {
        return Err(Failure::new("nothing was destroyed"));
    }
    for name in &args.names {
        let request = OneSpace { name: name.clone() };
        let answer =
            context.client.answer("destroySpace", &request, Duration::from_secs(WAIT_SECONDS)).await?;
        if context.json {
            output::json(&answer.body)?;
            continue;
        }
        let Destroyed { destroyed } = answer.read()?;
        if destroyed {
            output::line(&format!("{name}  destroyed"))?;
        } else {
            let names = nearest::names(&context.client).await;
            let wanted = name.to_string();
            eprintln!("note: {}", nearest::sentence(&wanted, &nearest::closest(&wanted, &names), false));
        }
    }
    Ok(Exit::OK)
}

fn question(names: &[SpaceRef]) -> String {
    let shown: Vec<String> = names.iter().map(ToString::to_string).collect();
    let what = if names.len() == 1 {
        shown.concat()
    } else {
        format!("{} ({})", count(names.len(), "space"), shown.join(", "))
    };
    format!("Destroy {what} and everything inside, for good?")
}
