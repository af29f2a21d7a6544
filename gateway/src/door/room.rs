//! Room for the bodies of callers that are kept until their request is answered. Small ones are as many as there may be
//! connections; of large ones only so much is held at a time.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::find::Busy;

/// All large bodies together.
const ROOM_KIB: usize = 256 << 10;
/// A body up to this size needs no room.
const SMALL_BYTES_MAX: usize = 16 << 10;

/// See the module.
pub(crate) struct Room(Arc<Semaphore>);

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ROOM_KIB)))
    }
}

/// Room for one body, given back with the last copy of it.
pub(super) struct Place(Option<OwnedSemaphorePermit>);

struct Kept {
    bytes: Bytes,
    _place: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Room {
    /// What is in use, in KiB.
    pub(crate) fn used_kib(&self) -> usize {
        ROOM_KIB.saturating_sub(self.0.available_permits())
    }

    /// Room for a body that is at most so large.
    pub(super) fn take(&self, bytes: usize) -> Result<Place, Busy> {
        if bytes <= SMALL_BYTES_MAX {
            return Ok(Place(None));
        }
        let kib = u32::try_from(bytes.div_ceil(1024)).map_err(|_| Busy)?;
        self.0.clone().try_acquire_many_owned(kib).map(|place| Place(Some(place))).map_err(|_| Busy)
    }
}

impl Place {
    /// The body, which keeps its room for as long as it lasts.
    pub(super) fn keep(self, bytes: Bytes) -> Bytes {
        match self.0 {
            Some(place) if bytes.len() > SMALL_BYTES_MAX => Bytes::from_owner(Kept { bytes, _place: place }),
            _ => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_bodies_have_so_much_room_and_give_it_back_with_their_last_copy() {
        let room = Room::default();
        let body = room.take(16 << 20).expect("empty").keep(Bytes::from(vec![7; 1 << 20]));
        let copy = body.clone();
        assert_eq!((room.used_kib(), body.len()), (16 << 10, 1 << 20));
        let others: Vec<Place> = (0..15).map(|_| room.take(16 << 20).expect("room")).collect();
        assert_eq!(room.take(17 << 10).err(), Some(Busy));
        assert!(room.take(SMALL_BYTES_MAX).is_ok(), "small ones need none");
        drop((others, body));
        assert_eq!(room.used_kib(), 16 << 10, "a copy is left");
        drop(copy);
        drop(room.take(1 << 20).expect("room").keep(Bytes::from_static(b"less than announced")));
        assert_eq!(room.used_kib(), 0);
    }
}
