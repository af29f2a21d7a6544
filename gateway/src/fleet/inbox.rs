//! Check-ins that wait to be taken. They are taken many at once, so that a thousand nodes that join together are a few
//! writes.

use std::collections::{BTreeSet, VecDeque};

use drowse_shared::api::{
    Code, Error,
    nodes::{CheckIn, CheckedIn},
};
use tokio::sync::oneshot;

use super::Written;

/// Most that wait. A node whose check-in is refused for it comes again an interval later.
const WAITING_MAX: usize = 4096;
/// Most that are taken at once.
const AT_ONCE: usize = 256;

type Answer = Result<CheckedIn<Written>, Error>;

/// One that waits.
pub(super) struct Waits {
    /// What the node said.
    pub(super) said: CheckIn,
    /// Where the answer goes.
    pub(super) to: oneshot::Sender<Answer>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Inbox(VecDeque<Waits>);

impl Inbox {
    /// Joins those that wait.
    pub(super) fn wait(&mut self, said: CheckIn) -> Result<oneshot::Receiver<Answer>, Error> {
        if self.0.len() >= WAITING_MAX {
            let message = format!("{WAITING_MAX} check-ins wait to be taken; check in again");
            return Err(Error::new(Code::QueueFull, message));
        }
        let (to, answer) = oneshot::channel();
        self.0.push_back(Waits { said, to });
        Ok(answer)
    }

    /// Those that are taken next: each ledger once, since what it says next is judged by what it said before.
    pub(super) fn next(&mut self) -> Vec<Waits> {
        let (mut taken, mut left, mut ledgers) = (Vec::new(), VecDeque::new(), BTreeSet::new());
        while let Some(waits) = self.0.pop_front() {
            if ledgers.insert(waits.said.ledger_id) {
                taken.push(waits);
            } else {
                left.push_back(waits);
            }
            if taken.len() == AT_ONCE {
                break;
            }
        }
        left.append(&mut self.0);
        self.0 = left;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::check_in_for_tests as check_in;

    #[test]
    fn each_ledger_is_taken_once_at_a_time_and_nobody_is_left_behind() {
        let mut inbox = Inbox::default();
        let mut answers = Vec::new();
        for n in [1, 2, 1, 3, 1] {
            answers.push(inbox.wait(check_in("a", n, "http://a")).expect("room"));
        }
        let mut taken = || {
            let ledgers = |waits: &Waits| waits.said.ledger_id.to_string();
            inbox.next().iter().map(ledgers).map(|ledger| ledger.trim_start_matches('0').to_owned()).collect()
        };
        let rounds: [Vec<String>; 4] = [taken(), taken(), taken(), taken()];
        assert_eq!(rounds.map(|round| round.join(" ")), ["1 2 3", "1", "1", ""]);
    }

    #[test]
    fn the_queue_has_an_end() {
        let mut inbox = Inbox::default();
        let answers: Vec<_> =
            (0..WAITING_MAX).map(|_| inbox.wait(check_in("a", 1, "http://a")).expect("room")).collect();
        let refused = inbox.wait(check_in("a", 1, "http://a")).expect_err("full");
        assert_eq!((refused.code, answers.len()), (Code::QueueFull, WAITING_MAX));
    }
}
