//! What a check-in means: a pure function of what was said, what the roster knows, and how long ago each ledger was
//! heard.

use std::time::Duration;

use drowse_shared::{
    api::{Code, Error, nodes::CheckIn},
    id::{FleetId, LedgerId},
};

use super::roster::Members;

/// Intervals a node may miss before it reads as down.
pub(crate) const MISSED_MAX: u32 = 2;

/// How long ago a ledger was heard, and how often it says it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Age {
    /// Since its last check-in.
    pub(crate) since: Duration,
    /// Between its check-ins.
    pub(crate) interval: Duration,
}

impl Age {
    /// Whether it has not yet missed two intervals.
    pub(crate) fn is_live(self) -> bool {
        self.since <= self.interval * MISSED_MAX
    }
}

/// What an acceptable check-in means for the roster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Its ledger was removed.
    Removed,
    /// A member, as known.
    Same,
    /// A member at another endpoint.
    Moved {
        /// Where it was.
        from: String,
    },
    /// A member that an operator calls otherwise now.
    Renamed {
        /// What it was called.
        from: String,
    },
    /// A node this fleet did not have.
    Joined,
}

/// Judges a check-in against the newest roster.
///
/// # Errors
/// `foreign_fleet`, `node_twin` and `node_moved`, each naming both sides.
pub(crate) fn judge(
    said: &CheckIn,
    ours: &Members,
    age: impl Fn(&LedgerId) -> Option<Age>,
) -> Result<Meaning, Error> {
    foreign(said, ours.fleet_id)?;
    if ours.is_removed(&said.ledger_id) {
        return Ok(Meaning::Removed);
    }
    if let Some(holder) = ours.called(&said.node_id).filter(|holder| holder.ledger != said.ledger_id) {
        let seen = match age(&holder.ledger) {
            Some(age) if age.is_live() => format!("checked in {} s ago", age.since.as_secs()),
            Some(age) => format!("has been silent for {} s and may hold spaces", age.since.as_secs()),
            None => "has not been heard since this gateway started and may hold spaces".to_owned(),
        };
        return Err(Error::new(
            Code::NodeTwin,
            format!(
                "node {id} is the ledger {first} at {at}, which {seen}; this one is the ledger {second} at {from}. \
                 Give this daemon another DROWSE_NODE_ID, or, if the first is gone for good, removeNode {id}",
                id = said.node_id,
                first = holder.ledger,
                at = holder.endpoint,
                second = said.ledger_id,
                from = said.endpoint,
            ),
        )
        .with("ledgers", vec![holder.ledger.to_string(), said.ledger_id.to_string()])
        .with("endpoints", vec![holder.endpoint.to_string(), said.endpoint.clone()]));
    }
    let Some(known) = ours.get(&said.ledger_id) else { return Ok(Meaning::Joined) };
    let age = age(&said.ledger_id);
    if known.id != said.node_id {
        if age.is_some_and(Age::is_live) {
            return Err(Error::new(
                Code::NodeTwin,
                format!(
                    "the ledger {} is already node {} at {}; one daemon under two ids. Keep DROWSE_NODE_ID={}, or \
                     wait two check-in intervals to rename it",
                    said.ledger_id, known.id, known.endpoint, known.id
                ),
            )
            .with("nodes", vec![known.id.to_string(), said.node_id.to_string()]));
        }
        return Ok(Meaning::Renamed { from: known.id.to_string() });
    }
    if *known.endpoint != *said.endpoint {
        if age.is_some_and(|age| age.since < age.interval) {
            return Err(Error::new(
                Code::NodeMoved,
                format!(
                    "node {} checked in from {} a moment ago and now says {}; if two daemons share its state or its \
                     DROWSE_NODE_ID, stop one; if it moved, the next check-in after one interval is taken",
                    said.node_id, known.endpoint, said.endpoint
                ),
            )
            .with("endpoints", vec![known.endpoint.to_string(), said.endpoint.clone()]));
        }
        return Ok(Meaning::Moved { from: known.endpoint.to_string() });
    }
    Ok(Meaning::Same)
}

