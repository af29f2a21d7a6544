//! Names that spaces of this node gave up to a node that is about to be readmitted.
//!
//! Between the two moments nobody in the fleet holds such a name, and a gateway that does not know of the readmission
//! would take a "no" from here for leave to build it anew: a second body. So this node has no "no" to give for it until
//! the roster has the other node and every gateway has had time to learn that.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drowse_shared::{
    api::{Code, Error},
    id::LedgerId,
    name::SpaceName,
};
use tokio::time::Instant;

use crate::ledger::{self, Ledger};

/// How long a name is kept for a node that is not readmitted: well past the longest `readmitNode`. Counted from the start
/// of this life, if that was later.
const LIFE: Duration = Duration::from_secs(600);
/// After how many check-in intervals each gateway has been shown the roster this node keeps.
const TOLD_AFTER: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Name {
    keeper: LedgerId,
    since: Instant,
}

impl Name {
    /// `told`: since when the roster has the node it is kept for.
    fn is_kept(self, told: Option<Instant>, interval: Duration, now: Instant) -> bool {
        let known = told.is_some_and(|told| now.saturating_duration_since(told) >= interval * TOLD_AFTER);
        !known && now.saturating_duration_since(self.since) < LIFE
    }
}

/// What the roster says of a node: since when it is in the one that is kept.
pub trait Roll {
    /// Whether gateways ask this node at all: a fleet of one has nobody to mislead.
    fn is_asked(&self) -> bool;
    /// Since when; `None` when it is not.
    fn member_since(&self, ledger: &LedgerId) -> Option<Instant>;
    /// Between check-ins.
    fn interval(&self) -> Duration;
}

/// See the module.
#[derive(Debug, Default)]
pub struct Kept(Mutex<BTreeMap<SpaceName, Name>>);

impl Kept {
    /// What the ledger says.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn load(ledger: &Ledger) -> Result<Self, ledger::Error> {
        let since = Instant::now();
        let names = ledger.kept_names().await?.into_iter();
        Ok(Self(Mutex::new(names.map(|(name, keeper)| (name, Name { keeper, since })).collect())))
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<SpaceName, Name>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a name from now on.
    pub fn keep(&self, name: SpaceName, keeper: LedgerId) {
        self.names().insert(name, Name { keeper, since: Instant::now() });
    }

    /// Why there is no "no" to give for this name, if there is none.
    pub fn refuses(&self, name: &SpaceName, roll: &impl Roll) -> Option<Error> {
        let kept = self.names().get(name).copied().filter(|_| roll.is_asked())?;
        kept.is_kept(roll.member_since(&kept.keeper), roll.interval(), Instant::now()).then(|| {
            let message = format!(
                "this node gave {:?} up to the node with the ledger {}, which is being readmitted; repeat `readmitNode`, \
                 or the name is free again {} minutes later",
                name.as_str(),
                kept.keeper,
                LIFE.as_secs() / 60
            );
            Error::new(Code::SpaceBusy, message)
        })
    }

    /// Forgets what is kept no longer.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn release(&self, ledger: &Ledger, roll: &impl Roll) -> Result<(), ledger::Error> {
        let over =
            |name: &Name| !name.is_kept(roll.member_since(&name.keeper), roll.interval(), Instant::now());
        let names: Vec<SpaceName> =
            self.names().iter().filter(|(_, kept)| over(kept)).map(|(name, _)| name.clone()).collect();
        for name in names {
            ledger.release_name(&name).await?;
            // It may have been given up anew meanwhile.
            self.names().retain(|other, kept| *other != name || !over(kept));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_until_every_gateway_knows_who_has_it_or_nobody_came_for_it() {
        let since = Instant::now();
        let name = Name { keeper: format!("{:032x}", 1).parse().expect("an id"), since };
        let interval = Duration::from_secs(5);
        let at = |seconds| since + Duration::from_secs(seconds);
        let cases = [
            (None, 0, true),
            (None, 599, true),
            (None, 600, false),
            (Some(at(2)), 2, true),
            (Some(at(2)), 11, true),
            (Some(at(2)), 12, false),
            (Some(at(595)), 600, false),
        ];
        for (told, now, kept) in cases {
            assert_eq!(name.is_kept(told, interval, at(now)), kept, "{told:?} {now}");
        }
    }
}
