use drowse_shared::{
    api::spaces::{OneSpace, Resumed, SpaceAnswer, WAIT_SECONDS},
    name::SpaceRef,
};
use tokio::time::{Duration, Instant};

use crate::{
    args::Context,
    failure::{Exit, Failure, Outcome},
    output::{self, units::took},
};

/// Sends a verb that needs nothing but the space, to one space after another. The first failure ends it.
pub(super) async fn run(verb: &str, names: &[SpaceRef], context: &Context) -> Outcome<Exit> {
    for name in names {
        let started = Instant::now();
        let request = OneSpace { name: name.clone() };
        let answer = match context.client.answer(verb, &request, Duration::from_secs(WAIT_SECONDS)).await {
            Ok(answer) => answer,
            Err(failure) => {
                let failure: Failure = super::nearest::named(failure, name, &context.client).await;
                return Err(failure);
            }
        };
        if context.json {
            output::json(&answer.body)?;
            continue;
        }
        let after: SpaceAnswer = answer.read()?;
        let how = match after.resumed {
            Some(Resumed::Thawed) => "thawed",
            Some(Resumed::Restarted) => "restarted",
            Some(Resumed::Restored) => "restored",
            None => after.space.state.as_str(),
        };
        output::line(&format!("{}  {how}  {}", after.space.name, took(started.elapsed())))?;
    }
    Ok(Exit::OK)
}
