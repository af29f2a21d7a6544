//! What a person's choices make of names that are held twice. Pure.

use std::collections::BTreeMap;

use drowse_shared::{
    api::{
        Code, Error,
        nodes::{Held, KeepAll, ReadmitNode},
    },
    id::{LedgerId, NodeId, SpaceId},
    name::SpaceName,
};

use crate::fleet::Peer;

/// A name that the returning node and others hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Clash {
    pub(super) name: SpaceName,
    /// All of them, the returning one too.
    pub(super) holders: Vec<(Peer, Held)>,
}

/// A body that is to give up its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loser {
    pub(super) name: SpaceName,
    pub(super) peer: Peer,
    pub(super) id: SpaceId,
    /// Whose body keeps it.
    pub(super) keeper: LedgerId,
}

/// What follows from the choices.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// These were not chosen for: nothing changes.
    Ask(Vec<Clash>),
    /// These are set aside; then nothing is left in the way.
    Act(Vec<Loser>),
}

/// Applies the choices. `mine` is what the returning node holds.
pub(super) fn plan(
    wish: &ReadmitNode,
    returning: &LedgerId,
    mine: &BTreeMap<SpaceName, SpaceId>,
    clashes: Vec<Clash>,
) -> Result<Plan, Error> {
    for (name, node) in &wish.keep {
        match clashes.iter().find(|clash| clash.name == *name) {
            Some(clash) => is_holder(clash, node)?,
            None => is_so_already(wish, mine, name, node)?,
        }
    }
    let (mut losers, mut open) = (Vec::new(), Vec::new());
    for clash in clashes {
        match keeper(wish, returning, &clash) {
            Some(keeper) => {
                let others = clash.holders.into_iter().filter(|(peer, _)| peer.ledger != keeper);
                losers.extend(others.map(|(peer, held)| Loser {
                    name: clash.name.clone(),
                    peer,
                    id: held.id,
                    keeper,
                }));
            }
            None => open.push(clash),
        }
    }
    Ok(if open.is_empty() { Plan::Act(losers) } else { Plan::Ask(open) })
}

/// Whose body keeps the name, if that is clear.
fn keeper(wish: &ReadmitNode, returning: &LedgerId, clash: &Clash) -> Option<LedgerId> {
    let mut chosen = clash.holders.iter().filter(|(peer, _)| match wish.keep.get(&clash.name) {
        Some(node) => peer.id == *node,
        None => match wish.keep_all {
            Some(KeepAll::Returning) => peer.ledger == *returning,
            Some(KeepAll::Member) => peer.ledger != *returning,
            None => false,
        },
    });
    // Of two members that hold it none is "the member".
    chosen.next().filter(|_| chosen.next().is_none()).map(|(peer, _)| peer.ledger)
}

fn is_holder(clash: &Clash, node: &NodeId) -> Result<(), Error> {
    if clash.holders.iter().any(|(peer, _)| peer.id == *node) {
        return Ok(());
    }
    let holders: Vec<&str> = clash.holders.iter().map(|(peer, _)| peer.id.as_str()).collect();
    Err(wrong(&clash.name, &format!("node {node} does not hold it; {} do", holders.join(" and "))))
}

/// A choice for a name that is held once is taken if it says what is so: the call that made it so may be repeated.
fn is_so_already(
    wish: &ReadmitNode,
    mine: &BTreeMap<SpaceName, SpaceId>,
    name: &SpaceName,
    node: &NodeId,
) -> Result<(), Error> {
    let (back, is_back) = (&wish.node_id, wish.node_id == *node);
    if mine.contains_key(name) {
        let only = format!("node {node} does not hold it; only {back} does, and there is nothing to choose");
        return if is_back { Ok(()) } else { Err(wrong(name, &only)) };
    }
    match mine.iter().find(|(other, id)| name.aside(**id) == **other) {
        Some(_) if !is_back => Ok(()),
        Some((other, _)) => {
            Err(wrong(name, &format!("node {back} gave it up before; its space is called \"{other}\" now")))
        }
        None => Err(wrong(name, &format!("node {back} does not hold it, and there is nothing to choose"))),
    }
}

fn wrong(name: &SpaceName, why: &str) -> Error {
    Error::new(Code::InvalidRequest, format!("keep: \"{name}\": {why}; nothing was changed"))
}

#[cfg(test)]
mod tests;
