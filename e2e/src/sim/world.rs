use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{
    ear::Ear,
    hold::Rule,
    host::{Fall, Host, Life},
    interpose,
    net::Listener,
    pipe::Connection,
    rng::{self, Chance, Rng, Streams},
    story::{Kind, Line, Story},
    weather::Weather,
};

/// Everything there is: plain data under one lock that is never held across a wait.
pub(super) struct State {
    streams: Streams,
    pub(super) start: Instant,
    pub(super) story: Story,
    /// Told when a promise is broken.
    failed: Arc<Notify>,
    pub(super) weather: Weather,
    pub(super) hosts: BTreeMap<String, Host>,
    pub(super) listeners: BTreeMap<String, Listener>,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) connections_made: u64,
    pub(super) cuts: BTreeSet<(String, String)>,
    pub(super) holds: Vec<Rule>,
    pub(super) holds_made: u64,
    pub(super) ears: Vec<Ear>,
    /// Told when a link or a host changes.
    pub(super) changed: Arc<Notify>,
}

impl State {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn log(&mut self, kind: Kind, text: String) {
        self.story.tell(self.now_ms(), kind, text);
    }

    /// The stream of chance of a host or a link, by its key.
    pub(super) fn chance(&mut self, chance: Chance, whose: u64) -> &mut Rng {
        let now_ms = self.now_ms();
        self.streams.of(chance, whose, now_ms)
    }

    /// What the next segment on a link takes.
    pub(super) fn lag(&mut self, link: u64) -> Duration {
        let Weather { lag_ms: (least, most), slow_one_in, slow_ms_max, .. } = self.weather;
        let rng = self.chance(Chance::Lag, link);
        let ms = if rng.one_in(slow_one_in) {
            rng.below(slow_ms_max + 1)
        } else {
            least + rng.below(most.saturating_sub(least) + 1)
        };
        Duration::from_millis(ms)
    }

    pub(super) fn is_cut(&self, from: &str, to: &str) -> bool {
        !self.cuts.is_empty() && self.cuts.contains(&(from.to_owned(), to.to_owned()))
    }

    /// Whether nothing answers there at all, not even a kernel.
    pub(super) fn is_off(&self, host: &str) -> bool {
        self.hosts.get(host).is_some_and(|h| h.life.is_dead() && h.fell == Some(Fall::Power))
    }

    /// Every effect passes here; one of them may be its host's last.
    fn step(&mut self, life: &Arc<Life>, what: &str) -> bool {
        if life.is_dead() {
            return false;
        }
        let Some(host) = self.hosts.get_mut(&life.host) else { return false };
        host.steps += 1;
        if let Some((at, fall)) = host.falls_at
            && host.steps >= at
        {
            let line = format!("{} FALLS ({fall:?}) at step {} ({what})", life.host, host.steps);
            self.log(Kind::Happens, line);
            self.fall(&life.host, fall);
            return false;
        }
        true
    }

    /// Lets every reader look again at what can reach it.
    pub(super) fn wake_readers(&mut self) {
        for connection in self.connections.values_mut() {
            for pipe in &mut connection.pipes {
                pipe.wake();
            }
        }
    }

    pub(super) fn fall(&mut self, name: &str, fall: Fall) {
        let at = Instant::now() + self.lag(rng::key(name));
        let Some(host) = self.hosts.get_mut(name) else { return };
        host.life.end(fall);
        host.falls_at = None;
        host.fell = Some(fall);
        for task in &host.tasks {
            task.abort();
        }
        let mut unaccepted = Vec::new();
        self.listeners.retain(|_, listener| {
            let goes = listener.life.host == name;
            if goes {
                unaccepted.extend(listener.queue.drain(..).map(|(connection, _)| connection));
            }
            !goes
        });
        for connection in unaccepted {
            self.leave(connection, 1);
        }
        if fall == Fall::Power {
            self.wake_readers();
        } else {
            for connection in self.connections.values_mut() {
                for pipe in &mut connection.pipes {
                    if pipe.from.host == name {
                        pipe.reset.get_or_insert(at);
                        pipe.wake();
                    }
                }
            }
        }
        self.changed.notify_waiters();
    }
}

