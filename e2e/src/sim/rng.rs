use std::collections::BTreeMap;

/// A seeded source of numbers (SplitMix64). Everything a simulation leaves to chance comes from one of these.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The same seed gives the same numbers for ever.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The source for one purpose under a seed: what one purpose takes, no other misses.
    pub fn of(seed: u64, purpose: &str) -> Self {
        Self(mix(seed) ^ key(purpose))
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `bound`; 0 when there is none.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// True once in `n` times; never for 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.below(n) == 0
    }

    /// One of `items`.
    ///
    /// # Panics
    /// When there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        let at = usize::try_from(self.below(items.len() as u64)).expect("below the length of a slice");
        &items[at]
    }

    /// One of `items`, each as likely as its weight says.
    ///
    /// # Panics
    /// When there are none.
    pub fn weigh<'a, T>(&mut self, items: &'a [(u64, T)]) -> &'a T {
        let mut at = self.below(items.iter().map(|(weight, _)| weight).sum());
        let (_, item) = items
            .iter()
            .find(|(weight, _)| {
                let here = at < *weight;
                at = at.saturating_sub(*weight);
                here
            })
            .expect("below the sum of the weights");
        item
    }

    /// Fills `out`.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// What a draw decides. Each of these, for each host or link, is a stream of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Chance {
    /// How long something takes on the wire.
    Lag,
    /// Whether a connection arrives twice.
    Twice,
    /// Whether a poll is put off.
    Defer,
    /// How long a blocking job waits.
    Job,
    /// What a daemon gets as randomness.
    Entropy,
    /// How far a clock is off.
    Clock,
    /// How a call into a runtime goes.
    Runtime,
    /// What a disk keeps of what was not synced.
    Disk,
    /// What a client decides by itself.
    Whim,
}

/// Streams of chance. A draw depends on the seed, its purpose, whose it is, the simulated millisecond, and on the draws
/// of that stream within that millisecond: so an event more or less disturbs only what it touches.
#[derive(Debug)]
pub(super) struct Streams {
    seed: u64,
    streams: BTreeMap<(Chance, u64), (u64, Rng)>,
}

impl Streams {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed: mix(seed), streams: BTreeMap::new() }
    }

    /// The stream of `chance` for whom the key stands for, at a moment.
    pub(super) fn of(&mut self, chance: Chance, whose: u64, now_ms: u64) -> &mut Rng {
        let seed = self.seed;
        let fresh = || {
            let purpose = mix(whose ^ mix(chance as u64 + 1));
            (now_ms, Rng::new(mix(seed ^ mix(purpose ^ mix(now_ms)))))
        };
        let stream = self.streams.entry((chance, whose)).or_insert_with(fresh);
        if stream.0 != now_ms {
            *stream = fresh();
        }
        &mut stream.1
    }
}

/// A number that stands for a name (FNV-1a).
pub(super) fn key(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// A number that stands for a link in one direction.
pub(super) fn link(from: u64, to: u64) -> u64 {
    from.rotate_left(17) ^ to
}

/// Scatters the bits of a number (the finaliser of SplitMix64).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_depends_on_its_purpose_and_moment_alone() {
        let draw = |streams: &mut Streams, chance, who, ms| streams.of(chance, key(who), ms).next_u64();
        let mut one = Streams::new(7);
        let mut other = Streams::new(7);
        for ms in 0..5 {
            draw(&mut other, Chance::Lag, "g", ms);
            draw(&mut other, Chance::Job, "n0", ms);
            draw(&mut other, Chance::Lag, "n1", 3);
        }
        assert_eq!(
            draw(&mut one, Chance::Lag, "n0", 9),
            draw(&mut other, Chance::Lag, "n0", 9),
            "others' draws and earlier ones change nothing"
        );
        assert_ne!(draw(&mut one, Chance::Lag, "n0", 9), draw(&mut one, Chance::Lag, "n0", 9));
        let mut seen: Vec<u64> = (0..200)
            .flat_map(|ms| ["g", "n0", "n1"].map(|who| (who, ms)))
            .flat_map(|(who, ms)| [Chance::Lag, Chance::Entropy].map(|chance| (chance, who, ms)))
            .map(|(chance, who, ms)| draw(&mut one, chance, who, ms + 100))
            .collect();
        let drawn = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), drawn, "no two streams are alike");
        assert_ne!(
            draw(&mut Streams::new(1), Chance::Lag, "g", 1),
            draw(&mut Streams::new(2), Chance::Lag, "g", 1)
        );
    }

    #[test]
    fn a_weight_is_a_share() {
        let mut rng = Rng::of(1, "weights");
        let mut drawn = [0; 3];
        for _ in 0..1000 {
            drawn[*rng.weigh(&[(1, 0), (0, 1), (3, 2)])] += 1;
        }
        assert_eq!(drawn[1], 0);
        assert!((200..300).contains(&drawn[0]), "{drawn:?}");
    }
}
