use std::sync::Arc;

use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use super::{
    story::Kind,
    world::{State, World},
};

/// A wish to hold what begins like this.
pub(super) struct Rule {
    number: u64,
    from: String,
    to: String,
    prefix: Vec<u8>,
    caught: Option<(u64, usize)>,
    arrived: Arc<Notify>,
}

/// The first write from one host to another that begins with a prefix, held on the wire with all that follows it on
/// its connection.
pub struct Held {
    world: World,
    number: u64,
    arrived: Arc<Notify>,
}

impl State {
    /// The hold these bytes run into.
    pub(super) fn hold_for(&self, from: &str, to: &str, bytes: &[u8]) -> Option<u64> {
        let fits = |rule: &&Rule| {
            rule.caught.is_none() && rule.from == from && rule.to == to && bytes.starts_with(&rule.prefix)
        };
        self.holds.iter().find(fits).map(|rule| rule.number)
    }

    /// The hold `number` has caught one direction of a connection, and this in it.
    pub(super) fn hold_caught(&mut self, number: u64, connection: u64, side: usize, what: &str) {
        let Some(rule) = self.holds.iter_mut().find(|rule| rule.number == number) else { return };
        rule.caught = Some((connection, side));
        rule.arrived.notify_one();
        let line = format!("{}>{} c{connection} HELD {what}", rule.from, rule.to);
        self.log(Kind::Happens, line);
    }

    fn end_hold(&mut self, number: u64, word: &str, reset: bool) {
        let Some(at) = self.holds.iter().position(|rule| rule.number == number) else { return };
        let rule = self.holds.remove(at);
        let Some((connection, side)) = rule.caught else { return };
        self.log(Kind::Happens, format!("{}>{} c{connection} {word}", rule.from, rule.to));
        let now = Instant::now();
        let Some(connection) = self.connections.get_mut(&connection) else { return };
        connection.pipes[side].held = None;
        if reset {
            for pipe in &mut connection.pipes {
                pipe.forget();
                pipe.reset = Some(now);
            }
        }
        for pipe in &mut connection.pipes {
            pipe.wake();
        }
    }
}

impl World {
    /// Holds the next write from `from` to `to` that begins with `prefix`. hyper writes the head of a request at once,
    /// so `POST /acquireSpace` catches exactly that.
    pub fn hold(&self, from: &str, to: &str, prefix: &str) -> Held {
        let mut state = self.lock();
        state.holds_made += 1;
        let (number, arrived) = (state.holds_made, Arc::new(Notify::new()));
        state.holds.push(Rule {
            number,
            from: from.to_owned(),
            to: to.to_owned(),
            prefix: prefix.as_bytes().to_vec(),
            caught: None,
            arrived: arrived.clone(),
        });
        Held { world: self.clone(), number, arrived }
    }
}

impl World {
    /// Ends every hold and every silence.
    pub fn release_all(&self) {
        let mut state = self.lock();
        let numbers: Vec<u64> = state.holds.iter().map(|rule| rule.number).collect();
        for number in numbers {
            state.end_hold(number, "RELEASED", false);
        }
        for connection in state.connections.values_mut() {
            for pipe in &mut connection.pipes {
                (pipe.held, pipe.silent) = (None, false);
                pipe.wake();
            }
        }
    }
}

impl Held {
    /// Waits until something is held; answers whether that happened within a minute.
    pub async fn arrived(&self) -> bool {
        timeout(std::time::Duration::from_secs(60), self.arrived.notified()).await.is_ok()
    }

    /// Lets it go on.
    pub fn release(self) {
        self.world.lock().end_hold(self.number, "RELEASED", false);
    }

    /// Destroys it and resets its connection at both ends.
    pub fn reset(self) {
        self.world.lock().end_hold(self.number, "RESET", true);
    }
}
