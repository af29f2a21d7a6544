use std::sync::Arc;

use drowse_shared::{
    api::{nodes::Holding, spaces::State},
    id::Epoch,
};

use super::*;

const BACK: u8 = 1;

fn ledger(n: u8) -> LedgerId {
    format!("{n:032x}").parse().expect("an id")
}

fn space(n: u8) -> SpaceId {
    format!("{n:032x}").parse().expect("an id")
}

fn name(text: &str) -> SpaceName {
    text.parse().expect("a name")
}

fn node(n: u8) -> NodeId {
    format!("n{n}").parse().expect("an id")
}

/// A name held by these nodes; the space on node 3 has the id 3.
fn clash(text: &str, nodes: &[u8]) -> Clash {
    let holder = |n: &u8| {
        let peer = Peer { ledger: ledger(*n), id: node(*n), endpoint: Arc::from("http://x"), live: true };
        let held = Held {
            id: space(*n),
            name: name(text),
            state: State::Active,
            epoch: Epoch::FIRST,
            holding: Holding::Home,
        };
        (peer, held)
    };
    Clash { name: name(text), holders: nodes.iter().map(holder).collect() }
}

fn wish(keep: &[(&str, u8)], keep_all: Option<KeepAll>) -> ReadmitNode {
    let keep = keep.iter().map(|(text, n)| (name(text), node(*n))).collect();
    ReadmitNode { node_id: node(BACK), keep, keep_all }
}

/// Who loses what, or which names are open.
fn outcome(wish: &ReadmitNode, clashes: &[Clash]) -> Result<Vec<(String, u8)>, Vec<String>> {
    let mine = clashes.iter().map(|clash| (clash.name.clone(), space(BACK))).collect();
    match plan(wish, &ledger(BACK), &mine, clashes.to_vec()).expect("a plan") {
        Plan::Act(losers) => Ok(losers
            .iter()
            .map(|loser| {
                let by = (1..9).find(|n| ledger(*n) == loser.peer.ledger).expect("a node");
                assert_ne!(loser.keeper, loser.peer.ledger);
                assert_eq!(loser.id, space(by));
                (loser.name.to_string(), by)
            })
            .collect()),
        Plan::Ask(open) => Err(open.iter().map(|clash| clash.name.to_string()).collect()),
    }
}

#[test]
fn each_name_goes_to_who_was_chosen_and_nothing_happens_before_all_are() {
    let two = [clash("a", &[BACK, 2]), clash("b", &[BACK, 3])];
    let lost = |list: &[(&str, u8)]| Ok(list.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect());
    let open = |list: &[&str]| Err(list.iter().map(|name| (*name).to_owned()).collect());
    let (returning, member) = (Some(KeepAll::Returning), Some(KeepAll::Member));
    let cases = [
        (wish(&[], None), open(&["a", "b"])),
        (wish(&[("a", 2)], None), open(&["b"])),
        (wish(&[("a", 2), ("b", BACK)], None), lost(&[("a", BACK), ("b", 3)])),
        (wish(&[], returning), lost(&[("a", 2), ("b", 3)])),
        (wish(&[], member), lost(&[("a", BACK), ("b", BACK)])),
        (wish(&[("a", BACK)], member), lost(&[("a", 2), ("b", BACK)])),
        (wish(&[("b", 3)], returning), lost(&[("a", 2), ("b", BACK)])),
    ];
    for (wish, expected) in cases {
        assert_eq!(outcome(&wish, &two), expected, "{wish:?}");
    }
    assert_eq!(outcome(&wish(&[], None), &[]), lost(&[]));
}

#[test]
fn of_three_holders_one_keeps_the_name() {
    let three = [clash("a", &[BACK, 2, 3])];
    let lost = |nodes: &[u8]| Ok(nodes.iter().map(|n| ("a".to_owned(), *n)).collect());
    assert_eq!(outcome(&wish(&[("a", 2)], None), &three), lost(&[BACK, 3]));
    assert_eq!(outcome(&wish(&[], Some(KeepAll::Returning)), &three), lost(&[2, 3]));
    assert_eq!(
        outcome(&wish(&[], Some(KeepAll::Member)), &three),
        Err(vec!["a".to_owned()]),
        "which of them?"
    );
}

#[test]
fn a_choice_that_cannot_be_is_refused_and_one_that_is_so_already_is_not() {
    let mine: BTreeMap<_, _> =
        [(name("both"), space(BACK)), (name("alone"), space(5)), (name("gave").aside(space(6)), space(6))]
            .into();
    let cases = [
        ("both", BACK, None),
        ("both", 2, None),
        ("both", 3, Some("node n3 does not hold it; n1 and n2 do")),
        ("alone", BACK, None),
        ("alone", 2, Some("node n2 does not hold it; only n1 does")),
        ("gave", 2, None),
        ("gave", BACK, Some("gave it up before")),
        ("nowhere", 2, Some("node n1 does not hold it")),
        ("nowhere", BACK, Some("node n1 does not hold it")),
    ];
    for (text, n, refused) in cases {
        let clashes = vec![clash("both", &[BACK, 2])];
        let planned = plan(&wish(&[(text, n)], None), &ledger(BACK), &mine, clashes);
        match (planned, refused) {
            (Ok(_), None) => {}
            (Err(error), Some(words)) => {
                assert_eq!(error.code, Code::InvalidRequest);
                assert!(error.message.contains(words), "{}", error.message);
            }
            other => panic!("{text} {n}: {other:?}"),
        }
    }
}
