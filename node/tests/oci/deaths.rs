//! A node is killed at every milestone there is, one after another, and comes back.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use drowse_node::milestone::Milestone;
use serde_json::json;

use crate::{
    doomed::{Heard, Home, Life, Point},
    machine,
};

/// What its user does and sees.
#[path = "deaths/user.rs"]
mod user;

/// What a returning node leaves unfinished is finished within this time.
const SETTLES: Duration = Duration::from_secs(30);

/// What a space is before the verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// There is none.
    Absent,
    /// As before, and its container will not start.
    CannotStart,
    Active,
    Frozen,
    Stopped,
    /// Active by the ledger, and its first process was killed.
    Dead,
    /// Active, and the runtime's record of it is damaged.
    Unreadable,
}

/// One verb, killed at all that it passes.
struct Case {
    verb: &'static str,
    before: Before,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of a space that was {:?}", self.verb, self.before)
    }
}

const fn case(verb: &'static str, before: Before) -> Case {
    Case { verb, before }
}

/// A space, as its user knows it.
#[derive(Debug, Clone)]
struct Known {
    id: String,
    /// What its file holds.
    content: String,
    /// Its process that runs on: pid and start.
    process: Option<String>,
}

/// A node, its past deaths, and what must have outlived them.
struct Fleet {
    home: Home,
    life: Option<Life>,
    /// Nobody's subject: each must be as it was after every death.
    bystanders: BTreeMap<&'static str, Known>,
    subject: Option<Known>,
    /// Milestones that were met.
    met: BTreeSet<String>,
    /// Case, point and what was found afterwards.
    table: Vec<String>,
    made: u32,
    /// What is tried, for messages.
    now: String,
}

const SUBJECT: &str = "subject";

impl Fleet {
    async fn new(name: &str) -> Self {
        machine::base_template();
        let mut fleet = Self {
            home: Home::new(name),
            life: None,
            bystanders: BTreeMap::new(),
            subject: None,
            met: BTreeSet::new(),
            table: Vec::new(),
            made: 0,
            now: name.to_owned(),
        };
        fleet.begin().await;
        fleet
    }

    fn life(&self) -> &Life {
        self.life.as_ref().expect("a life")
    }

    async fn begin(&mut self) {
        let mut life = self.home.begin(None);
        life.ready().await;
        self.life = Some(life);
    }

    /// Brings the subject to where the case begins.
    async fn prepare(&mut self, before: Before) {
        let state = self.get(SUBJECT).await.map(|space| space["state"].as_str().expect("a word").to_owned());
        if matches!(before, Before::Absent | Before::CannotStart) {
            if state.is_some() {
                self.on("destroySpace", SUBJECT).await;
            }
            self.subject = None;
            return self.home.runtime_works(before != Before::CannotStart);
        }
        let (mut known, is) = match (state, self.subject.take()) {
            (Some(is), Some(known)) => (known, is),
            (state, _) => {
                if state.is_some() {
                    // Made by a create that was cut: whole, and without what a test puts in.
                    self.on("destroySpace", SUBJECT).await;
                }
                (self.make(SUBJECT).await, "active".to_owned())
            }
        };
        if before == Before::Stopped {
            self.on("stopSpace", SUBJECT).await;
            known.process = None;
        } else if !(before == Before::Frozen && is == "frozen") {
            self.on("touchSpace", SUBJECT).await;
            if known.process.is_none() || Some(self.process(SUBJECT).await) != known.process {
                self.employ(SUBJECT, &mut known).await;
            }
            match before {
                Before::Frozen => drop(self.on("freezeSpace", SUBJECT).await),
                Before::Dead => {
                    self.home.kill_first_process(&known.id);
                    known.process = None;
                }
                Before::Unreadable => self.home.spoil_record(&known.id),
                _ => {}
            }
        }
        self.subject = Some(known);
    }

