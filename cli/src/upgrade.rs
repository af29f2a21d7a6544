//! Rolling the fleet to another build: `drowse fleet upgrade`.

use std::{collections::BTreeMap, process::Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use clap::Subcommand;
use drowse_shared::{
    api::{
        nodes::OneNode,
        upgrade::{Everybody, FleetUpgrade, NodeUpgrade, UpgradeState},
    },
    id::NodeId,
};
use tokio::{
    process::Command as Program,
    time::{Duration, Instant},
};

use crate::{
    args::Context,
    client::Answer,
    failure::{Exit, Failure, Outcome},
    output::{
        self,
        table::{Table, Tone},
        units::count,
    },
};

/// Between two looks at how far the fleet is.
const LOOK: Duration = Duration::from_secs(2);
/// How long a gateway may be away while it is looked at: it is restarted by its own upgrade.
const AWAY: Duration = Duration::from_secs(120);
/// How long nodes have to check in with a gateway that was restarted.
const HEARD: Duration = Duration::from_secs(30);
/// How long the next node may stay untold.
const TROUBLE: Duration = Duration::from_secs(15);
/// What only the gateway's machine has.
const GATEWAY: &str = "/etc/drowse/gateway.env";

/// What can be done with the fleet as a whole.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Bring every machine to one build: the gateway's first, then one node after another
    ///
    /// With --from it begins on the gateway's machine, as root, by running the installer of that release. Without it the
    /// nodes are brought to the build the gateway runs already. Spaces and their processes run on. A node whose upgrade
    /// fails keeps the build it had, and holds up the others until a person has looked: --retry puts it back in line.
    Upgrade(Args),
}

/// What is asked of an upgrade.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub(crate) struct Args {
    /// A release, as tools/pack makes it: an archive or a directory
    #[arg(long, value_name = "RELEASE")]
    from: Option<Utf8PathBuf>,
    /// Only show how far every node is
    #[arg(long)]
    status: bool,
    /// Put a node that is stuck back in line
    #[arg(long, value_name = "NODE")]
    retry: Option<NodeId>,
    /// Tell no further node; whoever is at it goes on
    #[arg(long)]
    stop: bool,
}

/// Does it.
pub(crate) async fn run(command: Command, context: &Context) -> Outcome<Exit> {
    let Command::Upgrade(args) = command;
    if args.status {
        return show(&ask(context, "getUpgrade").await?, context);
    }
    if args.stop {
        return show(&ask(context, "stopUpgrade").await?, context);
    }
    if let Some(node_id) = args.retry {
        let answer = context.client.answer("retryUpgrade", &OneNode { node_id }, Duration::ZERO).await?;
        // Whether nodes are told is another question: one that was stopped stays so.
        let FleetUpgrade { rolling, .. } = answer.read()?;
        return if rolling { watch(answer, context).await } else { show(&answer, context) };
    }
    if let Some(release) = args.from {
        install(&release, context.json).await?;
    }
    let answer = ask(context, "upgradeFleet").await?;
    watch(answer, context).await
}

async fn ask(context: &Context, verb: &str) -> Outcome<Answer> {
    context.client.answer(verb, &Everybody {}, Duration::ZERO).await
}

fn show(answer: &Answer, context: &Context) -> Outcome<Exit> {
    if context.json {
        output::json(&answer.body)?;
        return Ok(Exit::OK);
    }
    let FleetUpgrade { build, rolling, nodes, trouble, .. } = answer.read()?;
    output::bytes(table(&nodes).text().as_bytes())?;
    let what =
        if rolling { "nodes that are behind are told, one at a time" } else { "no node is told anything" };
    output::line(&format!("the gateway runs {build}; {what}"))?;
    if let Some(trouble) = trouble {
        output::line(&format!("the next one cannot be told: {trouble}"))?;
    }
    Ok(Exit::OK)
}

fn table(nodes: &[NodeUpgrade]) -> Table {
    let mut table = Table::new(&["NODE", "UPGRADE", "RUNS", "WHY"]);
    for NodeUpgrade { id, build, state, reason, .. } in nodes {
        let tone = match state {
            state if state.is_there() => Tone::Green,
            UpgradeState::Behind | UpgradeState::Upgrading => Tone::Blue,
            _ => Tone::Red,
        };
        let runs = build.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
        table.row(vec![
            (id.to_string(), Tone::Plain),
            (state.as_str().to_owned(), tone),
            (runs, Tone::Plain),
            (reason.clone().unwrap_or_default(), Tone::Plain),
        ]);
    }
    table
}

