//! Bringing a removed node back: every name it holds is looked up on the other nodes first, and a name that is held
//! twice keeps it out until a person has chosen whose body keeps it. Every other one is set aside, durably and on its
//! own node's word, before the node is back: at no moment can two bodies of a name be reached.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drowse_shared::{
    api::{
        Code, Error,
        nodes::{Held, Holding, Intent, NodeReadmitted, ReadmitNode, SetAside, SetAsideBody, Silent},
        spaces::{ListSpaces, PAGE_MAX, Space, SpaceList},
    },
    id::SpaceId,
    name::{SpaceName, SpaceRef},
};
use futures_util::{StreamExt as _, stream};
use tokio::time::Instant;

use super::{Fleet, Peer};
use crate::{
    find::{
        Finder,
        verdict::{Answer, Said},
    },
    forward::peer::{Failure, LIST_BYTES_MAX, Peers},
    several::several,
};
use choose::{Clash, Loser, Plan, plan};

/// What a person's choices make of names that are held twice.
mod choose;
/// What a person needs to choose.
mod describe;

/// Longest readmission. Nodes keep a name that was given up for much longer.
pub(crate) const LONGEST: Duration = Duration::from_secs(120);
/// Longest wait for one page of its list.
const PAGE_DEADLINE: Duration = Duration::from_secs(10);
/// Longest wait for one space to be set aside: it may have to be suspended first.
const ASIDE_DEADLINE: Duration = Duration::from_secs(45);
/// Largest answer about one space.
const SPACE_BYTES_MAX: usize = 1 << 20;
/// Most names looked up at once.
const AT_ONCE: usize = 16;

/// Readmits the node, unless another one holds one of its names and nobody chose.
pub(crate) async fn readmit(
    fleet: Arc<Fleet>,
    finder: Arc<Finder>,
    peers: Arc<Peers>,
    wish: ReadmitNode,
) -> Result<NodeReadmitted, Error> {
    let begun = Instant::now();
    let peer = fleet.removed_peer(&wish.node_id)?;
    // From here on whoever wants to create asks this node too. A create that was decided before quotes a ticket, and
    // the lookups below void it. So no name slips in between.
    let returning = Returning { fleet: &fleet, peer: &peer };
    fleet.set_returning(peer.ledger, true);
    let mine = spaces(&peers, &peer).await?;
    let ids: BTreeMap<SpaceName, SpaceId> = mine.iter().map(|held| (held.name.clone(), held.id)).collect();
    let found: Vec<Result<Compared, Error>> =
        stream::iter(mine).map(|held| compare(&finder, &peer, held)).buffered(AT_ONCE).collect().await;
    let found: Vec<Compared> = found.into_iter().collect::<Result<_, _>>()?;
    let unsure = found.iter().find_map(|compared| compared.unsure.clone());
    let clashes = found.into_iter().filter_map(|compared| compared.clash).collect();
    let losers = match (plan(&wish, &peer.ledger, &ids, clashes)?, unsure) {
        (Plan::Ask(open), _) => {
            drop(returning);
            let conflicts = describe::conflicts(&peers, open).await;
            return Ok(NodeReadmitted { readmitted: false, conflicts, set_aside: Vec::new() });
        }
        (Plan::Act(_), Some(unsure)) => return Err(unsure),
        (Plan::Act(losers), None) => losers,
    };
    let set_aside = set_aside_all(&finder, &peers, &peer, losers).await?;
    if begun.elapsed() >= LONGEST {
        return Err(took_too_long(&wish));
    }
    fleet.readmit(&peer).await?;
    drop(returning);
    Ok(NodeReadmitted { readmitted: true, conflicts: Vec::new(), set_aside })
}

/// It took longer than names are safely kept.
pub(crate) fn took_too_long(wish: &ReadmitNode) -> Error {
    let message = format!(
        "comparing the spaces of node {} took more than {} s; it stays removed, and the same call again goes on from here",
        wish.node_id,
        LONGEST.as_secs()
    );
    Error::new(Code::NodeSilent, message)
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

/// What the returning node holds, by its own word.
async fn spaces(peers: &Peers, peer: &Peer) -> Result<Vec<Held>, Error> {
    let mut spaces = Vec::new();
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
        spaces.extend(list.spaces.into_iter().map(held));
        match list.next_cursor {
            Some(next) if Some(&next) != page.cursor.as_ref() => page.cursor = Some(next),
            _ => return Ok(spaces),
        }
    }
}

