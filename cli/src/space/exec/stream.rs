use std::io::Write;

use drowse_shared::api::exec::{ExecCommand, ExecEnded, ExecEvent};

use super::decoded;
use crate::{
    args::Context,
    failure::{Failure, Outcome},
    lines::Lines,
    output,
};

/// Runs the command and passes on what it says, as it says it.
pub(super) async fn run(request: &ExecCommand, context: &Context) -> Outcome<ExecEnded> {
    let mut lines = Lines::of(&context.client, "execStream", request).await?;
    loop {
        let event = lines.next().await?.ok_or_else(|| {
            Failure::new("the stream was cut before the command ended; whether it goes on is not known")
        })?;
        match event {
            ExecEvent::Started(_) | ExecEvent::Alive {} => {}
            ExecEvent::Stdout(base64) => output::bytes(&decoded(&base64)?)?,
            // Whoever closed standard error does not want it.
            ExecEvent::Stderr(base64) => drop(std::io::stderr().write_all(&decoded(&base64)?)),
            ExecEvent::Ended(ended) => return Ok(ended),
            ExecEvent::Failed(error) => return Err(Failure::answered(error)),
        }
    }
}
