use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use drowse_shared::{api::spaces::Template, id::SpaceId, name::SpaceName};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::executor::{Card, Error, Found, Result, Vitality};

/// What a call comes to, when a test says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It never answers.
    Hang,
    /// The runtime says no.
    Fail,
    /// The node's disk is full.
    DiskFull,
    /// The executor gave up on it.
    Timeout,
}

/// One body.
#[derive(Debug, Clone)]
pub(super) struct Body {
    pub(super) card: Option<Card>,
    disk: bool,
    pub(super) vitality: Vitality,
    files: BTreeMap<String, Bytes>,
    /// How often it was started.
    starts: u64,
    next_pid: u32,
    /// Processes that run.
    processes: BTreeMap<u32, Process>,
}

/// A process of a body.
#[derive(Debug, Clone)]
struct Process {
    /// Where its stdin goes while it is open.
    stdin: Option<mpsc::Sender<Bytes>>,
    tag: Option<String>,
    killed: CancellationToken,
}

#[derive(Debug)]
struct Inside {
    templates: BTreeMap<String, String>,
    bodies: BTreeMap<SpaceId, Body>,
    /// Disks ever made, by name.
    built: BTreeMap<SpaceName, u64>,
    delay: Option<Duration>,
    faults: BTreeMap<(&'static str, Option<SpaceId>), Fault>,
    calls: BTreeMap<&'static str, u64>,
    /// Told when a body is frozen no longer.
    moved: Arc<Notify>,
}

/// A body as it was at one moment, or that there was none.
#[derive(Debug, Clone)]
pub struct Snapshot(Option<Body>);

/// The machine. Clones share it.
#[derive(Debug, Clone)]
pub struct Machine(Arc<Mutex<Inside>>);

impl Default for Machine {
    fn default() -> Self {
        let digest = format!("blake3:{}", blake3::hash(b"base").to_hex());
        Self(Arc::new(Mutex::new(Inside {
            templates: [("base".to_owned(), digest)].into(),
            bodies: BTreeMap::new(),
            built: BTreeMap::new(),
            delay: None,
            faults: BTreeMap::new(),
            calls: BTreeMap::new(),
            moved: Arc::new(Notify::new()),
        })))
    }
}

impl Machine {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on every call takes so long.
    pub fn slow(&self, delay: Option<Duration>) {
        self.inside().delay = delay;
    }

    /// From now on `call` on a space (on any, when `None`) comes to `fault`; `None` = works again.
    pub fn on(&self, call: &'static str, id: Option<SpaceId>, fault: Option<Fault>) {
        let mut inside = self.inside();
        match fault {
            Some(fault) => inside.faults.insert((call, id), fault),
            None => inside.faults.remove(&(call, id)),
        };
    }

    /// How often a call was made.
    pub fn calls(&self, call: &str) -> u64 {
        self.inside().calls.get(call).copied().unwrap_or(0)
    }

    /// How many bodies were ever built under a name.
    pub fn built(&self, name: &SpaceName) -> u64 {
        self.inside().built.get(name).copied().unwrap_or(0)
    }

    /// The bodies that are there: id, name and what they do.
    pub fn bodies(&self) -> Vec<(SpaceId, Option<SpaceName>, Vitality)> {
        let inside = self.inside();
        inside
            .bodies
            .iter()
            .map(|(id, b)| (*id, b.card.as_ref().map(|c| c.name.clone()), b.vitality))
            .collect()
    }

    /// What a body does, if there is one.
    pub fn vitality(&self, id: SpaceId) -> Option<Vitality> {
        self.inside().bodies.get(&id).map(|body| body.vitality)
    }

    /// How often a body was started.
    pub fn starts(&self, id: SpaceId) -> u64 {
        self.inside().bodies.get(&id).map_or(0, |body| body.starts)
    }

