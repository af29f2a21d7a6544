//! Creates on their way. Whoever acquires a name that is being looked for or built waits for that one flight, asks
//! nobody, and then goes where it landed with its own request, or shares its failure.
//!
//! A waiter is an entry in a list of wakers; one that leaves takes it along.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use drowse_shared::{api::Error, name::SpaceRef};
use futures_util::{FutureExt as _, future::Shared};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::{find::cache::Hit, fleet::Peer, forward::http::Captured};

/// How a flight ended.
#[derive(Debug, Clone)]
pub(super) enum Landed {
    /// The space is there.
    At(Arc<(Peer, Hit)>),
    /// It ended for reasons that are its own, or nothing is known of where: look again.
    Again,
    /// What stood in its way stands in everybody's.
    Failed(Arc<Error>),
    /// The node refused it, `because` of this wish alone, or whatever the wish.
    Refused {
        /// The wish that was refused, if another one may not be.
        because: Option<Bytes>,
        /// What the node said.
        answer: Captured,
    },
}

type Landing = Shared<oneshot::Receiver<Landed>>;

/// The flights, at most one for each name.
pub(crate) struct Flights {
    map: Mutex<BTreeMap<SpaceRef, Landing>>,
    flights_max: usize,
    waiters_max: usize,
    places: Arc<Semaphore>,
}

/// What to do about a name.
pub(super) enum Boarding {
    /// Nobody is at it: fly.
    Lead(Lead),
    /// Somebody is: wait.
    Join(Waiter),
    /// Too many names are on their way, or too many wait.
    Full,
}

/// The duty to say how the flight ended.
pub(super) struct Lead {
    flights: Arc<Flights>,
    space: SpaceRef,
    landed: Option<oneshot::Sender<Landed>>,
}

/// A place among those who wait for a flight.
pub(super) struct Waiter {
    landing: Landing,
    _place: OwnedSemaphorePermit,
}

/// Why a waiter was told nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Untold {
    /// Its patience ended.
    Late,
    /// The process is going down.
    TornDown,
}

impl Flights {
    /// At most so many names on their way, and so many waiters for all of them together.
    pub(crate) fn new(flights_max: usize, waiters_max: usize) -> Arc<Self> {
        Arc::new(Self {
            map: Mutex::default(),
            flights_max,
            waiters_max,
            places: Arc::new(Semaphore::new(waiters_max)),
        })
    }

    fn map(&self) -> MutexGuard<'_, BTreeMap<SpaceRef, Landing>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names on their way, and who waits for them.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.map().len(), self.waiters_max.saturating_sub(self.places.available_permits()))
    }

    /// Joins the flight of a name, or begins one.
    pub(super) fn board(self: &Arc<Self>, space: &SpaceRef) -> Boarding {
        let mut map = self.map();
        if let Some(landing) = map.get(space) {
            return match self.places.clone().try_acquire_owned() {
                Ok(place) => Boarding::Join(Waiter { landing: landing.clone(), _place: place }),
                Err(_) => Boarding::Full,
            };
        }
        if map.len() >= self.flights_max {
            return Boarding::Full;
        }
        let (send, landing) = oneshot::channel();
        map.insert(space.clone(), landing.shared());
        Boarding::Lead(Lead { flights: self.clone(), space: space.clone(), landed: Some(send) })
    }
}

impl Lead {
    /// Tells everybody who waits. Whoever comes from now on begins anew.
    pub(super) fn land(mut self, landed: Landed) {
        self.flights.map().remove(&self.space);
        if let Some(send) = self.landed.take() {
            // Nobody may be waiting.
            let _ = send.send(landed);
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if self.landed.is_some() {
            self.flights.map().remove(&self.space);
        }
    }
}

impl Waiter {
    /// Waits for the flight to land, at most `patience`.
    pub(super) async fn landed(self, patience: Duration) -> Result<Landed, Untold> {
        match tokio::time::timeout(patience, self.landing).await {
            Ok(Ok(landed)) => Ok(landed),
            Ok(Err(_)) => Err(Untold::TornDown),
            Err(_) => Err(Untold::Late),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn space(name: &str) -> SpaceRef {
        name.parse().expect("a name")
    }

    fn lead(flights: &Arc<Flights>, name: &str) -> Lead {
        match flights.board(&space(name)) {
            Boarding::Lead(lead) => lead,
            Boarding::Join(_) | Boarding::Full => panic!("{name} is on its way or full"),
        }
    }

    fn join(flights: &Arc<Flights>, name: &str) -> Option<Waiter> {
        match flights.board(&space(name)) {
            Boarding::Join(waiter) => Some(waiter),
            Boarding::Lead(_) => panic!("{name} is not on its way"),
            Boarding::Full => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_flies_and_the_others_are_told() {
        let flights = Flights::new(2, 10_000);
        let first = lead(&flights, "a");
        let waiters: Vec<Waiter> = (0..1000).filter_map(|_| join(&flights, "a")).collect();
        assert_eq!(flights.sizes(), (1, 1000));
        first.land(Landed::Again);
        for waiter in waiters {
            assert!(matches!(waiter.landed(LONG).await, Ok(Landed::Again)));
        }
        assert_eq!(flights.sizes(), (0, 0));
        lead(&flights, "a").land(Landed::Again);
    }

    #[tokio::test(start_paused = true)]
    async fn both_bounds_hold_and_a_waiter_that_leaves_gives_its_place_back() {
        let flights = Flights::new(1, 1);
        let first = lead(&flights, "a");
        assert!(matches!(flights.board(&space("b")), Boarding::Full), "one name at a time");
        let waiter = join(&flights, "a").expect("the first place");
        assert!(join(&flights, "a").is_none(), "one waiter");
        assert_eq!(waiter.landed(Duration::from_secs(1)).await.err(), Some(Untold::Late));
        let waiter = join(&flights, "a").expect("the place is free again");
        drop(first);
        assert_eq!(waiter.landed(LONG).await.err(), Some(Untold::TornDown));
        assert_eq!(flights.sizes(), (0, 0));
    }
}
