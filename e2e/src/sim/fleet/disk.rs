use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use rusqlite::Connection;

/// A database in memory that outlives the daemon on it: what a fallen life committed is there for the next.
pub struct Disk(Mutex<Platter>);

struct Platter {
    uri: String,
    /// Keeps the database while no daemon has it open.
    keeper: Connection,
}

impl Disk {
    /// An empty one.
    pub fn new() -> Self {
        Self(Mutex::new(Platter::new()))
    }

    /// Opens it.
    pub fn open(&self) -> Connection {
        connect(&self.0.lock().unwrap_or_else(PoisonError::into_inner).uri)
    }

    /// Throws everything away.
    pub fn wipe(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Platter::new();
    }

    /// Reads behind the daemon's back, as only a test may.
    pub fn peek<T>(&self, read: impl FnOnce(&Connection) -> T) -> T {
        read(&self.0.lock().unwrap_or_else(PoisonError::into_inner).keeper)
    }
}

impl Default for Disk {
    fn default() -> Self {
        Self::new()
    }
}

impl Platter {
    fn new() -> Self {
        // Databases of this kind are shared by name in the whole process, so no two may ever share one.
        static NAMES: AtomicU64 = AtomicU64::new(0);
        let uri = format!("file:/drowse-sim-{}?vfs=memdb", NAMES.fetch_add(1, Relaxed));
        Self { keeper: connect(&uri), uri }
    }
}

fn connect(uri: &str) -> Connection {
    Connection::open(uri).expect("a database in memory always opens")
}