    /// How many commands run in a body.
    pub fn running(&self, id: SpaceId) -> usize {
        self.inside().bodies.get(&id).map_or(0, |body| body.processes.len())
    }

    /// A file inside a body.
    pub fn file(&self, id: SpaceId, path: &str) -> Option<Bytes> {
        self.inside().bodies.get(&id)?.files.get(path).cloned()
    }

    /// The card of a body becomes unreadable.
    pub fn spoil_card(&self, id: SpaceId) {
        if let Some(body) = self.inside().bodies.get_mut(&id) {
            body.card = None;
        }
    }

    /// Processes of a body end behind the daemon's back, as when pid 1 is killed.
    pub fn kill(&self, id: SpaceId) {
        if let Some(body) = self.inside().bodies.get_mut(&id) {
            body.vitality = Vitality::Stopped;
        }
    }

    /// A disk is lost behind the daemon's back.
    pub fn lose_disk(&self, id: SpaceId) {
        self.inside().bodies.remove(&id);
    }

    /// Of a body no more is left than what a create that was cut makes first: neither disk nor card.
    pub fn leave_debris(&self, id: SpaceId) {
        if let Some(body) = self.inside().bodies.get_mut(&id) {
            (body.card, body.disk) = (None, false);
        }
    }

    /// The machine loses power: every process ends, every disk stays.
    pub fn reboot(&self) {
        for body in self.inside().bodies.values_mut() {
            body.vitality = Vitality::Stopped;
            body.processes.clear();
        }
    }

    /// What is there of a body now.
    pub fn snapshot(&self, id: SpaceId) -> Snapshot {
        Snapshot(self.inside().bodies.get(&id).cloned())
    }

    /// A body is as it was again: the disk had not taken what was done since.
    pub fn restore(&self, id: SpaceId, was: Snapshot) {
        let mut inside = self.inside();
        match was.0 {
            Some(body) => inside.bodies.insert(id, body),
            None => inside.bodies.remove(&id),
        };
    }

    /// A template is installed (`Some` digest) or lost.
    pub fn set_template(&self, name: &str, digest: Option<&str>) {
        let mut inside = self.inside();
        match digest {
            Some(digest) => inside.templates.insert(name.to_owned(), digest.to_owned()),
            None => inside.templates.remove(name),
        };
    }

    pub(super) fn meet(&self, call: &'static str, id: Option<SpaceId>) -> (Option<Duration>, Option<Fault>) {
        let mut inside = self.inside();
        *inside.calls.entry(call).or_default() += 1;
        let fault = inside.faults.get(&(call, id)).or_else(|| inside.faults.get(&(call, None)));
        (inside.delay, fault.copied())
    }

    pub(super) fn template(&self, name: &str) -> Option<Template> {
        let digest = self.inside().templates.get(name).cloned()?;
        Some(Template { name: name.to_owned(), digest })
    }

    pub(super) fn with<T>(&self, id: SpaceId, act: impl FnOnce(&mut Body) -> T) -> Result<T> {
        self.inside().bodies.get_mut(&id).map(act).ok_or(Error::DiskMissing { id })
    }

    pub(super) fn create(&self, card: Card) {
        let mut inside = self.inside();
        *inside.built.entry(card.name.clone()).or_default() += 1;
        let body = Body {
            disk: true,
            vitality: Vitality::Stopped,
            files: BTreeMap::new(),
            starts: 0,
            next_pid: 2,
            processes: BTreeMap::new(),
            card: Some(card),
        };
        if let Some(id) = body.card.as_ref().map(|card| card.id) {
            inside.bodies.insert(id, body);
        }
    }

