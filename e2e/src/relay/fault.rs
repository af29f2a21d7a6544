use std::time::Duration;

/// A direction on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From who connected to who listens.
    Request,
    /// Back.
    Answer,
}

/// What becomes of bytes that do not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// They wait for `release`; nothing more is read from their sender, so that its window fills.
    Hold,
    /// They go on by themselves so much later, or at `release`.
    Later(Duration),
    /// They are dropped, and both ends are closed in order.
    Cut,
    /// They are dropped, and both ends get a reset.
    Reset,
    /// They and all that follow are taken and dropped; both ends stay open. A release resets what has lost bytes.
    Lose,
}

/// What happens to one request, or to its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub way: Way,
    /// So many bytes of the request, or of its answer, still pass.
    pub after: u64,
    /// What becomes of the rest.
    pub then: Then,
}

impl Fault {
    /// Nothing of this way passes.
    pub const fn at_once(way: Way, then: Then) -> Self {
        Self { way, after: 0, then }
    }

    /// So many bytes pass.
    pub const fn after(way: Way, bytes: u64, then: Then) -> Self {
        Self { way, after: bytes, then }
    }

    /// How much of a piece of `length` bytes passes, when `passed` bytes did; `None` when all of it does.
    pub(super) fn passes(&self, way: Way, passed: u64, length: usize) -> Option<usize> {
        let left = self.after.saturating_sub(passed);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        (way == self.way && length > left).then_some(left)
    }
}

/// What happens to everything.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Mode {
    Forward,
    Delay(Duration),
    /// Packets vanish: connects hang, open connections fall silent, and what was sent arrives when it ends.
    BlackHole,
    /// Connects succeed; of these ways nothing is read.
    Stall {
        request: bool,
        answer: bool,
    },
    /// Connects succeed; what comes on these ways is taken and dropped.
    Lose {
        request: bool,
        answer: bool,
    },
}

/// What a mode does to a piece.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Lot {
    Pass,
    Later(Duration),
    Wait,
    Vanish,
}

impl Mode {
    pub(super) fn lot(self, way: Way) -> Lot {
        let hits = |request: bool, answer: bool| if way == Way::Request { request } else { answer };
        match self {
            Self::Forward => Lot::Pass,
            Self::Delay(by) => Lot::Later(by),
            Self::BlackHole => Lot::Wait,
            Self::Stall { request, answer } if hits(request, answer) => Lot::Wait,
            Self::Lose { request, answer } if hits(request, answer) => Lot::Vanish,
            Self::Stall { .. } | Self::Lose { .. } => Lot::Pass,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_lets_so_many_bytes_of_its_own_way_pass() {
        let fault = Fault::after(Way::Answer, 10, Then::Cut);
        for (way, passed, length, expected) in [
            (Way::Request, 0, 100, None),
            (Way::Answer, 0, 10, None),
            (Way::Answer, 0, 11, Some(10)),
            (Way::Answer, 8, 5, Some(2)),
            (Way::Answer, 10, 1, Some(0)),
        ] {
            assert_eq!(fault.passes(way, passed, length), expected, "{way:?} {passed} {length}");
        }
    }

    #[test]
    fn a_mode_of_one_way_leaves_the_other_alone() {
        let mode = Mode::Lose { request: false, answer: true };
        assert_eq!((mode.lot(Way::Request), mode.lot(Way::Answer)), (Lot::Pass, Lot::Vanish));
        let mode = Mode::Stall { request: true, answer: false };
        assert_eq!((mode.lot(Way::Request), mode.lot(Way::Answer)), (Lot::Wait, Lot::Pass));
    }
}
