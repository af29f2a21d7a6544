use std::sync::Arc;

use camino::Utf8PathBuf;

use crate::seams::Env;

/// Size of the ballast.
const BYTES: u64 = 8 << 20;
/// Room there must be, beyond the ballast itself, before it is made again.
const ROOM_BYTES: u64 = 8 << 20;

/// A file that is removed when the disk is full, so that a database can be written.
#[derive(Clone)]
pub struct Ballast {
    env: Env,
    path: Arc<Utf8PathBuf>,
}

impl Ballast {
    /// At this path, on the disk of the database.
    pub fn new(env: &Env, path: Utf8PathBuf) -> Self {
        Self { env: env.clone(), path: Arc::new(path) }
    }

    /// Gives the room up. Answers whether there was any.
    pub fn release(&self) -> bool {
        let released = std::fs::remove_file(&*self.path).is_ok();
        if released {
            tracing::warn!(path = %self.path, "the disk is full; the ballast was given up so that room can be made");
        }
        released
    }

    /// Makes it again if it is missing and there is room.
    pub async fn restore(&self) {
        let path = self.path.clone();
        let made = self.env.blocking("ballast", move || make(&path)).await;
        if let Some(Err(error)) = made {
            tracing::warn!(path = %self.path, %error, "the ballast could not be made");
        }
    }
}

fn make(path: &camino::Utf8Path) -> std::io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|file| file.len() == BYTES) {
        return Ok(());
    }
    let directory = path.parent().unwrap_or(path);
    let room = rustix::fs::statvfs(directory.as_std_path())?;
    if room.f_bavail.saturating_mul(room.f_frsize) < BYTES + ROOM_BYTES {
        return Ok(());
    }
    let file = std::fs::File::create(path)?;
    let made = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, BYTES);
    if let Err(errno) = made {
        // A file system that cannot reserve still keeps written bytes.
        if errno != rustix::io::Errno::OPNOTSUPP {
            let _ = std::fs::remove_file(path);
            return Err(errno.into());
        }
        let filled = std::io::copy(&mut std::io::Read::take(std::io::repeat(0x5a), BYTES), &mut &file);
        if let Err(error) = filled {
            let _ = std::fs::remove_file(path);
            return Err(error);
        }
    }
    Ok(())
}
