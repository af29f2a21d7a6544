use std::io;

use camino::Utf8PathBuf;
use drowse_shared::{
    id::{LedgerId, NodeId},
    token,
};

use super::note;
use crate::ledger::{self, foreign};

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This node's daemon runs.
    #[error(
        "the daemon of this node runs on {path}: stop it (systemctl stop drowse-node), adopt, and start it again; its spaces \
         run on meanwhile"
    )]
    OwnRuns {
        /// Its state.
        path: Utf8PathBuf,
    },
    /// The other node's daemon runs.
    #[error("a daemon runs on {path}: these disks are not a dead node's. Stop it first")]
    SourceRuns {
        /// Its state.
        path: Utf8PathBuf,
    },
    /// The source cannot be locked.
    #[error(
        "{path} cannot be opened; the disk must be mounted writable, because the source must forget what moves"
    )]
    SourceLock {
        /// The lock.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not a state directory.
    #[error("{path} is not the state directory of a node: it holds no node.json, no ledger.db and no disk with a card{}",
        inside.as_ref().map(|dir| format!(". Did you mean {dir}?")).unwrap_or_default())]
    NoState {
        /// What was named.
        path: Utf8PathBuf,
        /// What may have been meant.
        inside: Option<Utf8PathBuf>,
    },
    /// It is this node's own.
    #[error("{path} is this node's own state directory; name the one of the other node")]
    Own {
        /// What was named.
        path: Utf8PathBuf,
    },
    /// A copy of this node's own.
    #[error(
        "{path} is a copy of this node's own state (ledger {ledger}): there is nothing to adopt. To go back to that copy, \
         stop the daemon and start it with DROWSE_STATE={path}"
    )]
    SameLedger {
        /// What was named.
        path: Utf8PathBuf,
        /// Both.
        ledger: LedgerId,
    },
    /// The node lives.
    #[error(
        "the gateway {gateway} hears the node {node} with this ledger: it is not dead. Stop its daemon for good, wait until \
         `drowse node ls` shows it as down, and run this again"
    )]
    Live {
        /// Which.
        node: NodeId,
        /// Who hears it.
        gateway: String,
    },
    /// No room.
    #[error(
        "{path} has {} MiB left and the disks take {} MiB: make room, or put the state directory on a larger disk",
        has_bytes >> 20, needs_bytes >> 20
    )]
    Room {
        /// Where.
        path: Utf8PathBuf,
        /// What is left.
        has_bytes: u64,
        /// What is needed.
        needs_bytes: u64,
    },
    /// The token for the gateways.
    #[error(
        "DROWSE_GATEWAY is set, so the fleet is asked whether that node is gone, and that needs the token"
    )]
    Token(#[source] token::Error),
    /// Another node copied from it.
    #[error(transparent)]
    Note(#[from] note::Error),
    /// The source's ledger.
    #[error(transparent)]
    Foreign(#[from] foreign::Error),
    /// This node's ledger.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    /// A file.
    #[error("{what} failed on {path}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: Utf8PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}