    pub(super) fn start(&self, card: &Card) -> Result<()> {
        let mut inside = self.inside();
        if !inside.templates.values().any(|digest| *digest == card.template.digest) {
            return Err(Error::TemplateMissing { digest: card.template.digest.clone() });
        }
        let body = inside.bodies.get_mut(&card.id).ok_or(Error::DiskMissing { id: card.id })?;
        match body.vitality {
            Vitality::Running => {}
            Vitality::Frozen => return Err(Error::Vitality { id: card.id, vitality: Vitality::Frozen }),
            Vitality::Stopped => {
                body.vitality = Vitality::Running;
                body.starts += 1;
            }
        }
        Ok(())
    }

    pub(super) fn turn(&self, id: SpaceId, to: Vitality) -> Result<()> {
        self.inside().moved.notify_waiters();
        self.with(id, |body| match body.vitality {
            Vitality::Stopped => Err(Error::Vitality { id, vitality: Vitality::Stopped }),
            _ => {
                body.vitality = to;
                Ok(())
            }
        })?
    }

    pub(super) fn stop(&self, id: SpaceId) -> Result<()> {
        self.inside().moved.notify_waiters();
        self.with(id, |body| {
            body.vitality = Vitality::Stopped;
            // Nothing outlives pid 1.
            for process in std::mem::take(&mut body.processes).into_values() {
                process.killed.cancel();
            }
        })
    }

    pub(super) fn destroy(&self, id: SpaceId) {
        let mut inside = self.inside();
        inside.bodies.remove(&id);
        inside.moved.notify_waiters();
    }

    /// Resolves once a body is not frozen, or gone: what runs in it stands still until then.
    pub(super) async fn goes_on(&self, id: SpaceId) {
        loop {
            let moved = self.inside().moved.clone();
            let moved = moved.notified();
            if self.vitality(id) != Some(Vitality::Frozen) {
                return;
            }
            moved.await;
        }
    }

    pub(super) fn list(&self) -> Vec<Found> {
        let inside = self.inside();
        let found = |(id, body): (&SpaceId, &Body)| Found {
            id: *id,
            card: body.card.clone(),
            disk: body.disk,
            vitality: body.vitality,
            old_agent: false,
        };
        inside.bodies.iter().map(found).collect()
    }

    pub(super) fn spawn(
        &self,
        id: SpaceId,
        stdin: Option<mpsc::Sender<Bytes>>,
        tag: Option<String>,
    ) -> (u32, CancellationToken) {
        let killed = CancellationToken::new();
        let process = Process { stdin, tag, killed: killed.clone() };
        let spawned = self.with(id, |body| {
            let pid = body.next_pid;
            body.next_pid += 1;
            body.processes.insert(pid, process);
            pid
        });
        (spawned.unwrap_or(0), killed)
    }

    /// Kills the process of a tag; whether there was one.
    pub(super) fn kill_tagged(&self, id: SpaceId, tag: &str) -> bool {
        let kill = |body: &mut Body| {
            let process = body.processes.values().find(|process| process.tag.as_deref() == Some(tag));
            process.map(|process| process.killed.cancel()).is_some()
        };
        self.with(id, kill).unwrap_or(false)
    }

    pub(super) fn reap(&self, id: SpaceId, pid: u32) {
        // A body that is gone has no processes.
        let _ = self.with(id, |body| body.processes.remove(&pid));
    }

    /// Where the stdin of a process goes. Taken out when it is to be closed.
    pub(super) fn stdin(&self, id: SpaceId, pid: u32, close: bool) -> Option<mpsc::Sender<Bytes>> {
        let mut inside = self.inside();
        let stdin = &mut inside.bodies.get_mut(&id)?.processes.get_mut(&pid)?.stdin;
        if close { stdin.take() } else { stdin.clone() }
    }

    pub(super) fn files(&self, id: SpaceId) -> BTreeMap<String, Bytes> {
        self.with(id, |body| body.files.clone()).unwrap_or_default()
    }

    /// Writes a file inside a body.
    pub fn write(&self, id: SpaceId, path: String, content: Bytes) {
        // Nothing is written into a body that is gone.
        let _ = self.with(id, |body| body.files.insert(path, content));
    }
}
