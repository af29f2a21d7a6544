//! Tickets: permission to build one name, given with a "no" to somebody who means to create it.
//!
//! Pure: a table and instants passed in. A create that was held on the wire finds its ticket void, because whoever asked
//! since holds a newer one; so it never builds a second body. Nothing is kept over a restart: that voids them all.

use std::{collections::BTreeMap, time::Duration};

use drowse_shared::{id::Ticket, name::SpaceName};
use tokio::time::Instant;

/// How long a ticket is good.
pub const LIFE: Duration = Duration::from_secs(60);
/// Most tickets out at once. The oldest is void when one more is asked for.
pub const TICKETS_MAX: usize = 10_000;

/// Why a ticket is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the create quotes a ticket that is unknown, used, or void; look the name up again")]
pub struct Void;

/// The tickets that are out: at most one for each name.
#[derive(Debug, Default)]
pub struct Tickets {
    by_name: BTreeMap<SpaceName, (Ticket, u64)>,
    /// In the order of issue: with one life for all, also the order in which they end.
    order: BTreeMap<u64, (SpaceName, Instant)>,
    next: u64,
}

impl Tickets {
    /// Gives `ticket` out for `name`; an older one of that name is void from now on.
    pub fn issue(&mut self, name: SpaceName, ticket: Ticket, now: Instant) {
        self.remove(&name);
        self.expire(now);
        while self.by_name.len() >= TICKETS_MAX {
            let Some((_, (oldest, _))) = self.order.pop_first() else { break };
            self.by_name.remove(&oldest);
        }
        self.order.insert(self.next, (name.clone(), now));
        self.by_name.insert(name, (ticket, self.next));
        self.next += 1;
    }

    /// Whether nobody has asked since this ticket was given out. It stays out, and does not live longer for it.
    pub fn is_newest(&mut self, name: &SpaceName, ticket: Ticket, now: Instant) -> bool {
        self.expire(now);
        self.by_name.get(name).is_some_and(|(out, _)| *out == ticket)
    }

    /// Uses a ticket up.
    ///
    /// # Errors
    /// When it is not the newest one of that name, was used, or is too old.
    pub fn consume(&mut self, name: &SpaceName, ticket: Ticket, now: Instant) -> Result<(), Void> {
        self.expire(now);
        match self.by_name.get(name) {
            Some((out, _)) if *out == ticket => {
                self.remove(name);
                Ok(())
            }
            _ => Err(Void),
        }
    }

    /// Voids what is out for `name`.
    pub fn void(&mut self, name: &SpaceName) {
        self.remove(name);
    }

    fn remove(&mut self, name: &SpaceName) {
        if let Some((_, order)) = self.by_name.remove(name) {
            self.order.remove(&order);
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some(entry) = self.order.first_entry() {
            if now.saturating_duration_since(entry.get().1) < LIFE {
                break;
            }
            let (name, _) = entry.remove();
            self.by_name.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(n: u8) -> Ticket {
        format!("{n:032x}").parse().expect("hex")
    }

    fn name(text: &str) -> SpaceName {
        text.parse().expect("a name")
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_ticket_is_good_once_for_one_name_for_a_minute() {
        let (now, mut tickets) = (Instant::now(), Tickets::default());
        tickets.issue(name("a"), ticket(1), now);
        assert_eq!(tickets.consume(&name("b"), ticket(1), now), Err(Void), "another name");
        assert_eq!(tickets.consume(&name("a"), ticket(2), now), Err(Void), "unknown");
        assert_eq!(tickets.consume(&name("a"), ticket(1), now), Ok(()));
        assert_eq!(tickets.consume(&name("a"), ticket(1), now), Err(Void), "used");

        tickets.issue(name("a"), ticket(3), now);
        assert_eq!(tickets.consume(&name("a"), ticket(3), now + MINUTE), Err(Void), "too old");
        tickets.issue(name("a"), ticket(4), now);
        let just_in_time = now + MINUTE.saturating_sub(Duration::from_millis(1));
        assert_eq!(tickets.consume(&name("a"), ticket(4), just_in_time), Ok(()));
    }

    #[test]
    fn a_newer_lookup_voids_the_older_ticket_of_that_name_only() {
        let (now, mut tickets) = (Instant::now(), Tickets::default());
        tickets.issue(name("a"), ticket(1), now);
        tickets.issue(name("b"), ticket(2), now);
        tickets.issue(name("a"), ticket(3), now);
        assert!(
            !tickets.is_newest(&name("a"), ticket(1), now) && tickets.is_newest(&name("a"), ticket(3), now)
        );
        assert!(
            !tickets.is_newest(&name("a"), ticket(3), now + MINUTE),
            "asking again does not lengthen its life"
        );
        tickets.issue(name("a"), ticket(1), now);
        tickets.issue(name("b"), ticket(2), now);
        tickets.issue(name("a"), ticket(3), now);
        assert_eq!(tickets.consume(&name("a"), ticket(1), now), Err(Void));
        assert_eq!(tickets.consume(&name("b"), ticket(2), now), Ok(()));
        assert_eq!(tickets.consume(&name("a"), ticket(3), now), Ok(()));
        assert!(tickets.order.is_empty() && tickets.by_name.is_empty());
    }

    #[test]
    fn the_table_is_bounded_and_forgets_the_oldest_first() {
        let (now, mut tickets) = (Instant::now(), Tickets::default());
        for n in 0..=TICKETS_MAX {
            tickets.issue(name(&format!("n{n}")), ticket(7), now);
        }
        assert_eq!(tickets.by_name.len(), TICKETS_MAX);
        assert_eq!(tickets.order.len(), TICKETS_MAX);
        assert_eq!(tickets.consume(&name("n0"), ticket(7), now), Err(Void));
        assert_eq!(tickets.consume(&name("n1"), ticket(7), now), Ok(()));
    }
}
