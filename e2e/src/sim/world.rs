use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drowse_shared::seams::Env;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep},
};

use super::{
    ear::Ear,
    env::SimEnv,
    hold::Rule,
    host::{Fall, Host, Life, Main},
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

    fn fall(&mut self, name: &str, fall: Fall) {
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

    /// Adds a host and starts it. `main` runs at each of its starts and takes what it needs from its `Env`.
    pub fn host<F>(&self, name: &str, main: impl Fn(Env) -> F + Send + Sync + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.begin(name, Some(Arc::new(move |env| Box::pin(main(env)))));
    }

    fn begin(&self, name: &str, main: Option<Main>) {
        let (life, main) = {
            let mut state = self.lock();
            let most = state.weather.clock_off_ms_max;
            let off = state.chance(Chance::Clock, rng::key(name)).below(2 * most + 1);
            let off = i64::try_from(off).unwrap_or(0);
            let off = off - i64::try_from(most).unwrap_or(0);
            let last = state.hosts.get(name);
            let generation = last.map_or(0, |host| host.life.generation) + 1;
            let rose_from = last.and_then(|host| host.fell);
            let main = main.or_else(|| last.map(|host| host.main.clone()));
            let main = main.expect("a host is started again only after it was added");
            let life = Life::new(name, generation, off);
            state.log(Kind::Happens, format!("{name} STARTS life {generation}, clock off by {off} ms"));
            let host = Host {
                life: life.clone(),
                main: main.clone(),
                tasks: Vec::new(),
                steps: 0,
                falls_at: None,
                fell: None,
                rose_from,
                restarts: false,
            };
            state.hosts.insert(name.to_owned(), host);
            // What peers keep sending to an earlier life is answered with a reset now.
            let at = Instant::now() + state.lag(rng::key(name));
            for connection in state.connections.values_mut() {
                for side in 0..2 {
                    let sent = &connection.pipes[side];
                    if sent.to.host == name && sent.to.is_dead() && sent.is_unanswered() {
                        connection.pipes[1 - side].reset.get_or_insert(at);
                        connection.pipes[1 - side].wake();
                    }
                }
            }
            state.changed.notify_waiters();
            (life, main)
        };
        let env = SimEnv::env(self, &life);
        env.tasks.spawn("main", main(env.clone()));
    }

    /// Runs something on a host that is up, as one of its tasks. `None` when the host fell before it ended.
    pub async fn on<T, F>(&self, host: &str, work: impl FnOnce(Env) -> F) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let life = self.lock().hosts.get(host).map(|h| h.life.clone())?;
        let env = SimEnv::env(self, &life);
        let (send, receive) = oneshot::channel();
        let work = work(env.clone());
        env.spawn("work", async move {
            let _ = send.send(work.await);
        });
        receive.await.ok()
    }

    /// Takes a host down now.
    pub fn crash(&self, host: &str, fall: Fall) {
        let mut state = self.lock();
        if state.hosts.get(host).is_some_and(|h| !h.life.is_dead()) {
            state.log(Kind::Happens, format!("{host} FALLS ({fall:?})"));
            state.fall(host, fall);
        }
    }

    /// Takes a host down at the `k`-th effect from now, `None` never mind.
    pub fn crash_at(&self, host: &str, k: Option<u64>, fall: Fall) {
        if let Some(host) = self.lock().hosts.get_mut(host) {
            let steps = host.steps;
            host.falls_at = k.map(|k| (steps + k, fall));
        }
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

    /// Starts a host again that is down, `down` from now: same disks, new life. One that is being started already is
    /// left alone.
    pub async fn restart(&self, host: &str, down: Duration) {
        {
            let mut state = self.lock();
            let Some(host) = state.hosts.get_mut(host) else { return };
            if std::mem::replace(&mut host.restarts, true) {
                return;
            }
        }
        let starting = Starting { world: self, host };
        self.crash(host, Fall::Process);
        self.buried(host).await;
        sleep(down).await;
        drop(starting);
        self.begin(host, None);
    }

    /// Waits until everything of the host's fallen life is dropped, and with it every handle on its disks.
    async fn buried(&self, host: &str) {
        loop {
            let task = self.lock().hosts.get_mut(host).and_then(|h| h.tasks.pop());
            let Some(task) = task else { return };
            let _ = task.await;
        }
    }

    /// Ends every host without a word and answers how many tasks are left: there should be none.
    pub(super) async fn end(&self) -> usize {
        let hosts: Vec<String> = self.lock().hosts.keys().cloned().collect();
        for host in &hosts {
            self.lock().fall(host, Fall::Power);
        }
        for host in &hosts {
            self.buried(host).await;
        }
        sleep(Duration::from_secs(1)).await;
        let hosts = std::mem::take(&mut self.lock().hosts);
        drop(hosts);
        tokio::runtime::Handle::current().metrics().num_alive_tasks()
    }
}

/// Somebody is starting a host; if that is given up, somebody else may.
struct Starting<'a> {
    world: &'a World,
    host: &'a str,
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        if let Some(host) = self.world.lock().hosts.get_mut(self.host) {
            host.restarts = false;
        }
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