    /// The verb of a case.
    async fn act(&self, verb: &str) -> Heard {
        let mut body = json!({ "name": SUBJECT });
        match verb {
            "acquireSpace" => {
                body["spec"] = json!({ "diskBytes": 64 << 20, "memoryBytes": 256 << 20 });
            }
            "execCommand" => body["command"] = "true".into(),
            "updateMetadata" => body["metadata"] = json!({ "changed": self.made.to_string() }),
            "setAside" => {
                body["id"] = self.subject.as_ref().expect("a subject").id.clone().into();
                body["ledgerId"] = self.must("report", json!({})).await["ledgerId"].clone();
                body["keeper"] = "0190f0c2a4b87c3d9e0f112233445566".into();
            }
            _ => {}
        }
        self.life().call(verb, &body).await
    }

    /// What the subject may be after a verb that was cut.
    async fn judge(&mut self, case: &Case) -> String {
        if case.verb == "setAside" {
            return self.judge_aside().await;
        }
        let found = self.get(SUBJECT).await;
        let state =
            found.as_ref().map_or("gone", |space| space["state"].as_str().expect("a word")).to_owned();
        let may: &[&str] = match (case.verb, case.before) {
            ("acquireSpace", Before::CannotStart) => &["gone"],
            ("acquireSpace", _) => &["gone", "active"],
            ("destroySpace", Before::Active) => &["gone", "active"],
            ("destroySpace", _) => &["gone", "stopped"],
            ("freezeSpace", _) | ("touchSpace", Before::Frozen) => &["active", "frozen"],
            ("stopSpace", Before::Frozen) => &["active", "frozen", "stopped"],
            ("stopSpace" | "touchSpace" | "execCommand", _) => &["active", "stopped"],
            (_, _) => &["active"],
        };
        assert!(may.contains(&&*state), "{}: it is {state}", self.now);
        match (&self.subject, state.as_str()) {
            // A create nobody was told of: whole, then.
            (None, "active") => {
                assert_eq!(self.run(SUBJECT, "echo whole; touch ~/x; sudo -n id -u").await, "whole\n0");
            }
            (Some(known), is) if is != "gone" => {
                let known = known.clone();
                assert_eq!(found.expect("just seen")["id"].as_str(), Some(&*known.id));
                let may_be_stopped = is == "stopped" || matches!(case.verb, "stopSpace" | "execCommand");
                if self.check(SUBJECT, &known, may_be_stopped).await
                    && let Some(subject) = &mut self.subject
                {
                    subject.process = None;
                }
            }
            _ => self.subject = None,
        }
        state
    }

    /// The subject has one of two names, and is set aside by whoever repeats the call. Then it goes.
    async fn judge_aside(&mut self) -> String {
        let known = self.subject.clone().expect("a subject");
        let name = self.get(&known.id).await.expect("it is there")["name"].clone();
        let aside = format!("{SUBJECT}~{}", known.id);
        assert!(name == SUBJECT || name == *aside, "{}: it is called {name}", self.now);
        assert_eq!(self.get(SUBJECT).await.is_some(), name == SUBJECT, "{}", self.now);
        let repeated = self.act("setAside").await;
        assert!(matches!(&repeated, Heard::Answer(200, said) if said["name"] == *aside), "{repeated:?}");
        assert!(self.get(SUBJECT).await.is_none(), "{}", self.now);
        self.check(&known.id, &known, false).await;
        self.on("destroySpace", &known.id).await;
        self.subject = None;
        if name == SUBJECT { "named" } else { "aside" }.to_owned()
    }

    /// Runs the verb to its end: what it passes, each with its number.
    async fn rehearse(&mut self, case: &Case) -> Vec<Point> {
        self.now = format!("{case}, uncut");
        self.prepare(case.before).await;
        let before = self.life().passed().len();
        let heard = self.act(case.verb).await;
        let expected = if case.before == Before::CannotStart { 503 } else { 200 };
        assert!(
            matches!(heard, Heard::Answer(status, _) if status == expected || status == 201),
            "{heard:?}"
        );
        let passed = self.life().passed().split_off(before);
        self.home.runtime_works(true);
        self.settles().await;
        self.judge(case).await;
        points(passed)
    }

