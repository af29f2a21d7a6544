//! What the gateways told this node: its standing, the roster, the configuration, and when one last took its check-in.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drowse_shared::{
    api::{
        Code, Error,
        nodes::{Bundle, BundleVersion, Roster, RosterVersion, Settings},
    },
    id::LedgerId,
};
use tokio::{sync::Notify, time::Instant};

use crate::{
    kept::Roll,
    ledger::{self, Ledger},
};

/// The roster that is kept.
#[derive(Debug)]
pub struct KeptRoster {
    /// Which it is.
    pub version: RosterVersion,
    /// What is in it.
    pub roster: Roster,
}

impl KeptRoster {
    fn of(roster: Roster) -> Arc<Self> {
        Arc::new(Self { version: roster.identity(), roster })
    }
}

#[derive(Debug, Default)]
struct Known {
    bundle: Option<Bundle>,
    roster: Option<Arc<KeptRoster>>,
    /// Since when that one is kept, in this life.
    roster_since: Option<Instant>,
    removed: bool,
    accepted_at: Option<Instant>,
}

/// What is known of the fleet, also kept in the ledger.
#[derive(Debug)]
pub struct Fleet {
    ledger_id: LedgerId,
    /// Without a gateway this node is a fleet of one.
    alone: bool,
    interval: Duration,
    known: Mutex<Known>,
    /// Held by whoever takes a roster, from looking at the one that is kept to having written the newer one.
    taking: tokio::sync::Mutex<()>,
    /// Told when a configuration arrives.
    configured: Notify,
    /// Told when a gateway takes a check-in.
    heard: Notify,
}

impl Fleet {
    /// What the ledger kept.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn load(
        ledger: &Ledger,
        ledger_id: LedgerId,
        alone: bool,
        interval: Duration,
    ) -> Result<Self, ledger::Error> {
        let known = Known {
            bundle: ledger.bundle().await?,
            roster: ledger.roster().await?.map(KeptRoster::of),
            roster_since: Some(Instant::now()),
            removed: ledger.removed().await?,
            accepted_at: None,
        };
        Ok(Self {
            ledger_id,
            alone,
            interval,
            known: Mutex::new(known),
            taking: tokio::sync::Mutex::default(),
            configured: Notify::new(),
            heard: Notify::new(),
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The settings in force.
    pub fn settings(&self) -> Settings {
        self.known().bundle.as_ref().map(|bundle| bundle.settings.clone()).unwrap_or_default()
    }

    /// Whether this node may serve: it is alone, or holds a copy of the configuration.
    pub fn is_configured(&self) -> bool {
        self.alone || self.known().bundle.is_some()
    }

    /// Resolves once this node may serve.
    pub async fn configured(&self) {
        loop {
            let told = self.configured.notified();
            if self.is_configured() {
                return;
            }
            told.await;
        }
    }

    /// Which configuration is held.
    pub fn bundle_version(&self) -> Option<BundleVersion> {
        let known = self.known();
        known.bundle.as_ref().map(|b| BundleVersion { authority_id: b.authority_id, version: b.version })
    }

    /// The configuration.
    pub fn bundle(&self) -> Option<Bundle> {
        self.known().bundle.clone()
    }

    /// The newest roster.
    pub fn roster(&self) -> Option<Arc<KeptRoster>> {
        self.known().roster.clone()
    }

    /// Whether the fleet removed this node.
    pub fn is_removed(&self) -> bool {
        self.known().removed
    }

    /// A gateway took a check-in that was sent at `sent`.
    pub fn accepted(&self, sent: Instant) {
        let mut known = self.known();
        known.accepted_at = known.accepted_at.max(Some(sent));
        drop(known);
        self.heard.notify_waiters();
    }

    /// Resolves once a gateway took a check-in in this life; at once for a fleet of one.
    pub async fn heard(&self) {
        loop {
            let told = self.heard.notified();
            if self.alone || self.known().accepted_at.is_some() {
                return;
            }
            told.await;
        }
    }

    /// Why this node takes no new space now, if it does not.
    pub fn refuses_creates(&self, now: Instant) -> Option<Error> {
        if self.alone {
            return None;
        }
        let accepted_at = self.known().accepted_at;
        let age = accepted_at.map(|at| now.saturating_duration_since(at));
        let heard = match age {
            Some(age) if age <= self.interval * 2 => return None,
            Some(age) => format!("no gateway has taken a check-in of this node for {} ms", age.as_millis()),
            None => "no gateway has taken a check-in of this node since it started".to_owned(),
        };
        let message =
            format!("{heard}; it builds no new space until one does, because the fleet may have moved on");
        Some(Error::new(Code::FleetStarting, message))
    }

    /// Keeps a configuration, unless it is older than the one held or another fleet's.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn take_bundle(&self, ledger: &Ledger, bundle: Bundle) -> Result<(), ledger::Error> {
        if !newer_bundle(self.known().bundle.as_ref(), &bundle) {
            return Ok(());
        }
        ledger.set_bundle(&bundle).await?;
        tracing::info!(authority = %bundle.authority_id, version = bundle.version, "configuration taken");
        self.known().bundle = Some(bundle);
        self.configured.notify_waiters();
        Ok(())
    }

    /// Keeps a roster, unless it is older than the one held or another fleet's.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn take_roster(&self, ledger: &Ledger, roster: Roster) -> Result<(), ledger::Error> {
        let _taking = self.taking.lock().await;
        if !newer_roster(self.known().roster.as_ref().map(|kept| &kept.roster), &roster) {
            return Ok(());
        }
        ledger.set_roster(&roster).await?;
        let removed = roster.removed.contains(&self.ledger_id);
        self.hold(roster);
        if removed {
            self.set_removed(ledger, true).await?;
        }
        Ok(())
    }

    fn hold(&self, roster: Roster) {
        let mut known = self.known();
        known.roster = Some(KeptRoster::of(roster));
        known.roster_since = Some(Instant::now());
    }

    /// Keeps whether the fleet removed this node. Answers whether that changed.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn set_removed(&self, ledger: &Ledger, removed: bool) -> Result<bool, ledger::Error> {
        if self.is_removed() == removed {
            return Ok(false);
        }
        ledger.set_removed(removed).await?;
        self.known().removed = removed;
        if removed {
            tracing::warn!("the fleet removed this node: its spaces freeze and wait until it is readmitted");
        } else {
            tracing::info!("the fleet readmitted this node: its spaces serve again");
        }
        Ok(true)
    }

    /// Why spaces of this node cannot be used now, if they cannot.
    pub fn refuses_use(&self) -> Option<Error> {
        self.is_removed().then(|| {
            Error::new(
                Code::SpaceSuspended,
                "this node was removed from its fleet; its spaces stay frozen until `readmitNode` takes it back",
            )
        })
    }
}

