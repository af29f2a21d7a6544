use std::time::Duration;

use reqwest::Response;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    client::{Client, SLACK},
    failure::{Failure, Outcome},
};

/// How long a fleet may say nothing at all: it says something every few seconds.
const SILENCE: Duration = Duration::from_secs(90);

/// An answer that comes line by line, each a JSON document.
pub(crate) struct Lines<'a> {
    client: &'a Client,
    response: Response,
    buffer: Vec<u8>,
}

impl<'a> Lines<'a> {
    /// Calls a verb that answers so.
    pub(crate) async fn of(client: &'a Client, verb: &str, request: &impl Serialize) -> Outcome<Self> {
        let sent = tokio::time::timeout(SLACK, client.send(client.post(verb).json(request))).await;
        let response = sent.map_err(|_| silent(client))??;
        Ok(Self { client, response, buffer: Vec::new() })
    }

    /// The next line; `None` when the answer ended.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Outcome<Option<T>> {
        let line = tokio::time::timeout(SILENCE, self.line()).await.map_err(|_| silent(self.client))?;
        let Some(line) = line.map_err(|error| self.client.lost(&error))? else { return Ok(None) };
        serde_json::from_slice(&line).map(Some).map_err(|error| {
            Failure::new(format!("the fleet answered something this drowse cannot read: {error}"))
        })
    }

    async fn line(&mut self) -> reqwest::Result<Option<Vec<u8>>> {
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

fn silent(client: &Client) -> Failure {
    Failure::new(format!("{} stopped answering", client.endpoint()))
}