    /// Kills the node at every point of a case.
    async fn die_through(&mut self, case: Case) {
        let points = self.rehearse(&case).await;
        assert!(!points.is_empty(), "{case} passes no milestone");
        for point in points {
            self.now = format!("{case}, killed at {point:?}");
            let began = Instant::now();
            self.prepare(case.before).await;
            let mut life = self.life.take().expect("a life");
            life.doom(&point).await;
            self.life = Some(life);
            let heard = self.act(case.verb).await;
            assert!(matches!(heard, Heard::Nothing), "{}: it was not met: {heard:?}", self.now);
            let last = self.life.take().expect("a life").dies(&self.now).await;
            assert_eq!(last, point.0, "{}", self.now);
            self.begin().await;
            self.home.runtime_works(true);
            self.settles().await;
            let state = self.judge(&case).await;
            self.check_bystanders(false).await;
            self.note(&case.to_string(), &point, &state, began);
        }
    }

    fn note(&mut self, what: &str, point: &Point, found: &str, began: Instant) {
        self.met.insert(point.0.clone());
        let ms = began.elapsed().as_millis();
        self.table.push(format!("{what:44} {:42} {} {found:9} {ms:5} ms", point.0, point.1));
    }

    /// All is removed, and the machine is as it was.
    async fn leave(mut self) -> (BTreeSet<String>, Vec<String>) {
        self.check_bystanders(true).await;
        let listed = self.must("listSpaces", json!({})).await;
        for space in listed["spaces"].as_array().expect("a list") {
            self.on("destroySpace", space["id"].as_str().expect("an id")).await;
        }
        self.now = "everything was destroyed".to_owned();
        self.settles().await;
        self.life.take().expect("a life").kill();
        self.home.leave().await;
        (self.met, self.table)
    }
}

/// Numbers milestones that come more than once. Of a row of the same, the first and the last are enough.
fn points(passed: Vec<String>) -> Vec<Point> {
    let mut times = BTreeMap::new();
    let mut points: Vec<Point> = Vec::new();
    for name in passed {
        let time = times.entry(name.clone()).and_modify(|time| *time += 1).or_insert(1);
        let row = points.iter().rev().take_while(|(last, _)| *last == name).count();
        if row > 1 {
            points.pop();
        }
        points.push((name, *time));
    }
    points
}

/// What a node finds when it starts.
#[derive(Debug, Clone, Copy)]
enum Wreck {
    /// A container that never came to answer, by a create nobody was told of.
    CutCreate,
    /// A disk on its way out.
    CutDestroy,
    /// No ledger.
    LostLedger,
    /// A disk that was set aside for another of its name, and that other one is gone.
    FreedName,
    /// Spaces that run the agent of an earlier build.
    OtherBuild,
}

impl Fleet {
    /// Ends this life so that the next one has something to do.
    async fn wreck(&mut self, wreck: Wreck) {
        let (before, verb, point) = match wreck {
            Wreck::CutCreate => (Before::Absent, "acquireSpace", "Program: start the container: done"),
            Wreck::CutDestroy => (Before::Active, "destroySpace", "Step: put the disk aside"),
            Wreck::FreedName => return self.free_name().await,
            Wreck::OtherBuild => {
                self.prepare(Before::Active).await;
                // Twice: what is replaced then is no longer what the frozen bystander runs, and is removed.
                self.life.take().expect("a life").kill();
                self.home.rebuild();
                self.begin().await;
                self.settles().await;
                self.life.take().expect("a life").kill();
                return self.home.rebuild();
            }
            Wreck::LostLedger => {
                self.prepare(Before::Active).await;
                self.life.take().expect("a life").kill();
                return self.home.lose_ledger();
            }
        };
        self.prepare(before).await;
        let mut life = self.life.take().expect("a life");
        life.doom(&(point.to_owned(), 1)).await;
        self.life = Some(life);
        assert!(matches!(self.act(verb).await, Heard::Nothing));
        self.life.take().expect("a life").dies(&self.now).await;
        self.subject = None;
    }

