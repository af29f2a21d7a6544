//! Nodes: list, remove, readmit.

use std::collections::BTreeMap;

use clap::Subcommand;
use drowse_shared::{
    api::nodes::{
        Conflict, KeepAll, ListNodes, Node, NodeList, NodeReadmitted, NodeRemoved, NodeState, OneNode,
        ReadmitNode,
    },
    id::NodeId,
    name::SpaceName,
    seams::Env,
};
use jiff::Timestamp;
use tokio::time::Duration;

use crate::{
    args::Context,
    failure::{Exit, Failure, Outcome},
    output::{
        self,
        table::{Table, Tone},
        units::{bytes, count, span},
    },
};

/// Longest readmission: every space of the node is compared with everybody else's.
const READMISSION: Duration = Duration::from_secs(120);

/// What can be done with nodes.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the nodes of the fleet
    Ls,
    /// Give up a node that is gone for good; its spaces are gone with it unless it is readmitted
    #[command(after_help = "Asks first on a terminal.")]
    Rm {
        /// The node
        node: NodeId,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Take a removed node back, and choose where it and another node hold one name
    ///
    /// Without a choice for each such name nothing changes, and the bodies of each are listed. Who is not chosen is set
    /// aside: it keeps its data under the name NAME~ID.
    Readmit {
        /// The node
        node: NodeId,
        /// Whose space keeps a name
        #[arg(long, value_name = "NAME=NODE", value_parser = choice)]
        keep: Vec<(SpaceName, NodeId)>,
        /// Whose spaces keep every other name: those of the node that comes back, or of the member of the fleet
        #[arg(long, value_name = "WHOSE", value_parser = whose)]
        keep_all: Option<KeepAll>,
    },
}

/// Does it.
pub(crate) async fn run(command: Command, context: &Context) -> Outcome<Exit> {
    match command {
        Command::Ls => list(context).await,
        Command::Rm { node, yes } => remove(node, yes, context).await,
        Command::Readmit { node, keep, keep_all } => {
            let mut chosen = BTreeMap::new();
            for (name, keeper) in keep {
                if let Some(other) = chosen.insert(name.clone(), keeper.clone()).filter(|o| *o != keeper) {
                    return Err(Failure::usage(format!("--keep gives {name} to {other} and to {keeper}")));
                }
            }
            readmit(ReadmitNode { node_id: node, keep: chosen, keep_all }, context).await
        }
    }
}

/// A name may have an equals sign in it, the id of a node has none.
fn choice(text: &str) -> Result<(SpaceName, NodeId), String> {
    let (name, node) = text.rsplit_once('=').ok_or("wants NAME=NODE")?;
    let name = name.parse().map_err(|why| format!("{name:?}: {why}"))?;
    let node = node.parse().map_err(|why| format!("{node:?}: {why}"))?;
    Ok((name, node))
}

fn whose(text: &str) -> Result<KeepAll, String> {
    let known = [KeepAll::Returning, KeepAll::Member].into_iter().find(|whose| whose.as_str() == text);
    known.ok_or_else(|| "is `returning` or `member`".to_owned())
}

async fn list(context: &Context) -> Outcome<Exit> {
    let answer = context.client.answer("listNodes", &ListNodes {}, Duration::ZERO).await?;
    if context.json {
        output::json(&answer.body)?;
        return Ok(Exit::OK);
    }
    let list: NodeList = answer.read()?;
    output::bytes(table(&list.nodes, Env::real().clock.wall()).text().as_bytes())?;
    if output::on_terminal() {
        output::line(&count(list.nodes.len(), "node"))?;
    }
    Ok(Exit::OK)
}

