//! How far a node is with the gateway's build, and whose turn it is. Pure functions of what is kept, what nodes said,
//! and the clock.

use std::{cmp::Ordering, env::consts::ARCH, fmt, time::Duration};

use drowse_shared::api::{
    nodes::Build,
    upgrade::{Progress, SelfUpgrade, UpgradeState},
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How long a node that was told may take: fetching a release, installing packages, a walk through a large ledger.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20 * 60);

/// What a node was told, and when. Kept, so that it is told once whatever happens to the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Told {
    /// By the gateway's clock.
    pub(crate) at: Timestamp,
    /// The build it ran then.
    pub(crate) ran: Build,
    /// The build it was told to take.
    pub(crate) takes: Build,
}

/// What is known of a node.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Facts<'a> {
    /// The build it last said it runs; none when this gateway has not heard it.
    pub(crate) build: Option<&'a Build>,
    /// Whether it checks in.
    pub(crate) live: bool,
    /// What it was told, if it was.
    pub(crate) told: Option<&'a Told>,
    /// What it says of its own upgrades.
    pub(crate) says: Option<&'a SelfUpgrade>,
}

impl Facts<'_> {
    /// Whether its installer has ended, whatever came of it. That of one that is merely late may be at work.
    pub(crate) fn has_ended(&self) -> bool {
        let last = self.says.and_then(|says| says.last.as_ref());
        self.told
            .zip(last)
            .is_some_and(|(told, last)| last.tell.at == told.at && last.state != Progress::Running)
    }

    /// Whether it has moved on since it was told: nothing is left to wait for.
    pub(crate) fn has_moved(&self) -> bool {
        self.told.is_some_and(|told| self.build.is_some_and(|build| *build != told.ran))
    }
}

/// How far a node is, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict<'a> {
    /// How far.
    pub(crate) state: UpgradeState,
    /// Why, where the state alone does not say it.
    pub(crate) why: Option<Why<'a>>,
}

impl Verdict<'_> {
    /// Whether a roll has nothing to wait for: it is there, or will never go by itself.
    pub(crate) fn is_settled(&self) -> bool {
        let lives_its_own_life = self.state == UpgradeState::Unavailable
            || matches!(self.why, Some(Why::Unreleased | Why::NoRelease));
        self.state.is_there() || lives_its_own_life
    }
}

/// Why a node is in its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why<'a> {
    /// The gateway was started from no release.
    NoRelease,
    /// The node runs no release.
    Unreleased,
    /// This gateway has not heard it.
    Unheard,
    /// It missed its check-ins.
    Down,
    /// Its installer failed.
    Failed(Option<&'a str>),
    /// Its installer gave way to the build before.
    RolledBack(Option<&'a str>),
    /// It did not get there in time.
    Late,
    /// It cannot take a build by itself.
    Unable(&'a str),
    /// What the gateway runs does not run there.
    OtherArch(&'a str),
    /// It is too old to be told.
    Deaf,
}

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |f: &mut fmt::Formatter<'_>, error: Option<&str>| match error {
            Some(error) => write!(f, ": {error}"),
            None => Ok(()),
        };
        match self {
            Self::NoRelease => f.write_str("the gateway was not started from a release"),
            Self::Unreleased => f.write_str("the two builds do not say which is newer"),
            Self::Unheard => f.write_str("it has not been heard since this gateway started"),
            Self::Down => f.write_str("it does not check in"),
            Self::Failed(error) => {
                f.write_str("its installer failed")?;
                said(f, *error)
            }
            Self::RolledBack(error) => {
                f.write_str("the new build gave way to the one before")?;
                said(f, *error)
            }
            Self::Late => write!(f, "it was told {} minutes ago or more", PATIENCE.as_secs() / 60),
            Self::Unable(why) => f.write_str(why),
            Self::OtherArch(arch) => {
                write!(f, "it is {arch} and the gateway is {ARCH}; run install.sh of a release for it there")
            }
            Self::Deaf => f.write_str("its build cannot be told; run install.sh there"),
        }
    }
}

/// How far a node is. The first rule that fits decides.
pub(crate) fn judge<'a>(ours: &Build, node: Facts<'a>, now: Timestamp) -> Verdict<'a> {
    use UpgradeState::{Ahead, Behind, Current, Stuck, Unavailable, Unknown, Unreachable, Upgrading};
    let plain = |state| Verdict { state, why: None };
    let because = |state, why| Verdict { state, why: Some(why) };
    let there = |state| if node.live { plain(state) } else { because(Unreachable, Why::Down) };
    let order = node.build.and_then(|build| build.order(ours));
    let told = node.told.map(|told| {
        let last = node.says.and_then(|says| says.last.as_ref()).filter(|last| last.tell.at == told.at);
        // Nobody's clock but ours; one that was set far back made nobody late, but nobody would ever be.
        let age = now.duration_since(told.at);
        (last, age.unsigned_abs() >= PATIENCE)
    });
    // The new build may check in before its installer has seen it healthy, and may have to give way yet.
    if let Some((Some(last), late)) = told
        && last.state == Progress::Running
    {
        return if late { because(Stuck, Why::Late) } else { plain(Upgrading) };
    }
    match order {
        Some(Ordering::Equal) => return there(Current),
        Some(Ordering::Greater) => return there(Ahead),
        Some(Ordering::Less) | None => {}
    }
    if let Some((last, late)) = told.filter(|_| !node.has_moved()) {
        let unable = node.says.and_then(|says| says.unavailable.as_deref());
        return match (last.map(|last| (last.state, last.error.as_deref())), unable) {
            (Some((Progress::Failed, error)), _) => because(Stuck, Why::Failed(error)),
            (Some((Progress::RolledBack, error)), _) => because(Stuck, Why::RolledBack(error)),
            (_, Some(unable)) => because(Stuck, Why::Unable(unable)),
            _ if late => because(Stuck, Why::Late),
            _ => plain(Upgrading),
        };
    }
    let Some(_) = ours.committed_at else { return because(Unknown, Why::NoRelease) };
    let Some(_) = node.build else { return because(Unknown, Why::Unheard) };
    let Some(_) = order else { return because(Unknown, Why::Unreleased) };
    if !node.live {
        return because(Unreachable, Why::Down);
    }
    let Some(says) = node.says else { return because(Unavailable, Why::Deaf) };
    if says.last.as_ref().is_some_and(|last| last.state == Progress::Running) {
        return plain(Upgrading);
    }
    match &says.unavailable {
        Some(why) => because(Unavailable, Why::Unable(why)),
        None if !says.arch.is_empty() && says.arch != ARCH => {
            because(Unavailable, Why::OtherArch(&says.arch))
        }
        None => plain(Behind),
    }
}

/// Whose turn it is, of all nodes in the order of the roll: the first that is behind, while nobody is at it. One that is
/// stuck holds the others up: what failed on one machine is not tried on the next before a person has looked.
pub(crate) fn turn<K>(line: impl IntoIterator<Item = (K, UpgradeState)>) -> Option<K> {
    let mut first = None;
    for (node, state) in line {
        match state {
            UpgradeState::Upgrading | UpgradeState::Stuck => return None,
            UpgradeState::Behind if first.is_none() => first = Some(node),
            _ => {}
        }
    }
    first
}

#[cfg(test)]
mod tests;
