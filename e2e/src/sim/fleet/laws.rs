//! What must hold, checked while it happens.
//!
//! Three sources meet here: what the machines do to bodies (they cannot lie), what clients ask, and what they are
//! told. A client's question has a window, from sent to answered; one whose answer nobody heard stays open, because
//! the fleet may still carry it out.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drowse_shared::{
    api::{
        self, Code,
        exec::ExecResult,
        spaces::{Acquired, Destroyed, SpaceAnswer, State},
    },
    id::SpaceId,
};
use serde_json::Value;

use super::tap::Tap;
use crate::sim::{Kind, World};

/// How long a destroy may still be carried out once its caller was told to wait.
pub(super) const LINGERS: Duration = Duration::from_secs(150);

/// What a client was told.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Whether it says when to come back.
    pub says_when: bool,
    /// The body.
    pub body: Value,
}

struct Body {
    name: String,
    host: String,
    born: Duration,
    gone: Option<Duration>,
    /// When the first answer that names it was heard.
    acknowledged: Option<Duration>,
}

impl Body {
    fn lived_within(&self, from: Duration, to: Duration) -> bool {
        self.born <= to && self.gone.is_none_or(|gone| gone >= from)
    }
}

struct Wish {
    verb: &'static str,
    name: String,
    sent: Duration,
    /// When it can no longer have an effect.
    over: Option<Duration>,
}

#[derive(Default)]
struct Record {
    bodies: BTreeMap<SpaceId, Body>,
    wishes: BTreeMap<u64, Wish>,
    /// Answers by verb and status.
    told: BTreeMap<String, u64>,
}

impl Record {
    /// Whether somebody's destroy of `name` may have taken effect between two moments.
    fn may_be_destroyed(&self, name: &str, from: Duration, to: Duration) -> bool {
        self.wishes.values().any(|wish| {
            wish.verb == "destroySpace"
                && wish.name == name
                && wish.sent <= to
                && wish.over.is_none_or(|over| over >= from)
        })
    }

    fn here(&self, name: &str) -> Vec<(SpaceId, &Body)> {
        self.bodies
            .iter()
            .filter(|(_, b)| b.name == name && b.gone.is_none())
            .map(|(id, b)| (*id, b))
            .collect()
    }
}

/// The record of one run.
#[derive(Clone)]
pub struct Laws {
    world: World,
    record: Arc<Mutex<Record>>,
    tap: Tap,
}

