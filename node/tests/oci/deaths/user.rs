//! What somebody who uses the node does, and what must be as it was.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{Fleet, Known, SETTLES};
use crate::doomed::Heard;

impl Fleet {
    /// A verb that must succeed.
    pub(super) async fn must(&self, verb: &str, body: Value) -> Value {
        match self.life().call(verb, &body).await {
            Heard::Answer(200 | 201, value) => value,
            other => panic!("{}: {verb} {body}: {other:?}\n{}", self.now, self.life().log()),
        }
    }

    pub(super) async fn on(&self, verb: &str, name: &str) -> Value {
        self.must(verb, json!({ "name": name })).await
    }

    /// The space, if there is one.
    pub(super) async fn get(&self, name: &str) -> Option<Value> {
        match self.life().call("getSpace", &json!({ "name": name })).await {
            Heard::Answer(200, value) => Some(value["space"].clone()),
            Heard::Answer(404, _) => None,
            other => panic!("{}: getSpace {name}: {other:?}\n{}", self.now, self.life().log()),
        }
    }

    pub(super) async fn run(&self, name: &str, command: &str) -> String {
        self.run_and_see(name, command).await.0
    }

    /// What a command says, and whether the space had to be started for it.
    pub(super) async fn run_and_see(&self, name: &str, command: &str) -> (String, bool) {
        let done = self.must("execCommand", json!({ "name": name, "command": command })).await;
        assert_eq!(done["exitCode"], 0, "{}: {name}: {command}: {done}", self.now);
        (done["stdout"].as_str().expect("text").trim().to_owned(), done["resumed"] == "restarted")
    }

    /// A new space with a file and a process of its own.
    pub(super) async fn make(&mut self, name: &str) -> Known {
        self.made += 1;
        let wish = json!({
            "name": name,
            "spec": { "diskBytes": 64 << 20, "memoryBytes": 256 << 20 },
            "policy": { "freezeAfterSeconds": null, "stopAfterSeconds": null, "hibernateAfterSeconds": null },
        });
        let made = self.must("acquireSpace", wish).await;
        assert_eq!(made["created"], true, "{name} was gone, so it is made anew: {made}");
        let content = format!("content {}", self.made);
        let was = self.run(name, &format!("cat ~/file 2>/dev/null; echo '{content}' > ~/file")).await;
        assert_eq!(was, "", "a new space has nothing of an old one");
        let id = made["space"]["id"].as_str().expect("an id").to_owned();
        let mut known = Known { id, content, process: None };
        self.employ(name, &mut known).await;
        known
    }

    /// Starts the process that runs on.
    pub(super) async fn employ(&self, name: &str, known: &mut Known) {
        let work = json!({ "name": name, "command": "echo $$ > ~/pid; exec sleep 1000000", "detach": true });
        self.run(name, "rm -f ~/pid").await;
        self.must("execCommand", work).await;
        let until = Instant::now() + SETTLES;
        loop {
            let process = self.process(name).await;
            if !process.is_empty() {
                known.process = Some(process);
                return;
            }
            assert!(Instant::now() < until, "{name}: the process never ran");
        }
    }

    pub(super) async fn process(&self, name: &str) -> String {
        self.run(name, "pid=$(cat ~/pid 2>/dev/null) && echo $pid $(cut -d' ' -f22 /proc/$pid/stat 2>/dev/null) | grep ' ' || :").await
    }

    /// Its file, and its process unless it may have been stopped and was. Answers whether it was.
    pub(super) async fn check(&self, name: &str, known: &Known, may_be_stopped: bool) -> bool {
        let (content, restarted) = self.run_and_see(name, "cat ~/file").await;
        assert_eq!(content, known.content, "{}: {name} lost its file", self.now);
        assert!(may_be_stopped || !restarted, "{}: {name} was stopped", self.now);
        if !restarted && known.process.is_some() {
            assert_eq!(
                Some(self.process(name).await),
                known.process,
                "{}: {name} lost its process",
                self.now
            );
        }
        restarted
    }

    /// Waits until nothing is unfinished and nothing is left over.
    pub(super) async fn settles(&self) {
        let until = Instant::now() + SETTLES;
        loop {
            let listed = self.must("listSpaces", json!({})).await;
            let spaces = listed["spaces"].as_array().expect("a list").clone();
            let of = |states: &[&str]| -> BTreeSet<String> {
                let is = |space: &&Value| states.iter().any(|state| space["state"] == *state);
                spaces.iter().filter(is).map(|s| s["id"].as_str().expect("an id").to_owned()).collect()
            };
            let (all, living) = (of(&["active", "frozen", "stopped"]), of(&["active", "frozen"]));
            let differs = if all.len() < spaces.len() {
                Some(format!("still unfinished: {spaces:?}"))
            } else if of(&["active"]).iter().any(|id| !self.home.has_own_agent(id)) {
                Some("there are agents of another build".to_owned())
            } else if self.home.agents() > 1 + of(&["frozen"]).len() {
                // One that is frozen keeps what it had.
                Some("there are agents that nobody runs".to_owned())
            } else {
                self.home.places().differs(&all, &living)
            };
            let Some(differs) = differs else { return };
            assert!(Instant::now() < until, "{}: {differs}\n{}", self.now, self.life().log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Three spaces that nobody touches while the node dies again and again.
    pub(super) async fn settle_bystanders(&mut self) {
        for (name, verb) in
            [("runs", None), ("is frozen", Some("freezeSpace")), ("is stopped", Some("stopSpace"))]
        {
            let known = self.make(name).await;
            if let Some(verb) = verb {
                self.on(verb, name).await;
            }
            self.bystanders.insert(name, known);
        }
    }

    /// They are what they were.
    pub(super) async fn check_bystanders(&self, wake: bool) {
        for (name, known) in &self.bystanders {
            let space = self.get(name).await.unwrap_or_else(|| panic!("{name} is gone"));
            let state = name.trim_start_matches("is ").replace("runs", "active");
            let is = (space["id"].as_str(), space["state"].as_str());
            assert_eq!(is, (Some(&*known.id), Some(&*state)), "{}: {name}", self.now);
            if wake || *name == "runs" {
                self.check(name, known, *name == "is stopped").await;
            }
        }
    }
}
