use std::{io::Write, time::Duration};

use drowse_shared::api::exec::{ExecCommand, ExecEnded, ExecEvent};
use reqwest::Response;

use super::decoded;
use crate::{
    args::Context,
    client::SLACK,
    failure::{Failure, Outcome},
    output,
};

/// How long a fleet may say nothing at all: it says something every few seconds.
const SILENCE: Duration = Duration::from_secs(90);

/// Runs the command and passes on what it says, as it says it.
pub(super) async fn run(request: &ExecCommand, context: &Context) -> Outcome<ExecEnded> {
    let client = &context.client;
    let sent = tokio::time::timeout(SLACK, client.send(client.post("execStream").json(request)));
    let silent = || Failure::new(format!("{} stopped answering", client.endpoint()));
    let mut lines = Lines { response: sent.await.map_err(|_| silent())??, buffer: Vec::new() };
    loop {
        let line = tokio::time::timeout(SILENCE, lines.next()).await.map_err(|_| silent())?;
        let line = line.map_err(|error| client.lost(&error))?.ok_or_else(|| {
            Failure::new("the stream was cut before the command ended; whether it goes on is not known")
        })?;
        let event = serde_json::from_slice(&line).map_err(|error| {
            Failure::new(format!("the fleet answered something this drowse cannot read: {error}"))
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

/// The lines of an answer.
struct Lines {
    response: Response,
    buffer: Vec<u8>,
}

impl Lines {
    async fn next(&mut self) -> reqwest::Result<Option<Vec<u8>>> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.buffer[searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(searched + end + 1);
                return Ok(Some(std::mem::replace(&mut self.buffer, rest)));
            }
            searched = self.buffer.len();
            match self.response.chunk().await? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }
}
