use base64::{Engine, engine::general_purpose::STANDARD};
use drowse_shared::api::attach::Size;
use serde_json::{Value, json};

use super::{CLOSE_STDIN, Place, SEND_INPUT, SEND_SIGNAL, UPDATE};
use crate::agent_client::{Error, Line, dial};

/// Types into one command, on a connection of its own: one piece after the other, each taken before the next is sent.
pub struct Typist {
    line: Line,
    process: Value,
    /// Whether the command has a terminal.
    terminal: bool,
}

impl Typist {
    /// Opens the connection.
    ///
    /// # Errors
    /// When there is none in time.
    pub async fn of(place: &Place, pid: u32, terminal: bool) -> Result<Self, Error> {
        Ok(Self { line: dial(place).await?, process: json!({ "pid": pid }), terminal })
    }

    /// Types bytes.
    ///
    /// # Errors
    /// That the command is gone, or takes nothing.
    pub async fn bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let to = if self.terminal { "pty" } else { "stdin" };
        self.call(SEND_INPUT, json!({ "input": { to: STANDARD.encode(bytes) } })).await
    }

    /// Changes the size of its terminal.
    ///
    /// # Errors
    /// That it has none, or is gone.
    pub async fn resize(&mut self, size: Size) -> Result<(), Error> {
        self.call(UPDATE, json!({ "pty": { "size": { "rows": size.rows, "cols": size.cols } } })).await
    }

    /// Sends a signal, by number.
    ///
    /// # Errors
    /// That it is gone.
    pub async fn signal(&mut self, number: i32) -> Result<(), Error> {
        self.call(SEND_SIGNAL, json!({ "signal": number })).await
    }

    /// Closes its standard input; types the end of input where that is a terminal.
    ///
    /// # Errors
    /// That it is gone.
    pub async fn close(&mut self) -> Result<(), Error> {
        if self.terminal { self.bytes(b"\x04").await } else { self.call(CLOSE_STDIN, json!({})).await }
    }

    async fn call(&mut self, method: &str, mut message: Value) -> Result<(), Error> {
        message["process"] = self.process.clone();
        let _: Value = self.line.call(method, None, &message).await?;
        Ok(())
    }
}
