#![expect(clippy::disallowed_methods, reason = "nodes of a test have their own tasks, sockets and clock")]

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, TcpListener as PlainListener},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    time::Duration,
};

use drowse_shared::{
    api::{
        nodes::{Build, BundleVersion, CheckIn, CheckedIn, Disk, Reading, Roster, Standing, WIRE_VERSION},
        spaces::State,
    },
    id::{BootId, SpaceId, Ticket},
};
use serde_json::value::RawValue;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{Common, KeptRoster, Mood, ledger_of, wire::Wire};

/// Longest wait for a gateway's answer.
const ANSWER: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Memory {
    roster: Option<Arc<KeptRoster>>,
    bundle: Option<BundleVersion>,
    pub(super) built: BTreeMap<String, SpaceId>,
    pub(super) tickets: BTreeMap<String, Ticket>,
    /// The last lookup, as it came.
    pub(super) asked: Vec<u8>,
}

pub(super) struct Node {
    pub(super) n: usize,
    pub(super) address: SocketAddr,
    pub(super) mood: AtomicU8,
    /// Its mood has changed.
    pub(super) turned: Notify,
    pub(super) memory: Mutex<Memory>,
    pub(super) boot: BootId,
    pub(super) common: Arc<Common>,
}

impl Node {
    pub(super) fn id(&self) -> String {
        format!("s{:04}", self.n)
    }

    fn mood(&self) -> Mood {
        [Mood::Well, Mood::Hung, Mood::Deaf, Mood::Dark][usize::from(self.mood.load(Relaxed))]
    }

