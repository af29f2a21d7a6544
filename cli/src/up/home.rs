use std::{fs::Permissions, io::Write, os::unix::fs::PermissionsExt};

use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::{lock::SingleWriter, seams::Env, token::Token};
use serde::{Deserialize, Serialize};

use super::Executor;
use crate::{
    failure::{Failure, Outcome},
    fleet::{DEFAULT_STATE, chain},
};

/// The directory of a fleet that runs in one process. Held by one process at a time.
///
/// `token`, `auth` (a header file for curl), `fleet.json` (what is here), `endpoint` (while it runs), and the state of
/// the gateway and of every node.
pub(crate) struct Home {
    /// Absolute.
    dir: Utf8PathBuf,
    /// As a person wrote it.
    shown: Utf8PathBuf,
    /// What is here.
    pub(crate) layout: Layout,
    _lock: SingleWriter,
}

/// What a directory holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Layout {
    format: u32,
    /// What runs the bodies of its spaces.
    pub(crate) executor: Executor,
    /// Where the gateway listens.
    pub(crate) listen: String,
    /// Ports of the nodes on loopback, `node-1` first. Kept, so that a restarted node is where it was.
    pub(crate) node_ports: Vec<u16>,
    /// Whether its nodes once knew of a fleet: it is not founded again, whatever its gateway has lost.
    #[serde(default = "always")]
    pub(crate) founded: bool,
}

/// What was written before this was asked ran already.
fn always() -> bool {
    true
}

/// The format this version writes.
const FORMAT: u32 = 1;
/// Digits of a token.
const TOKEN_BYTES: usize = 32;

impl Home {
    /// Takes the directory, making it when it is not there.
    pub(crate) fn take(state: Option<Utf8PathBuf>, fresh: impl FnOnce() -> Layout) -> Outcome<Self> {
        let shown = state.unwrap_or_else(|| Utf8PathBuf::from(DEFAULT_STATE));
        fs_err::create_dir_all(&shown)?;
        // Ledger, disks and token are nobody else's business.
        fs_err::set_permissions(&shown, Permissions::from_mode(0o700))?;
        Self::open(shown, Some(fresh))?.ok_or_else(|| Failure::new("the directory could not be made"))
    }

    /// Takes the directory of a fleet that was here. `None` when there never was one.
    pub(crate) fn existing(state: Option<Utf8PathBuf>) -> Outcome<Option<Self>> {
        let shown = state.unwrap_or_else(|| Utf8PathBuf::from(DEFAULT_STATE));
        if !shown.join("fleet.json").exists() {
            return Ok(None);
        }
        Self::open(shown, None::<fn() -> Layout>)
    }

    fn open(shown: Utf8PathBuf, make: Option<impl FnOnce() -> Layout>) -> Outcome<Option<Self>> {
        let dir = shown.canonicalize_utf8().map_err(|e| Failure::new(format!("{shown}: {e}")))?;
        let lock = SingleWriter::acquire(&dir.join("up"), "--state").map_err(|error| match error {
            drowse_shared::lock::Error::Held { .. } => Failure::new(format!(
                "a fleet is already running on {shown}"
            ))
            .hint(format!("See it with `drowse node ls --state {shown}`; Ctrl-C where it runs stops it.")),
            other => Failure::new(chain(&other)),
        })?;
        let file = dir.join("fleet.json");
        let layout = match fs_err::read_to_string(&file) {
            Ok(text) => serde_json::from_str::<Layout>(&text)
                .map_err(|error| Failure::new(format!("{file} cannot be read: {error}")))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => match make {
                Some(make) => make(),
                None => return Ok(None),
            },
            Err(error) => return Err(error.into()),
        };
        if layout.format > FORMAT {
            return Err(Failure::new(format!("{dir} was written by a newer drowse; use that one")));
        }
        Ok(Some(Self { dir, shown, layout, _lock: lock }))
    }

    /// Writes what is here.
    pub(crate) fn save(&self) -> Outcome<()> {
        let text = serde_json::to_string_pretty(&self.layout)
            .map_err(|error| Failure::new(format!("the layout cannot be written: {error}")))?;
        self.write("fleet.json", &text, 0o600)
    }

    /// Keeps in mind that its nodes know the fleet.
    pub(crate) fn founded(&mut self) -> Outcome<()> {
        self.layout.founded = true;
        self.save()
    }