fn held(space: Space) -> Held {
    Held { id: space.id, name: space.name, state: space.state, epoch: space.epoch, holding: Holding::Home }
}

/// One name of the returning node, as the others answered about it.
struct Compared {
    clash: Option<Clash>,
    /// Somebody else who may hold it too was silent.
    unsure: Option<Error>,
}

/// Who else holds a name of the returning node. Fails when nobody is known to and somebody was silent.
async fn compare(finder: &Arc<Finder>, peer: &Peer, mine: Held) -> Result<Compared, Error> {
    let space = SpaceRef::Name(mine.name.clone());
    let said: Vec<Said> = finder.ask_all(&space, Intent::Compare).await?;
    let others = || said.iter().filter(|said| said.peer.ledger != peer.ledger);
    let mut holders: Vec<(Peer, Held)> = others()
        .filter_map(|said| match &said.answer {
            Answer::Yes(held) => Some((said.peer.clone(), held.clone())),
            Answer::No { .. } | Answer::Silent(_) => None,
        })
        .collect();
    let silent: Vec<Silent> = others().filter_map(Said::silent).collect();
    let unsure = silent.first().map(|first| unsure(&mine.name, peer, first, &silent));
    if holders.is_empty() {
        return unsure.map_or(Ok(Compared { clash: None, unsure: None }), Err);
    }
    let name = mine.name.clone();
    holders.push((peer.clone(), mine));
    holders.sort_by(|(one, _), (other, _)| one.id.cmp(&other.id));
    Ok(Compared { clash: Some(Clash { name, holders }), unsure })
}

fn unsure(name: &SpaceName, peer: &Peer, first: &Silent, silent: &[Silent]) -> Error {
    let message = format!(
        "node {} did not answer ({}) and may hold \"{name}\" too; node {} stays removed until it does",
        first.node, first.reason, peer.id
    );
    let nodes: Vec<String> = silent.iter().map(|silent| silent.node.to_string()).collect();
    Error::new(Code::NodeSilent, message).with("nodes", nodes)
}

/// Sets all of them aside, or says who did not. Those of the returning node first: should it fail, no member has given
/// up anything.
async fn set_aside_all(
    finder: &Finder,
    peers: &Peers,
    returning: &Peer,
    losers: Vec<Loser>,
) -> Result<Vec<SetAsideBody>, Error> {
    let (own, members): (Vec<_>, Vec<_>) =
        losers.into_iter().partition(|loser| loser.peer.ledger == returning.ledger);
    let mut done = Vec::new();
    for part in [own, members] {
        let asked = stream::iter(part).map(|loser| async move {
            let answer = set_aside(peers, &loser).await;
            (loser, answer)
        });
        let mut failed = Vec::new();
        for (loser, answer) in asked.buffered(AT_ONCE).collect::<Vec<_>>().await {
            match answer {
                Ok(body) => {
                    finder.forget_id(&loser.id);
                    done.extend(body);
                }
                Err(failure) => failed.push((loser, failure)),
            }
        }
        if let Some((_, first)) = failed.first() {
            return Err(not_set_aside(returning, &failed, code(first), done.len()));
        }
    }
    Ok(done)
}

/// `None` when the body is gone: it holds no name.
async fn set_aside(peers: &Peers, loser: &Loser) -> Result<Option<SetAsideBody>, Failure> {
    let wish = SetAside {
        id: loser.id,
        name: loser.name.clone(),
        keeper: loser.keeper,
        ledger_id: loser.peer.ledger,
    };
    let endpoint = &loser.peer.endpoint;
    match peers.call(endpoint, "setAside", &wish, ASIDE_DEADLINE, SPACE_BYTES_MAX).await {
        Ok(body) => Ok(Some(body)),
        Err(Failure::Refused(error, _)) if error.code == Code::SpaceNotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn code(failure: &Failure) -> Code {
    match failure {
        Failure::Refused(error, _) => error.code.clone(),
        _ => Code::NodeSilent,
    }
}

fn not_set_aside(returning: &Peer, failed: &[(Loser, Failure)], code: Code, done: usize) -> Error {
    let who = several(
        failed.iter().map(|(loser, why)| format!("\"{}\" on node {} ({why})", loser.name, loser.peer.id)),
        ", ",
    );
    let message = format!(
        "not set aside: {who}; node {} stays removed. {done} other spaces gave up their names, and the same call again \
         goes on from here",
        returning.id
    );
    let mut nodes: Vec<String> = failed.iter().map(|(loser, _)| loser.peer.id.to_string()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    Error::new(code, message).with("nodes", nodes)
}