    pub(super) fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().expect("no node panics")
    }

    pub(super) fn known_nodes(&self) -> usize {
        self.memory().roster.as_ref().map_or(0, |kept| kept.roster.nodes.len())
    }

    pub(super) fn asked(&self) -> Vec<u8> {
        self.memory().asked.clone()
    }

    pub(super) fn built(&self) -> usize {
        self.memory().built.len()
    }

    pub(super) fn says(&self, whole: bool) -> CheckIn {
        let memory = self.memory();
        let active = memory.built.len() as u64;
        CheckIn {
            node_id: self.id().parse().expect("an id"),
            ledger_id: ledger_of(self.n),
            boot: self.boot,
            endpoint: format!("http://{}", self.address),
            region: None,
            build: Build::unreleased(),
            wire_min: WIRE_VERSION,
            wire_max: WIRE_VERSION,
            interval_ms: u64::try_from(self.common.plan.interval.as_millis()).expect("short"),
            reading: Some(Reading {
                cores: 4,
                cpu_percent: Some(5.0),
                memory_total_bytes: 16 << 30,
                memory_available_bytes: 12 << 30,
                swap_total_bytes: 0,
                swap_used_bytes: 0,
                disk: Some(Disk { total_bytes: 1 << 40, available_bytes: 1 << 39 }),
                spaces: BTreeMap::from([
                    (State::Active, active),
                    (State::Stopped, self.common.plan.names_each as u64),
                ]),
            }),
            bundle: memory.bundle,
            bundle_copy: None,
            draining: false,
            roster: memory.roster.as_ref().map(|kept| kept.version.clone()),
            roster_copy: memory.roster.as_ref().filter(|_| whole).map(|kept| kept.roster.clone()),
            removed: false,
            upgrade: None,
        }
    }

    /// Checks in again and again over one connection, from its turn on.
    pub(super) async fn check_in(self: Arc<Self>) {
        let plan = &self.common.plan;
        let share =
            f64::from(u32::try_from(self.n).unwrap_or(0)) / f64::from(u32::try_from(plan.nodes).unwrap_or(1));
        let mut next = Instant::now() + plan.joins_over.mul_f64(share);
        let mut wire = None;
        loop {
            sleep_until(next).await;
            next += plan.interval;
            if matches!(self.mood(), Mood::Hung | Mood::Dark) {
                wire = None;
                continue;
            }
            let said = timeout(ANSWER, self.say_all(&mut wire)).await;
            let counts = &self.common.counts;
            if matches!(said, Ok(Ok(true))) {
                counts.check_ins.fetch_add(1, Relaxed);
            } else {
                wire = None;
                counts.refused.fetch_add(1, Relaxed);
            }
        }
    }

    async fn say_all(&self, wire: &mut Option<Wire>) -> io::Result<bool> {
        let Some(mut answer) = self.say(wire, false).await? else { return Ok(false) };
        if answer.want_roster {
            self.common.counts.wanted.fetch_add(1, Relaxed);
            match self.say(wire, true).await? {
                Some(again) => answer = again,
                None => return Ok(false),
            }
        }
        if let Some(roster) = answer.roster {
            self.keep(roster.get());
        }
        if let Some(bundle) = answer.bundle {
            let held = BundleVersion { authority_id: bundle.authority_id, version: bundle.version };
            self.memory().bundle = Some(held);
        }
        Ok(answer.standing == Standing::Member)
    }

    async fn say(
        &self,
        wire: &mut Option<Wire>,
        whole: bool,
    ) -> io::Result<Option<CheckedIn<Box<RawValue>>>> {
        let plan = &self.common.plan;
        let to = match wire {
            Some(wire) => wire,
            None => {
                let address = plan.gateway.trim_start_matches("http://");
                wire.insert(Wire::over(TcpStream::connect(address).await?)?)
            }
        };
        let body = serde_json::to_vec(&self.says(whole))?;
        let sent = to.post("checkIn", &plan.token, &body).await?;
        let Some(answer) = to.receive().await? else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        self.common.counts.check_in_bytes.fetch_add(sent, Relaxed);
        self.common.counts.answer_bytes.fetch_add(answer.bytes, Relaxed);
        if !answer.first.contains(" 200 ") {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&answer.body)?))
    }

    /// Keeps a roster unless it is older.
    pub(super) fn keep(&self, text: &str) {
        let hash = blake3::hash(text.as_bytes());
        let mut rosters = self.common.rosters.lock().expect("no node panics");
        let found = rosters.iter().find(|(known, _)| *known == hash).map(|(_, kept)| kept.clone());
        let kept = found.unwrap_or_else(|| {
            let roster: Roster = serde_json::from_str(text).expect("a gateway sends rosters");
            let kept = Arc::new(KeptRoster { version: roster.identity(), roster });
            rosters.push((hash, kept.clone()));
            if rosters.len() > 8 {
                rosters.remove(0);
            }
            kept
        });
        drop(rosters);
        let mut memory = self.memory();
        if memory.roster.as_ref().is_none_or(|held| held.version.version < kept.version.version) {
            memory.roster = Some(kept);
        }
    }

    /// Serves its door until it goes dark.
    pub(super) async fn serve(self: Arc<Self>, listener: PlainListener) {
        let keep = listener.try_clone().expect("a descriptor is left");
        let listener = TcpListener::from_std(listener).expect("a listener");
        loop {
            let accepted = drowse_shared::select_biased! {
                () = self.turned.notified() => None,
                accepted = listener.accept() => Some(accepted),
            };
            if self.mood() == Mood::Dark {
                break;
            }
            if let Some(Ok((stream, _))) = accepted {
                self.common.counts.connections.fetch_add(1, Relaxed);
                let node = self.clone();
                tokio::spawn(async move {
                    // A gateway that goes away ends it.
                    let _ = node.talk(stream).await;
                });
            }
        }
        drop(listener);
        // Nobody accepts any more, and the queue before the door is one place long: whoever comes after is not heard.
        rustix::net::listen(&keep, 0).expect("a listener");
        let mut queue = Vec::new();
        while let Ok(Ok(stream)) = timeout(Duration::from_millis(300), TcpStream::connect(self.address)).await
        {
            queue.push(stream);
        }
        self.turned.notify_waiters();
        std::future::pending::<()>().await;
        drop((keep, queue));
    }

    /// Waits until nobody can connect to it.
    pub(super) async fn until_dark(self: Arc<Self>) {
        loop {
            let tried = timeout(Duration::from_millis(200), TcpStream::connect(self.address)).await;
            match tried {
                Err(_) => return,
                Ok(_) => sleep(Duration::from_millis(20)).await,
            }
        }
    }

    async fn talk(self: Arc<Self>, stream: TcpStream) -> io::Result<()> {
        let mut wire = Wire::over(stream)?;
        loop {
            let turned = self.turned.notified();
            let request = drowse_shared::select_biased! {
                () = turned => None,
                request = wire.receive() => match request? {
                    Some(request) => Some(request),
                    None => return Ok(()),
                },
            };
            match (self.mood(), request) {
                (Mood::Dark, _) => return Ok(()),
                // It reads on, so that who spoke to it waits.
                (Mood::Hung | Mood::Deaf, _) | (_, None) => {}
                (Mood::Well, Some(request)) => {
                    let (status, body) = self.answer(&request);
                    wire.answer(status, &body).await?;
                }
            }
        }
    }
}
