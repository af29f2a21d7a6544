//! Spaces placed on a node that its reading does not show yet. Pure.

use std::collections::BTreeSet;

use drowse_shared::id::SpaceId;

/// What became of a pick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The node built this space.
    Built(SpaceId),
    /// The node said no; nothing is there.
    Refused,
    /// Nobody knows; it may be there.
    Unknown,
}

/// The counts of one node since its last reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    in_flight: u64,
    built: BTreeSet<SpaceId>,
    unknown: u64,
}

impl Counts {
    /// How many spaces to add to what its reading says.
    pub(crate) fn placed(&self) -> u64 {
        self.in_flight + self.built.len() as u64 + self.unknown
    }

    /// A pick counts at once.
    pub(crate) fn pick(&mut self) {
        self.in_flight += 1;
    }

    /// What became of one pick.
    pub(crate) fn settle(&mut self, outcome: Outcome) {
        self.in_flight = self.in_flight.saturating_sub(1);
        match outcome {
            Outcome::Built(id) => drop(self.built.insert(id)),
            Outcome::Refused => {}
            Outcome::Unknown => self.unknown += 1,
        }
    }

    /// A space was destroyed; it counts no longer if it was placed since the reading.
    pub(crate) fn destroyed(&mut self, id: &SpaceId) {
        self.built.remove(id);
    }

    /// A newer reading shows what was built before it. What is still being built may not be in it.
    pub(crate) fn read(&mut self) {
        self.built.clear();
        self.unknown = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(n: u8) -> SpaceId {
        format!("{n:032x}").parse().expect("an id")
    }

    #[test]
    fn a_short_lived_space_gives_its_place_back() {
        let mut counts = Counts::default();
        counts.pick();
        assert_eq!(counts.placed(), 1);
        counts.settle(Outcome::Built(id(1)));
        counts.destroyed(&id(1));
        counts.destroyed(&id(1));
        assert_eq!(counts.placed(), 0);
        counts.pick();
        counts.settle(Outcome::Refused);
        assert_eq!(counts.placed(), 0);
        counts.pick();
        counts.settle(Outcome::Unknown);
        assert_eq!(counts.placed(), 1, "it may be there");
        counts.pick();
        counts.read();
        assert_eq!(counts.placed(), 1, "what is being built is not in the reading");
    }

    proptest! {
        /// Whatever happens in whatever order, nothing is counted twice and nothing below zero.
        #[test]
        fn counts_follow_a_plain_model(steps in proptest::collection::vec((0_u8..5, 0_u8..8), 0..200)) {
            let mut counts = Counts::default();
            let (mut in_flight, mut built, mut unknown) = (0_u64, BTreeSet::new(), 0_u64);
            for (step, n) in steps {
                match step {
                    0 => { counts.pick(); in_flight += 1; }
                    1 if in_flight > 0 => { counts.settle(Outcome::Built(id(n))); in_flight -= 1; built.insert(n); }
                    2 if in_flight > 0 => { counts.settle(Outcome::Unknown); in_flight -= 1; unknown += 1; }
                    3 => { counts.destroyed(&id(n)); built.remove(&n); }
                    4 => { counts.read(); built.clear(); unknown = 0; }
                    _ => {}
                }
                prop_assert_eq!(counts.placed(), in_flight + built.len() as u64 + unknown);
            }
        }
    }
}
