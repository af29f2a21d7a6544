//! The roster as a gateway works on it, and what becomes of two that differ. Pure.
//!
//! Found by ledger and by id, so that no check-in walks the fleet.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drowse_shared::{
    api::nodes::{Roster, RosterNode},
    id::{FleetId, LedgerId, NodeId},
};

/// One node of the roster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// What an operator calls it.
    pub(crate) id: NodeId,
    /// What it really is.
    pub(crate) ledger: LedgerId,
    /// Where it is reached.
    pub(crate) endpoint: Arc<str>,
    /// The version that first had it.
    pub(crate) since_version: u64,
}

/// Which nodes the fleet has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Members {
    /// Whose roster it is.
    pub(crate) fleet_id: FleetId,
    /// Grows with every change that is written.
    pub(crate) version: u64,
    nodes: BTreeMap<LedgerId, Member>,
    by_id: BTreeMap<NodeId, LedgerId>,
    removed: BTreeSet<LedgerId>,
}

impl Members {
    /// A fleet without nodes.
    pub(crate) fn of_new_fleet(fleet_id: FleetId) -> Self {
        Self {
            fleet_id,
            version: 0,
            nodes: BTreeMap::new(),
            by_id: BTreeMap::new(),
            removed: BTreeSet::new(),
        }
    }

    /// What somebody wrote down. A ledger or an id that is there twice counts once; one that was removed is no member.
    pub(crate) fn of(roster: &Roster) -> Self {
        let mut members = Self::of_new_fleet(roster.fleet_id);
        members.version = roster.version;
        members.removed = roster.removed.iter().copied().collect();
        for node in &roster.nodes {
            members.admit(node);
        }
        members
    }

    /// As nodes keep it.
    pub(crate) fn roster(&self) -> Roster {
        let mut nodes: Vec<RosterNode> = self.nodes.values().map(Member::as_kept).collect();
        nodes.sort_by(|a, b| (&a.id, &a.ledger_id).cmp(&(&b.id, &b.ledger_id)));
        Roster {
            fleet_id: self.fleet_id,
            version: self.version,
            nodes,
            removed: self.removed.iter().copied().collect(),
        }
    }

    /// Every member, in order of ledger.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.nodes.values()
    }

    /// How many members there are.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The member with this ledger.
    pub(crate) fn get(&self, ledger: &LedgerId) -> Option<&Member> {
        self.nodes.get(ledger)
    }

    /// The member that an operator calls so.
    pub(crate) fn called(&self, id: &NodeId) -> Option<&Member> {
        self.by_id.get(id).and_then(|ledger| self.nodes.get(ledger))
    }

    /// Whether this ledger was removed.
    pub(crate) fn is_removed(&self, ledger: &LedgerId) -> bool {
        self.removed.contains(ledger)
    }

    /// Ledgers that were removed, in order.
    pub(crate) fn removed(&self) -> &BTreeSet<LedgerId> {
        &self.removed
    }

    /// Puts a node in, as of `version`: new, at another endpoint, under another id, or back from removal. Nobody else
    /// may be called so.
    pub(crate) fn put(&mut self, version: u64, id: NodeId, ledger: LedgerId, endpoint: &str) {
        let known = self.nodes.remove(&ledger);
        if let Some(known) = &known {
            self.by_id.remove(&known.id);
        }
        self.version = version;
        self.removed.remove(&ledger);
        let since_version = known.map_or(version, |known| known.since_version);
        self.insert(Member { id, ledger, endpoint: Arc::from(endpoint), since_version });
    }

    /// Takes a node out, as of `version`, and remembers that it was removed.
    pub(crate) fn remove(&mut self, version: u64, ledger: LedgerId) {
        if let Some(known) = self.nodes.remove(&ledger) {
            self.by_id.remove(&known.id);
        }
        self.version = version;
        self.removed.insert(ledger);
    }

    fn insert(&mut self, member: Member) {
        self.by_id.insert(member.id.clone(), member.ledger);
        self.nodes.insert(member.ledger, member);
    }

    /// Adds a node that nothing speaks against.
    fn admit(&mut self, node: &RosterNode) -> bool {
        let fits = !self.removed.contains(&node.ledger_id)
            && !self.nodes.contains_key(&node.ledger_id)
            && !self.by_id.contains_key(&node.id);
        if fits {
            self.insert(Member {
                id: node.id.clone(),
                ledger: node.ledger_id,
                endpoint: Arc::from(node.endpoint.as_str()),
                since_version: node.since_version,
            });
        }
        fits
    }
}

