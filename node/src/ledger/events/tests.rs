use camino::Utf8Path;
use drowse_shared::{
    api::spaces::{Metadata, Policy, Spec, Template},
    id::Epoch,
    seams::Env,
};

use super::*;
use crate::{
    ledger::Database,
    space::{Space, State},
};

fn id(number: u32) -> SpaceId {
    format!("{number:032x}").parse().expect("an id")
}

fn space(number: u32, name: &str) -> Space {
    Space {
        id: id(number),
        name: name.parse().expect("a name"),
        state: State::Active,
        epoch: Epoch::FIRST,
        created_at: Timestamp::UNIX_EPOCH,
        last_active_at: Timestamp::UNIX_EPOCH,
        policy: Policy::default(),
        spec: Spec::default(),
        template: Template { name: "base".to_owned(), digest: "d".to_owned() },
        metadata: Metadata::new(),
    }
}

fn event(what: Happened, because: &str) -> Event {
    Event {
        at: Timestamp::UNIX_EPOCH,
        what,
        because: because.to_owned(),
        took: Some(Duration::from_micros(7)),
    }
}

async fn ledger(dir: &tempfile::TempDir) -> Ledger {
    let state = Utf8Path::from_path(dir.path()).expect("UTF-8");
    Ledger::open(&Env::real(), state, Database::File).await.expect("fresh")
}

async fn froze(ledger: &Ledger, number: u32, because: &str) {
    let told = Some(event(Happened::Frozen, because));
    ledger.set_state(id(number), &State::Active, &State::Frozen, None, told).await.expect("written");
}

/// The reasons of every event that is kept, page by page.
async fn reasons(ledger: &Ledger, number: u32, name: &str, page: u32) -> Vec<String> {
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let name = name.parse().expect("a name");
        let (events, next) = ledger.events(id(number), name, cursor, Some(page)).await.expect("read");
        assert!(events.len() <= page as usize && (next.is_none() || events.len() == page as usize));
        all.extend(events.into_iter().map(|event| event.because));
        cursor = next;
        if cursor.is_none() {
            return all;
        }
    }
}

#[tokio::test]
async fn of_each_space_the_newest_are_kept_and_shown_page_by_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let ledger = ledger(&dir).await;
    ledger.insert_found(&space(1, "a"), event(Happened::Rebuilt, "first")).await.expect("written");
    ledger.insert_found(&space(2, "b"), event(Happened::Rebuilt, "quiet")).await.expect("written");
    for round in 0..KEPT + 50 {
        froze(&ledger, 1, &round.to_string()).await;
    }
    let expected: Vec<String> = (50..KEPT + 50).rev().map(|round| round.to_string()).collect();
    for page in [1, 7, KEPT, 1000] {
        assert_eq!(reasons(&ledger, 1, "a", page).await, expected, "{page} at a time");
    }
    assert_eq!(reasons(&ledger, 2, "b", 10).await, ["quiet"]);
    let (events, next) = ledger.events(id(2), "b".parse().expect("a name"), None, None).await.expect("read");
    assert_eq!((events[0].took_us, events[0].what, next), (Some(7), Happened::Rebuilt, None));
}

#[tokio::test]
async fn the_end_of_a_space_is_told_to_the_next_of_its_name_and_to_nobody_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let ledger = ledger(&dir).await;
    let name: SpaceName = "a".parse().expect("a name");
    for number in 1..=KEPT_ENDS + 5 {
        ledger.insert_found(&space(number, "a"), event(Happened::Rebuilt, "made")).await.expect("written");
        froze(&ledger, number, "froze").await;
        let end = Some((name.clone(), event(Happened::Destroyed, &number.to_string())));
        ledger.forget(id(number), end).await.expect("written");
    }
    ledger.insert_found(&space(100, "a"), event(Happened::Rebuilt, "made")).await.expect("written");
    ledger.insert_found(&space(101, "b"), event(Happened::Rebuilt, "other")).await.expect("written");
    let mut expected = vec!["made".to_owned()];
    expected.extend((6..=KEPT_ENDS + 5).rev().map(|number| number.to_string()));
    assert_eq!(reasons(&ledger, 100, "a", 3).await, expected);
    assert_eq!(reasons(&ledger, 101, "b", 3).await, ["other"]);
    let rows: u32 =
        ledger.read(|c| c.query_row("select count(*) from events", [], |r| r.get(0))).await.expect("read");
    assert_eq!(rows, KEPT_ENDS + 2, "of what is gone only its end is kept");
}

#[tokio::test]
async fn all_of_them_are_bounded() {
    let dir = tempfile::tempdir().expect("a directory");
    let ledger = ledger(&dir).await;
    let fill = |from: u32, to: u32| {
        ledger.write(Write::Soft, move |c| {
            (from..to).try_for_each(|number| tell(c, id(number), &event(Happened::Frozen, "x")))
        })
    };
    let rows = || {
        ledger.read(|c| {
            c.query_row("select count(*), min(seq) from events", [], |r| {
                Ok((r.get::<_, u32>(0)?, r.get::<_, u32>(1)?))
            })
        })
    };
    let every = u32::try_from(COUNTED_EVERY).expect("small");
    fill(0, KEPT_IN_ALL).await.expect("written");
    assert_eq!(rows().await.expect("read"), (KEPT_IN_ALL, 1));
    fill(KEPT_IN_ALL, KEPT_IN_ALL + every - 1).await.expect("written");
    assert_eq!(rows().await.expect("read").0, KEPT_IN_ALL + every - 1, "at most so many more");
    fill(0, 1).await.expect("written");
    assert_eq!(rows().await.expect("read"), (KEPT_IN_ALL, every + 1), "the oldest went");
}

#[tokio::test]
async fn what_cannot_be_told_is_done_all_the_same() {
    let dir = tempfile::tempdir().expect("a directory");
    let ledger = ledger(&dir).await;
    ledger.insert_found(&space(1, "a"), event(Happened::Rebuilt, "made")).await.expect("written");
    ledger.write(Write::Soft, |c| c.execute("drop table events", []).map(drop)).await.expect("written");
    froze(&ledger, 1, "untold").await;
    let row = ledger.by_name(&"a".parse().expect("a name")).await.expect("read").expect("there");
    assert_eq!(row.state, State::Frozen);
    ledger.forget(id(1), Some((row.name, event(Happened::Destroyed, "untold")))).await.expect("written");
    assert_eq!(ledger.all().await.expect("read"), []);
}
