use std::{sync::Arc, time::Duration};

use drowse_shared::seams::Env;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};

use super::{
    env::SimEnv,
    host::{Fall, Host, Life, Main},
    rng::{self, Chance},
    story::Kind,
    world::World,
};

impl World {
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
