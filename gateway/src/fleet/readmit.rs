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
use tokio::time::{Instant, timeout_at};

use super::{Fleet, Peer};
use crate::{
    find::{
        Finder,
        verdict::{Answer, Said},
    },
    forward::peer::{Failure, LIST_BYTES_MAX, Peers},
    several::{and_more, named, several},
};
use choose::{Clash, Loser, Plan, plan};

/// What a person's choices make of names that are held twice.
mod choose;
/// What a person needs to choose.
mod describe;

/// Longest readmission, but for the last write. Whoever asked is still there then, and nodes keep a name that was given up
/// for much longer.
const LONGEST: Duration = Duration::from_secs(90);
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
    let ends = Instant::now() + LONGEST;
    let peer = fleet.removed_peer(&wish.node_id)?;
    // From here on whoever wants to create asks this node too. A create that was decided before quotes a ticket, and
    // the lookups below void it. So no name slips in between.
    let returning = Returning { fleet: &fleet, peer: &peer };
    fleet.set_returning(peer.ledger, true);
    let cleared = timeout_at(ends, clear(&finder, &peers, &peer, &wish)).await;
    let set_aside = match cleared.unwrap_or_else(|_| Err(took_too_long(&wish)))? {
        Cleared::Open(clashes) => {
            drop(returning);
            let described = timeout_at(ends, describe::conflicts(&peers, clashes)).await;
            let conflicts = described.map_err(|_| took_too_long(&wish))?;
            return Ok(NodeReadmitted { readmitted: false, conflicts, set_aside: Vec::new() });
        }
        Cleared::Done(set_aside) => set_aside,
    };
    fleet.readmit(&peer).await?;
    drop(returning);
    Ok(NodeReadmitted { readmitted: true, conflicts: Vec::new(), set_aside })
}

/// What became of names that are held twice.
enum Cleared {
    /// For a person to choose; nothing was changed.
    Open(Vec<Clash>),
    /// Nothing is in the way.
    Done(Vec<SetAsideBody>),
}

/// Looks up every name, and does what was chosen about those that are held twice. Ends at the first name of which it is
/// not sure who holds it: whoever is silent is so at every name.
async fn clear(
    finder: &Arc<Finder>,
    peers: &Peers,
    peer: &Peer,
    wish: &ReadmitNode,
) -> Result<Cleared, Error> {
    let mine = spaces(peers, peer).await?;
    let ids: BTreeMap<SpaceName, SpaceId> = mine.iter().map(|held| (held.name.clone(), held.id)).collect();
    let mut compared = stream::iter(mine).map(|held| compare(finder, peer, held)).buffered(AT_ONCE);
    let mut clashes = Vec::new();
    while let Some(clash) = compared.next().await {
        clashes.extend(clash?);
    }
    match plan(wish, &peer.ledger, &ids, clashes)? {
        Plan::Ask(open) => Ok(Cleared::Open(open)),
        Plan::Act(losers) => set_aside_all(finder, peers, peer, losers).await.map(Cleared::Done),
    }
}

fn took_too_long(wish: &ReadmitNode) -> Error {
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

/// Who else holds a name of the returning node, if anybody does. Fails when somebody who may was silent.
async fn compare(finder: &Arc<Finder>, peer: &Peer, mine: Held) -> Result<Option<Clash>, Error> {
    let space = SpaceRef::Name(mine.name.clone());
    let said: Vec<Said> = finder.ask_all(&space, Intent::Compare).await?;
    let others = || said.iter().filter(|said| said.peer.ledger != peer.ledger);
    let mut silent: Vec<Silent> = others().filter_map(Said::silent).collect();
    if !silent.is_empty() {
        silent.sort_by(|one, other| one.node.cmp(&other.node));
        return Err(unsure(&mine.name, peer, &silent));
    }
    let mut holders: Vec<(Peer, Held)> = others()
        .filter_map(|said| match &said.answer {
            Answer::Yes(held) => Some((said.peer.clone(), held.clone())),
            Answer::No { .. } | Answer::Silent(_) => None,
        })
        .collect();
    if holders.is_empty() {
        return Ok(None);
    }
    let name = mine.name.clone();
    holders.push((peer.clone(), mine));
    holders.sort_by(|(one, _), (other, _)| one.id.cmp(&other.id));
    Ok(Some(Clash { name, holders }))
}

fn unsure(name: &SpaceName, peer: &Peer, silent: &[Silent]) -> Error {
    let who = several(silent.iter().map(|silent| format!("{} ({})", silent.node, silent.reason)), ", ");
    let (word, they_do) = if silent.len() == 1 { ("node", "it does") } else { ("nodes", "they do") };
    let message = format!(
        "{word} {who} did not answer and may hold \"{name}\" too; node {} stays removed until {they_do}",
        peer.id
    );
    let nodes: Vec<String> =
        silent.iter().take(named(silent.len())).map(|silent| silent.node.to_string()).collect();
    and_more(Error::new(Code::NodeSilent, message).with("nodes", nodes), silent.len())
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
            // Its answer may be lost, and whoever asks meanwhile may be told of it as it was.
            finder.forget_id(&loser.id);
            let answer = set_aside(peers, &loser).await;
            finder.forget_id(&loser.id);
            (loser, answer)
        });
        let mut failed = Vec::new();
        for (loser, answer) in asked.buffered(AT_ONCE).collect::<Vec<_>>().await {
            match answer {
                Ok(body) => done.extend(body),
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
