//! What commands print. On a terminal: aligned columns, a little colour. Elsewhere: tab-separated columns that stay.

use std::io::{IsTerminal, Write};

use tokio::io::{AsyncBufReadExt, BufReader};

use crate::failure::{Failure, Outcome};

/// Rows under headings.
pub(crate) mod table;
/// Durations, sizes and shares as people read them.
pub(crate) mod units;

/// Whether a person reads standard output.
pub(crate) fn on_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Prints a line, or says why it cannot be printed. A reader that left is no failure.
pub(crate) fn line(text: &str) -> Outcome<()> {
    bytes(format!("{text}\n").as_bytes())
}

/// Prints an answer as JSON: indented for a person, on one line for a program.
pub(crate) fn json(value: &serde_json::Value) -> Outcome<()> {
    line(&if on_terminal() { format!("{value:#}") } else { value.to_string() })
}

/// Writes bytes to standard output as they are.
pub(crate) fn bytes(bytes: &[u8]) -> Outcome<()> {
    write(bytes).map(drop)
}

/// Writes a part of a longer text. Answers whether anybody still reads.
pub(crate) fn page(text: &str) -> Outcome<bool> {
    write(text.as_bytes())
}

fn write(bytes: &[u8]) -> Outcome<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(format!("standard output cannot be written: {error}"))),
    }
}

/// Asks a person. Where nobody can be asked, the command itself is the answer.
pub(crate) async fn confirmed(question: &str) -> Outcome<bool> {
    if !std::io::stdin().is_terminal() {
        return Ok(true);
    }
    eprint!("{question} [y/N] ");
    let _ = std::io::stderr().flush();
    let mut line = String::new();
    BufReader::new(tokio::io::stdin())
        .read_line(&mut line)
        .await
        .map_err(|error| Failure::new(format!("standard input cannot be read: {error}")))?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

/// Text that cannot move the cursor or change colours, whoever wrote it.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
