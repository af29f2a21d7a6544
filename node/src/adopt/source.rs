use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::{
    api::nodes::Roster,
    id::{LedgerId, NodeId, SpaceId},
    lock::{self, SingleWriter},
};

use super::Error;
use crate::{
    ledger::{
        execs::{Came, Exec},
        foreign::Foreign,
        identity,
    },
    space::Space,
};

/// Another node's state directory. Its lock is held.
pub(super) struct Source {
    pub(super) state: Utf8PathBuf,
    pub(super) id: LedgerId,
    pub(super) rows: BTreeMap<SpaceId, Space>,
    pub(super) roster: Option<Roster>,
    ledger: Option<Arc<Mutex<Foreign>>>,
    _lock: SingleWriter,
}

impl Source {
    /// Opens a directory and makes sure that nobody runs it.
    pub(super) fn open(state: &Utf8Path) -> Result<Self, Error> {
        let is_state = ["node.json", "ledger.db"].iter().any(|name| state.join(name).is_file())
            || !identity::on_disks(state).is_empty();
        if !is_state {
            return Err(Error::NoState { path: state.to_owned(), inside: inside(state) });
        }
        let lock = SingleWriter::acquire(&state.join("ledger.db"), crate::ledger::VARIABLE).map_err(
            |why| match why {
                lock::Error::Held { .. } => Error::SourceRuns { path: state.to_owned() },
                lock::Error::Open { path, source } => Error::SourceLock { path, source },
            },
        )?;
        let ledger = Foreign::open(state)?;
        let (mut rows, mut roster, mut written) = (BTreeMap::new(), None, None);
        if let Some(ledger) = &ledger {
            rows = ledger.spaces()?;
            roster = ledger.roster()?;
            written = ledger.ledger_id()?;
        }
        let file = identity::in_file(state)?;
        if let (Some(file), Some(row)) = (file, written)
            && file != row
        {
            let path = state.join("node.json");
            let (file, ledger) = (file.to_string(), row.to_string());
            return Err(crate::ledger::Error::TwoIdentities { path, file, ledger }.into());
        }
        let id = file.or(written).or_else(|| identity::on_disks(state).into_iter().min());
        let id = id.ok_or_else(|| Error::NoState { path: state.to_owned(), inside: None })?;
        let ledger = ledger.map(|ledger| Arc::new(Mutex::new(ledger)));
        Ok(Self { state: state.to_owned(), id, rows, roster, ledger, _lock: lock })
    }

    /// Its ledger forgets a space.
    pub(super) fn forget(&self) -> impl FnOnce(SpaceId) -> Result<(), Error> + Send + 'static {
        let ledger = self.ledger.clone();
        move |id| {
            let Some(ledger) = ledger else { return Ok(()) };
            let ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(ledger.forget(id)?)
        }
    }

    /// What came of the commands that ran in a space under a key.
    pub(super) fn execs(&self, space: SpaceId) -> Result<Vec<(Exec, Came)>, Error> {
        let Some(ledger) = &self.ledger else { return Ok(Vec::new()) };
        let execs = ledger.lock().unwrap_or_else(PoisonError::into_inner).execs(space)?;
        let gone = || Came::Unknown("the machine it ran on is gone".to_owned());
        Ok(execs.into_iter().map(|(exec, came)| (exec, came.unwrap_or_else(gone))).collect())
    }

    /// What it was called, as far as it knew itself.
    pub(super) fn node_id(&self) -> Option<NodeId> {
        let roster = self.roster.as_ref()?;
        roster.nodes.iter().find(|node| node.ledger_id == self.id).map(|node| node.id.clone())
    }
}

/// A state directory in its usual place below a root that was named instead.
fn inside(root: &Utf8Path) -> Option<Utf8PathBuf> {
    let usual = ["var/lib/drowse/node", "lib/drowse/node", "drowse/node", "node"];
    usual.iter().map(|tail| root.join(tail)).find(|dir| dir.join("node.json").is_file())
}
