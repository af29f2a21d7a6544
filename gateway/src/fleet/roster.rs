//! Changes of a roster, and what becomes of two that differ. Pure.

use drowse_shared::{
    api::nodes::{Roster, RosterNode},
    id::{FleetId, LedgerId},
};

/// A fleet without nodes.
pub(crate) fn empty(fleet_id: FleetId) -> Roster {
    Roster { fleet_id, version: 0, nodes: Vec::new(), removed: Vec::new() }
}

/// The node with this ledger.
pub(crate) fn find<'a>(roster: &'a Roster, ledger: &LedgerId) -> Option<&'a RosterNode> {
    roster.nodes.iter().find(|node| node.ledger_id == *ledger)
}

/// The next version, with this node in it: new, at another endpoint, under another id, or back from removal.
pub(crate) fn with_node(roster: &Roster, mut node: RosterNode) -> Roster {
    let mut next = Roster { version: roster.version + 1, ..roster.clone() };
    next.removed.retain(|ledger| *ledger != node.ledger_id);
    match next.nodes.iter_mut().find(|known| known.ledger_id == node.ledger_id) {
        Some(known) => {
            node.since_version = known.since_version;
            *known = node;
        }
        None => {
            node.since_version = next.version;
            next.nodes.push(node);
        }
    }
    sort(&mut next);
    next
}

/// The next version, without this node and remembering that it was removed.
pub(crate) fn without(roster: &Roster, ledger: LedgerId) -> Roster {
    let mut next = Roster { version: roster.version + 1, ..roster.clone() };
    next.nodes.retain(|node| node.ledger_id != ledger);
    if !next.removed.contains(&ledger) {
        next.removed.push(ledger);
    }
    sort(&mut next);
    next
}

/// What holds when a node brings another roster of this fleet; `None` when ours stays as it is.
///
/// The higher version wins whole. What only ours knew, because it was made from an older database, is kept on top
/// of it: a node that is forgotten is a node that is not asked.
pub(crate) fn merge(ours: &Roster, theirs: &Roster) -> Option<Roster> {
    debug_assert_eq!(ours.fleet_id, theirs.fleet_id, "foreign rosters are refused before");
    let (newer, older) = if theirs.version > ours.version { (theirs, ours) } else { (ours, theirs) };
    // An older roster that a node brings is simply out of date; one of our own may hold what nobody else knows.
    if theirs.version < ours.version {
        return None;
    }
    let mut next = newer.clone();
    for node in &older.nodes {
        let settled = next.removed.contains(&node.ledger_id)
            || next.nodes.iter().any(|known| known.ledger_id == node.ledger_id || known.id == node.id);
        if !settled {
            next.nodes.push(RosterNode { since_version: newer.version + 1, ..node.clone() });
        }
    }
    for ledger in &older.removed {
        if !next.removed.contains(ledger) && find(&next, ledger).is_none() {
            next.removed.push(*ledger);
        }
    }
    sort(&mut next);
    let mut sorted = newer.clone();
    sort(&mut sorted);
    if next != sorted {
        next.version = newer.version + 1;
    }
    let unchanged = { next == *ours };
    (!unchanged).then_some(next)
}

fn sort(roster: &mut Roster) {
    roster.nodes.sort_by(|a, b| (&a.id, &a.ledger_id).cmp(&(&b.id, &b.ledger_id)));
    roster.removed.sort();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(n: u8) -> LedgerId {
        format!("{n:032x}").parse().expect("an id")
    }

    fn node(n: u8, since_version: u64) -> RosterNode {
        let id = format!("node-{n}").parse().expect("an id");
        RosterNode { id, ledger_id: ledger(n), endpoint: format!("http://10.0.0.{n}:80"), since_version }
    }

    fn roster(version: u64, nodes: &[u8], removed: &[u8]) -> Roster {
        Roster {
            fleet_id: format!("{:032x}", 99).parse().expect("an id"),
            version,
            nodes: nodes.iter().map(|n| node(*n, u64::from(*n))).collect(),
            removed: removed.iter().map(|n| ledger(*n)).collect(),
        }
    }

    fn members(roster: &Roster) -> Vec<String> {
        roster.nodes.iter().map(|node| node.id.to_string()).collect()
    }

    #[test]
    fn every_change_is_a_new_version() {
        let one = with_node(&empty(roster(0, &[], &[]).fleet_id), node(1, 0));
        assert_eq!((one.version, one.nodes[0].since_version), (1, 1));
        let two = with_node(&one, node(2, 0));
        assert_eq!((two.version, two.nodes[1].since_version), (2, 2));
        let moved = with_node(&two, RosterNode { endpoint: "http://b".into(), ..node(1, 9) });
        assert_eq!((moved.version, moved.nodes[0].since_version), (3, 1), "known since as before");
        let gone = without(&moved, ledger(1));
        assert_eq!(
            (gone.version, members(&gone), gone.removed.clone()),
            (4, vec!["node-2".into()], vec![ledger(1)])
        );
        let back = with_node(&gone, node(1, 0));
        assert_eq!((back.version, back.nodes[0].since_version, back.removed.len()), (5, 5, 0));
    }

    #[test]
    fn the_higher_version_wins_and_nothing_we_knew_is_forgotten() {
        // (ours, theirs) -> (version, nodes, removed), or nothing
        type Case = (Roster, Roster, Option<(u64, &'static [u8], &'static [u8])>);
        let cases: &[Case] = &[
            (roster(3, &[1, 2], &[]), roster(3, &[1, 2], &[]), None),
            (roster(3, &[1, 2], &[]), roster(2, &[1], &[]), None),
            (roster(3, &[1, 2], &[]), roster(2, &[1, 3], &[]), None),
            (roster(0, &[], &[]), roster(5, &[1, 2], &[3]), Some((5, &[1, 2], &[3]))),
            (roster(3, &[1, 2], &[]), roster(5, &[1], &[2]), Some((5, &[1], &[2]))),
            (roster(3, &[1], &[2]), roster(5, &[1, 2], &[]), Some((5, &[1, 2], &[]))),
            (roster(4, &[1, 3], &[]), roster(5, &[1, 2], &[]), Some((6, &[1, 2, 3], &[]))),
            (roster(4, &[1], &[7]), roster(5, &[1, 2], &[]), Some((6, &[1, 2], &[7]))),
            (roster(5, &[1, 3], &[]), roster(5, &[1, 2], &[]), Some((6, &[1, 2, 3], &[]))),
        ];
        for (ours, theirs, expected) in cases {
            let got = merge(ours, theirs);
            let got = got.as_ref().map(|r| {
                let nodes: Vec<LedgerId> = r.nodes.iter().map(|n| n.ledger_id).collect();
                (r.version, nodes, r.removed.clone())
            });
            let expected = expected.map(|(version, nodes, removed)| {
                let ledgers = |all: &[u8]| all.iter().map(|n| ledger(*n)).collect::<Vec<_>>();
                (version, ledgers(nodes), ledgers(removed))
            });
            assert_eq!(got, expected, "{ours:?} meets {theirs:?}");
        }
    }
}