    /// The fleet's secret, minted once, and beside it as a header for curl.
    pub(crate) fn token(&self, env: &Env) -> Outcome<Token> {
        let file = self.dir.join("token");
        if !file.exists() {
            let mut bytes = [0; TOKEN_BYTES];
            env.entropy.fill(&mut bytes);
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            self.write("token", &hex, 0o600)?;
        }
        let token = Token::load(None, Some(&file)).map_err(|error| Failure::new(chain(&error)))?;
        let bearer = token.bearer();
        let header = bearer.to_str().map_err(|_| Failure::new(format!("{file} is not plain text")))?;
        self.write("auth", &format!("Authorization: {header}\n"), 0o600)?;
        Ok(token)
    }

    /// Says where the fleet is, to every command that is given this directory.
    pub(crate) fn announce(&self, endpoint: &str) -> Outcome<()> {
        self.write("endpoint", &format!("{endpoint}\n"), 0o644)
    }

    /// Takes that back.
    pub(crate) fn withdraw(&self) {
        // It is not there after a clean end.
        let _ = fs_err::remove_file(self.dir.join("endpoint"));
    }

    /// Where the gateway keeps its state.
    pub(crate) fn gateway(&self) -> Utf8PathBuf {
        self.dir.join("gateway")
    }

    /// Where a node keeps its state.
    pub(crate) fn node(&self, id: &str) -> Utf8PathBuf {
        self.dir.join("nodes").join(id)
    }

    /// The directory, as a person wrote it.
    pub(crate) fn shown(&self) -> &Utf8Path {
        &self.shown
    }

    /// Replaces a file whole.
    fn write(&self, name: &str, text: &str, mode: u32) -> Outcome<()> {
        let failed = |error: std::io::Error| {
            Failure::new(format!("{} cannot be written: {error}", self.dir.join(name)))
        };
        let mut builder = tempfile::Builder::new();
        let mut part =
            builder.permissions(Permissions::from_mode(mode)).tempfile_in(&self.dir).map_err(failed)?;
        part.write_all(text.as_bytes()).and_then(|()| part.as_file().sync_all()).map_err(failed)?;
        part.persist(self.dir.join(name)).map_err(|error| failed(error.error))?;
        Ok(())
    }
}

impl Layout {
    /// A fleet without nodes yet.
    pub(crate) fn new(executor: Executor, listen: String) -> Self {
        Self { format: FORMAT, executor, listen, node_ports: Vec::new(), founded: false }
    }

    /// What the nodes are called.
    pub(crate) fn node_ids(&self) -> impl Iterator<Item = (String, u16)> {
        self.node_ports.iter().enumerate().map(|(index, port)| (format!("node-{}", index + 1), *port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout::new(Executor::Fake, "127.0.0.1:0".to_owned())
    }

    #[test]
    fn a_directory_keeps_its_token_and_belongs_to_one_process() {
        let temp = tempfile::tempdir().expect("a directory");
        let dir = Utf8Path::from_path(temp.path()).expect("UTF-8").join("fleet");
        assert!(Home::existing(Some(dir.clone())).expect("readable").is_none());
        let mut home = Home::take(Some(dir.clone()), layout).expect("free");
        assert!(!home.layout.founded);
        let env = Env::real();
        home.token(&env).expect("minted");
        home.layout.node_ports.push(7);
        home.save().expect("written");
        let token = std::fs::read_to_string(dir.join("token")).expect("there");
        assert_eq!(token.len(), 64);
        assert_eq!(
            std::fs::read_to_string(dir.join("auth")).expect("there"),
            format!("Authorization: Bearer {token}\n")
        );
        for (file, mode) in [("token", 0o600), ("auth", 0o600)] {
            let bits = std::fs::metadata(dir.join(file)).expect("there").permissions().mode();
            assert_eq!(bits & 0o777, mode, "{file}");
        }
        assert!(Home::take(Some(dir.clone()), layout).is_err(), "held");
        drop(home);
        let mut again = Home::take(Some(dir.clone()), layout).expect("free");
        assert!(!again.layout.founded, "it never was");
        assert_eq!(again.layout.node_ids().collect::<Vec<_>>(), [("node-1".to_owned(), 7)]);
        again.founded().expect("written");
        again.token(&env).expect("kept");
        assert_eq!(std::fs::read_to_string(dir.join("token")).expect("there"), token);
    }
}
