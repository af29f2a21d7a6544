use std::env;

use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::token::Token;

use crate::failure::{Failure, Outcome};

/// Where a local fleet keeps its state when nothing else is said.
pub(crate) const DEFAULT_STATE: &str = ".drowse";

/// Where `install.sh` leaves the address and the token of the fleet a machine belongs to.
const INSTALLED: &str = "/etc/drowse";

/// A fleet a command can talk to.
pub(crate) struct Fleet {
    /// Its origin, without a trailing slash.
    pub(crate) endpoint: String,
    /// Its secret.
    pub(crate) token: Token,
}

/// Finds the fleet: `--state DIR`, else the environment, else `./.drowse`, else the one this machine was installed into.
pub(crate) fn find(state: Option<&Utf8Path>) -> Outcome<Fleet> {
    if let Some(dir) = state {
        return local(dir);
    }
    if let Some(endpoint) = variable("DROWSE_ENDPOINT")? {
        let endpoint = origin(&endpoint)?;
        let value = variable("DROWSE_TOKEN")?;
        let file = variable("DROWSE_TOKEN_FILE")?.map(Utf8PathBuf::from);
        let token = Token::load(value.as_deref(), file.as_deref()).map_err(|e| Failure::new(chain(&e)))?;
        return Ok(Fleet { endpoint, token });
    }
    let dir = Utf8Path::new(DEFAULT_STATE);
    if dir.join("fleet.json").exists() {
        return local(dir);
    }
    let installed = Utf8Path::new(INSTALLED);
    if installed.join("endpoint").exists() {
        return local(installed);
    }
    Err(Failure::new("no fleet: there is no .drowse here and DROWSE_ENDPOINT is not set").hint(
        "Start one here with `drowse up`, name its directory with --state DIR,\n\
         or set DROWSE_ENDPOINT and DROWSE_TOKEN_FILE.",
    ))
}

/// What DROWSE_ENDPOINT says, without a trailing slash.
fn origin(endpoint: &str) -> Outcome<String> {
    let is_origin = |rest: &str| !rest.is_empty() && !rest.starts_with('/');
    if ["http://", "https://"].iter().any(|scheme| endpoint.strip_prefix(scheme).is_some_and(is_origin)) {
        return Ok(endpoint.trim_end_matches('/').to_owned());
    }
    let failure =
        Failure::new(format!("DROWSE_ENDPOINT is {endpoint:?}; it begins with http:// or https://"));
    Err(if endpoint.contains("://") || endpoint.starts_with('/') {
        failure.hint("Write it as the gateway listens, for example http://127.0.0.1:4677.")
    } else {
        failure.hint(format!("If it is the gateway's address: DROWSE_ENDPOINT=http://{endpoint}"))
    })
}

/// The fleet that `drowse up` keeps in `dir`.
fn local(dir: &Utf8Path) -> Outcome<Fleet> {
    let file = dir.join("endpoint");
    let endpoint = fs_err::read_to_string(&file).map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            let what = if dir.join("fleet.json").exists() { "does not run" } else { "is not there" };
            Failure::new(format!("the fleet of {dir} {what}"))
                .hint(format!("Start it with: drowse up --state {dir}"))
        } else {
            Failure::new(error.to_string())
        }
    })?;
    let token = Token::load(None, Some(&dir.join("token"))).map_err(|e| Failure::new(chain(&e)))?;
    Ok(Fleet { endpoint: endpoint.trim().trim_end_matches('/').to_owned(), token })
}

/// A variable that is set and not empty.
fn variable(name: &str) -> Outcome<Option<String>> {
    #[expect(clippy::disallowed_methods, reason = "a secret has no flag that clap could read it for")]
    match env::var(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(Failure::new(format!("{name} is not UTF-8"))),
    }
}

/// An error with its causes, in one sentence.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut out = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        out.push_str(": ");
        out.push_str(&error.to_string());
        cause = error.source();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_without_its_scheme_is_refused_naming_it() {
        for (endpoint, found) in [
            ("http://127.0.0.1:24677/", "http://127.0.0.1:24677"),
            ("https://fleet.example", "https://fleet.example"),
        ] {
            assert_eq!(origin(endpoint).expect("an origin"), found);
        }
        for wrong in ["127.0.0.1:24677", "localhost:24677", "ftp://x", "http://", "http:///x", "/run/socket"]
        {
            let failure = origin(wrong).expect_err(wrong);
            assert!(
                failure.sentence().contains("DROWSE_ENDPOINT is") && failure.sentence().contains("http://")
            );
        }
    }
}
