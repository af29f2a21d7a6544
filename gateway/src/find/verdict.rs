//! What the answers of a round mean. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drowse_shared::{
    api::{
        Code, Error,
        nodes::{Held, Silent},
    },
    id::{LedgerId, NodeId, Ticket},
    name::SpaceRef,
};

use crate::{
    fleet::Peer,
    several::{and_more, named, several},
};

/// What one node answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It holds the space.
    Yes(Held),
    /// It does not; with its permission to build it, if that was asked for.
    No {
        /// The permission.
        ticket: Option<Ticket>,
    },
    /// It gave no answer, and why.
    Silent(String),
}

/// Who answered what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    /// Who.
    pub(crate) peer: Peer,
    /// What.
    pub(crate) answer: Answer,
}

impl Said {
    /// The node, if it was silent.
    pub(crate) fn silent(&self) -> Option<Silent> {
        match &self.answer {
            Answer::Silent(reason) => Some(Silent { node: self.peer.id.clone(), reason: reason.clone() }),
            Answer::Yes(_) | Answer::No { .. } => None,
        }
    }
}

/// What follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// One node holds it.
    Holder {
        /// Which.
        peer: Peer,
        /// What it said.
        held: Held,
    },
    /// Several nodes say that they hold it.
    Conflict {
        /// Which, in order.
        nodes: Vec<NodeId>,
        /// Where, if all are one daemon.
        one_endpoint: Option<Arc<str>>,
    },
    /// Nobody said yes, and not everybody answered.
    Unsure(Vec<Silent>),
    /// All who were asked said no, and since then somebody else has asked, or somebody else may hold it: asking anew
    /// tells.
    Contested,
    /// Everybody said no.
    Nobody {
        /// Who.
        asked: BTreeSet<LedgerId>,
        /// Who gave permission to build it.
        tickets: BTreeMap<LedgerId, Ticket>,
    },
}

/// One holder wins even if others are silent; without one, silence is not "no".
pub(crate) fn verdict(said: &[Said]) -> Verdict {
    let holders: Vec<(&Peer, &Held)> = said
        .iter()
        .filter_map(|said| match &said.answer {
            Answer::Yes(held) => Some((&said.peer, held)),
            Answer::No { .. } | Answer::Silent(_) => None,
        })
        .collect();
    match holders.as_slice() {
        [] => {
            let mut silent: Vec<Silent> = said.iter().filter_map(Said::silent).collect();
            silent.sort_by(|a, b| a.node.cmp(&b.node));
            if !silent.is_empty() {
                return Verdict::Unsure(silent);
            }
            let ticket = |said: &Said| match said.answer {
                Answer::No { ticket: Some(ticket) } => Some((said.peer.ledger, ticket)),
                _ => None,
            };
            Verdict::Nobody {
                asked: said.iter().map(|said| said.peer.ledger).collect(),
                tickets: said.iter().filter_map(ticket).collect(),
            }
        }
        [(peer, held)] => Verdict::Holder { peer: (*peer).clone(), held: (*held).clone() },
        [(first, _), rest @ ..] => {
            let mut nodes: Vec<NodeId> = holders.iter().map(|(peer, _)| peer.id.clone()).collect();
            nodes.sort();
            let one = rest.iter().all(|(peer, _)| peer.endpoint == first.endpoint);
            Verdict::Conflict { nodes, one_endpoint: one.then(|| first.endpoint.clone()) }
        }
    }
}

/// Whether a node that gave a ticket said no again, and meanwhile gave a newer one to somebody else.
pub(crate) fn is_contested(first: &[Said], again: &[Said]) -> bool {
    first.iter().zip(again).any(|(first, again)| match (&first.answer, &again.answer) {
        (Answer::No { ticket: given }, Answer::No { ticket: now }) => given != now,
        _ => false,
    })
}

/// "node-1", "node-1 and node-2", "node-1, node-2 and node-3".
fn listed(nodes: &[NodeId]) -> String {
    match nodes.split_last() {
        None => String::new(),
        Some((last, [])) => last.to_string(),
        Some((last, rest)) => {
            let rest: Vec<&str> = rest.iter().map(NodeId::as_str).collect();
            format!("{} and {last}", rest.join(", "))
        }
    }
}

/// Several nodes hold it, in words.
pub(crate) fn conflict(space: &SpaceRef, nodes: &[NodeId], one_endpoint: Option<&str>) -> Error {
    let names = listed(nodes);
    let message = match one_endpoint {
        Some(endpoint) => format!(
            "\"{space}\" is held by nodes {names}, which are one daemon under several ids, at {endpoint}: its \
             DROWSE_NODE_ID was changed or two nodes give one DROWSE_NODE_ENDPOINT. See listNodes, and removeNode the \
             id that is no longer used"
        ),
        None => format!("\"{space}\" exists on nodes {names}; destroy one copy directly on its node"),
    };
    let ids: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
    Error::new(Code::SpaceConflict, message).with("nodes", ids)
}