/// Has the installer of a release take over this machine, and shows what it prints.
async fn install(release: &Utf8Path, quiet: bool) -> Outcome<()> {
    if !Utf8Path::new(GATEWAY).exists() {
        return Err(Failure::new("this is not the gateway's machine").hint(
            "--from begins with the gateway: bring the release there, and run this there as root. Elsewhere, leave --from out.",
        ));
    }
    let unpacked = tempfile::tempdir()?;
    let installer = if release.is_dir() {
        release.join("install.sh").into_std_path_buf()
    } else {
        let mut tar = Program::new("tar");
        tar.arg("-xzf").arg(release).arg("-C").arg(unpacked.path()).arg("./install.sh").stderr(Stdio::null());
        ended(&mut tar).await?;
        unpacked.path().join("install.sh")
    };
    if !installer.exists() {
        return Err(Failure::new(format!("{release} holds no release")).hint("tools/pack makes one."));
    }
    let mut bash = Program::new("bash");
    bash.arg(&installer).arg("--from").arg(release).stdin(Stdio::null());
    if quiet {
        // A program reads standard output, and no sentences.
        bash.stdout(std::io::stderr());
    }
    if ended(&mut bash).await? {
        return Ok(());
    }
    Err(Failure::new("the gateway's machine is not done, and no node was told anything")
        .hint("The installer said why, above."))
}

async fn ended(program: &mut Program) -> Outcome<bool> {
    let status = program.status().await;
    let name = program.as_std().get_program().to_string_lossy().into_owned();
    status
        .map(|status| status.success())
        .map_err(|error| Failure::new(format!("{name} cannot be started: {error}")))
}

/// Says what becomes of every node, until nothing more does by itself.
async fn watch(mut answer: Answer, context: &Context) -> Outcome<Exit> {
    let (began, mut away) = (Instant::now(), None);
    let (mut seen, mut troubled) = (BTreeMap::new(), None);
    loop {
        let FleetUpgrade { build, rolling, nodes, trouble, .. } = answer.read()?;
        for node in &nodes {
            let state = (node.state, node.reason.clone());
            if seen.insert(node.id.clone(), state.clone()).as_ref() != Some(&state) && !context.json {
                output::line(&said(node))?;
            }
        }
        // One write that came late is no trouble.
        troubled = trouble.is_some().then(|| troubled.unwrap_or_else(Instant::now));
        let trouble = trouble.filter(|_| troubled.is_some_and(|since: Instant| since.elapsed() >= TROUBLE));
        if let Some(end) = end(&nodes, rolling, trouble, began.elapsed()) {
            if context.json {
                output::json(&answer.body)?;
            }
            return match end {
                End::Done => {
                    if !context.json {
                        output::line(&arrived(&nodes, &build.to_string()))?;
                    }
                    Ok(Exit::OK)
                }
                End::Stuck(node) => Err(Failure::new(format!("{node} is stuck, and no other node is told anything"))
                    .hint(format!(
                        "Its journal says more: journalctl -u drowse-upgrade, there. Then: drowse fleet upgrade --retry {node}\n\
                         or, if it is gone for good: drowse node rm {node}"
                    ))),
                End::Untold(why) => Err(Failure::new(format!("the next node cannot be told: {why}"))
                    .hint("The gateway goes on by itself once it can; `drowse fleet upgrade` looks on.")),
                End::Left(left) => Err(Failure::new(format!(
                    "{} not brought to {build}: {}",
                    if left.len() == 1 { "1 node was".to_owned() } else { format!("{} nodes were", left.len()) },
                    left.join(", ")
                ))
                .hint("`drowse fleet upgrade --status` shows them. Those that come back are told then.")),
            };
        }
        tokio::time::sleep(LOOK).await;
        match ask(context, "getUpgrade").await {
            Ok(next) => (answer, away) = (next, None),
            Err(failure) => {
                let since = *away.get_or_insert_with(Instant::now);
                if since.elapsed() > AWAY {
                    return Err(failure);
                }
            }
        }
    }
}