impl Member {
    fn as_kept(&self) -> RosterNode {
        RosterNode {
            id: self.id.clone(),
            ledger_id: self.ledger,
            endpoint: self.endpoint.to_string(),
            since_version: self.since_version,
        }
    }
}

/// What holds when a node brings another roster of this fleet; `None` when ours stays as it is.
///
/// The higher version wins whole. What only the other one knew is kept on top of it: a node that is forgotten is a node
/// that is not asked. Two of one version that differ were made by two gateways; each makes the same of them, so that
/// they agree. Then a removal stands.
pub(crate) fn merge(ours: &Members, theirs: &Roster) -> Option<Members> {
    debug_assert_eq!(ours.fleet_id, theirs.fleet_id, "foreign rosters are refused before");
    let mine = ours.roster();
    let twins = theirs.version == mine.version;
    if twins && theirs.identity() == mine.identity() {
        return None;
    }
    let (base, other) = match theirs.version.cmp(&mine.version) {
        std::cmp::Ordering::Greater => (theirs, &mine),
        std::cmp::Ordering::Less => (&mine, theirs),
        std::cmp::Ordering::Equal if theirs.identity().digest > mine.identity().digest => (theirs, &mine),
        std::cmp::Ordering::Equal => (&mine, theirs),
    };
    let version = base.version + 1;
    let mut next = Members::of(base);
    let mut grown = twins;
    if twins {
        for ledger in &other.removed {
            next.remove(version, *ledger);
        }
    }
    for node in &other.nodes {
        grown |= next.admit(&RosterNode { since_version: version, ..node.clone() });
    }
    for ledger in &other.removed {
        if next.get(ledger).is_none() {
            grown |= next.removed.insert(*ledger);
        }
    }
    if grown {
        next.version = version;
    }
    (next != *ours).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(n: u8) -> LedgerId {
        format!("{n:032x}").parse().expect("an id")
    }

    fn id(n: u8) -> NodeId {
        format!("node-{n}").parse().expect("an id")
    }

    fn roster(version: u64, nodes: &[u8], removed: &[u8]) -> Roster {
        let node = |n: &u8| RosterNode {
            id: id(*n),
            ledger_id: ledger(*n),
            endpoint: format!("http://10.0.0.{n}:80"),
            since_version: u64::from(*n),
        };
        Roster {
            fleet_id: format!("{:032x}", 99).parse().expect("an id"),
            version,
            nodes: nodes.iter().map(node).collect(),
            removed: removed.iter().map(|n| ledger(*n)).collect(),
        }
    }

    fn seen(members: &Members) -> (u64, Vec<LedgerId>, Vec<LedgerId>) {
        let nodes = members.iter().map(|node| node.ledger).collect();
        (members.version, nodes, members.removed().iter().copied().collect())
    }

    #[test]
    fn every_change_is_of_a_version_and_found_by_ledger_and_by_id() {
        let mut members = Members::of_new_fleet(roster(0, &[], &[]).fleet_id);
        members.put(1, id(1), ledger(1), "http://a");
        members.put(2, id(2), ledger(2), "http://b");
        members.put(2, id(3), ledger(3), "http://c");
        let since: Vec<u64> = members.iter().map(|node| node.since_version).collect();
        assert_eq!((members.version, since), (2, vec![1, 2, 2]), "two may join with one version");
        members.put(3, id(4), ledger(1), "http://d");
        let moved = members.called(&id(4)).expect("renamed");
        assert_eq!((&*moved.endpoint, moved.since_version), ("http://d", 1), "known since as before");
        assert!(members.called(&id(1)).is_none(), "its old name is free");
        members.remove(4, ledger(1));
        assert_eq!(seen(&members), (4, vec![ledger(2), ledger(3)], vec![ledger(1)]));
        assert!(members.called(&id(4)).is_none());
        members.put(5, id(1), ledger(1), "http://a");
        assert_eq!(members.get(&ledger(1)).map(|node| node.since_version), Some(5), "new again");
        assert!(!members.is_removed(&ledger(1)));
        assert_eq!(Members::of(&members.roster()), members);
    }

    #[test]
    fn the_higher_version_wins_and_nothing_anybody_knew_is_forgotten() {
        // (ours, theirs) -> (version, nodes, removed), or nothing
        type Case = (Roster, Roster, Option<(u64, &'static [u8], &'static [u8])>);
        let cases: &[Case] = &[
            (roster(3, &[1, 2], &[]), roster(3, &[1, 2], &[]), None),
            (roster(3, &[1, 2], &[]), roster(3, &[2, 1], &[]), None),
            (roster(3, &[1, 2], &[]), roster(2, &[1], &[]), None),
            (roster(3, &[1], &[2]), roster(2, &[1, 2], &[]), None),
            (roster(3, &[1, 2], &[]), roster(2, &[1], &[2]), None),
            (roster(3, &[1, 2], &[]), roster(2, &[1, 3], &[]), Some((4, &[1, 2, 3], &[]))),
            (roster(0, &[], &[]), roster(5, &[1, 2], &[3]), Some((5, &[1, 2], &[3]))),
            (roster(3, &[1, 2], &[]), roster(5, &[1], &[2]), Some((5, &[1], &[2]))),
            (roster(3, &[1], &[2]), roster(5, &[1, 2], &[]), Some((5, &[1, 2], &[]))),
            (roster(4, &[1, 3], &[]), roster(5, &[1, 2], &[]), Some((6, &[1, 2, 3], &[]))),
            (roster(4, &[1], &[7]), roster(5, &[1, 2], &[]), Some((6, &[1, 2], &[7]))),
            (roster(5, &[1, 3], &[]), roster(5, &[1, 2], &[]), Some((6, &[1, 2, 3], &[]))),
            (roster(5, &[1], &[2]), roster(5, &[1, 2], &[]), Some((6, &[1], &[2]))),
            (roster(5, &[1, 2], &[]), roster(5, &[1], &[2]), Some((6, &[1], &[2]))),
        ];
        for (ours, theirs, expected) in cases {
            let got = merge(&Members::of(ours), theirs).map(|members| seen(&members));
            let expected = expected.map(|(version, nodes, removed)| {
                let ledgers = |all: &[u8]| all.iter().map(|n| ledger(*n)).collect::<Vec<_>>();
                (version, ledgers(nodes), ledgers(removed))
            });
            assert_eq!(got, expected, "{ours:?} meets {theirs:?}");
        }
    }

    #[test]
    fn two_gateways_that_made_one_version_each_agree_on_the_next() {
        let mut moved = roster(5, &[1, 2], &[]);
        moved.nodes[0].endpoint = "http://elsewhere".into();
        for (a, b) in [
            (roster(5, &[1, 2], &[]), moved),
            (roster(5, &[1, 3], &[2]), roster(5, &[1, 2, 4], &[])),
            (roster(5, &[], &[]), roster(5, &[1], &[])),
        ] {
            let one = merge(&Members::of(&a), &b).expect("they differ");
            let other = merge(&Members::of(&b), &a).expect("they differ");
            assert_eq!(one, other, "{a:?} meets {b:?}");
            assert_eq!(merge(&one, &other.roster()), None);
        }
    }
}
