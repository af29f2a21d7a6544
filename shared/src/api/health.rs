//! `GET /healthz`: whether a daemon answers, and whether all of it still moves. Open to anybody, so nothing is named that
//! a stranger may not know.

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::nodes::Build;
use crate::watchdog::Watchdog;

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// How it is.
    pub status: Status,
    /// Which build answers.
    pub build: Build,
    /// Loops without progress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stalled: Vec<Loop>,
}

/// How a daemon is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Status {
    /// It answers, and every loop makes progress.
    Ok,
    /// It answers, and a loop makes no progress; the log says with what. A restart is safe.
    Stalled,
}

/// A loop without progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Loop {
    /// Which.
    #[serde(rename = "loop")]
    pub what: String,
    /// At which step it stands.
    pub step: String,
    /// For how long, in whole seconds.
    pub since_seconds: u64,
}

impl Health {
    /// The health of the daemon of this build whose loops `watchdog` watches.
    pub fn of(watchdog: &Watchdog, build: &Build) -> Self {
        let stalled = watchdog.stalled(Instant::now());
        let stalled: Vec<Loop> = stalled
            .into_iter()
            .map(|stalled| Loop {
                what: stalled.what.to_owned(),
                step: stalled.step.to_owned(),
                since_seconds: stalled.since.as_secs(),
            })
            .collect();
        let status = if stalled.is_empty() { Status::Ok } else { Status::Stalled };
        Self { status, build: build.clone(), stalled }
    }
}
