//! A roll, with whatever may happen meanwhile.

use drowse_shared::api::upgrade::{LastUpgrade, Progress, SelfUpgrade, Tell, UpgradeState};
use proptest::prelude::*;

use super::*;
use crate::upgrade::PATIENCE;

fn build(age: i64) -> Build {
    let committed_at = Some(Timestamp::from_second(age).expect("a time"));
    Build { version: "1.0.0".to_owned(), commit: Some(age.to_string()), committed_at }
}

/// A fleet whose nodes run the oldest build and whose gateway runs the second.
struct Rolling {
    state: State,
    wall: i64,
    newest: i64,
    nodes: BTreeMap<u32, (Build, SelfUpgrade)>,
    /// Who was told and neither got there nor was given up by a person.
    at_it: Option<u32>,
    tells: usize,
}

impl Rolling {
    fn of(nodes: u32) -> Self {
        let mut state = fleet_of(nodes);
        state.build = build(2);
        let all = (1..=nodes).map(|n| (n, (build(1), SelfUpgrade::default()))).collect();
        let mut fleet = Self { state, wall: 1_000_000, newest: 2, nodes: all, at_it: None, tells: 0 };
        assert!((1..=nodes).all(|n| !fleet.check_in(n)), "nobody asked for it");
        fleet
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_second(self.wall).expect("a time")
    }

    fn begin(&mut self) {
        if let Some(next) = self.state.rolled(self.wall()).expect("there is a release") {
            self.state.install(next);
        }
    }

    /// Answers whether it was told.
    fn check_in(&mut self, n: u32) -> bool {
        let Some((runs, upgrade)) = self.nodes.get(&n) else { return false };
        let said = CheckIn { build: runs.clone(), upgrade: Some(upgrade.clone()), ..says(n) };
        let ledger = said.ledger_id;
        let said = CheckIn { roster: Some(roster(&self.state).identity()), ..said };
        take(&mut self.state, vec![said]);
        while let Some((next, tell)) = self.state.stepped(&ledger, self.wall()) {
            self.state.install(next);
            let Some(tell) = tell else { continue };
            assert_eq!(self.at_it, None, "node {n} was told while another one is at it");
            self.at_it = Some(n);
            self.tells += 1;
            let last = LastUpgrade { tell, state: Progress::Running, error: None };
            self.nodes.get_mut(&n).expect("it is there").1.last = Some(last);
            return true;
        }
        false
    }

    fn told(&self, n: u32) -> Option<Tell> {
        self.nodes
            .get(&n)?
            .1
            .last
            .as_ref()
            .filter(|last| last.state == Progress::Running)
            .map(|l| l.tell.clone())
    }

    /// Its installer is done.
    fn arrives(&mut self, n: u32) {
        let Some(tell) = self.told(n) else { return };
        let (runs, upgrade) = self.nodes.get_mut(&n).expect("it is there");
        *runs = tell.build.clone();
        upgrade.last = Some(LastUpgrade { tell, state: Progress::Succeeded, error: None });
        self.at_it = self.at_it.filter(|other| *other != n);
    }

    fn fails(&mut self, n: u32) {
        let Some(tell) = self.told(n) else { return };
        if tell.build != build(self.newest) {
            self.at_it = self.at_it.filter(|other| *other != n);
        }
        let last = LastUpgrade { tell, state: Progress::RolledBack, error: None };
        let (runs, upgrade) = self.nodes.get_mut(&n).expect("it is there");
        upgrade.last = Some(last);
        if let Some(told) = self.state.kept.roll.told.get(&says(n).ledger_id) {
            *runs = told.ran.clone();
        }
    }

    fn serves(&mut self, n: u32) {
        let Some(tell) = self.told(n) else { return };
        self.nodes.get_mut(&n).expect("it is there").0 = tell.build;
    }

    fn halt(&mut self) {
        if let Some(next) = self.state.halted().expect("a fleet") {
            self.state.install(next);
        }
    }

    fn retry(&mut self, n: u32) -> Result<(), Code> {
        let next = self.state.retried(&says(n).node_id, self.wall()).map_err(|error| error.code)?;
        self.state.install(next);
        // It may still be at it; a person has said that it is not waited for.
        let upgrade = &mut self.nodes.get_mut(&n).expect("it is there").1;
        if let Some(last) = upgrade.last.as_mut().filter(|last| last.state == Progress::Running) {
            last.state = Progress::Failed;
        }
        self.at_it = self.at_it.filter(|other| *other != n);
        Ok(())
    }

    /// A newer build is installed on the gateway's machine, and a person wants it everywhere. Whoever failed to take the
    /// one before holds up nobody any more.
    fn push(&mut self) {
        self.newest += 1;
        self.restart();
        self.at_it = self.at_it.filter(|n| self.told(*n).is_some());
        self.begin();
    }

