use std::path::{Path, PathBuf};

use rusqlite::{Connection, config::DbConfig};

use crate::sim::{Chance, Rng, World, cache};

/// Pages in the write-ahead log after which it is taken into the database: a few writes, so that falls meet that too.
const CHECKPOINT_PAGES: u32 = 24;

/// The files of one daemon. They outlive it: what a fallen life wrote is there for the next; after a loss of power, what
/// it synced.
pub struct Disk {
    directory: PathBuf,
    database: PathBuf,
}

impl Disk {
    /// An empty one in `directory`, which is made.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn new(directory: &Path, database: &str) -> Self {
        std::fs::create_dir_all(directory).expect("a directory can be made");
        cache::watch(directory);
        Self { directory: directory.to_owned(), database: directory.join(database) }
    }

    /// Opens the database.
    ///
    /// # Panics
    /// When that is not possible.
    pub fn open(&self) -> Connection {
        let connection = Connection::open(&self.database).expect("a file of our own can be opened");
        // A daemon that falls does not close its database: nothing is tidied up.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).expect("SQLite knows it");
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES).expect("SQLite knows it");
        connection
    }

    /// Throws the database away, and leaves what lies beside it.
    ///
    /// # Panics
    /// When a file cannot be removed.
    pub fn wipe(&self) {
        for suffix in ["", "-wal", "-shm", "-journal"] {
            let mut file = self.database.clone().into_os_string();
            file.push(suffix);
            match std::fs::remove_file(&file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    panic!("{error}: {}", file.display())
                }
                _ => {}
            }
        }
        cache::settle(&self.directory).expect("files of our own");
    }

    /// The machine lost power, and nothing has the database open any more: what was not synced may be gone.
    ///
    /// # Panics
    /// When the files cannot be read or written.
    pub fn power_lost(&self, world: &World, host: &str) {
        let mut rng = world.draw(Chance::Disk, host, |rng| Rng::new(rng.next_u64()));
        cache::power_lost(&self.directory, &mut rng).expect("the files of a machine that is off");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{
        Fall, Weather,
        fleet::{CLIENTS, Client, Fleet, GATEWAYS, NAMES, NODES},
        run,
    };
    use serde_json::json;
    use std::time::Duration;

    /// What is broken when every machine loses power right after spaces were made.
    fn broken(seed: u64, lies: bool) -> Vec<String> {
        let run = run(seed, move |world| async move {
            let fleet = Fleet::new(&world, &GATEWAYS[..1], &NODES[..3]);
            fleet.start().await;
            if lies {
                cache::lie();
            }
            let guest = fleet.clone();
            let work = world.on(CLIENTS[0], |env| async move {
                let client = Client::new(&guest, CLIENTS[0], &env);
                for name in NAMES {
                    client.call(GATEWAYS[0], "acquireSpace", name, &json!({ "name": name }), None).await;
                }
            });
            work.await;
            for host in &NODES[..3] {
                world.crash(host, Fall::Power);
            }
            for host in &NODES[..3] {
                world.restart(host, Duration::from_secs(1)).await;
            }
            fleet.settle(NAMES.map(str::to_owned).to_vec(), Weather::USUAL).await;
        });
        run.failures
    }

    #[test]
    fn what_is_acknowledged_survives_power_and_a_disk_that_lies_is_found_out() {
        for seed in 0..3 {
            assert_eq!(broken(seed, false), [""; 0]);
        }
        assert!((0..20).any(|seed| !broken(seed, true).is_empty()), "syncs that do nothing are not noticed");
    }
}