fn table(nodes: &[Node], now: Timestamp) -> Table {
    let heads =
        ["NODE", "STATE", "SPACES", "CPU", "MEM FREE", "DISK FREE", "HEARD", "ENDPOINT", "NEW SPACES"];
    let mut table = Table::new(&heads);
    for node in nodes {
        let (state, tone) = match node.state {
            NodeState::Live => ("live", Tone::Green),
            NodeState::Down => ("down", Tone::Red),
            NodeState::Silent => ("silent", Tone::Red),
            NodeState::Removed => ("removed", Tone::Blue),
        };
        let reading = node.reading.as_ref();
        let cell = |text: Option<String>| (text.unwrap_or_default(), Tone::Plain);
        let heard =
            node.last_check_in_at.map(|at| u64::try_from(now.as_second() - at.as_second()).unwrap_or(0));
        table.row(vec![
            (node.id.to_string(), Tone::Plain),
            (state.to_owned(), tone),
            cell(reading.map(|r| r.spaces.values().sum::<u64>().to_string())),
            cell(reading.and_then(|r| r.cpu_percent).map(|cpu| format!("{cpu:.0} %"))),
            cell(reading.map(|r| bytes(r.memory_available_bytes))),
            cell(reading.and_then(|r| r.disk).map(|disk| bytes(disk.available_bytes))),
            cell(heard.map(|seconds| format!("{} ago", span(seconds)))),
            (node.endpoint.clone(), Tone::Plain),
            (node.refuses.clone().unwrap_or_else(|| "yes".to_owned()), Tone::Plain),
        ]);
    }
    table
}

async fn remove(node_id: NodeId, yes: bool, context: &Context) -> Outcome<Exit> {
    let question =
        format!("Give up {node_id} for good? Its spaces are gone with it, and their names become free.");
    if !yes && !output::confirmed(&question).await? {
        return Err(Failure::new("nothing was changed"));
    }
    let request = OneNode { node_id: node_id.clone() };
    let answer = context.client.answer("removeNode", &request, Duration::ZERO).await?;
    if context.json {
        output::json(&answer.body)?;
        return Ok(Exit::OK);
    }
    let NodeRemoved { removed } = answer.read()?;
    if removed {
        output::line(&format!(
            "{node_id}  removed; if it comes back its spaces stay frozen until `drowse node readmit {node_id}`"
        ))?;
    } else {
        eprintln!("note: there is no node {node_id}; `drowse node ls` lists those that there are");
    }
    Ok(Exit::OK)
}

async fn readmit(request: ReadmitNode, context: &Context) -> Outcome<Exit> {
    let answer = context.client.answer("readmitNode", &request, READMISSION).await?;
    if context.json {
        output::json(&answer.body)?;
    }
    let node = request.node_id;
    let NodeReadmitted { readmitted, conflicts, set_aside } = answer.read()?;
    if !readmitted {
        if !context.json {
            eprint!("{}", bodies(&conflicts, Env::real().clock.wall()).text());
        }
        return Err(Failure::new(format!(
            "{node} was not readmitted, and nothing was changed: {} held elsewhere too",
            count(conflicts.len(), "name")
        ))
        .hint(format!(
            "Choose whose space keeps each name: drowse node readmit {node} --keep NAME=NODE, or --keep-all returning, \
             or --keep-all member. The others keep their data as NAME~ID."
        )));
    }
    if !context.json {
        for body in &set_aside {
            output::line(&format!("{}  set aside on {} as {}", body.was, body.node, body.name))?;
        }
        output::line(&format!("{node}  readmitted"))?;
    }
    Ok(Exit::OK)
}

/// What there is to choose from.
fn bodies(conflicts: &[Conflict], now: Timestamp) -> Table {
    let mut table = Table::new(&["NAME", "NODE", "ID", "STATE", "MADE", "LAST USED", "DISK"]);
    let ago = |at: Option<Timestamp>| {
        let seconds = at.map(|at| u64::try_from(now.as_second() - at.as_second()).unwrap_or(0));
        seconds.map_or_else(String::new, |seconds| format!("{} ago", span(seconds)))
    };
    for conflict in conflicts {
        for body in &conflict.bodies {
            let cells = [
                conflict.name.to_string(),
                body.node.to_string(),
                body.id.to_string(),
                body.state.to_string(),
                ago(body.created_at),
                ago(body.last_active_at),
                body.disk_bytes.map(bytes).unwrap_or_default(),
            ];
            table.row(cells.into_iter().map(|cell| (cell, Tone::Plain)).collect());
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_a_name_and_a_node() {
        let read = |text: &str| choice(text).map(|(name, node)| (name.to_string(), node.to_string()));
        assert_eq!(read("shop=n1"), Ok(("shop".to_owned(), "n1".to_owned())));
        assert_eq!(read("a=b=n1"), Ok(("a=b".to_owned(), "n1".to_owned())));
        for wrong in ["shop", "=n1", "shop="] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert_eq!(whose("member"), Ok(KeepAll::Member));
        assert!(whose("n1").is_err());
    }
}