fn said(node: &NodeUpgrade) -> String {
    let why = node.reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    format!("{}  {}{why}", node.id, node.state.as_str())
}

/// Where everybody is; who runs a newer build was left alone, and is not counted with the others.
fn arrived(nodes: &[NodeUpgrade], build: &str) -> String {
    let ahead: Vec<&str> =
        nodes.iter().filter(|node| node.state == UpgradeState::Ahead).map(|node| node.id.as_str()).collect();
    let on_it = format!("{} on {build}", count(nodes.len() - ahead.len(), "node"));
    if ahead.is_empty() {
        on_it
    } else {
        format!("{on_it}; on a newer one, and left alone: {}", ahead.join(", "))
    }
}

/// Why nothing more happens by itself.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// Every node is there.
    Done,
    /// One waits for a person, and the others for it.
    Stuck(NodeId),
    /// The gateway cannot tell the next one.
    Untold(String),
    /// These cannot be told, or not now.
    Left(Vec<String>),
}

fn end(nodes: &[NodeUpgrade], rolling: bool, trouble: Option<String>, since: Duration) -> Option<End> {
    // Of one that this gateway has not heard yet it is only known that it was told long ago.
    let early = |node: &NodeUpgrade| node.build.is_none() && since < HEARD;
    if let Some(stuck) = nodes.iter().find(|node| node.state == UpgradeState::Stuck && !early(node)) {
        return Some(End::Stuck(stuck.id.clone()));
    }
    if let Some(trouble) = trouble {
        return Some(End::Untold(trouble));
    }
    let moves = |node: &NodeUpgrade| match node.state {
        UpgradeState::Upgrading => true,
        UpgradeState::Behind => rolling,
        // A gateway that was restarted has not heard everybody yet.
        _ => early(node),
    };
    if nodes.iter().any(moves) {
        return None;
    }
    let left: Vec<String> =
        nodes.iter().filter(|node| !node.state.is_there()).map(|node| node.id.to_string()).collect();
    Some(if left.is_empty() { End::Done } else { End::Left(left) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use drowse_shared::api::nodes::Build;

    fn node(id: &str, state: UpgradeState) -> NodeUpgrade {
        NodeUpgrade {
            id: id.parse().expect("an id"),
            build: (state != UpgradeState::Unknown).then(Build::unreleased),
            state,
            told_at: None,
            reason: None,
        }
    }

    #[test]
    fn who_runs_a_newer_build_is_not_said_to_run_this_one() {
        let nodes = [node("n1", UpgradeState::Current), node("n2", UpgradeState::Ahead)];
        assert_eq!(arrived(&nodes[..1], "1.0"), "1 node on 1.0");
        assert_eq!(arrived(&nodes, "1.0"), "1 node on 1.0; on a newer one, and left alone: n2");
    }

    #[test]
    fn it_is_looked_at_for_as_long_as_something_happens() {
        use UpgradeState::{Ahead, Behind, Current, Stuck, Unknown, Unreachable, Upgrading};
        let left = |ids: &[&str]| Some(End::Left(ids.iter().map(|id| (*id).to_owned()).collect()));
        let stuck = || Some(End::Stuck("b".parse().expect("an id")));
        for (states, rolling, seconds, expected) in [
            (&[Current, Ahead][..], true, 0, Some(End::Done)),
            (&[Current, Behind], true, 9999, None),
            (&[Current, Behind], false, 0, left(&["b"])),
            (&[Current, Upgrading], false, 9999, None),
            (&[Upgrading, Stuck], true, 0, stuck()),
            (&[Unreachable, Current], true, 0, left(&["a"])),
            (&[Unknown, Current], true, 5, None),
            (&[Unknown, Current], true, 60, left(&["a"])),
            (&[], true, 0, Some(End::Done)),
        ] {
            let nodes: Vec<_> =
                ["a", "b"].into_iter().zip(states).map(|(id, state)| node(id, *state)).collect();
            assert_eq!(end(&nodes, rolling, None, Duration::from_secs(seconds)), expected, "{states:?}");
        }
        let behind = [node("a", Behind)];
        let full = || Some("its disk is full".to_owned());
        assert_eq!(end(&behind, true, full(), Duration::ZERO), full().map(End::Untold));
    }
}
