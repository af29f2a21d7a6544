use crate::failure::{Exit, Failure, Outcome};
use camino::Utf8PathBuf;
/// x
pub(crate) async fn run(_: Option<Utf8PathBuf>) -> Outcome<Exit> {
    Err(Failure::new("no"))
}
