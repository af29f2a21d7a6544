use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use camino::Utf8PathBuf;
use drowse_shared::{name::SpaceName, seams::Env, token::Token};
use tokio::time::Instant;

use super::{Error, Moment, Options, Outcome, Report, Watch, adopt};
use crate::door::error::chain;

/// Everything that could be taken is here.
const DONE: u8 = 0;
/// Nothing was done, or a space could not be carried.
const FAILED: u8 = 1;
/// Some spaces were left where they are; the table says why.
const LEFT: u8 = 2;
/// Between two words about one long copy.
const SPEAK: Duration = Duration::from_secs(2);

/// `drowse-node adopt`
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "The daemon of this node must be stopped; its spaces run on meanwhile. Spaces keep id, name, metadata and \
                  policy, and are stopped until somebody uses them. What cannot be taken (its name is taken here, its \
                  template is missing, processes still run on it) stays where it is and is named. Cut in the middle, run it \
                  again.\n\n\
                  Exit codes: 0 everything is here, 1 nothing was done or a space failed, 2 some were left where they are, \
                  64 wrong usage."
)]
pub struct Args {
    /// State directory of the other node: its disk attached here, or a copy of it
    #[arg(value_name = "DIR")]
    dir: Utf8PathBuf,
    /// Where this node keeps its ledger and disks
    #[arg(long, env = "DROWSE_STATE", default_value = "/var/lib/drowse/node", value_name = "DIR")]
    state: Utf8PathBuf,
    /// Where templates are kept
    #[arg(long, env = "DROWSE_TEMPLATES", default_value = "/var/lib/drowse/templates", value_name = "DIR")]
    templates: Utf8PathBuf,
    /// Gateways that are asked whether the other node is gone, separated by commas
    #[arg(long, env = "DROWSE_GATEWAY", value_delimiter = ',', value_name = "URL")]
    gateway: Vec<String>,
    /// File that holds the fleet token; DROWSE_TOKEN may hold the token itself instead
    #[arg(long, env = "DROWSE_TOKEN_FILE", value_name = "PATH")]
    token_file: Option<Utf8PathBuf>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Leave the disks where they are too; the other node then refuses to start on them
    #[arg(long)]
    copy: bool,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    fn options(self) -> Result<Options, Error> {
        let gateways: Vec<String> = self.gateway.into_iter().filter(|url| !url.is_empty()).collect();
        #[expect(clippy::disallowed_methods, reason = "a secret is never a flag, so clap does not see it")]
        let value = std::env::var("DROWSE_TOKEN").ok();
        let token = match gateways.is_empty() {
            true => None,
            false => Some(Token::load(value.as_deref(), self.token_file.as_deref()).map_err(Error::Token)?),
        };
        Ok(Options {
            dir: self.dir,
            state: self.state,
            templates: self.templates,
            gateways,
            token,
            dry_run: self.dry_run,
            copy: self.copy,
        })
    }
}

/// Tells a person how long copies go.
#[derive(Default)]
struct Speaker(Mutex<Option<(SpaceName, Instant)>>);

impl Watch for Speaker {
    fn reached(&self, _: Moment) {}

    fn copied(&self, name: &SpaceName, bytes: u64, of_bytes: u64) {
        let now = Instant::now();
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*said {
            Some((of, at)) if of == name && now.saturating_duration_since(*at) < SPEAK => return,
            Some((of, _)) if of == name => {
                let percent = (bytes * 100).checked_div(of_bytes).unwrap_or(100).min(100);
                eprintln!("copying {:?}: {percent} %", name.as_str());
            }
            _ => eprintln!("copying {:?}: {}", name.as_str(), size(of_bytes)),
        }
        *said = Some((name.clone(), now));
    }
}

/// Does it and prints what came of it.
pub async fn run(args: Args) -> ExitCode {
    let json = args.json;
    let done = match args.options() {
        Ok(options) => adopt(&Env::real(), &options, Arc::new(Speaker::default())).await,
        Err(error) => Err(error),
    };
    match done {
        Ok(report) => {
            let text = if json { as_json(&report) } else { as_table(&report) };
            // Whoever closed standard output does not want it.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::from(code(&report))
        }
        Err(error) => {
            let message = chain(&error);
            if json {
                println!("{}", serde_json::json!({ "error": message }));
            }
            eprintln!("error: {message}");
            ExitCode::from(FAILED)
        }
    }
}

fn code(report: &Report) -> u8 {
    let mut outcomes = report.spaces.iter().map(|row| row.outcome);
    if outcomes.clone().any(|outcome| outcome == Outcome::Failed) {
        FAILED
    } else if outcomes.all(Outcome::is_done) {
        DONE
    } else {
        LEFT
    }
}

fn as_json(report: &Report) -> String {
    serde_json::to_string_pretty(report).map_or_else(|error| error.to_string(), |text| text + "\n")
}

fn as_table(report: &Report) -> String {
    let mut rows = vec![["NAME", "ID", "SIZE", "OUTCOME", "WHY"].map(str::to_owned)];
    for row in &report.spaces {
        rows.push([
            row.name.as_ref().map_or("-".to_owned(), |name| name.as_str().to_owned()),
            row.id.to_string(),
            size(row.size_bytes),
            row.outcome.word().to_owned(),
            row.detail.clone(),
        ]);
    }
    let mut text = String::new();
    if report.spaces.is_empty() {
        text.push_str(&format!("no space lies in {}\n", report.source));
    } else if std::io::stdout().is_terminal() {
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 4] = std::array::from_fn(width);
        for row in &rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}  "));
            let line = cells.collect::<String>() + &row[4];
            text.push_str(line.trim_end());
            text.push('\n');
        }
    } else {
        rows.iter().for_each(|row| text.push_str(&(row.join("\t") + "\n")));
    }
    if report.dry_run {
        text.push_str("\nThis was a dry run: nothing was changed.\n");
    }
    if !report.remains.is_empty() {
        text.push_str("\nWhat remains to do:\n");
        report.remains.iter().for_each(|what| text.push_str(&format!("- {what}\n")));
    }
    text
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..10_737_418_240 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}
