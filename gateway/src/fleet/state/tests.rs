use std::collections::{BTreeMap, BTreeSet};

use drowse_shared::api::nodes::{BundleVersion, Disk, Reading, Roster};
use drowse_shared::{api::Code, id::Ticket};

use super::*;
use crate::{
    fleet::{check_in_for_tests, judge::tests::ledger},
    place::Gates,
};

/// A roll to another build.
mod roll;

/// A member `node-<n>` that could take a space.
fn says(n: u32) -> CheckIn {
    let mut said = check_in_for_tests(&format!("node-{n}"), 0, &format!("http://10.0.0.1:{n}"));
    said.ledger_id = format!("{n:032x}").parse().expect("an id");
    said.bundle = Some(BundleVersion { authority_id: fleet_id(), version: 1 });
    said.reading = Some(Reading {
        cores: 4,
        cpu_percent: Some(5.0),
        memory_total_bytes: 8 << 30,
        memory_available_bytes: 4 << 30,
        swap_total_bytes: 0,
        swap_used_bytes: 0,
        disk: Some(Disk { total_bytes: 1 << 40, available_bytes: 1 << 39 }),
        spaces: BTreeMap::new(),
    });
    said
}

fn fleet_id() -> drowse_shared::id::FleetId {
    format!("{:032x}", 99).parse().expect("an id")
}

fn founded() -> State {
    let roster = Members::of_new_fleet(fleet_id());
    State::new(
        Kept { roster: Some(roster), bundle: Some(authority::first(fleet_id())), ..Kept::default() },
        Build::unreleased(),
    )
}

/// Takes check-ins together. Answers what each was told; nothing if its roster has to be read first.
fn take(state: &mut State, all: Vec<CheckIn>) -> Vec<Option<CheckedIn<Written>>> {
    let mut next = state.next();
    let drafts: Vec<Draft> =
        all.iter().map(|said| state.draft(&mut next, said).expect("it is taken")).collect();
    state.install(next);
    let settled = all.into_iter().zip(drafts).map(|(said, draft)| match draft {
        Draft::Unread => None,
        Draft::Taken { standing, exchange } => {
            Some(state.commit((standing, exchange), said, Timestamp::UNIX_EPOCH).0)
        }
    });
    settled.collect()
}

/// So many nodes, all of which know of all.
fn fleet_of(nodes: u32) -> State {
    let mut state = founded();
    take(&mut state, (1..=nodes).map(says).collect());
    let identity = roster(&state).identity();
    let knows = |n| CheckIn { roster: Some(identity.clone()), ..says(n) };
    take(&mut state, (1..=nodes).map(knows).collect());
    state
}

fn roster(state: &State) -> Roster {
    state.kept.roster.as_ref().expect("one").roster()
}

fn tickets(nodes: u32) -> BTreeMap<LedgerId, Ticket> {
    (1..=nodes).map(|n| (says(n).ledger_id, format!("{n:032x}").parse().expect("an id"))).collect()
}