    /// Two disks of the subject's name: the one that has it is destroyed. The other one runs on.
    async fn free_name(&mut self) {
        self.prepare(Before::Active).await;
        let twin = self.make("twin").await;
        self.life.take().expect("a life").kill();
        self.home.name_like(&twin.id, SUBJECT);
        self.begin().await;
        let twin_now = self.get(&twin.id).await.expect("it is there");
        assert_eq!(twin_now["broken"]["cause"], "name_taken", "{twin_now}");
        self.on("destroySpace", SUBJECT).await;
        self.life.take().expect("a life").kill();
        self.subject = Some(twin);
    }

    /// Kills the node at every point of a start over such a wreck.
    async fn die_through_start(&mut self, wreck: Wreck) {
        let what = format!("start after {wreck:?}");
        self.now = format!("{what}, uncut");
        self.wreck(wreck).await;
        self.begin().await;
        self.settles().await;
        let points = points(self.life().passed());
        for point in points {
            let began = Instant::now();
            self.wreck(wreck).await;
            self.now = format!("{what}, killed at {point:?}");
            let last = self.home.begin(Some(point.clone())).dies(&self.now).await;
            assert_eq!(last, point.0, "{}", self.now);
            self.begin().await;
            self.settles().await;
            let found = self.get(SUBJECT).await;
            assert_eq!(found.is_some(), self.subject.is_some(), "{}", self.now);
            if let Some(known) = &self.subject {
                self.check(SUBJECT, known, false).await;
            }
            self.check_bystanders(false).await;
            self.note(&what, &point, if found.is_some() { "active" } else { "gone" }, began);
        }
    }

    /// Kills the node at every point of the first start of all.
    async fn die_through_first_start(&mut self) {
        for point in points(self.life().passed()) {
            let began = Instant::now();
            let home = Home::new("first");
            let last = home.begin(Some(point.clone())).dies("the first start").await;
            assert_eq!(last, point.0, "the first start");
            let mut life = home.begin(None);
            life.ready().await;
            life.kill();
            home.leave().await;
            self.note("the first start", &point, "ready", began);
        }
    }

    async fn die_through_all(mut self, cases: impl IntoIterator<Item = Case>) -> Self {
        for case in cases {
            self.die_through(case).await;
        }
        self
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_killed_at_any_milestone_loses_nothing_and_leaves_nothing() {
    use Before as B;
    let began = Instant::now();
    let first = async {
        let mut fleet = Fleet::new("deaths-a").await;
        fleet.die_through_first_start().await;
        fleet.settle_bystanders().await;
        let cases = [
            case("acquireSpace", B::Absent),
            case("freezeSpace", B::Active),
            case("touchSpace", B::Frozen),
            case("updateMetadata", B::Active),
            case("setAside", B::Active),
            case("touchSpace", B::Stopped),
            case("acquireSpace", B::CannotStart),
        ];
        fleet.die_through_all(cases).await.leave().await
    };
    let second = async {
        let mut fleet = Fleet::new("deaths-b").await;
        fleet.settle_bystanders().await;
        let cases = [
            case("stopSpace", B::Active),
            case("stopSpace", B::Frozen),
            case("destroySpace", B::Active),
            case("destroySpace", B::Stopped),
            case("execCommand", B::Dead),
            case("stopSpace", B::Unreadable),
        ];
        let mut fleet = fleet.die_through_all(cases).await;
        for wreck in
            [Wreck::CutCreate, Wreck::CutDestroy, Wreck::LostLedger, Wreck::FreedName, Wreck::OtherBuild]
        {
            fleet.die_through_start(wreck).await;
        }
        fleet.leave().await
    };
    let ((mut met, mut table), (more, rest)) = tokio::join!(first, second);
    met.extend(more);
    table.extend(rest);
    println!("{}\n{} deaths in {:?}", table.join("\n"), table.len(), began.elapsed());
    let all: Vec<String> = Milestone::all().iter().map(ToString::to_string).collect();
    let never: Vec<_> = all.iter().filter(|name| !met.contains(*name)).collect();
    assert!(never.is_empty(), "nobody died at {never:?}: a case must pass there");
}
