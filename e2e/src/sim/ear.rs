use std::time::Duration;

use super::{
    host::Life,
    world::{State, World},
};

/// Bytes that a listening host reads from a connection, or writes to it.
#[derive(Debug, Clone, Copy)]
pub struct Heard<'a> {
    /// Time since the world began.
    pub at: Duration,
    /// Which connection.
    pub connection: u64,
    /// Who listens.
    pub host: &'a str,
    /// In which of its lives.
    pub life: u64,
    /// Whether it reads: it is asked something. Else it answers.
    pub asks: bool,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// Hears all that listening hosts read and answer.
pub(super) type Ear = Box<dyn FnMut(&Heard<'_>) + Send>;

impl State {
    /// Lets the ears hear what `host`, which listens at a connection, reads or writes there.
    pub(super) fn heard(&mut self, connection: u64, host: &Life, asks: bool, bytes: &[u8]) {
        let (at, name, life) = (self.start.elapsed(), &*host.host, host.generation);
        for ear in &mut self.ears {
            ear(&Heard { at, connection, host: name, life, asks, bytes });
        }
    }
}

impl World {
    /// From now on `ear` hears all that listening hosts read and answer. It must not ask the world anything.
    pub fn listen_in(&self, ear: impl FnMut(&Heard<'_>) + Send + 'static) {
        self.lock().ears.push(Box::new(ear));
    }
}
