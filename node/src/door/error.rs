//! Which code and which words a failure gets. The cause goes to the log; the client hears what it can act on.

use drowse_shared::api::{Code, Error};

use crate::{agent_client, executor, ledger};

/// A failure of the ledger.
#[expect(clippy::needless_pass_by_value, reason = "the shape `map_err` takes")]
pub fn ledger(error: ledger::Error) -> Error {
    if matches!(error, ledger::Error::DiskFull) {
        return Error::new(
            Code::NodeDiskFull,
            "the node's disk is full: destroy a space, or make room on it",
        );
    }
    tracing::error!(error = %chain(&error), "the ledger failed");
    if matches!(&error, ledger::Error::Db(error) if error.is_busy()) {
        return Error::new(
            Code::TimedOut,
            "the node's ledger did not answer in time: another process has it, or its disk stands still; try again",
        );
    }
    Error::new(Code::Internal, "the node's ledger could not be read or written; its log says why")
}

/// A failure of the executor.
pub fn executor(error: &executor::Error) -> Error {
    use executor::Error as E;
    match error {
        E::Timeout { what, after } => Error::new(
            Code::RuntimeTimeout,
            format!(
                "the runtime did not end {what:?} within {} ms; the space is marked unresponsive",
                after.as_millis()
            ),
        ),
        E::Runtime { what, says } => {
            Error::new(Code::RuntimeFailed, format!("the runtime could not {what}: {says}"))
        }
        E::Io { what, .. } => {
            Error::new(Code::RuntimeFailed, format!("{what} failed; the node's log says why"))
        }
        E::DiskFull => {
            Error::new(Code::NodeDiskFull, "the node's disk is full: destroy a space, or make room on it")
        }
        E::TemplateMissing { digest } => {
            Error::new(Code::TemplateNotFound, format!("the template {digest} is not on this node"))
        }
        E::DiskMissing { id } => Error::new(Code::SpaceBroken, format!("the disk of space {id} is gone")),
        E::Vitality { .. } => Error::new(Code::SpaceBusy, format!("{error}; try again")),
        E::NoRange(_) => Error::new(Code::NoCapacity, format!("{error}; stop a space first")),
    }
}

/// The agent inside a space did not do it.
pub fn agent(error: &agent_client::Error) -> Error {
    use agent_client::{Error as E, Kind};
    match error {
        E::Refused { kind, message } => {
            let code = match kind {
                Kind::Invalid => Code::InvalidRequest,
                Kind::Directory => Code::UnknownDirectory,
                Kind::Program => Code::CommandNotFound,
                Kind::User => Code::UnknownUser,
                Kind::Missing => Code::FileNotFound,
                Kind::NotAFile => Code::NotAFile,
                Kind::Beyond => Code::RangeBeyond,
                Kind::Denied => Code::PermissionDenied,
                Kind::TooMuch => Code::TooLarge,
                Kind::DiskFull => Code::SpaceDiskFull,
                Kind::Deadline => Code::RuntimeTimeout,
                Kind::Exhausted | Kind::Lost | Kind::Failed => Code::RuntimeFailed,
            };
            Error::new(code, message.clone())
        }
        E::UploadPaused(_) => Error::new(Code::RequestTimeout, error.to_string()),
        E::UploadCut => Error::new(Code::InvalidRequest, error.to_string()),
        E::Late { .. } => Error::new(Code::RuntimeTimeout, error.to_string()),
        E::Unreachable(_) | E::Broken(_) | E::Nonsense(_) => {
            tracing::warn!(error = %chain(error), "the agent of a space failed");
            Error::new(Code::RuntimeFailed, error.to_string())
        }
    }
}

/// An error with its causes, for one log line.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