/// A world: hosts, the network between them, one seed, one thread.
#[derive(Clone)]
pub struct World(Arc<Mutex<State>>);

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            streams: Streams::new(seed),
            start: Instant::now(),
            story: Story::default(),
            failed: Arc::new(Notify::new()),
            weather: Weather::USUAL,
            hosts: BTreeMap::new(),
            listeners: BTreeMap::new(),
            connections: BTreeMap::new(),
            connections_made: 0,
            cuts: BTreeSet::new(),
            holds: Vec::new(),
            holds_made: 0,
            ears: Vec::new(),
            changed: Arc::new(Notify::new()),
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an effect of `life`; `false` when it is dead, now or already.
    pub(super) fn step(&self, life: &Arc<Life>, what: &str) -> bool {
        self.lock().step(life, what)
    }

    /// Moves the clocks of libraries that do not ask tokio.
    pub(super) fn tick(&self) {
        let elapsed = self.lock().start.elapsed();
        interpose::tick(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Time since the world began.
    pub fn elapsed(&self) -> Duration {
        self.lock().start.elapsed()
    }

    /// Changes the weather from now on.
    pub fn set_weather(&self, weather: Weather) {
        self.lock().weather = weather;
    }

    /// Names the directory that the story calls `~`.
    pub fn set_home(&self, directory: &str) {
        self.lock().story.home = Some(directory.to_owned());
    }

    /// Draws from the stream that decides such things for this host.
    pub fn draw<T>(&self, chance: Chance, host: &str, from: impl FnOnce(&mut Rng) -> T) -> T {
        from(self.lock().chance(chance, rng::key(host)))
    }

    /// Whether the next poll of a life's task is put off.
    pub(super) fn defers(&self, life: &Life) -> bool {
        let mut state = self.lock();
        let one_in = state.weather.defer_one_in;
        state.chance(Chance::Defer, life.key).one_in(one_in)
    }

    /// Writes a line into the story.
    pub fn note(&self, what: &str) {
        self.tell(Kind::Happens, what.to_owned());
    }

    /// Writes a line of a kind into the story.
    pub fn tell(&self, kind: Kind, text: String) {
        self.lock().log(kind, text);
    }

    /// Says that something happened that must not.
    pub fn fail(&self, what: &str) {
        let mut state = self.lock();
        state.log(Kind::Failed, what.to_owned());
        state.failed.notify_one();
    }

    /// Waits until something happened that must not.
    pub async fn failed(&self) {
        let failed = self.lock().failed.clone();
        failed.notified().await;
    }

    /// Whether something happened that must not.
    pub fn has_failed(&self) -> bool {
        self.lock().story.has_failed()
    }

    /// The last lines of the story so far.
    pub fn story_tail(&self, lines: usize) -> Vec<String> {
        self.lock().story.tail(lines)
    }

    pub(super) fn take_story(&self) -> (Vec<Line>, Vec<String>) {
        self.lock().story.end()
    }

    /// Whether a host is up.
    pub fn is_up(&self, host: &str) -> bool {
        self.lock().hosts.get(host).is_some_and(|h| !h.life.is_dead())
    }

    /// Which life of a host this is; 0 for one that never was.
    pub fn life_of(&self, host: &str) -> u64 {
        self.lock().hosts.get(host).map_or(0, |h| h.life.generation)
    }

    /// How the life of a host before the present one fell.
    pub fn rose_from(&self, host: &str) -> Option<Fall> {
        self.lock().hosts.get(host).and_then(|h| h.rose_from)
    }

    /// Counts effects of the current life of a host that do not pass through its seams.
    pub fn pulse(&self, host: &str) -> Option<Pulse> {
        let life = self.lock().hosts.get(host).map(|h| h.life.clone())?;
        Some(Pulse { world: self.clone(), life })
    }

    /// Effects the current life of a host has had.
    pub fn steps(&self, host: &str) -> u64 {
        self.lock().hosts.get(host).map_or(0, |h| h.steps)
    }
}

/// Whether one life still acts.
#[derive(Clone)]
pub struct Pulse {
    world: World,
    life: Arc<Life>,
}

impl Pulse {
    /// Which life of its host it is.
    pub fn life(&self) -> u64 {
        self.life.generation
    }

    /// Counts an effect; never resolves once the life is over.
    pub async fn beat(&self, what: &str) {
        if !self.world.step(&self.life, what) {
            std::future::pending::<()>().await;
        }
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("World")
    }
}
