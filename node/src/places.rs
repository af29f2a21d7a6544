//! How many requests and tunnels are at the apps of a node, and of one space: they need no token, and may last.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, Mutex, PoisonError},
};

use drowse_shared::{
    api::{Code, Error},
    id::SpaceId,
};

/// Most of one space, on a node that has room for four such spaces.
const OF_ONE_MAX: usize = 1024;

/// Counts them.
#[derive(Debug)]
pub struct Places {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    of: BTreeMap<SpaceId, usize>,
}

/// One of them, while this lives.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    id: SpaceId,
}

impl Places {
    /// So many in all.
    pub fn new(most: usize) -> Self {
        Self { most, taken: Mutex::default() }
    }

    /// Takes one.
    ///
    /// # Errors
    /// `too_many_connections` when there is none left in all, or none for this space.
    pub fn take(self: &Arc<Self>, id: SpaceId) -> Result<Place, Error> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let of_one_max = OF_ONE_MAX.min(self.most / 4).max(1);
        let of_one = taken.of.get(&id).copied().unwrap_or(0);
        if taken.all >= self.most || of_one >= of_one_max {
            let message = if of_one >= of_one_max {
                format!(
                    "{of_one} requests and tunnels are at the apps of this space, which is as many as may be"
                )
            } else {
                format!(
                    "{} requests and tunnels are at apps of this node, which is as many as may be",
                    taken.all
                )
            };
            return Err(Error::new(Code::TooManyConnections, message).retry_after(1));
        }
        taken.all += 1;
        taken.of.insert(id, of_one + 1);
        Ok(Place { places: self.clone(), id })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= 1;
        if let Entry::Occupied(mut of) = taken.of.entry(self.id) {
            *of.get_mut() -= 1;
            if *of.get() == 0 {
                of.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_space_takes_what_others_need_and_what_ended_is_given_back() {
        let id = |n: u8| format!("{n:032x}").parse::<SpaceId>().expect("an id");
        let places = Arc::new(Places::new(8));
        let first = [places.take(id(1)).expect("free"), places.take(id(1)).expect("free")];
        let refused = places.take(id(1)).expect_err("two of eight are its share");
        assert!(refused.code == Code::TooManyConnections && refused.message.contains("of this space"));
        let others: Vec<_> =
            (2..5).flat_map(|n| [(); 2].map(|()| places.take(id(n)).expect("free"))).collect();
        assert!(places.take(id(9)).expect_err("all are taken").message.contains("of this node"));
        drop(first);
        assert!(places.take(id(9)).is_ok());
        drop(others);
        assert!(places.taken.lock().expect("no panics").of.is_empty());
    }
}
