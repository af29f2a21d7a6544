//! Who this node is. The ledger id is written in `node.json`, beside the disks, and in the ledger: losing either leaves the
//! other, and losing both leaves the cards of the spaces.

use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::id::LedgerId;
use serde::{Deserialize, Serialize};

use super::{Error, Ledger};

const FILE: &str = "node.json";

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    format: u32,
    ledger_id: LedgerId,
}

/// The identity that stands written, if any does.
///
/// # Errors
/// When the two places name two identities, or one cannot be read.
pub async fn written(ledger: &Ledger, state: &Utf8Path) -> Result<Option<LedgerId>, Error> {
    let path = state.join(FILE);
    let file = read(&path)?;
    let row = ledger.ledger_id().await?;
    match (file, row) {
        (Some(file), Some(row)) if file != row => {
            Err(Error::TwoIdentities { path, file: file.to_string(), ledger: row.to_string() })
        }
        (file, row) => Ok(file.or(row)),
    }
}

/// The identities that the cards beside the disks name: all that is left when ledger and `node.json` are both lost.
pub fn on_disks(state: &Utf8Path) -> Vec<LedgerId> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Owner {
        ledger_id: LedgerId,
    }
    let Ok(disks) = state.join("spaces").read_dir_utf8() else { return Vec::new() };
    disks
        .flatten()
        .filter_map(|disk| fs_err::read(disk.path().join("space.json")).ok())
        .filter_map(|card| serde_json::from_slice::<Owner>(&card).ok())
        .map(|owner| owner.ledger_id)
        .collect()
}

/// Writes the identity in both places.
///
/// # Errors
/// When one cannot be written.
pub async fn keep(ledger: &Ledger, state: &Utf8Path, id: LedgerId) -> Result<(), Error> {
    if ledger.ledger_id().await? != Some(id) {
        ledger.set_ledger_id(id).await?;
    }
    let path = state.join(FILE);
    if read(&path)? != Some(id) {
        let identity = Identity { format: 1, ledger_id: id };
        let mut text = serde_json::to_vec_pretty(&identity)
            .map_err(|source| Error::BadIdentity { path: path.clone(), source })?;
        text.push(b'\n');
        replace(&path, &text).map_err(|source| Error::Io { what: "writing", path, source })?;
    }
    Ok(())
}

/// What `node.json` in a state directory says, if there is one.
///
/// # Errors
/// When it cannot be read.
pub fn in_file(state: &Utf8Path) -> Result<Option<LedgerId>, Error> {
    read(&state.join(FILE))
}

fn read(path: &Utf8PathBuf) -> Result<Option<LedgerId>, Error> {
    match fs_err::read(path) {
        Ok(text) => serde_json::from_slice::<Identity>(&text)
            .map(|identity| Some(identity.ledger_id))
            .map_err(|source| Error::BadIdentity { path: path.clone(), source }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { what: "reading", path: path.clone(), source }),
    }
}

/// Replaces a file whole: after a crash it is the old or the new one.
fn replace(path: &Utf8Path, content: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    let beside = path.with_extension("json.new");
    let mut file = fs_err::File::create(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs_err::rename(&beside, path)?;
    if let Some(directory) = path.parent() {
        fs_err::File::open(directory)?.sync_all()?;
    }
    Ok(())
}
