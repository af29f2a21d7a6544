use std::{collections::VecDeque, io, sync::Arc};

use drowse_shared::seams::{Accept, BoxFuture, BoxIo, Caller, Net};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use super::{
    env::SimEnv,
    host::Life,
    pipe::{Connection, Stream},
    rng::{self, Chance},
    story::Kind,
    world::World,
};

/// How often a lost SYN is looked at again at the latest.
const SYN_AGAIN: std::time::Duration = std::time::Duration::from_secs(30);

/// An address that is listened on.
pub(super) struct Listener {
    pub(super) life: Arc<Life>,
    /// Connections nobody has accepted yet, and who opened them.
    pub(super) queue: VecDeque<(u64, String)>,
    arrived: Arc<Notify>,
}

/// The host of an address.
fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// What belongs to a dead life never resolves.
async fn never<T>() -> T {
    std::future::pending().await
}

impl Net for SimEnv {
    fn connect(&self, to: &str) -> BoxFuture<'static, io::Result<BoxIo>> {
        let (world, life, to) = (self.world.clone(), self.life.clone(), to.to_owned());
        Box::pin(async move {
            let stream = dial(&world, &life, &to).await;
            if life.is_dead() { never().await } else { stream }
        })
    }

    fn bind(&self, at: &str) -> BoxFuture<'static, io::Result<Box<dyn Accept>>> {
        let (world, life, at) = (self.world.clone(), self.life.clone(), at.to_owned());
        Box::pin(async move {
            if !world.step(&life, "bind") {
                return never().await;
            }
            let mut state = world.lock();
            let host = &life.host;
            let local = match at.rsplit_once(':') {
                Some((_, "0")) => (40_000..)
                    .map(|port| format!("{host}:{port}"))
                    .find(|local| !state.listeners.contains_key(local)),
                Some((_, port)) => Some(format!("{host}:{port}")),
                None => None,
            };
            let local = local.ok_or(io::ErrorKind::InvalidInput)?;
            if state.listeners.contains_key(&local) {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            state.log(Kind::Wire, format!("{local} LISTENS"));
            let arrived = Arc::new(Notify::new());
            let listener = Listener { life: life.clone(), queue: VecDeque::new(), arrived: arrived.clone() };
            state.listeners.insert(local.clone(), listener);
            drop(state);
            Ok(Box::new(Ear { world, life, local, arrived }) as Box<dyn Accept>)
        })
    }
}

async fn dial(world: &World, life: &Arc<Life>, to: &str) -> io::Result<BoxIo> {
    if !world.step(life, "connect") {
        return never().await;
    }
    let (from, host) = (&*life.host, host_of(to));
    let (there, back) = (rng::link(life.key, rng::key(host)), rng::link(rng::key(host), life.key));
    let lag = world.lock().lag(there);
    world.tell(Kind::Wire, format!("{from}>{to} SYN"));
    sleep(lag).await;
    loop {
        let (changed, way) = {
            let state = world.lock();
            let way = !state.is_cut(from, host) && !state.is_cut(host, from) && !state.is_off(host);
            (state.changed.clone(), way)
        };
        let changed = changed.notified();
        if way {
            break;
        }
        let _ = timeout(SYN_AGAIN, changed).await;
    }
    if life.is_dead() {
        return never().await;
    }
    let Some((number, back)) = arrive(world, life, to) else {
        let back = world.lock().lag(back);
        sleep(back).await;
        world.tell(Kind::Wire, format!("{from}>{to} REFUSED"));
        return Err(io::ErrorKind::ConnectionRefused.into());
    };
    let stream = Stream::new(world, life, number, 0);
    sleep(back).await;
    Ok(Box::new(stream))
}

/// The SYN reaches `to`: a connection, and how long the answer takes.
fn arrive(world: &World, life: &Arc<Life>, to: &str) -> Option<(u64, std::time::Duration)> {
    let mut state = world.lock();
    let there = state.listeners.get(to)?.life.clone();
    let twice = state.weather.duplicate_one_in;
    let twice = state.chance(Chance::Twice, rng::link(life.key, there.key)).one_in(twice);
    state.connections_made += 1;
    let number = state.connections_made;
    state.connections.insert(number, Connection::new(life, &there));
    let word = if twice { ", TWICE" } else { "" };
    state.log(Kind::Wire, format!("{}>{to} c{number} OPENS{word}", life.host));
    let ghost = twice.then(|| {
        state.connections_made += 1;
        let ghost = state.connections_made;
        state.connections.insert(ghost, Connection::new(life, &there));
        ghost
    });
    let back = state.lag(rng::link(there.key, life.key));
    let listener = state.listeners.get_mut(to)?;
    for number in std::iter::once(number).chain(ghost) {
        listener.queue.push_back((number, format!("{}:{}", life.host, 10_000 + number)));
    }
    listener.arrived.notify_one();
    drop(state);
    if let Some(ghost) = ghost {
        // Its dialler says nothing but goodbye.
        drop(Stream::new(world, life, ghost, 0));
    }
    Some((number, back))
}

struct Ear {
    world: World,
    life: Arc<Life>,
    local: String,
    arrived: Arc<Notify>,
}

impl Accept for Ear {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(BoxIo, Caller)>> {
        Box::pin(async move {
            loop {
                if self.life.is_dead() {
                    return never().await;
                }
                let next = self.world.lock().listeners.get_mut(&self.local).and_then(|l| l.queue.pop_front());
                if let Some((connection, peer)) = next {
                    let stream = Stream::new(&self.world, &self.life, connection, 1);
                    return Ok((Box::new(stream) as BoxIo, Caller { address: peer, is_near: false }));
                }
                self.arrived.notified().await;
            }
        })
    }

    fn local(&self) -> String {
        self.local.clone()
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        if self.life.is_dead() {
            return;
        }
        let mut state = self.world.lock();
        state.log(Kind::Wire, format!("{} CLOSED", self.local));
        let queue = state.listeners.remove(&self.local).map(|listener| listener.queue);
        for (connection, _) in queue.unwrap_or_default() {
            state.leave(connection, 1);
        }
    }
}
