//! Bringing a removed node back: every name it holds is looked up on the other nodes first, and a name that is held
//! twice keeps it out.

use std::{sync::Arc, time::Duration};

use drowse_shared::{
    api::{
        Code, Error,
        nodes::{Conflict, Intent, NodeReadmitted, Silent},
        spaces::{ListSpaces, PAGE_MAX, SpaceList},
    },
    id::NodeId,
    name::{SpaceName, SpaceRef},
};
use futures_util::{StreamExt as _, stream};

use super::{Fleet, Peer};
use crate::{
    find::{
        Finder,
        verdict::{Answer, Said},
    },
    forward::peer::{LIST_BYTES_MAX, Peers},
};

/// Longest wait for one page of its list.
const PAGE_DEADLINE: Duration = Duration::from_secs(10);
/// Most names looked up at once.
const AT_ONCE: usize = 16;

/// Readmits the node unless another one holds one of its names.
pub(crate) async fn readmit(
    fleet: Arc<Fleet>,
    finder: Arc<Finder>,
    peers: Arc<Peers>,
    id: NodeId,
) -> Result<NodeReadmitted, Error> {
    let peer = fleet.removed_peer(&id)?;
    // From here on whoever wants to create asks this node too. A create that was decided before quotes a ticket, and
    // the lookups below, which say that they intend to create, void it. So no name slips in between.
    let returning = Returning { fleet: &fleet, peer: &peer };
    fleet.set_returning(peer.ledger, true);
    let names = names(&peers, &peer).await?;
    let found: Vec<Result<Option<Conflict>, Error>> =
        stream::iter(names).map(|name| compare(&finder, &peer, name)).buffered(AT_ONCE).collect().await;
    let conflicts: Vec<Conflict> =
        found.into_iter().filter_map(Result::transpose).collect::<Result<_, _>>()?;
    let readmitted = conflicts.is_empty();
    if readmitted {
        fleet.readmit(&peer).await?;
    }
    drop(returning);
    Ok(NodeReadmitted { readmitted, conflicts })
}

/// Stops asking the node when the comparison ends, however it ends.
struct Returning<'a> {
    fleet: &'a Fleet,
    peer: &'a Peer,
}

impl Drop for Returning<'_> {
    fn drop(&mut self) {
        self.fleet.set_returning(self.peer.ledger, false);
    }
}

async fn names(peers: &Peers, peer: &Peer) -> Result<Vec<SpaceName>, Error> {
    let mut names = Vec::new();
    let mut page = ListSpaces { limit: Some(PAGE_MAX), ..ListSpaces::default() };
    loop {
        let list: SpaceList = peers
            .call(&peer.endpoint, "listSpaces", &page, PAGE_DEADLINE, LIST_BYTES_MAX)
            .await
            .map_err(|failure| {
                Error::new(
                    Code::NodeSilent,
                    format!(
                        "node {} did not say which spaces it holds: {failure}; it stays removed",
                        peer.id
                    ),
                )
            })?;
        names.extend(list.spaces.into_iter().map(|space| space.name));
        match list.next_cursor {
            Some(next) if Some(&next) != page.cursor.as_ref() => page.cursor = Some(next),
            _ => return Ok(names),
        }
    }
}

async fn compare(finder: &Arc<Finder>, peer: &Peer, name: SpaceName) -> Result<Option<Conflict>, Error> {
    let space = SpaceRef::Name(name.clone());
    let said: Vec<Said> = finder.ask_all(&space, Intent::Create).await?;
    let others = || said.iter().filter(|said| said.peer.ledger != peer.ledger);
    let holders: Vec<NodeId> = others()
        .filter(|said| matches!(said.answer, Answer::Yes(_)))
        .map(|said| said.peer.id.clone())
        .collect();
    if !holders.is_empty() {
        let mut nodes = holders;
        nodes.push(peer.id.clone());
        nodes.sort();
        return Ok(Some(Conflict { name, nodes }));
    }
    let silent: Vec<Silent> = others().filter_map(Said::silent).collect();
    if let Some(first) = silent.first() {
        return Err(Error::new(
            Code::NodeSilent,
            format!(
                "node {} did not answer ({}) and may hold \"{name}\" too; node {} stays removed until it does",
                first.node, first.reason, peer.id
            ),
        )
        .with("nodes", silent.iter().map(|silent| silent.node.to_string()).collect::<Vec<_>>()));
    }
    Ok(None)
}
