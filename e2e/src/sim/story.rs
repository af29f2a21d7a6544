use std::fmt;

/// The few lines of a story that explain a failure.
mod brief;

pub use brief::brief;
pub(super) use brief::words;

/// What kind of thing a line tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes and connections.
    Wire,
    /// What a daemon logs.
    Log,
    /// A host, a link or a disk changes; a trouble begins.
    Happens,
    /// A client asks.
    Asked,
    /// A client is told, or gives up.
    Told,
    /// A body is made or removed.
    Body,
    /// A promise is broken.
    Failed,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Simulated milliseconds since the world began.
    pub at_ms: u64,
    /// What it tells.
    pub kind: Kind,
    /// Who, what.
    pub text: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = if self.kind == Kind::Failed { "FAILED: " } else { "" };
        write!(f, "{:>8} {failed}{}", self.at_ms, self.text)
    }
}

/// What happens in a world, as it happens.
#[derive(Debug, Default)]
pub(super) struct Story {
    lines: Vec<Line>,
    failures: Vec<String>,
    /// A directory of this run, told as `~`: it differs between two runs.
    pub(super) home: Option<String>,
}

impl Story {
    pub(super) fn tell(&mut self, at_ms: u64, kind: Kind, text: String) {
        let text = match &self.home {
            Some(home) if text.contains(home.as_str()) => text.replace(home, "~"),
            _ => text,
        };
        if kind == Kind::Failed {
            self.failures.push(text.clone());
        }
        self.lines.push(Line { at_ms, kind, text });
    }

    pub(super) fn has_failed(&self) -> bool {
        !self.failures.is_empty()
    }

    /// The last lines so far.
    pub(super) fn tail(&self, lines: usize) -> Vec<String> {
        self.lines[self.lines.len().saturating_sub(lines)..].iter().map(Line::to_string).collect()
    }

    /// The lines and the failures.
    pub(super) fn end(&mut self) -> (Vec<Line>, Vec<String>) {
        (std::mem::take(&mut self.lines), std::mem::take(&mut self.failures))
    }
}