impl Roll for Fleet {
    fn is_asked(&self) -> bool {
        !self.alone
    }

    fn member_since(&self, ledger: &LedgerId) -> Option<Instant> {
        let known = self.known();
        let roster = known.roster.as_ref()?;
        known.roster_since.filter(|_| roster.roster.nodes.iter().any(|node| node.ledger_id == *ledger))
    }

    fn interval(&self) -> Duration {
        self.interval
    }
}

fn newer_bundle(held: Option<&Bundle>, offered: &Bundle) -> bool {
    match held {
        Some(held) if held.authority_id != offered.authority_id => {
            tracing::warn!(held = %held.authority_id, offered = %offered.authority_id, "configuration of another authority refused");
            false
        }
        Some(held) => offered.version > held.version,
        None => true,
    }
}

fn newer_roster(held: Option<&Roster>, offered: &Roster) -> bool {
    match held {
        Some(held) if held.fleet_id != offered.fleet_id => {
            tracing::warn!(held = %held.fleet_id, offered = %offered.fleet_id, "roster of another fleet refused");
            false
        }
        Some(held) => offered.version > held.version,
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> drowse_shared::id::FleetId {
        format!("{n:032x}").parse().expect("hex")
    }

    #[test]
    fn only_a_newer_one_of_the_same_fleet_is_taken() {
        let bundle = |n, version| Bundle {
            authority_id: id(n),
            version,
            settings: Settings::default(),
            domains: Arc::default(),
        };
        let roster = |n, version| Roster { fleet_id: id(n), version, nodes: Vec::new(), removed: Vec::new() };
        let cases = [
            (None, (1, 1), true),
            (Some((1, 2)), (1, 1), false),
            (Some((1, 2)), (1, 2), false),
            (Some((1, 2)), (1, 3), true),
            (Some((1, 2)), (2, 9), false),
        ];
        for (held, offered, taken) in cases {
            let (n, v) = offered;
            assert_eq!(
                newer_bundle(held.map(|(n, v)| bundle(n, v)).as_ref(), &bundle(n, v)),
                taken,
                "{held:?} {offered:?}"
            );
            assert_eq!(
                newer_roster(held.map(|(n, v)| roster(n, v)).as_ref(), &roster(n, v)),
                taken,
                "{held:?} {offered:?}"
            );
        }
    }

    fn fleet(alone: bool) -> Fleet {
        Fleet {
            ledger_id: format!("{:032x}", 1).parse().expect("hex"),
            alone,
            interval: Duration::from_secs(5),
            known: Mutex::default(),
            taking: tokio::sync::Mutex::default(),
            configured: Notify::new(),
            heard: Notify::new(),
        }
    }

    #[test]
    fn a_removed_node_lets_nobody_use_its_spaces() {
        let fleet = fleet(false);
        assert!(fleet.refuses_use().is_none());
        fleet.known().removed = true;
        assert_eq!(fleet.refuses_use().map(|error| error.code), Some(Code::SpaceSuspended));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_lost_its_gateways_builds_nothing() {
        assert!(fleet(true).refuses_creates(Instant::now()).is_none(), "alone");
        let fleet = fleet(false);
        let t0 = Instant::now();
        assert!(fleet.refuses_creates(t0).is_some(), "never heard");
        fleet.accepted(t0);
        assert!(fleet.refuses_creates(t0 + Duration::from_secs(10)).is_none());
        let refused = fleet.refuses_creates(t0 + Duration::from_secs(11)).expect("too old");
        assert_eq!(refused.retry_after_seconds, Some(5));
    }
}
