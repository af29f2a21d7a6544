//! The roster: which nodes a fleet has.

use serde::{Deserialize, Serialize};

use crate::id::{FleetId, LedgerId, NodeId};

/// One node of a roster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RosterNode {
    /// What an operator calls it.
    pub id: NodeId,
    /// What it really is.
    pub ledger_id: LedgerId,
    /// Where it is reached.
    pub endpoint: String,
    /// The roster's version that first had it. It takes new spaces only once another node knows it.
    pub since_version: u64,
}

/// Which nodes a fleet has. The highest version wins; every node keeps the newest whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Roster {
    /// Whose roster it is.
    pub fleet_id: FleetId,
    /// Grows with every change.
    pub version: u64,
    /// Every node that may hold spaces.
    pub nodes: Vec<RosterNode>,
    /// Ledgers that were removed and must be readmitted before they serve again.
    #[serde(default)]
    pub removed: Vec<LedgerId>,
}

/// Which roster a node keeps. A check-in carries this and not the roster, which grows with the fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RosterVersion {
    /// Whose roster it is.
    pub fleet_id: FleetId,
    /// Which version.
    pub version: u64,
    /// Of what is in it: two gateways may each have made another roster of one version.
    pub digest: String,
}

impl Roster {
    /// Says which roster this is. Two with the same content, in whatever order, are the same.
    pub fn identity(&self) -> RosterVersion {
        let mut lines: Vec<String> = self
            .nodes
            .iter()
            .map(|node| {
                format!("{}\n{}\n{}\n{}\n", node.ledger_id, node.id, node.since_version, node.endpoint)
            })
            .chain(self.removed.iter().map(|ledger| format!("removed {ledger}\n")))
            .collect();
        lines.sort_unstable();
        let mut hasher = blake3::Hasher::new();
        for line in &lines {
            hasher.update(line.as_bytes());
        }
        let digest = hasher.finalize().to_hex()[..32].to_owned();
        RosterVersion { fleet_id: self.fleet_id, version: self.version, digest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roster(nodes: &[(&str, u64, &str)], removed: &[u64]) -> RosterVersion {
        let ledger = |n: u64| format!("{n:032x}").parse().expect("an id");
        let node = |(id, n, endpoint): &(&str, u64, &str)| RosterNode {
            id: id.parse().expect("an id"),
            ledger_id: ledger(*n),
            endpoint: (*endpoint).to_owned(),
            since_version: 1,
        };
        Roster {
            fleet_id: format!("{:032x}", 9).parse().expect("an id"),
            version: 3,
            nodes: nodes.iter().map(node).collect(),
            removed: removed.iter().map(|n| ledger(*n)).collect(),
        }
        .identity()
    }

    #[test]
    fn two_rosters_are_the_same_if_the_same_is_in_them_in_whatever_order() {
        let one = roster(&[("a", 1, "http://a"), ("b", 2, "http://b")], &[3, 4]);
        assert_eq!(one, roster(&[("b", 2, "http://b"), ("a", 1, "http://a")], &[4, 3]));
        for other in [
            roster(&[("a", 1, "http://a")], &[3, 4]),
            roster(&[("a", 1, "http://a"), ("b", 2, "http://c")], &[3, 4]),
            roster(&[("a", 1, "http://a"), ("c", 2, "http://b")], &[3, 4]),
            roster(&[("a", 1, "http://a"), ("b", 5, "http://b")], &[3, 4]),
            roster(&[("a", 1, "http://a"), ("b", 2, "http://b")], &[3]),
            roster(&[("a", 1, "http://a"), ("b", 2, "http://b"), ("x", 3, "http://x")], &[4]),
        ] {
            assert_ne!(one, other);
        }
    }
}
