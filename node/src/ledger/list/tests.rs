use drowse_shared::{
    api::spaces::{Metadata, Policy, Spec, State as Word, Template},
    id::Epoch,
    seams::Env,
};
use proptest::prelude::*;

use super::*;
use crate::{ledger::Database, space::State};

const TIMES: [&str; 6] = [
    "2026-01-01T00:00:00Z",
    "2026-01-01T00:00:00.5Z",
    "2026-01-01T00:00:00.500000001Z",
    "2026-01-01T00:00:01Z",
    "2025-12-31T23:59:59.999999999Z",
    "2026-01-01T00:00:10Z",
];

#[test]
fn what_begins_with_a_prefix_ends_before_the_next_text() {
    let cases = [
        ("a", Some("b")),
        ("a%", Some("a&")),
        ("a_", Some("a`")),
        ("\u{d7ff}", Some("\u{e000}")),
        ("a\u{10ffff}", Some("b")),
        ("\u{10ffff}", None),
    ];
    for (prefix, end) in cases {
        assert_eq!(after_prefix(prefix).as_deref(), end, "{prefix:?}");
    }
}

fn space(number: u16, state: usize, created: usize, used: usize, note: bool) -> Space {
    let at = |index: usize| TIMES[index].parse().expect("a time");
    let states = [State::Active, State::Frozen, State::Stopped];
    let name = ["a", "A", "ab", "é"][usize::from(number) % 4];
    Space {
        // Not in the order of the names.
        id: format!("{:032x}", u64::from(number) * 7919 % 10_007).parse().expect("an id"),
        name: format!("{name}{number}").parse().expect("a name"),
        state: states[state].clone(),
        epoch: Epoch::FIRST,
        created_at: at(created),
        last_active_at: at(used),
        policy: Policy::default(),
        spec: Spec::default(),
        template: Template { name: "base".to_owned(), digest: "d".to_owned() },
        metadata: if note { Metadata::from([("k".to_owned(), "v".to_owned())]) } else { Metadata::new() },
    }
}

fn rows() -> impl Strategy<Value = Vec<Space>> {
    let row = (0..3_usize, 0..TIMES.len(), 0..TIMES.len(), any::<bool>());
    prop::collection::vec(row, 0..40).prop_map(|rows| {
        let numbered = rows.into_iter().zip(0_u16..);
        numbered.map(|((state, created, used, note), n)| space(n, state, created, used, note)).collect()
    })
}

fn wishes() -> impl Strategy<Value = ListSpaces> {
    let sort = prop::option::of(prop::sample::select(&Sort::ALL));
    let order = prop::option::of(prop::sample::select(&Order::ALL));
    let states = prop::option::of(prop::sample::select(vec![
        vec![],
        vec![Word::Frozen],
        vec![Word::Active, Word::Stopped],
    ]));
    let prefix =
        prop::option::of(prop::sample::select(vec!["a".to_owned(), "é".to_owned(), "zz".to_owned()]));
    (sort, order, 1_u32..9, states, prefix, any::<bool>()).prop_map(
        |(sort, order, limit, states, name_prefix, note)| ListSpaces {
            states,
            metadata: note.then(|| Metadata::from([("k".to_owned(), "v".to_owned())])),
            name_prefix,
            sort,
            order,
            limit: Some(limit),
            cursor: None,
        },
    )
}

/// What was used since it was written down: every third, later than the ledger has it or a little earlier.
fn used(rows: &[Space], later: usize) -> Used {
    let fresh = rows.iter().step_by(3);
    fresh
        .zip(0_usize..)
        .map(|(row, n)| (row.id, TIMES[(n + later) % TIMES.len()].parse().expect("a time")))
        .collect()
}

