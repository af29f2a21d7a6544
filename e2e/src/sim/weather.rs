use serde::{Deserialize, Serialize};

/// How things go when nothing is broken on purpose. Times in whole milliseconds, as tokio's timers have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Weather {
    /// What most segments take.
    pub lag_ms: (u64, u64),
    /// One segment in so many is slow; 0 = none.
    pub slow_one_in: u64,
    /// The longest a slow one takes.
    pub slow_ms_max: u64,
    /// One connection in so many arrives twice, the second time to say nothing.
    pub duplicate_one_in: u64,
    /// One poll in so many is put off, so that tasks interleave.
    pub defer_one_in: u64,
    /// How far a host's wall clock may be off, in milliseconds.
    pub clock_off_ms_max: u64,
}

impl Weather {
    /// Everything takes one millisecond.
    pub const CALM: Self = Self {
        lag_ms: (1, 1),
        slow_one_in: 0,
        slow_ms_max: 0,
        duplicate_one_in: 0,
        defer_one_in: 0,
        clock_off_ms_max: 0,
    };
    /// A network of some distance on machines under some load, whose clocks nobody sets.
    pub const USUAL: Self = Self {
        lag_ms: (1, 4),
        slow_one_in: 10,
        slow_ms_max: 250,
        duplicate_one_in: 20,
        defer_one_in: 8,
        clock_off_ms_max: 3_600_000,
    };
}
