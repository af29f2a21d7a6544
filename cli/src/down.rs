use camino::Utf8PathBuf;
use drowse_shared::seams::Env;

use crate::{
    failure::{Exit, Failure, Outcome},
    fleet::DEFAULT_STATE,
    output::{self, units::count},
    up::{Home, bodies, stop_bodies},
};

/// Ends what a killed fleet left running. Disks and ledgers are not touched.
pub(crate) async fn run(state: Option<Utf8PathBuf>) -> Outcome<Exit> {
    let shown = state.clone().unwrap_or_else(|| Utf8PathBuf::from(DEFAULT_STATE));
    let Some(home) = Home::existing(state)? else {
        return Err(Failure::new(format!("{shown} holds no fleet that `drowse up` started")));
    };
    home.withdraw();
    let env = Env::real();
    let token = home.token(&env)?;
    let mut ended = 0;
    let mut left = Vec::new();
    for (id, port) in home.layout.node_ids() {
        let Some(bodies) = bodies(&id, port, &home, token.clone(), &env).await? else { continue };
        let (some, failed) = stop_bodies(&bodies).await;
        ended += some - failed.len().min(some);
        left.extend(failed);
    }
    if !left.is_empty() {
        return Err(Failure::new(format!("{} could not be stopped", count(left.len(), "space")))
            .hint(left.join("\n")));
    }
    output::line(&format!("{} stopped; disks and ledgers stay in {shown}", count(ended, "space")))?;
    Ok(Exit::OK)
}
