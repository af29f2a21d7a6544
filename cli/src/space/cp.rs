//! Copies between this machine and a space, files of any size, directories with all that is in them.

use std::{str::FromStr, time::Duration};

use camino::Utf8PathBuf;
use drowse_shared::name::SpaceRef;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;

use crate::{
    args::Context,
    failure::{Exit, Failure, Outcome},
    output::{
        self,
        units::{bytes, count, rate, took},
    },
};

mod down;
mod remote;
mod up;

/// Longest pause in a transfer before it is given up.
const STALL: Duration = Duration::from_secs(120);

/// `drowse space cp`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "One side is NAME:PATH, the other a path here or - for standard input or output. A path in a space is \
                  absolute or relative to the user's home. Into a directory that exists, or a path that ends in /, a \
                  copy keeps its name; otherwise the target is the new name. A file is replaced whole or left as it \
                  was. Links to files are copied as files; links to directories are left out and named. A space whose \
                  name contains a colon is reached by its id; a file here whose name contains one by ./NAME."
)]
pub(crate) struct Args {
    /// What to copy: a path here, or NAME:PATH
    source: Side,
    /// Where to: NAME:PATH, or a path here
    target: Side,
    /// Whose rights apply inside [default: user]
    #[arg(long, short)]
    user: Option<String>,
}

/// One side of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Side {
    Here(Utf8PathBuf),
    Pipe,
    There(SpaceRef, String),
}

impl FromStr for Side {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "-" {
            return Ok(Self::Pipe);
        }
        match text.split_once(':') {
            Some((name, path)) if !text.starts_with(['/', '.', '~']) => {
                name.parse().map(|space| Self::There(space, path.to_owned())).map_err(|e| e.to_string())
            }
            _ if text.is_empty() => Err("a path is not empty".to_owned()),
            _ => Ok(Self::Here(text.into())),
        }
    }
}

/// A place in a space, and who looks.
#[derive(Debug, Clone)]
struct There {
    space: SpaceRef,
    path: String,
    user: Option<String>,
}

/// What was copied so far, and the bar that shows it.
struct Progress {
    bar: ProgressBar,
    started: Instant,
    files: usize,
    bytes: u64,
}

impl Progress {
    fn new() -> Self {
        // Draws on standard error, and only on a terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg}  {wide_bar}  {binary_bytes}  {binary_bytes_per_sec}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, started: Instant::now(), files: 0, bytes: 0 }
    }

    /// The next file begins.
    fn file(&mut self, name: &str, size: Option<u64>) {
        self.bar.set_message(output::plain(name));
        self.bar.set_position(0);
        match size {
            Some(size) => self.bar.set_length(size),
            None => self.bar.unset_length(),
        }
        self.files += 1;
    }

    /// More of it is there.
    fn more(&mut self, length: u64) {
        self.bar.inc(length);
        self.bytes += length;
    }

    /// The last line: bytes and rate.
    fn done(self, json: bool, quiet: bool) -> Outcome<()> {
        self.bar.finish_and_clear();
        let elapsed = self.started.elapsed();
        if json {
            let seconds = elapsed.as_secs_f64();
            let told = serde_json::json!({ "files": self.files, "bytes": self.bytes, "seconds": seconds });
            return if quiet { Ok(()) } else { output::json(&told) };
        }
        let told = format!(
            "{}, {} in {} ({})",
            count(self.files, "file"),
            bytes(self.bytes),
            took(elapsed),
            rate(self.bytes, elapsed)
        );
        if quiet {
            eprintln!("{told}");
            return Ok(());
        }
        output::line(&told)
    }
}

/// Copies.
pub(super) async fn run(args: Args, context: &Context) -> Outcome<Exit> {
    let mut progress = Progress::new();
    let user = args.user;
    let (space, copied) = match (args.source, args.target) {
        (Side::There(space, path), Side::Here(here)) => {
            let there = There { space: space.clone(), path, user };
            (space, down::to_path(&there, &here, context, &mut progress).await.map(|()| false))
        }
        (Side::There(space, path), Side::Pipe) => {
            let there = There { space: space.clone(), path, user };
            (space, down::to_pipe(&there, context, &mut progress).await.map(|()| true))
        }
        (Side::Here(here), Side::There(space, path)) => {
            let there = There { space: space.clone(), path, user };
            (space, up::from_path(&here, there, context, &mut progress).await.map(|()| false))
        }
        (Side::Pipe, Side::There(space, path)) => {
            let there = There { space: space.clone(), path, user };
            (space, up::from_pipe(there, context, &mut progress).await.map(|()| false))
        }
        (Side::There(..), Side::There(..)) => {
            return Err(Failure::usage("both sides are in spaces; copy to this machine first"));
        }
        _ => return Err(Failure::usage("neither side is in a space; write one as NAME:PATH")),
    };
    match copied {
        Ok(quiet) => {
            progress.done(context.json, quiet)?;
            Ok(Exit::OK)
        }
        Err(failure) => {
            progress.bar.finish_and_clear();
            Err(super::nearest::named(failure, &space, &context.client).await)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_here_there_or_a_pipe() {
        let there = |name: &str, path: &str| Side::There(name.parse().expect("a name"), path.to_owned());
        let cases = [
            ("./a:b", Side::Here("./a:b".into())),
            ("/x/a:b", Side::Here("/x/a:b".into())),
            ("site", Side::Here("site".into())),
            ("-", Side::Pipe),
            ("shop:/etc/hosts", there("shop", "/etc/hosts")),
            ("shop:", there("shop", "")),
            ("shop:a:b", there("shop", "a:b")),
        ];
        for (text, side) in cases {
            assert_eq!(text.parse(), Ok(side), "{text}");
        }
        assert!(":x".parse::<Side>().is_err() && "".parse::<Side>().is_err());
    }
}
