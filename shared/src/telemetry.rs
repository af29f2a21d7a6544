//! Logs: one line an event on standard error, plain or JSON.

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Plain,
    /// For machines.
    Json,
}

/// Settings of the log.
#[derive(Debug, Clone, Args)]
pub struct Config {
    /// How log lines look
    #[arg(long, env = "DROWSE_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: Format,
    /// What is logged, such as `info` or `drowse_node=debug,info`
    #[arg(long, env = "DROWSE_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
}

/// Starts logging for this process. A filter that cannot be read logs at `info` and says so.
pub fn init(config: &Config) {
    let (filter, bad) = match config.log.parse::<EnvFilter>() {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new("info"), Some(error)),
    };
    let registry = tracing_subscriber::registry().with(filter);
    let writer = std::io::stderr;
    // Colours in a file are noise.
    let ansi = writer().is_terminal();
    // A second call in one process keeps the first logger.
    let started = match config.log_format {
        Format::Plain => {
            registry.with(fmt::layer().with_writer(writer).with_ansi(ansi).with_target(false)).try_init()
        }
        Format::Json => registry.with(fmt::layer().json().flatten_event(true).with_writer(writer)).try_init(),
    };
    if let (Ok(()), Some(error)) = (started, bad) {
        tracing::warn!(filter = config.log, %error, "DROWSE_LOG cannot be read; logging at info");
    }
}