    fn restart(&mut self) {
        self.state = State::new((*self.state.kept).clone(), build(self.newest));
    }

    fn rolls(&self) -> bool {
        self.state.upgrade(self.wall()).expect("a fleet").rolling
    }

    fn remove(&mut self, n: u32) {
        let Ok(Some((_, next))) = self.state.removal(&says(n).node_id) else { return };
        self.state.install(next);
        self.nodes.remove(&n);
        self.at_it = self.at_it.filter(|other| *other != n);
    }

    async fn pass(&mut self, time: Duration) {
        tokio::time::advance(time).await;
        self.wall += i64::try_from(time.as_secs()).expect("short");
    }

    fn states(&self) -> Vec<UpgradeState> {
        self.state.upgrade(self.wall()).expect("a fleet").nodes.iter().map(|node| node.state).collect()
    }

    fn runs(&self, n: u32) -> &Build {
        &self.nodes[&n].0
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_are_told_one_after_another_in_their_order() {
    use UpgradeState::{Behind, Current, Upgrading};
    let mut fleet = Rolling::of(3);
    assert!((1..=3).all(|n| !fleet.check_in(n)), "nobody asked for it");
    fleet.begin();
    assert!(!fleet.check_in(2), "the first has its turn first");
    assert!(fleet.check_in(1) && !fleet.check_in(1), "told once");
    assert_eq!(fleet.states(), [Upgrading, Behind, Behind]);
    assert!(!fleet.check_in(2));
    fleet.restart();
    assert!(!fleet.check_in(2) && !fleet.check_in(3), "a gateway that was restarted knows who was told");
    fleet.arrives(1);
    assert!(!fleet.check_in(1) && !fleet.check_in(3) && fleet.check_in(2));
    fleet.arrives(2);
    assert!(!fleet.check_in(2) && fleet.check_in(3));
    fleet.arrives(3);
    assert!(fleet.rolls() && !fleet.check_in(3));
    assert_eq!((fleet.states(), fleet.tells), (vec![Current; 3], 3));
    assert!(fleet.state.kept.roll.told.is_empty());
    // It is over: who goes back does so by a person's hand, and is left alone until a person says otherwise.
    assert!(!fleet.rolls());
    fleet.nodes.get_mut(&2).expect("it is there").0 = build(1);
    assert!((1..=3).all(|n| !fleet.check_in(n)));
    assert_eq!(fleet.states(), [Current, Behind, Current]);
    fleet.begin();
    assert!(fleet.check_in(2));
    // A roll of a fleet that is there already is none.
    fleet.arrives(2);
    fleet.check_in(2);
    fleet.begin();
    assert!(!fleet.rolls());
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_has_just_started_knows_whose_turn_it_is_before_it_tells() {
    let mut fleet = Rolling::of(3);
    fleet.begin();
    fleet.restart();
    assert!(!fleet.check_in(3) && !fleet.check_in(2), "the first was not heard yet");
    assert!(fleet.check_in(1));
    fleet.arrives(1);
    assert!(!fleet.check_in(1));
    fleet.restart();
    assert!(!fleet.check_in(3), "the second was not heard yet");
    // It is down, and nobody waits for it any longer than for one that was heard.
    fleet.pass(Duration::from_secs(11)).await;
    fleet.check_in(1);
    assert!(fleet.check_in(3));
}

#[tokio::test(start_paused = true)]
async fn a_build_that_failed_does_not_hold_up_the_one_that_mends_it() {
    use UpgradeState::{Behind, Stuck, Upgrading};
    let mut fleet = Rolling::of(3);
    fleet.begin();
    assert!(fleet.check_in(1));
    fleet.fails(1);
    for n in 1..=3 {
        fleet.check_in(n);
    }
    assert_eq!(fleet.states(), [Stuck, Behind, Behind]);
    fleet.newest += 1;
    fleet.restart();
    assert!([1, 2, 3, 1].into_iter().all(|n| !fleet.check_in(n)), "no person has asked for the other build");
    assert_eq!(fleet.states(), [Stuck, Behind, Behind]);
    fleet.begin();
    fleet.at_it = None;
    assert!(!fleet.check_in(2) && fleet.check_in(1), "in its own place");
    // One that is late may be at work yet, whatever build came after.
    fleet.pass(PATIENCE).await;
    fleet.push();
    for n in [1, 2, 3, 2] {
        assert!(!fleet.check_in(n));
    }
    assert_eq!(fleet.states(), [Stuck, Behind, Behind]);
    fleet.arrives(1);
    assert!(fleet.check_in(1));
    assert_eq!(fleet.states(), [Upgrading, Behind, Behind]);
}

#[tokio::test(start_paused = true)]
async fn what_was_told_is_over_where_another_gateway_has_removed_the_node() {
    let mut fleet = Rolling::of(3);
    fleet.begin();
    assert!(fleet.check_in(1));
    let mut theirs = fleet.state.kept.roster.clone().expect("a roster");
    theirs.remove(theirs.version + 1, says(1).ledger_id);
    let mut next = fleet.state.next();
    next.take_over(theirs);
    fleet.state.install(next);
    fleet.nodes.remove(&1);
    fleet.at_it = None;
    assert!(fleet.state.kept.roll.told.is_empty());
    assert!(fleet.check_in(2), "nobody waits for it");
}

#[tokio::test(start_paused = true)]
async fn a_roll_does_not_wait_for_what_never_goes_by_itself() {
    use UpgradeState::{Behind, Current, Unavailable, Unknown};
    let mut fleet = Rolling::of(3);
    let unable = SelfUpgrade { unavailable: Some("no installer".to_owned()), ..SelfUpgrade::default() };
    fleet.nodes.get_mut(&2).expect("it is there").1 = unable;
    fleet.nodes.get_mut(&3).expect("it is there").0 = Build::unreleased();
    fleet.begin();
    for n in [2, 3] {
        fleet.check_in(n);
    }
    assert!(fleet.check_in(1));
    fleet.arrives(1);
    assert!(fleet.rolls() && !fleet.check_in(1));
    assert_eq!(fleet.states(), [Current, Unavailable, Unknown]);
    assert!(!fleet.rolls(), "it is over");
    fleet.nodes.get_mut(&1).expect("it is there").0 = build(1);
    assert!(!fleet.check_in(1));
    assert_eq!(fleet.states(), [Behind, Unavailable, Unknown]);
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_for_another_build_does_not_come_back_with_it() {
    let mut fleet = Rolling::of(1);
    fleet.begin();
    fleet.newest = 1;
    fleet.restart();
    fleet.check_in(1);
    fleet.begin();
    assert!(!fleet.rolls(), "it is there");
    fleet.newest = 2;
    fleet.restart();
    assert!(!fleet.check_in(1) && !fleet.rolls(), "nobody has asked for it again");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_stuck_waits_for_a_person_and_then_for_its_turn() {
    use UpgradeState::{Behind, Current, Stuck};
    let mut fleet = Rolling::of(3);
    fleet.begin();
    for n in 1..=3 {
        fleet.check_in(n);
    }
    assert_eq!(fleet.retry(1), Err(Code::NotStuck), "it is at it");
    assert_eq!(fleet.retry(2), Err(Code::NotStuck), "it was not told yet");
    assert_eq!(
        fleet.state.retried(&"nobody".parse().expect("an id"), fleet.wall()).map(drop).map_err(|e| e.code),
        Err(Code::NodeNotFound)
    );
    fleet.fails(1);
    assert!((1..=3).all(|n| !fleet.check_in(n)));
    assert_eq!(fleet.states(), [Stuck, Behind, Behind]);
    fleet.retry(1).expect("it is stuck");
    assert!(!fleet.check_in(2) && fleet.check_in(1), "in its own place");
    // It gives no sign.
    for _ in 0..PATIENCE.as_secs() / 10 {
        assert!((1..=3).all(|n| !fleet.check_in(n)));
        fleet.pass(Duration::from_secs(10)).await;
    }
    assert_eq!(fleet.states(), [Stuck, Behind, Behind]);
    assert!((1..=3).all(|n| !fleet.check_in(n)));
    // A person who is told that it is gone for good removes it, and the others go on.
    fleet.pass(Duration::from_secs(60)).await;
    for n in 2..=3 {
        fleet.check_in(n);
    }
    assert_eq!(fleet.retry(1), Err(Code::NodeSilent), "its installer may be at work");
    assert!((2..=3).all(|n| !fleet.check_in(n)), "nobody passes it");
    fleet.remove(1);
    assert!(fleet.check_in(2));
    fleet.arrives(2);
    assert!(!fleet.check_in(2) && fleet.check_in(3));
    fleet.arrives(3);
    fleet.check_in(3);
    assert_eq!(fleet.states(), [Current, Current]);
}

#[tokio::test(start_paused = true)]
async fn a_build_that_serves_and_gives_way_is_not_told_again() {
    use UpgradeState::{Behind, Stuck, Upgrading};
    let mut fleet = Rolling::of(2);
    fleet.begin();
    assert!(fleet.check_in(1));
    fleet.serves(1);
    assert!(!fleet.check_in(1) && !fleet.check_in(2));
    assert_eq!(fleet.states(), [Upgrading, Behind]);
    // Not even when it takes too long.
    for _ in 0..PATIENCE.as_secs() / 10 {
        fleet.pass(Duration::from_secs(10)).await;
        assert!((1..=2).all(|n| !fleet.check_in(n)));
    }
    assert_eq!(fleet.states(), [Stuck, Behind]);
    fleet.fails(1);
    assert!((1..=2).all(|n| !fleet.check_in(n)));
    assert_eq!((fleet.states(), fleet.tells), (vec![Stuck, Behind], 1));
    // Removed and back, it is in line like any other.
    fleet.retry(1).expect("it is stuck");
    assert!(fleet.check_in(1));
    fleet.pass(Duration::from_secs(60)).await;
    fleet.remove(1);
    assert!(fleet.state.kept.roll.told.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_build_on_the_heels_of_another_is_waited_for() {
    let mut fleet = Rolling::of(2);
    fleet.begin();
    assert!((1..=2).map(|n| fleet.check_in(n)).eq([true, false]));
    fleet.push();
    assert!((1..=2).all(|n| !fleet.check_in(n)), "the first is still at the build before");
    fleet.arrives(1);
    assert!(fleet.check_in(1), "there, it is behind again, and the first");
    fleet.arrives(1);
    assert!(!fleet.check_in(1) && fleet.check_in(2));
    fleet.arrives(2);
    fleet.check_in(2);
    assert_eq!((fleet.runs(1), fleet.runs(2)), (&build(3), &build(3)));
    // A gateway that went back is behind its nodes, which are left alone, and nobody rolls.
    fleet.newest = 1;
    fleet.restart();
    assert!((1..=2).all(|n| !fleet.check_in(n)));
    let shown = fleet.state.upgrade(fleet.wall()).expect("a fleet");
    assert!(!shown.rolling && shown.nodes.iter().all(|node| node.state == UpgradeState::Ahead));
}

#[tokio::test(start_paused = true)]
async fn a_roll_that_is_stopped_tells_nobody_else() {
    let mut fleet = Rolling::of(2);
    fleet.begin();
    assert!(fleet.check_in(1));
    fleet.halt();
    fleet.arrives(1);
    assert!((1..=2).all(|n| !fleet.check_in(n)));
    assert!(fleet.state.halted().expect("a fleet").is_none(), "it is stopped");
    fleet.begin();
    assert!(fleet.check_in(2));
    fleet.state.build = Build::unreleased();
    assert_eq!(fleet.state.rolled(fleet.wall()).map(drop).map_err(|e| e.code), Err(Code::NoRelease));
}

#[derive(Debug, Clone)]
enum Event {
    CheckIn(u32),
    Arrives(u32),
    Fails(u32),
    Retry(u32),
    Remove(u32),
    /// The new build checks in, and its installer is not done with it.
    Serves(u32),
    Halt,
    Begin,
    Push,
    Restart,
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let node = 1_u32..=4;
    prop_oneof![
        8 => node.clone().prop_map(Event::CheckIn),
        3 => node.clone().prop_map(Event::Arrives),
        1 => node.clone().prop_map(Event::Fails),
        1 => node.clone().prop_map(Event::Retry),
        1 => node.clone().prop_map(Event::Serves),
        1 => node.prop_map(Event::Remove),
        1 => Just(Event::Halt),
        1 => Just(Event::Begin),
        1 => Just(Event::Push),
        1 => Just(Event::Restart),
        2 => (1_u64..1500).prop_map(Event::Pass),
    ]
}

proptest! {
    /// Whatever happens, no node is told while another one is at it; and once everybody behaves, everybody gets there.
    #[test]
    fn no_two_nodes_are_told_in_one_roll(events in prop::collection::vec(event(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let mut fleet = Rolling::of(4);
            fleet.begin();
            for event in events {
                match event {
                    Event::CheckIn(n) => _ = fleet.check_in(n),
                    Event::Arrives(n) => fleet.arrives(n),
                    Event::Fails(n) => fleet.fails(n),
                    Event::Retry(n) => drop(fleet.nodes.contains_key(&n).then(|| fleet.retry(n))),
                    Event::Remove(n) => fleet.remove(n),
                    Event::Serves(n) => fleet.serves(n),
                    Event::Halt => fleet.halt(),
                    Event::Begin => fleet.begin(),
                    Event::Push => fleet.push(),
                    Event::Restart => fleet.restart(),
                    Event::Pass(seconds) => fleet.pass(Duration::from_secs(seconds)).await,
                }
            }
            let all: Vec<u32> = fleet.nodes.keys().copied().collect();
            for n in &all {
                fleet.check_in(*n);
            }
            fleet.begin();
            for _ in 0..40 {
                for n in &all {
                    drop(fleet.retry(*n));
                    fleet.check_in(*n);
                    fleet.arrives(*n);
                }
                fleet.pass(Duration::from_secs(1)).await;
            }
            for n in all {
                assert_eq!(*fleet.runs(n), build(fleet.newest), "node {n}");
            }
        });
    }
}