/// The whole list, the plain way.
fn model(rows: &[Space], used: &Used, wish: &ListSpaces) -> Vec<Space> {
    let (sort, order) = (wish.sort.unwrap_or_default(), wish.order.unwrap_or_default());
    let fits = |space: &Space| {
        wish.states.as_ref().is_none_or(|states| states.contains(&space.state.word()))
            && wish.metadata.iter().flatten().all(|(key, value)| space.metadata.get(key) == Some(value))
            && wish.name_prefix.as_ref().is_none_or(|prefix| space.name.as_str().starts_with(prefix))
    };
    let mut list: Vec<Space> = rows.iter().filter(|space| fits(space)).cloned().collect();
    if sort == Sort::LastActiveAt {
        for space in &mut list {
            space.last_active_at =
                used.get(&space.id).map_or(space.last_active_at, |at| space.last_active_at.max(*at));
        }
    }
    list.sort_by(|a, b| order.compare(&place(sort, a), &place(sort, b)));
    list
}

async fn ledger(rows: Vec<Space>) -> Ledger {
    let connection = Connection::open_in_memory().expect("memory");
    let state = std::env::temp_dir();
    let state = camino::Utf8Path::from_path(&state).expect("UTF-8");
    let ledger = Ledger::open(&Env::real(), state, Database::Open(connection)).await.expect("fresh");
    ledger.insert_all(rows).await.expect("room");
    ledger
}

async fn walk(ledger: &Ledger, used: &Used, wish: &ListSpaces) -> Vec<Space> {
    let (mut all, mut wish) = (Vec::new(), wish.clone());
    loop {
        let (page, next) = ledger.list(&wish, used.clone()).await.expect("read");
        assert!(page.len() <= wish.limit.unwrap_or_default() as usize);
        assert!(!page.is_empty() || next.is_none(), "a page that goes on has something on it");
        all.extend(page);
        match next {
            Some(_) => wish.cursor = next,
            None => return all,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever the sort, the limit and the filters, the pages together are the whole list in its order.
    #[test]
    fn pages_together_are_the_sorted_whole(rows in rows(), wish in wishes(), later in 0..TIMES.len()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let used = used(&rows, later);
        let whole = model(&rows, &used, &wish);
        let found = runtime.block_on(async { walk(&ledger(rows).await, &used, &wish).await });
        prop_assert_eq!(found, whole);
    }
}

#[tokio::test]
async fn a_page_ends_before_it_is_larger_than_anybody_can_hold() {
    let heavy = |number| {
        let notes = (0..32).map(|key| (format!("k{key}"), "x".repeat(4096))).collect();
        Space { metadata: notes, ..space(number, 0, 0, 0, false) }
    };
    let ledger = ledger((0..100).map(heavy).collect()).await;
    let wish = ListSpaces { limit: Some(1000), ..ListSpaces::default() };
    let (page, next) = ledger.list(&wish, Used::new()).await.expect("read");
    assert!((60..70).contains(&page.len()) && next.is_some(), "{} spaces on the page", page.len());
    assert_eq!(walk(&ledger, &Used::new(), &wish).await.len(), 100, "the rest follows");
}

#[tokio::test]
async fn no_page_sorts_or_scans_what_is_not_on_it() {
    let ledger = ledger(Vec::new()).await;
    let plan = async |wish: ListSpaces, used: Option<Used>| {
        let mut query = Query::written(&wish, used.as_ref()).expect("plain");
        let text = format!("explain query plan {}", query.text(10));
        let work = move |c: &Connection| {
            let mut plan = c.prepare(&text)?;
            let rows = plan.query_map(params_from_iter(query.values.drain(..)), |row| row.get(3))?;
            rows.collect()
        };
        ledger.read::<Vec<String>>(work).await.expect("a plan").join("; ")
    };
    for (sort, index) in [
        (Sort::Name, "sqlite_autoindex_spaces_2"),
        (Sort::CreatedAt, "spaces_by_created"),
        (Sort::LastActiveAt, "spaces_by_last_active"),
    ] {
        for order in Order::ALL {
            let cursor = Cursor::after(order, place(sort, &space(1, 0, 0, 0, false)));
            for cursor in [None, Some(cursor)] {
                let wish =
                    ListSpaces { sort: Some(sort), order: Some(order), cursor, ..ListSpaces::default() };
                let plan = plan(wish, None).await;
                assert!(plan.contains(index) && !plan.contains("TEMP B-TREE"), "{sort} {order}: {plan}");
            }
        }
    }
}
