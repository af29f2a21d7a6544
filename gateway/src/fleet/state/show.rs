//! The nodes as people see them.

use drowse_shared::{
    api::{
        Code, Error,
        nodes::{Node, NodeList, NodeState},
    },
    id::{LedgerId, NodeId},
};
use tokio::time::Instant;

use super::State;
use crate::place::{self, Gates, Presence, Refusal};

impl State {
    pub(in crate::fleet) fn census(&self) -> Vec<(NodeState, u64)> {
        let now = Instant::now();
        let (mut live, mut down, mut silent) = (0, 0, 0);
        for node in self.members() {
            match self.age(&node.ledger, now) {
                None => silent += 1,
                Some(age) if age.is_live() => live += 1,
                Some(_) => down += 1,
            }
        }
        let removed = self.kept.roster.as_ref().map_or(0, |roster| roster.removed().len() as u64);
        vec![
            (NodeState::Live, live),
            (NodeState::Down, down),
            (NodeState::Silent, silent),
            (NodeState::Removed, removed),
        ]
    }

    pub(in crate::fleet) fn list(&self, gates: &Gates) -> Result<NodeList, Error> {
        let Some(roster) = &self.kept.roster else {
            self.knows_its_nodes()?;
            return Err(Error::new(Code::Internal, "the gateway has no roster"));
        };
        let now = Instant::now();
        let mut nodes: Vec<Node> = self
            .candidates(None, now)
            .map(|(node, candidate)| {
                let state = match candidate.presence {
                    Presence::Silent => NodeState::Silent,
                    Presence::Down { .. } => NodeState::Down,
                    Presence::Live => NodeState::Live,
                };
                let refuses = place::refusal(&candidate, gates).map(|why| why.to_string());
                self.shown(node.ledger, node.id.clone(), node.endpoint.to_string(), state, refuses)
            })
            .collect();
        for ledger in roster.removed() {
            if let Some(said) = self.kept.said.get(ledger) {
                let refuses = Some(Refusal::Removed.to_string());
                let (id, endpoint) = (said.id.clone(), said.endpoint.clone());
                nodes.push(self.shown(*ledger, id, endpoint, NodeState::Removed, refuses));
            }
        }
        nodes.sort_by(|a, b| (&a.id, &a.ledger_id).cmp(&(&b.id, &b.ledger_id)));
        Ok(NodeList { fleet_id: roster.fleet_id, roster_version: roster.version, nodes })
    }

    fn shown(
        &self,
        ledger_id: LedgerId,
        id: NodeId,
        endpoint: String,
        state: NodeState,
        refuses: Option<String>,
    ) -> Node {
        let heard = self.heard.get(&ledger_id);
        let said = heard.map(|heard| &heard.said);
        let kept = self.kept.said.get(&ledger_id);
        Node {
            id,
            ledger_id,
            endpoint,
            region: kept.and_then(|kept| kept.region.clone()),
            state,
            refuses,
            last_check_in_at: heard.map(|heard| heard.wall),
            interval_ms: kept.map(|kept| kept.interval_ms),
            build: said.map(|said| said.build.clone()),
            reading: said.and_then(|said| said.reading.clone()),
            bundle: said.and_then(|said| said.bundle),
        }
    }
}
