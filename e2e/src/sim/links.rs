use tokio::time::Instant;

use super::{story::Kind, world::World};

impl World {
    /// From now on nothing gets from one host to another. What is sent meanwhile waits.
    pub fn cut(&self, from: &str, to: &str) {
        let mut state = self.lock();
        state.log(Kind::Happens, format!("{from}>{to} CUT"));
        state.cuts.insert((from.to_owned(), to.to_owned()));
        state.wake_readers();
    }

    /// Cuts both directions.
    pub fn part(&self, one: &str, other: &str) {
        self.cut(one, other);
        self.cut(other, one);
    }

    /// Ends every cut between two hosts, in both directions.
    pub fn heal(&self, one: &str, other: &str) {
        let mut state = self.lock();
        state.log(Kind::Happens, format!("{one}-{other} HEALED"));
        state.cuts.retain(|(from, to)| (from != one || to != other) && (from != other || to != one));
        state.wake_readers();
        state.changed.notify_waiters();
    }

    /// Ends every cut.
    pub fn heal_all(&self) {
        let cuts: Vec<_> = self.lock().cuts.iter().cloned().collect();
        for (from, to) in cuts {
            self.heal(&from, &to);
        }
    }

    /// Resets every connection between two hosts, losing what is on its way.
    pub fn reset(&self, one: &str, other: &str) {
        let mut state = self.lock();
        state.log(Kind::Happens, format!("{one}-{other} RESET"));
        let now = Instant::now();
        for connection in state.connections.values_mut() {
            let ends = [&*connection.pipes[0].from.host, &*connection.pipes[0].to.host];
            if ends == [one, other] || ends == [other, one] {
                for pipe in &mut connection.pipes {
                    pipe.forget();
                    pipe.reset = Some(now);
                    pipe.wake();
                }
            }
        }
    }

    /// Open connections lose what `from` sends to `to` from now on, until keepalive gives them up; new ones work.
    pub fn silence(&self, from: &str, to: &str) {
        let mut state = self.lock();
        state.log(Kind::Happens, format!("{from}>{to} SILENCE on open connections"));
        for connection in state.connections.values_mut() {
            for pipe in &mut connection.pipes {
                if pipe.from.host == from && pipe.to.host == to {
                    pipe.silent = true;
                }
            }
        }
    }
}
