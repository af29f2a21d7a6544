use crate::failure::{Exit, Failure, Outcome};
use camino::Utf8PathBuf;
/// x
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}
/// x
pub(crate) async fn run(_: Args, _: Option<Utf8PathBuf>) -> Outcome<Exit> {
    Err(Failure::new("no"))
}
