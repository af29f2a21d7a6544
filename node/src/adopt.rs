//! `drowse-node adopt DIR`: this node takes over the spaces whose disks lie in another node's state directory.
//!
//! One space after another: an intent row here, the disk staged here (moved, or copied and verified) while the source
//! forgets it, its card, its name, and the row here with the outcome. Cut anywhere, the next run goes on: at every moment
//! the disk is whole at one place that either node or this command finds, and no daemon ever finds it at two.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use drowse_shared::{
    api::nodes::NodeState,
    id::{LedgerId, SpaceId},
    lock,
    name::SpaceName,
    seams::Env,
    token::Token,
};
use serde::Serialize;

use crate::{
    executor::oci::carry::Way,
    ledger::{self, Database, Ledger, identity},
    milestone::listed,
};

/// The subcommand: arguments, table, exit code.
pub mod command;
/// Which spaces are taken.
mod decide;
/// Why nothing was done, and what would help.
mod error;
/// What the fleet thinks of the node whose disks these are.
mod fleet;
/// What a state directory gave away.
pub mod note;
/// One run, space by space.
mod run;
/// The other node's state directory.
mod source;

pub use decide::Outcome;
pub use error::Error;
use run::Run;
use source::Source;

listed! {
    /// How far one space is; cut after any of these, the next run goes on.
    pub enum Moment {
        /// It is written here that it comes.
        Begun = "begun",
        /// A verified copy lies here.
        Copied = "copied",
        /// The source's ledger knows it no more.
        Forgotten = "forgotten",
        /// Its disk left its place in the source.
        Left = "left",
        /// Its disk here has its new card.
        Marked = "marked",
        /// Its disk has its place here.
        Placed = "placed",
        /// Its row is here.
        Settled = "settled",
        /// The source keeps nothing of it.
        Cleared = "cleared",
    }
}

/// Sees how it goes.
pub trait Watch: Send + Sync {
    /// A space got so far.
    fn reached(&self, moment: Moment);
    /// So many bytes of a space's disk were copied, of so many.
    fn copied(&self, name: &SpaceName, bytes: u64, of_bytes: u64);
}

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Options {
    /// The other node's state directory.
    pub dir: Utf8PathBuf,
    /// This node's own.
    pub state: Utf8PathBuf,
    /// Templates of this machine.
    pub templates: Utf8PathBuf,
    /// Gateways of the fleet.
    pub gateways: Vec<String>,
    /// What they want to see.
    pub token: Option<Token>,
    /// Only say what would be done.
    pub dry_run: bool,
    /// Leave the disks in the source, and keep its daemon from ever running them.
    pub copy: bool,
}

/// What became of a space.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Its name, if anything says so.
    pub name: Option<SpaceName>,
    /// Its id.
    pub id: SpaceId,
    /// What its disk takes.
    pub size_bytes: u64,
    /// What became of it.
    pub outcome: Outcome,
    /// Why, and what would help.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// What was done, and what is left to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The other node's state directory.
    pub source: Utf8PathBuf,
    /// The other node.
    pub source_ledger_id: LedgerId,
    /// This node.
    pub ledger_id: LedgerId,
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// Every space that was looked at.
    pub spaces: Vec<Row>,
    /// What a person has to do now.
    pub remains: Vec<String>,
}

/// Takes over what lies in another node's state directory.
///
/// # Errors
/// Why nothing was done. What failed for one space is in the report.
pub async fn adopt(env: &Env, options: &Options, watch: Arc<dyn Watch>) -> Result<Report, Error> {
    let io = |what, path: &Utf8Path| {
        let path = path.to_owned();
        move |source| Error::Io { what, path, source }
    };
    let dir = options.dir.canonicalize_utf8().map_err(io("reading", &options.dir))?;
    if options.state.canonicalize_utf8().is_ok_and(|own| own == dir) {
        return Err(Error::Own { path: dir });
    }
    let ledger = Ledger::open(env, &options.state, Database::File).await.map_err(|why| match why {
        ledger::Error::Lock(lock::Error::Held { .. }) => Error::OwnRuns { path: options.state.clone() },
        why => why.into(),
    })?;
    note::refuse(&options.state, None)?;
    let written = identity::written(&ledger, &options.state).await?;
    let named = written.or_else(|| identity::on_disks(&options.state).into_iter().min());
    let own = named.unwrap_or_else(|| LedgerId::mint(env));
    let source = Source::open(&dir)?;
    if source.id == own {
        return Err(Error::SameLedger { path: dir, ledger: own });
    }
    note::refuse(&dir, Some(own))?;
    let mut remains = Vec::new();
    ask_fleet(env, options, &source, own, &mut remains).await?;
    if !options.dry_run {
        identity::keep(&ledger, &options.state, own).await?;
    }
    let way = Way::new(&dir, &options.state).map_err(io("making the directory of disks", &options.state))?;
    let run = Run { env, options, watch, own, ledger, source, way };
    let spaces = run.spaces().await?;
    run.advise(&spaces, &mut remains);
    Ok(Report {
        source: dir,
        source_ledger_id: run.source.id,
        ledger_id: own,
        dry_run: options.dry_run,
        spaces,
        remains,
    })
}

/// A node that is heard is not dead.
async fn ask_fleet(
    env: &Env,
    options: &Options,
    source: &Source,
    own: LedgerId,
    remains: &mut Vec<String>,
) -> Result<(), Error> {
    let (view, silent) = fleet::ask(env, &options.gateways, options.token.as_ref(), source.id, own).await;
    for gateway in silent {
        remains.push(format!(
            "a gateway could not be asked whether that node is gone ({gateway}): make sure that nobody runs it"
        ));
    }
    let (known, others) = match view {
        Some(view) => {
            if let Some((node, NodeState::Live)) = view.old {
                return Err(Error::Live { node, gateway: view.gateway });
            }
            (view.old.filter(|(_, state)| *state != NodeState::Removed).map(|(id, _)| id), view.others)
        }
        None => {
            let nodes = source.roster.iter().flat_map(|roster| &roster.nodes);
            let others = nodes.filter(|node| node.ledger_id != source.id && node.ledger_id != own);
            (source.node_id(), others.map(|node| node.id.clone()).collect())
        }
    };
    if let Some(node) = known {
        remains.push(format!(
            "if the fleet still has the old node: `drowse node rm {node}`; until then nothing new is created, because it may \
             hold the name"
        ));
    }
    if !others.is_empty() {
        let others: Vec<String> = others.iter().map(ToString::to_string).collect();
        remains.push(format!(
            "a name that {} holds too is answered 409 space_conflict by the gateway, naming both: destroy one by its id",
            others.join(" or ")
        ));
    }
    Ok(())
}