/// Refuses a node of another fleet.
pub(crate) fn foreign(said: &CheckIn, ours: FleetId) -> Result<(), Error> {
    let roster = said.roster.as_ref().map(|roster| roster.fleet_id);
    let copy = said.roster_copy.as_ref().map(|roster| roster.fleet_id);
    let authority = said.bundle.map(|bundle| bundle.authority_id);
    match roster.into_iter().chain(copy).chain(authority).find(|theirs| *theirs != ours) {
        None => Ok(()),
        Some(theirs) => Err(Error::new(
            Code::ForeignFleet,
            format!(
                "node {} belongs to the fleet {theirs}, this gateway to the fleet {ours}. Point DROWSE_GATEWAY at its own \
                 gateway, or give the node a fresh DROWSE_STATE to make it a new node of this fleet",
                said.node_id
            ),
        )
        .with("fleets", vec![theirs.to_string(), ours.to_string()])),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use drowse_shared::api::nodes::{Build, BundleVersion, Roster, WIRE_VERSION};

    pub(crate) fn ledger(n: u8) -> LedgerId {
        format!("{n:032x}").parse().expect("an id")
    }

    pub(crate) fn check_in(id: &str, n: u8, endpoint: &str) -> CheckIn {
        CheckIn {
            node_id: id.parse().expect("an id"),
            ledger_id: ledger(n),
            boot: format!("{n:032x}").parse().expect("an id"),
            endpoint: endpoint.to_owned(),
            region: None,
            build: Build::unreleased(),
            wire_min: WIRE_VERSION,
            wire_max: WIRE_VERSION,
            interval_ms: 5000,
            reading: None,
            bundle: None,
            bundle_copy: None,
            draining: false,
            roster: None,
            roster_copy: None,
            removed: false,
            upgrade: None,
        }
    }

    fn ours() -> Members {
        let mut ours = Members::of_new_fleet(format!("{:032x}", 1).parse().expect("an id"));
        for (id, n, endpoint) in [("a", 10, "http://a"), ("b", 11, "http://b")] {
            ours.put(1, id.parse().expect("an id"), ledger(n), endpoint);
        }
        ours.remove(4, ledger(12));
        ours
    }

    fn seconds(since: u64) -> impl Fn(&LedgerId) -> Option<Age> {
        move |_| Some(Age { since: Duration::from_secs(since), interval: Duration::from_secs(5) })
    }

    #[test]
    fn check_ins_are_judged_by_ledger_id_and_endpoint() {
        type Expected = Result<Meaning, Code>;
        let moved = || Ok(Meaning::Moved { from: "http://a".into() });
        let cases: Vec<(&str, u8, &str, Option<u64>, Expected)> = vec![
            ("a", 10, "http://a", Some(1), Ok(Meaning::Same)),
            ("a", 10, "http://a", Some(9999), Ok(Meaning::Same)),
            ("a", 10, "http://a", None, Ok(Meaning::Same)),
            ("c", 13, "http://c", Some(1), Ok(Meaning::Joined)),
            ("c", 13, "http://a", Some(1), Ok(Meaning::Joined)),
            ("a", 13, "http://c", Some(1), Err(Code::NodeTwin)),
            ("a", 13, "http://c", Some(99), Err(Code::NodeTwin)),
            ("a", 13, "http://c", None, Err(Code::NodeTwin)),
            ("a", 10, "http://c", Some(4), Err(Code::NodeMoved)),
            ("a", 10, "http://c", Some(5), moved()),
            ("a", 10, "http://c", None, moved()),
            ("c", 10, "http://a", Some(10), Err(Code::NodeTwin)),
            ("c", 10, "http://a", Some(11), Ok(Meaning::Renamed { from: "a".into() })),
            ("b", 10, "http://a", Some(99), Err(Code::NodeTwin)),
            ("a", 12, "http://z", Some(1), Ok(Meaning::Removed)),
            ("z", 12, "http://z", None, Ok(Meaning::Removed)),
        ];
        for (id, n, endpoint, heard, expected) in cases {
            let said = check_in(id, n, endpoint);
            let got = match heard {
                Some(since) => judge(&said, &ours(), seconds(since)),
                None => judge(&said, &ours(), |_| None),
            };
            assert_eq!(got.map_err(|e| e.code), expected, "{id} {n} {endpoint} {heard:?}");
        }
    }

    #[test]
    fn refusals_name_both_sides() {
        let twin = judge(&check_in("a", 13, "http://c"), &ours(), seconds(1)).expect_err("a twin").message;
        for part in ["http://a", "http://c", &ledger(10).to_string(), &ledger(13).to_string()] {
            assert!(twin.contains(part), "{twin}");
        }
        let moved = judge(&check_in("a", 10, "http://c"), &ours(), seconds(1)).expect_err("moved").message;
        assert!(moved.contains("http://a") && moved.contains("http://c"), "{moved}");
    }

    #[test]
    fn nodes_of_another_fleet_are_refused() {
        let other = format!("{:032x}", 2).parse().expect("an id");
        let mut said = check_in("c", 13, "http://c");
        said.bundle = Some(BundleVersion { authority_id: other, version: 1 });
        assert_eq!(judge(&said, &ours(), |_| None).map_err(|e| e.code), Err(Code::ForeignFleet));
        said.bundle = None;
        let theirs = Roster { fleet_id: other, version: 1, nodes: Vec::new(), removed: Vec::new() };
        said.roster = Some(theirs.identity());
        assert_eq!(judge(&said, &ours(), |_| None).map_err(|e| e.code), Err(Code::ForeignFleet));
        said.roster = None;
        said.roster_copy = Some(theirs);
        assert_eq!(judge(&said, &ours(), |_| None).map_err(|e| e.code), Err(Code::ForeignFleet));
    }

    #[test]
    fn two_missed_intervals_read_as_down() {
        let age = |ms| Age { since: Duration::from_millis(ms), interval: Duration::from_secs(5) };
        assert!(age(10_000).is_live());
        assert!(!age(10_001).is_live());
    }
}
