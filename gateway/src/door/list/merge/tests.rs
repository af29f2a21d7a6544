use std::collections::BTreeMap;

use drowse_shared::api::spaces::State;
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn space(name: u8, id: u16, created: u8, used: u8) -> Space {
    let at = |second: u8| Timestamp::from_second(i64::from(second)).expect("in range");
    serde_json::from_value(json!({
        "id": format!("{id:032x}"), "name": format!("n{name}"), "state": State::Active, "node": "a", "epoch": 1,
        "createdAt": at(created), "lastActiveAt": at(used),
        "policy": { "freezeAfterSeconds": 1, "stopAfterSeconds": 2, "hibernateAfterSeconds": 3 },
        "spec": { "cpus": 1.0, "memoryBytes": 1, "diskBytes": 1, "pids": 1 },
        "template": { "name": "base", "digest": "d" }, "metadata": {}
    }))
    .expect("a space")
}

fn ids(nodes: usize) -> impl ExactSizeIterator<Item = NodeId> {
    (0..nodes).map(|node| format!("n{node}").parse().expect("an id"))
}

fn ordered(mut spaces: Vec<Space>, sort: Sort, order: Order) -> Vec<Space> {
    spaces.sort_by(|a, b| order.compare(&sort.place(a), &sort.place(b)));
    spaces
}

/// What a node answers.
fn answer(node: &[Space], wish: &ListSpaces, wanted: &Wanted) -> SpaceList {
    let (sort, order) = (wish.sort.unwrap_or_default(), wish.order.unwrap_or_default());
    let beyond = |space: &Space| {
        wanted.cursor.as_ref().is_none_or(|c| order.compare(c.place(), &sort.place(space)) == Ordering::Less)
    };
    let mut spaces: Vec<_> = ordered(node.to_vec(), sort, order).into_iter().filter(beyond).collect();
    let more = spaces.len() > wanted.limit as usize;
    spaces.truncate(wanted.limit as usize);
    let next = spaces.last().filter(|_| more).map(|last| Cursor::after(order, sort.place(last)));
    SpaceList { spaces, next_cursor: next, silent: Vec::new() }
}

/// One page, and the most spaces that were held for it and how many questions it took.
fn page(nodes: &[Vec<Space>], wish: &ListSpaces) -> (SpaceList, usize, usize) {
    let mut merge = Merge::new(wish, ids(nodes.len()));
    let (mut held, mut asked) = (0, 0);
    while let Some(wanted) = merge.wants() {
        for wanted in wanted {
            asked += 1;
            merge.take(wanted.node, Ok(answer(&nodes[wanted.node], wish, &wanted)));
        }
        held = held.max(merge.spaces.len() + merge.sources.iter().map(|s| s.held.len()).sum::<usize>());
    }
    (merge.end(), held, asked)
}

fn walk(nodes: &[Vec<Space>], wish: &ListSpaces) -> Vec<Space> {
    let (mut all, mut wish) = (Vec::new(), wish.clone());
    loop {
        let (list, ..) = page(nodes, &wish);
        all.extend(list.spaces);
        match list.next_cursor {
            Some(cursor) => wish.cursor = Some(cursor),
            None => return all,
        }
    }
}

fn wishes() -> impl Strategy<Value = ListSpaces> {
    (prop::sample::select(&Sort::ALL), prop::sample::select(&Order::ALL), 1_u32..12).prop_map(
        |(sort, order, limit)| ListSpaces {
            sort: Some(sort),
            order: Some(order),
            limit: Some(limit),
            ..ListSpaces::default()
        },
    )
}

/// Fleets of up to 8 nodes; names and times are few, so that many spaces are equal.
fn fleets() -> impl Strategy<Value = Vec<Vec<Space>>> {
    let node = prop::collection::vec((0_u8..20, 0_u8..6, 0_u8..6), 0..20);
    prop::collection::vec(node, 0..8).prop_map(|nodes| {
        let numbers =
            (1_u32..).map(|n| u16::try_from(n * 7919 % 10_007).unwrap_or(0)).take(200).collect::<Vec<_>>();
        let mut numbers = numbers.into_iter();
        let mut node = |rows: Vec<(u8, u8, u8)>| -> Vec<Space> {
            rows.into_iter()
                .zip(numbers.by_ref())
                .map(|((name, created, used), number)| space(name, number, created, used))
                .collect()
        };
        nodes.into_iter().map(&mut node).collect()
    })
}

