//! How many bodies are started at once. A start costs a core for some ten milliseconds: a thousand spaces that wake together
//! take turns, or each of them comes too late. Thaws, stops and removals wait for nobody.

use std::{fmt, time::Duration};

use drowse_shared::{
    api::{Code, Error, spaces::WAIT_SECONDS},
    slots::{self, Slot, Slots},
    units,
};

/// Most spaces that wait for their turn; whoever comes after them would come in vain.
const WAITING_MAX: usize = 1024;
/// Where the machine does not say how many cores it has, and at least.
const AT_ONCE_MIN: usize = 4;
/// For each core: a start waits for the kernel half of its time.
const PER_CORE: usize = 2;
/// Longest wait, when nothing else is said: shorter than whoever wakes a space waits, so that it hears the reason.
const WAIT: Duration = Duration::from_secs(20);

/// The longest that may be said.
const WAIT_MAX: Duration = Duration::from_secs(WAIT_SECONDS - 5);

/// The settings.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Most spaces that are started at once; twice the number of cores, and at least 4, when not given
    #[arg(long, env = "DROWSE_STARTS_MAX", value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    starts_max: Option<u32>,
    /// Longest wait of a space for its turn to start; then who wanted it is told to come again
    #[arg(long, env = "DROWSE_START_WAIT", default_value = "20s", value_parser = wait)]
    start_wait: Duration,
}

/// Whoever wakes a space has to hear why it does not come, before nobody waits any more.
fn wait(text: &str) -> Result<Duration, String> {
    match units::duration(text) {
        Ok(wait) if wait.is_zero() || wait > WAIT_MAX => {
            Err(format!("it is 1 ms to {} s", WAIT_MAX.as_secs()))
        }
        read => read.map_err(|error| error.to_string()),
    }
}

impl Args {
    pub(crate) fn limits(&self) -> Limits {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let at_once = self.starts_max.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
        Limits {
            at_once: at_once.unwrap_or_else(|| AT_ONCE_MIN.max(cores * PER_CORE)),
            wait: self.start_wait,
        }
    }
}

/// How much is started at once, and how long the rest waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most spaces that are started at once.
    pub at_once: usize,
    /// Longest wait of a space for its turn.
    pub wait: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { at_once: AT_ONCE_MIN, wait: WAIT }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "starts_max={} start_wait={:?}", self.at_once, self.wait)
    }
}

/// The turns.
pub struct Starts {
    limits: Limits,
    turns: Slots<()>,
}

/// A start goes on while this lives.
pub struct Turn(#[expect(dead_code, reason = "given back when dropped")] Slot<()>);

impl Starts {
    /// Nobody starts.
    pub fn new(limits: Limits) -> Self {
        Self { limits, turns: Slots::wide(limits.at_once, WAITING_MAX) }
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// `node_busy`.
    pub async fn turn(&self) -> Result<Turn, Error> {
        self.turns.take(&(), self.limits.wait).await.map(Turn).map_err(|why| {
            let waits = match why {
                slots::Error::Full(waiting) => format!("{waiting} wait for their turn already"),
                slots::Error::Busy(waited) => {
                    format!("its turn did not come within {} s", waited.as_secs_f64())
                }
            };
            let message = format!(
                "this node starts {} spaces at once, as many as it may, and {waits}",
                self.limits.at_once
            );
            Error::new(Code::NodeBusy, message)
        })
    }

    /// How many wait for their turn.
    pub fn waiting(&self) -> usize {
        self.turns.waiting()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_too_long_is_told_and_takes_no_turn() {
        let starts = Starts::new(Limits { at_once: 2, wait: Duration::from_secs(3) });
        let first = starts.turn().await.expect("free");
        let _second = starts.turn().await.expect("free");
        let late = starts.turn().await.err().expect("both are taken");
        assert_eq!((&late.code, late.retry_after_seconds.is_some()), (&Code::NodeBusy, true));
        assert!(late.message.contains("2 spaces at once") && late.message.contains("within 3 s"), "{late}");
        assert_eq!(starts.waiting(), 0);
        drop(first);
        assert!(starts.turn().await.is_ok());
    }
}
