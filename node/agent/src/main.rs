//! Pid 1 of every space: one static binary, two roles.
//!
//! `--init N` is pid 1. It serves the envd protocol on the inherited listening socket (descriptor 3), starts commands,
//! moves files and reaps orphans. `--launcher FD` is the forker it keeps in the space's `work` cgroup, so that every
//! command is born there while pid 1 stays outside the limits and the freezer of the workload.
#![expect(
    clippy::disallowed_methods,
    reason = "the agent is no daemon under simulation: it runs real processes on a single-threaded runtime of its own"
)]

/// Bodies of answers: whole, a file, or a stream of process events.
mod body;
/// The Connect protocol: envelopes, error codes, unary and stream answers.
mod connect;
/// One connection: what is written and not flushed.
mod connection;
/// Reading, writing and describing files as the user who asked.
mod files;
/// Where requests pass, so that none is under way when it matters.
mod gate;
/// Acting on files as another user, one thread at a time.
mod identity;
/// The role of pid 1: descriptors, signals, accept loop, shutdown.
mod init;
/// The forker that lives in `work`, and pid 1's side of it.
mod launcher;
/// What the space uses.
mod metrics;
/// How long a stream may be silent and last.
mod patience;
/// Commands: start, join, output, signals, trees.
mod process;
/// Collecting every child that ends.
mod reap;
/// Connections to ports of the space.
mod relay;
/// One agent becoming another under running commands.
mod replace;
/// From a request to the handler that answers it.
mod server;
/// Kernel calls that have no safe wrapper elsewhere.
mod sys;
/// Users and groups as the space's own files name them.
mod users;
/// Telling what changes in directories.
mod watch;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<i32>().ok().filter(|number| *number >= 0);
    match args.as_slice() {
        ["--version"] => {
            println!("drowse-agent {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        ["--launcher", fd] => match number(fd) {
            Some(fd) => launcher::run(fd),
            None => usage(),
        },
        ["--init", count] => number(count).map_or_else(usage, |count| exit(init::run(count, None))),
        ["--init", count, "--measured", memory_bytes, cpu_millis] => {
            match (number(count), memory_bytes.parse().ok(), cpu_millis.parse().ok()) {
                (Some(count), Some(memory), Some(cpu)) => exit(init::run(count, Some((memory, cpu)))),
                _ => usage(),
            }
        }
        ["--resume", fd] => number(fd).map_or_else(usage, |fd| exit(init::resume(fd))),
        ["--check"] => {
            let checked = init::check();
            if checked.is_ok() {
                print!("{}", replace::UNDERSTOOD);
            }
            exit(checked)
        }
        _ => usage(),
    }
}

fn exit(ended: Result<(), init::Error>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("drowse-agent: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: drowse-agent --init N [--measured MEMORY_BYTES CPU_MILLIS] | --version (fd 3: listening Unix socket, \
         fds 4..3+N: work/cgroup.procs, then with --measured: use of memory, its kinds, processor time)"
    );
    ExitCode::from(64)
}