/// Somebody who may hold it is silent, in words.
pub(crate) fn unsure(space: &SpaceRef, silent: &[Silent]) -> Error {
    let who = several(silent.iter().map(|silent| format!("{} ({})", silent.node, silent.reason)), ", ");
    let word = if silent.len() == 1 { "node" } else { "nodes" };
    let ids: Vec<String> = silent.iter().take(named(silent.len())).map(|s| s.node.to_string()).collect();
    let error = Error::new(
        Code::NodeSilent,
        format!(
            "{word} {who} did not answer and may hold \"{space}\"; treating it as new could make a second copy. Try \
             again, or, if a node is gone for good, removeNode it"
        ),
    )
    .with("nodes", ids);
    and_more(error, silent.len())
}

/// There is no such space, in words.
pub(crate) fn not_found(space: &SpaceRef) -> Error {
    let message = match space {
        SpaceRef::Name(name) => format!("no space named \"{name}\"; acquireSpace would create it"),
        SpaceRef::Id(id) => format!("no space with the id {id}"),
    };
    Error::new(Code::SpaceNotFound, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use drowse_shared::{
        api::{nodes::Holding, spaces::State},
        id::Epoch,
    };

    fn peer(n: u8, endpoint: &str) -> Peer {
        Peer {
            ledger: format!("{n:032x}").parse().expect("an id"),
            id: format!("node-{n}").parse().expect("an id"),
            endpoint: Arc::from(endpoint),
            live: true,
        }
    }

    fn yes() -> Answer {
        Answer::Yes(Held {
            id: format!("{:032x}", 7).parse().expect("an id"),
            name: "a".parse().expect("a name"),
            state: State::Active,
            epoch: Epoch::FIRST,
            holding: Holding::Home,
        })
    }

    fn no(ticket: bool) -> Answer {
        Answer::No { ticket: ticket.then(|| format!("{:032x}", 8).parse().expect("an id")) }
    }

    fn silent() -> Answer {
        Answer::Silent("timed out".to_owned())
    }

    fn judged(answers: Vec<Answer>) -> String {
        let said: Vec<Said> = (1..)
            .zip(answers)
            .map(|(n, answer)| Said { peer: peer(n, &format!("http://{n}")), answer })
            .collect();
        match verdict(&said) {
            Verdict::Holder { peer, .. } => format!("on {}", peer.id),
            Verdict::Conflict { nodes, .. } => format!("conflict {}", listed(&nodes)),
            Verdict::Unsure(silent) => {
                format!("unsure {}", listed(&silent.iter().map(|s| s.node.clone()).collect::<Vec<_>>()))
            }
            Verdict::Contested => "contested".to_owned(),
            Verdict::Nobody { tickets, .. } => format!("nobody, {} tickets", tickets.len()),
        }
    }

    #[test]
    fn every_mix_of_answers_has_one_meaning() {
        let cases = [
            (vec![], "nobody, 0 tickets"),
            (vec![no(true), no(true), no(false)], "nobody, 2 tickets"),
            (vec![yes()], "on node-1"),
            (vec![no(true), yes(), no(false)], "on node-2"),
            (vec![silent(), yes(), silent()], "on node-2"),
            (vec![yes(), yes()], "conflict node-1 and node-2"),
            (vec![yes(), silent(), yes(), yes()], "conflict node-1, node-3 and node-4"),
            (vec![no(true), silent()], "unsure node-2"),
            (vec![silent(), no(true), silent()], "unsure node-1 and node-3"),
        ];
        for (answers, expected) in cases {
            assert_eq!(judged(answers.clone()), expected, "{answers:?}");
        }
    }

    #[test]
    fn a_newer_ticket_for_somebody_else_is_a_contest() {
        let said = |answer| Said { peer: peer(1, "http://1"), answer };
        let other = Answer::No { ticket: format!("{:032x}", 9).parse().ok() };
        for (again, contested) in
            [(no(true), false), (no(false), true), (other, true), (yes(), false), (silent(), false)]
        {
            assert_eq!(is_contested(&[said(no(true))], &[said(again.clone())]), contested, "{again:?}");
        }
    }

    #[test]
    fn one_daemon_under_two_ids_is_said_so() {
        let said = [1, 2].map(|n| Said { peer: peer(n, "http://same"), answer: yes() });
        let Verdict::Conflict { nodes, one_endpoint } = verdict(&said) else { panic!("a conflict") };
        let space: SpaceRef = "a".parse().expect("a name");
        let error = conflict(&space, &nodes, one_endpoint.as_deref());
        assert!(error.message.contains("one daemon under several ids, at http://same"), "{error}");
        let error = conflict(&space, &nodes, None);
        assert!(error.message.contains("nodes node-1 and node-2; destroy one copy"), "{error}");
    }
}
