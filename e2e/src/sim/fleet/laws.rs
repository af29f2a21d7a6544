//! What must hold, checked while it happens.
//!
//! Three sources meet here: what the machines do to bodies (they cannot lie), what clients ask, and what they are
//! told. A client's question has a window, from sent to answered; one whose answer nobody heard stays open, because
//! the fleet may still carry it out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drowse_shared::id::SpaceId;
use serde_json::Value;

use super::{standing::Standings, tap::Tap};
use crate::sim::{Kind, World};

/// Nodes that were removed, and their way back.
mod nodes;
/// What callers note about spaces.
mod notes;
/// Who wakes spaces, and who puts them to sleep.
mod sleep;
/// What answers say.
mod told;

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
    /// What it wants noted about the space.
    note: Option<String>,
    sent: Duration,
    /// When it can no longer have an effect.
    over: Option<Duration>,
    /// The space that has the note now, when that was acknowledged.
    noted: Option<SpaceId>,
}

impl Wish {
    /// Whether it may have an effect between two moments.
    fn may_act(&self, from: Duration, to: Duration) -> bool {
        self.sent <= to && self.over.is_none_or(|over| over >= from)
    }
}

#[derive(Default)]
struct Record {
    bodies: BTreeMap<SpaceId, Body>,
    wishes: BTreeMap<u64, Wish>,
    /// When nodes were out of the fleet.
    outs: BTreeMap<String, Vec<nodes::Out>>,
    /// Nodes that lost a ledger: what is noted beside a disk may be older.
    forgetful: BTreeSet<String>,
    /// Answers by verb and status.
    told: BTreeMap<String, u64>,
}

impl Record {
    /// Whether somebody's destroy of `name` may have taken effect between two moments.
    fn may_be_destroyed(&self, name: &str, from: Duration, to: Duration) -> bool {
        let destroys = |wish: &Wish| wish.verb == "destroySpace" && wish.name == name;
        self.wishes.values().any(|wish| destroys(wish) && wish.may_act(from, to))
    }

    /// Bodies of `name` that are there now, on nodes that were of the fleet from then on.
    fn here(&self, name: &str, from: Duration, now: Duration) -> Vec<(SpaceId, &Body)> {
        self.bodies
            .iter()
            .filter(|(_, b)| b.name == name && b.gone.is_none() && !self.may_be_out(&b.host, from, now))
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
    standings: Standings,
}

impl Laws {
    /// Nothing has happened yet.
    pub fn new(world: &World) -> Self {
        let (tap, standings) = (Tap::default(), Standings::default());
        let (at_nodes, at_gateways) = (tap.clone(), standings.clone());
        world.listen_in(move |heard| {
            if super::NODES.contains(&heard.host) {
                at_nodes.hear(heard);
            } else if super::GATEWAYS.contains(&heard.host) {
                at_gateways.hear(heard);
            }
        });
        Self { world: world.clone(), record: Arc::default(), tap, standings }
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
        for (other, body) in record.here(name, now, now) {
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

    /// A client asks something about a name. Answers the number of the wish.
    pub fn asks(&self, verb: &'static str, name: &str, body: &Value) -> u64 {
        self.hear();
        let sent = self.world.elapsed();
        let note = body["metadata"][notes::NOTE].as_str().map(str::to_owned);
        let mut record = self.record();
        let number = record.wishes.len() as u64;
        let wish = Wish { verb, name: name.to_owned(), note, sent, over: None, noted: None };
        record.wishes.insert(number, wish);
        number
    }

    /// Somebody else than a client learns that a wish of theirs has had its effect.
    pub fn over(&self, wish: u64) {
        let now = self.world.elapsed();
        if let Some(wish) = self.record().wishes.get_mut(&wish) {
            wish.over = Some(now);
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
