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
    id::{LedgerId, SpaceId},
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
pub struct Kept {
    names: Mutex<BTreeMap<SpaceName, Name>>,
    /// Held by whoever changes the rows, until memory says the same.
    writing: tokio::sync::Mutex<()>,
}

impl Kept {
    /// What the ledger says.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn load(ledger: &Ledger) -> Result<Self, ledger::Error> {
        let since = Instant::now();
        let names = ledger.kept_names().await?.into_iter();
        let names = names.map(|(name, keeper)| (name, Name { keeper, since })).collect();
        Ok(Self { names: Mutex::new(names), writing: tokio::sync::Mutex::default() })
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<SpaceName, Name>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a space another name, and keeps the one it had from now on. To be run to its end once begun.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn give_up(
        &self,
        ledger: &Ledger,
        id: SpaceId,
        (was, becomes): (&SpaceName, &SpaceName),
        keeper: LedgerId,
    ) -> Result<(), ledger::Error> {
        let _writing = self.writing.lock().await;
        ledger.set_aside(id, was, becomes, keeper).await?;
        self.names().insert(was.clone(), Name { keeper, since: Instant::now() });
        Ok(())
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

    /// Forgets what is kept no longer. A name that is given up anew meanwhile stays, in memory and in the ledger.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn release(&self, ledger: &Ledger, roll: &impl Roll) -> Result<(), ledger::Error> {
        let over =
            |name: &Name| !name.is_kept(roll.member_since(&name.keeper), roll.interval(), Instant::now());
        let _writing = self.writing.lock().await;
        let names: Vec<SpaceName> =
            self.names().iter().filter(|(_, kept)| over(kept)).map(|(name, _)| name.clone()).collect();
        for name in names {
            ledger.release_name(&name).await?;
            self.names().remove(&name);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;
    use drowse_shared::seams::Env;
    use rusqlite::Connection;
    use tokio::time::advance;

    use super::*;
    use crate::ledger::Database;

    /// Nobody is back.
    struct Nobody;

    impl Roll for Nobody {
        fn is_asked(&self) -> bool {
            true
        }

        fn member_since(&self, _: &LedgerId) -> Option<Instant> {
            None
        }

        fn interval(&self) -> Duration {
            Duration::from_secs(5)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_given_up_again_while_it_is_released_is_kept_in_the_ledger_too() {
        let dir = tempfile::tempdir().expect("a directory");
        let database = Database::Open(Connection::open_in_memory().expect("memory"));
        let state = Utf8Path::from_path(dir.path()).expect("UTF-8");
        let ledger = Ledger::open(&Env::real(), state, database).await.expect("opened");
        let kept = Kept::load(&ledger).await.expect("read");
        let (name, aside) = ("a".parse().expect("a name"), "b".parse().expect("a name"));
        let keeper = format!("{:032x}", 1).parse().expect("an id");
        let id = format!("{:032x}", 2).parse().expect("an id");
        kept.give_up(&ledger, id, (&name, &aside), keeper).await.expect("written");
        advance(LIFE).await;
        // Whichever comes first, the other one comes before it has ended.
        let (given, released) =
            tokio::join!(kept.give_up(&ledger, id, (&name, &aside), keeper), kept.release(&ledger, &Nobody));
        given.and(released).expect("written");
        assert!(kept.refuses(&name, &Nobody).is_some());
        assert_eq!(ledger.kept_names().await.expect("read"), [(name.clone(), keeper)]);
        let (released, given) =
            tokio::join!(kept.release(&ledger, &Nobody), kept.give_up(&ledger, id, (&name, &aside), keeper));
        given.and(released).expect("written");
        assert_eq!(ledger.kept_names().await.expect("read"), [(name, keeper)]);
    }

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