/// The nodes that would take a space.
fn open(state: &State) -> Vec<String> {
    let list = state.list(&Gates::default()).expect("a fleet");
    list.nodes.into_iter().filter(|node| node.refuses.is_none()).map(|node| node.id.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn many_that_join_together_form_one_version() {
    let mut state = founded();
    take(&mut state, (1..=1000).map(says).collect());
    assert_eq!((state.version(), roster(&state).nodes.len()), (Some(1), 1000));
    take(&mut state, vec![says(1001)]);
    assert_eq!(state.version(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn the_roster_is_written_down_at_a_pace_and_not_once_per_node_that_joins() {
    let mut state = founded();
    let (mut texts, mut told) = (Vec::<Written>::new(), 0);
    for n in 1..=1000 {
        tokio::time::advance(Duration::from_micros(100)).await;
        let answers = take(&mut state, vec![says(n)]);
        let Some(text) = answers.into_iter().flatten().find_map(|answer| answer.roster) else { continue };
        told += 1;
        if texts.iter().all(|known| !Arc::ptr_eq(known, &text)) {
            texts.push(text);
        }
    }
    assert_eq!(told, 1000, "every one was told of a fleet");
    assert!(texts.len() < 50, "a thousand joins within 100 ms wrote it down {} times", texts.len());
    let (text, behind) = state.untold();
    let newest: Roster = serde_json::from_str(text.expect("a roster").get()).expect("readable");
    assert_eq!((newest.version, behind.len()), (1000, 1000), "what is shown to all is the newest");
}

#[tokio::test(start_paused = true)]
async fn a_roster_nobody_here_has_seen_is_read_before_anything_is_taken() {
    let mut state = fleet_of(2);
    // Another gateway had the third and lost its database.
    let mut other = roster(&state);
    other.version += 3;
    other.nodes.push(drowse_shared::api::nodes::RosterNode {
        id: "lost".parse().expect("an id"),
        ledger_id: ledger(77),
        endpoint: "http://lost".into(),
        since_version: other.version,
    });
    let brings = CheckIn { roster: Some(other.identity()), ..says(3) };
    assert!(take(&mut state, vec![brings.clone()]).iter().all(Option::is_none));
    assert!(!state.has_heard(&brings.ledger_id) && state.version() == Some(1), "nothing was taken");
    let whole = CheckIn { roster_copy: Some(other.clone()), ..brings };
    assert!(take(&mut state, vec![whole]).iter().all(Option::is_some));
    assert_eq!(roster(&state).nodes.len(), 4, "who was lost is asked from now on");
    assert_eq!(state.version(), Some(other.version + 1), "and the one who brought it joined");
}

#[tokio::test(start_paused = true)]
async fn nobody_holds_a_name_only_once_all_who_are_known_were_asked() {
    let mut state = fleet_of(2);
    let asked: BTreeSet<LedgerId> = (1..=2).map(|n| says(n).ledger_id).collect();
    assert!(state.is_everybody(&asked));
    take(&mut state, vec![says(3)]);
    assert!(!state.is_everybody(&asked), "somebody became known meanwhile");
}

#[tokio::test(start_paused = true)]
async fn a_node_takes_spaces_once_another_live_one_keeps_a_roster_of_ours_with_it() {
    let mut state = founded();
    take(&mut state, vec![says(1)]);
    assert_eq!(open(&state), ["node-1"], "alone");
    take(&mut state, vec![says(2)]);
    assert!(open(&state).is_empty(), "neither knows of the other");
    state.untold();
    take(&mut state, vec![says(3)]);
    // Another gateway made a second version too, and nobody but its own nodes is in it.
    let foreign = Roster { version: 2, nodes: Vec::new(), ..roster(&state) };
    let brings = CheckIn { roster: Some(foreign.identity()), roster_copy: Some(foreign), ..says(1) };
    take(&mut state, vec![brings]);
    assert!(open(&state).is_empty(), "another's is no echo");
    let knows = |n, state: &State| CheckIn { roster: Some(roster(state).identity()), ..says(n) };
    let first = vec![knows(1, &state)];
    take(&mut state, first);
    assert_eq!(
        open(&state),
        ["node-2", "node-3"],
        "the first one knows them; nobody knows the first one yet"
    );
    let all = (1..=3).map(|n| knows(n, &state)).collect();
    take(&mut state, all);
    assert_eq!(open(&state), ["node-1", "node-2", "node-3"]);
    tokio::time::advance(Duration::from_secs(11)).await;
    let first = vec![knows(1, &state)];
    take(&mut state, first);
    assert!(open(&state).is_empty(), "who knew it is down");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_by_a_thousand_nodes_names_a_few() {
    let mut state = fleet_of(1000);
    let refused = state.pick(&BTreeMap::new(), &Gates::default()).expect_err("nobody gave permission");
    assert!(refused.error.code == Code::NoCapacity && !refused.passing);
    let message = &refused.error.message;
    assert!(message.contains("node-1: gave no permission") && message.contains("and 995 more"), "{message}");
    assert!(serde_json::to_vec(&refused.error).expect("JSON").len() < 8192);
    assert_eq!(refused.error.details["nodes"].as_object().map(serde_json::Map::len), Some(100));
    assert_eq!(refused.error.details["more"], 900);
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_spread_over_all_nodes() {
    let mut state = fleet_of(100);
    let tickets = tickets(100);
    let mut picked = BTreeMap::<LedgerId, u32>::new();
    for _ in 0..200 {
        let pick = state.pick(&tickets, &Gates::default()).expect("room");
        *picked.entry(pick.peer.ledger).or_default() += 1;
    }
    assert!(picked.len() == 100 && picked.values().all(|times| *times == 2), "{picked:?}");
}

/// Prints what a pick costs; run by `benches/run scale`.
#[tokio::test]
#[ignore = "a measurement"]
#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock and prints")]
async fn soak_placement_figures() {
    for nodes in [1000, 10_000] {
        let mut state = fleet_of(nodes);
        let tickets = tickets(nodes);
        let rounds = 2_000_000 / nodes;
        let began = std::time::Instant::now();
        for _ in 0..rounds {
            let pick = state.pick(&tickets, &Gates::default()).expect("room");
            state.settle(&pick.peer.ledger, crate::fleet::counts::Outcome::Refused);
        }
        let each = began.elapsed().as_secs_f64() * 1e6 / f64::from(rounds);
        println!("placement over {nodes} nodes: {each:.0} us a pick, {rounds} picks");
        assert!(each < 50_000.0, "{each} us");
    }
}