proptest! {
    /// Whatever the sort and the limit, the pages together are the whole list in its order, each space once.
    #[test]
    fn pages_together_are_the_sorted_whole(nodes in fleets(), wish in wishes()) {
        let (sort, order) = (wish.sort.unwrap_or_default(), wish.order.unwrap_or_default());
        let whole = ordered(nodes.concat(), sort, order);
        prop_assert_eq!(walk(&nodes, &wish), whole);
    }

    /// Spaces that stay are seen once each, in order, although others come and go between the pages.
    #[test]
    fn what_stays_is_seen_once_while_others_come_and_go(
        nodes in fleets(), others in fleets(), wish in wishes(), turns in prop::collection::vec(any::<bool>(), 1..9),
    ) {
        let (sort, order) = (wish.sort.unwrap_or_default(), wish.order.unwrap_or_default());
        let stay = ordered(nodes.concat(), sort, order);
        let mut crowded = nodes.clone();
        for (node, others) in crowded.iter_mut().zip(others) {
            // Ids of their own.
            node.extend(others.into_iter().map(|space| {
                Space { id: format!("f{}", &space.id.to_string()[1..]).parse().expect("an id"), ..space }
            }));
        }
        let (mut seen, mut wish) = (Vec::new(), wish);
        for turn in 0_usize.. {
            let (list, ..) = page(if turns[turn % turns.len()] { &crowded } else { &nodes }, &wish);
            seen.extend(list.spaces.into_iter().filter(|space| stay.iter().any(|s| s.id == space.id)));
            match list.next_cursor {
                Some(cursor) => wish.cursor = Some(cursor),
                None => break,
            }
        }
        prop_assert_eq!(seen, stay);
    }

    /// However the list is spread, what is held and asked for one page is bounded by the page, not by nodes times page.
    #[test]
    fn what_is_held_is_a_small_multiple_of_the_page(nodes in fleets(), wish in wishes()) {
        let limit = wish.limit.unwrap_or_default() as usize;
        let (list, held, asked) = page(&nodes, &wish);
        prop_assert!(held <= 4 * limit + 2 * nodes.len(), "{held} held for {limit} of {}", nodes.len());
        let log = usize::try_from(limit.ilog2()).unwrap_or(0) + 2;
        prop_assert!(asked <= nodes.len() * log, "{asked} questions to {} for {limit}", nodes.len());
        prop_assert!(list.spaces.len() <= limit);
    }
}

#[test]
fn a_name_on_two_nodes_is_listed_with_both_copies() {
    let nodes = [vec![space(1, 1, 0, 0), space(2, 2, 0, 0)], vec![space(1, 3, 0, 0)]];
    let wish = ListSpaces { limit: Some(1), ..ListSpaces::default() };
    let found: Vec<_> = walk(&nodes, &wish).iter().map(|s| (s.name.to_string(), s.id.to_string())).collect();
    let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["n1", "n1", "n2"]);
    assert!(found[0].1 < found[1].1, "{found:?}");
}

#[test]
fn who_does_not_answer_is_named_and_the_rest_is_shown() {
    let nodes =
        [vec![space(1, 1, 0, 0), space(4, 2, 0, 0), space(5, 3, 0, 0)], vec![space(2, 4, 0, 0)], vec![]];
    let wish = ListSpaces { limit: Some(3), ..ListSpaces::default() };
    let mut merge = Merge::new(&wish, ids(3));
    let mut rounds = BTreeMap::new();
    while let Some(wanted) = merge.wants() {
        for wanted in wanted {
            let round = rounds.entry(wanted.node).or_insert(0);
            *round += 1;
            let silent =
                |reason: &str| Silent { node: ids(3).nth(wanted.node).expect("one"), reason: reason.into() };
            let page = match (wanted.node, *round) {
                (2, _) => Err(silent("timed out")),
                // The first node gives two spaces and is then cut off.
                (0, 2) => Err(silent("reset")),
                _ => Ok(answer(&nodes[wanted.node], &wish, &wanted)),
            };
            merge.take(wanted.node, page);
        }
    }
    let list = merge.end();
    assert_eq!(list.spaces.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["n1", "n2", "n4"]);
    let silent: Vec<_> = list.silent.iter().map(|s| (s.node.as_str(), s.reason.as_str())).collect();
    assert_eq!(silent, [("n2", "timed out")], "the first node was not asked twice for this page");
}

#[test]
fn a_node_out_of_order_is_named_and_not_asked_for_ever() {
    let wish = ListSpaces { limit: Some(5), ..ListSpaces::default() };
    let wrong = vec![space(3, 1, 0, 0), space(1, 2, 0, 0)];
    let cursor = || Some(Cursor::after(Order::Asc, Sort::Name.place(&wrong[0])));
    let mut merge = Merge::new(&wish, ids(1));
    assert_eq!(merge.wants().map(|wanted| wanted.len()), Some(1));
    merge.take(0, Ok(SpaceList { spaces: wrong.clone(), next_cursor: cursor(), silent: Vec::new() }));
    assert_eq!(merge.wants(), None);
    let list = merge.end();
    assert!(list.silent[0].reason.contains("not in order by name asc"), "{list:?}");

    let mut merge = Merge::new(&wish, ids(1));
    assert!(merge.wants().is_some());
    merge.take(0, Ok(SpaceList { spaces: Vec::new(), next_cursor: cursor(), silent: Vec::new() }));
    assert_eq!(merge.wants(), None, "an empty page that says more follow ends");
}