impl Laws {
    /// Nothing has happened yet.
    pub fn new(world: &World) -> Self {
        let tap = Tap::default();
        let ear = tap.clone();
        world.listen_in(move |heard| {
            if super::NODES.contains(&heard.host) {
                ear.hear(heard);
            }
        });
        Self { world: world.clone(), record: Arc::default(), tap }
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A machine made a body in one of its daemon's lives. Law 1: no other body of that name exists anywhere, and the
    /// create that made it had a ticket that was good.
    pub fn born(&self, host: &str, life: u64, id: SpaceId, name: &str) {
        let now = self.world.elapsed();
        let mut record = self.record();
        if record.bodies.get(&id).is_some_and(|body| body.gone.is_none() && body.host == host) {
            return;
        }
        self.world.tell(Kind::Body, format!("{host} BODY of {name} made: {id}"));
        if let Err(why) = self.tap.born(host, life, name, now) {
            self.world
                .fail(&format!("law 1: {host} made body {id} of {name}, and no ticket was good: {why}"));
        }
        for (other, body) in record.here(name) {
            self.world.fail(&format!(
                "law 1: {host} made body {id} of {name}, and {} has body {other} of it",
                body.host
            ));
        }
        if record.bodies.contains_key(&id) {
            self.world.fail(&format!("law 1: id {id} was made twice"));
        }
        let body =
            Body { name: name.to_owned(), host: host.to_owned(), born: now, gone: None, acknowledged: None };
        record.bodies.insert(id, body);
    }

    /// A machine removed a body. Law 2: an acknowledged one goes only because somebody asked for it.
    pub fn gone(&self, host: &str, id: SpaceId) {
        let now = self.world.elapsed();
        let mut record = self.record();
        let Some(body) = record.bodies.get_mut(&id) else { return };
        if body.host != host || body.gone.is_some() {
            return;
        }
        body.gone = Some(now);
        let (name, born, acknowledged) = (body.name.clone(), body.born, body.acknowledged.is_some());
        self.world.tell(Kind::Body, format!("{host} BODY of {name} removed: {id}"));
        if acknowledged && !record.may_be_destroyed(&name, born, now) {
            self.world.fail(&format!("law 2: {host} removed body {id} of {name} and nobody asked for it"));
        }
    }

    /// A body whose removal had not come to its end is there again: its machine lost power.
    pub fn back(&self, host: &str, id: SpaceId) {
        if let Some(body) = self.record().bodies.get_mut(&id) {
            self.world.tell(Kind::Body, format!("{host} BODY of {} is back: {id}", body.name));
            body.gone = None;
        }
    }

    /// A machine reached into a body for somebody.
    pub fn reached(&self, host: &str, id: SpaceId) {
        let record = self.record();
        if !record.bodies.get(&id).is_some_and(|body| body.host == host && body.gone.is_none()) {
            self.world.fail(&format!("law 1: {host} reached into body {id}, which is not there"));
        }
    }

    /// A client asks something about a name. Answers the number of the wish.
    pub fn asks(&self, verb: &'static str, name: &str) -> u64 {
        let sent = self.world.elapsed();
        let mut record = self.record();
        let number = record.wishes.len() as u64;
        record.wishes.insert(number, Wish { verb, name: name.to_owned(), sent, over: None });
        number
    }

    /// A client was told something.
    pub fn told(&self, wish: u64, answer: &Answer) {
        let now = self.world.elapsed();
        let mut record = self.record();
        let Some(asked) = record.wishes.get_mut(&wish) else { return };
        asked.over = Some(if answer.status == 503 { now + LINGERS } else { now });
        let (verb, name, sent) = (asked.verb, asked.name.clone(), asked.sent);
        *record.told.entry(format!("{verb} {}", answer.status)).or_default() += 1;
        match (verb, answer.status) {
            ("acquireSpace", 200) => self.acquired(&mut record, &name, sent, now, answer),
            ("acquireSpace", 202) => {}
            ("destroySpace", 200) => self.destroyed(&record, wish, sent, now, answer),
            ("execCommand", 200) => {
                if serde_json::from_value::<ExecResult>(answer.body.clone()).is_err() {
                    self.world.fail(&format!("execCommand answered {}", answer.body));
                }
            }
            ("listSpaces", 200) => {}
            // Asked of a stopped space, which has nothing to freeze.
            ("freezeSpace", 409) if answer.body["code"] == "wrong_state" => {}
            (_, 200) => {
                if let Ok(shown) = serde_json::from_value::<SpaceAnswer>(answer.body.clone()) {
                    // A row comes before its body and stays until after it.
                    if !matches!(shown.space.state, State::Creating | State::Destroying) {
                        self.shown(&record, shown.space.id, &name, sent, now);
                    }
                } else {
                    self.world.fail(&format!("{verb} answered {}", answer.body));
                }
            }
            ("acquireSpace" | "destroySpace" | "listSpaces", 404) | (_, 400..404 | 405..503 | 504..) => {
                self.world.fail(&format!("{verb} {name} was answered {} {}", answer.status, answer.body));
            }
            (_, 404) => self.missing(&record, verb, &name, sent, now),
            (_, 503) => self.waits(verb, &name, answer),
            _ => self.world.fail(&format!("{verb} {name} was answered {} {}", answer.status, answer.body)),
        }
    }

    /// Law 1 and 2: the answer names the one body of that name, and from now on it stays.
    fn acquired(&self, record: &mut Record, name: &str, sent: Duration, now: Duration, answer: &Answer) {
        let Ok(acquired) = serde_json::from_value::<Acquired>(answer.body.clone()) else {
            return self.world.fail(&format!("acquireSpace answered {}", answer.body));
        };
        let id = acquired.space.id;
        self.shown(record, id, name, sent, now);
        let Some(body) = record.bodies.get_mut(&id) else { return };
        if acquired.created
            && body.gone.is_none()
            && body.born < sent
            && body.acknowledged.is_some_and(|at| at < sent)
        {
            self.world.fail(&format!("{name}: {id} is called created, and was there before"));
        }
        body.acknowledged.get_or_insert(now);
    }

    /// An answer shows a body that was there while the question was open.
    fn shown(&self, record: &Record, id: SpaceId, name: &str, sent: Duration, now: Duration) {
        match record.bodies.get(&id) {
            Some(body) if body.name != name => {
                self.world.fail(&format!("law 1: asked for {name}, got {id} of {}", body.name));
            }
            Some(body) if body.lived_within(sent, now) => {
                let gone = body.gone.unwrap_or(now);
                if body.gone.is_some() && !record.may_be_destroyed(name, body.born, gone) {
                    self.world.fail(&format!(
                        "law 2: {id} of {name} is acknowledged and gone, nobody asked for it"
                    ));
                }
            }
            _ => self
                .world
                .fail(&format!("law 1: asked for {name}, got {id}, which was not there at the time")),
        }
    }

    fn destroyed(&self, record: &Record, wish: u64, sent: Duration, now: Duration, answer: &Answer) {
        let Some(Wish { name, .. }) = record.wishes.get(&wish) else { return };
        let Ok(said) = serde_json::from_value::<Destroyed>(answer.body.clone()) else {
            return self.world.fail(&format!("destroySpace answered {}", answer.body));
        };
        for (id, body) in record.here(name) {
            if body.acknowledged.is_some_and(|at| at < sent) {
                self.world.fail(&format!(
                    "law 2: destroy of {name} says {}, and {id} is still there",
                    said.destroyed
                ));
            }
        }
        let others = record.wishes.iter().any(|(number, other)| {
            *number != wish
                && other.verb == "destroySpace"
                && other.name == *name
                && other.sent <= now
                && other.over.is_none_or(|over| over >= sent)
        });
        let was_there = record.bodies.values().any(|b| {
            b.name == *name
                && b.acknowledged.is_some_and(|at| at < sent)
                && b.gone.is_none_or(|at| at >= sent)
        });
        if !said.destroyed && was_there && !others {
            self.world.fail(&format!("law 2: destroy of {name} found nothing, and it was there"));
        }
    }

    /// Laws 2 and 5: "there is no such space" is said only when that is so.
    fn missing(&self, record: &Record, verb: &str, name: &str, sent: Duration, now: Duration) {
        for (id, body) in record.here(name) {
            let known = body.acknowledged.is_some_and(|at| at < sent);
            if known && !record.may_be_destroyed(name, sent, now) {
                self.world
                    .fail(&format!("law 2: {verb} {name} was answered 404, and {} has {id}", body.host));
            }
        }
    }

    /// Laws 5 and 8: who must wait is told when to come back, and who is silent.
    fn waits(&self, verb: &str, name: &str, answer: &Answer) {
        let error = serde_json::from_value::<api::Error>(answer.body.clone());
        match error {
            Ok(error) if !answer.says_when => {
                self.world.fail(&format!("law 8: {verb} {name} was told to wait and not how long: {error}"));
            }
            Ok(error) if matches!(error.code, Code::NodeSilent | Code::NodeUnreachable) => {
                let text = answer.body.to_string();
                if !super::NODES.iter().any(|node| text.contains(node)) {
                    self.world.fail(&format!("law 5: {verb} {name}: nobody is named: {text}"));
                }
            }
            Ok(_) => {}
            Err(_) => self.world.fail(&format!("law 8: {verb} {name} was answered 503 {}", answer.body)),
        }
    }

    /// The bodies that are there, by name.
    pub fn bodies(&self) -> BTreeMap<String, Vec<SpaceId>> {
        let record = self.record();
        let mut out: BTreeMap<String, Vec<SpaceId>> = BTreeMap::new();
        for (id, body) in &record.bodies {
            if body.gone.is_none() {
                out.entry(body.name.clone()).or_default().push(*id);
            }
        }
        out
    }

    /// How often each verb got each answer.
    pub fn tally(&self) -> BTreeMap<String, u64> {
        self.record().told.clone()
    }
}
