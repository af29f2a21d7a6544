//! Nodes: list, remove, readmit.

use clap::Subcommand;
use drowse_shared::{
    api::nodes::{ListNodes, Node, NodeList, NodeReadmitted, NodeRemoved, NodeState, OneNode},
    id::NodeId,
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

/// What can be done with nodes.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the nodes of the fleet
    Ls,
    /// Give up a node that is gone for good; its spaces are gone with it unless it is readmitted
    Rm {
        /// The node
        node: NodeId,
    },
    /// Take a removed node back
    Readmit {
        /// The node
        node: NodeId,
    },
}

/// Does it.
pub(crate) async fn run(command: Command, context: &Context) -> Outcome<Exit> {
    match command {
        Command::Ls => list(context).await,
        Command::Rm { node } => remove(node, context).await,
        Command::Readmit { node } => readmit(node, context).await,
    }
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

async fn remove(node_id: NodeId, context: &Context) -> Outcome<Exit> {
    let request = OneNode { node_id: node_id.clone() };
    let answer = context.client.answer("removeNode", &request, Duration::ZERO).await?;
    if context.json {
        output::json(&answer.body)?;
        return Ok(Exit::OK);
    }
    let NodeRemoved { removed } = answer.read()?;
    if !removed {
        return Err(Failure::new(format!("no node {node_id}")).hint("`drowse node ls` lists them."));
    }
    output::line(&format!(
        "{node_id}  removed; if it comes back its spaces stay frozen until `drowse node readmit {node_id}`"
    ))?;
    Ok(Exit::OK)
}

async fn readmit(node_id: NodeId, context: &Context) -> Outcome<Exit> {
    let request = OneNode { node_id: node_id.clone() };
    let answer = context.client.answer("readmitNode", &request, Duration::ZERO).await?;
    if context.json {
        output::json(&answer.body)?;
    }
    let NodeReadmitted { readmitted, conflicts } = answer.read()?;
    if !readmitted {
        for conflict in &conflicts {
            let nodes: Vec<String> = conflict.nodes.iter().map(ToString::to_string).collect();
            eprintln!("{}  held by {}", conflict.name, nodes.join(" and "));
        }
        return Err(Failure::new(format!(
            "{node_id} was not readmitted: {} held elsewhere too",
            count(conflicts.len(), "name")
        ))
        .hint("Destroy one copy of each first, by its id, then readmit again."));
    }
    if !context.json {
        output::line(&format!("{node_id}  readmitted"))?;
    }
    Ok(Exit::OK)
}
