use drowse_shared::api::upgrade::{LastUpgrade, Tell};

use super::*;
use UpgradeState::{Ahead, Behind, Current, Stuck, Unavailable, Unknown, Unreachable, Upgrading};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

/// A release of this age.
fn build(second: i64) -> Build {
    Build { version: "1.0.0".to_owned(), commit: Some(second.to_string()), committed_at: Some(at(second)) }
}

fn told(second: i64) -> Told {
    Told { at: at(second), ran: build(1), takes: build(2) }
}

fn able() -> SelfUpgrade {
    SelfUpgrade { arch: ARCH.to_owned(), ..SelfUpgrade::default() }
}

fn unable() -> SelfUpgrade {
    SelfUpgrade { unavailable: Some("no installer".to_owned()), ..able() }
}

/// What a node says of the tell of this second.
fn said(of: i64, state: Progress) -> SelfUpgrade {
    let tell = Tell { build: build(2), at: at(of) };
    SelfUpgrade { last: Some(LastUpgrade { tell, state, error: Some("why".to_owned()) }), ..able() }
}

#[test]
fn every_state_has_its_reason() {
    const NOW: i64 = 100_000;
    let late = NOW - PATIENCE.as_secs().cast_signed();
    let (older, ours, newer) = (build(1), build(2), build(3));
    let (wild, twin) = (Build::unreleased(), Build { commit: Some("else".to_owned()), ..build(2) });
    let (other, able_too) = (Build { commit: None, ..build(1) }, able());
    // What runs, whether it is live, when it was told, what it says: where that leaves it.
    type Case<'a> = (Option<&'a Build>, bool, Option<i64>, Option<SelfUpgrade>, UpgradeState, &'a str);
    let cases: Vec<Case<'_>> = vec![
        (Some(&ours), true, None, Some(able()), Current, ""),
        (Some(&ours), true, None, None, Current, ""),
        (Some(&ours), true, Some(late), Some(unable()), Current, ""),
        (Some(&ours), false, None, Some(able()), Unreachable, "does not check in"),
        (Some(&newer), true, None, Some(able()), Ahead, ""),
        (Some(&newer), true, Some(NOW), Some(able()), Ahead, ""),
        (Some(&newer), false, None, Some(able()), Unreachable, "does not check in"),
        (Some(&older), true, None, Some(able()), Behind, ""),
        (Some(&older), true, None, Some(said(5, Progress::Failed)), Behind, ""),
        (Some(&older), true, None, Some(said(5, Progress::Succeeded)), Behind, ""),
        (Some(&older), true, None, Some(said(5, Progress::Running)), Upgrading, ""),
        (Some(&older), false, None, Some(able()), Unreachable, "does not check in"),
        (Some(&older), false, None, Some(said(5, Progress::Running)), Unreachable, "does not check in"),
        (Some(&older), true, None, Some(unable()), Unavailable, "no installer"),
        (Some(&older), true, None, None, Unavailable, "cannot be told"),
        (
            Some(&older),
            true,
            None,
            Some(SelfUpgrade { arch: "s390x".to_owned(), ..able() }),
            Unavailable,
            "it is s390x",
        ),
        // It was told a moment ago; that it is down is how it installs.
        (Some(&older), true, Some(NOW), Some(able()), Upgrading, ""),
        (Some(&older), false, Some(NOW), Some(able()), Upgrading, ""),
        (Some(&older), true, Some(NOW), Some(unable()), Stuck, "no installer"),
        (Some(&older), true, Some(NOW), None, Upgrading, ""),
        (None, false, Some(NOW), None, Upgrading, ""),
        (Some(&older), true, Some(NOW + 50), Some(able()), Upgrading, ""),
        // A clock that was set far back.
        (Some(&older), true, Some(NOW + 9999), Some(able()), Stuck, "20 minutes"),
        // It runs the new build, and its installer has not seen it healthy yet.
        (Some(&ours), true, Some(NOW), Some(said(NOW, Progress::Running)), Upgrading, ""),
        (Some(&ours), true, Some(NOW), Some(said(NOW, Progress::Succeeded)), Current, ""),
        (Some(&ours), true, Some(late), Some(said(late, Progress::Running)), Stuck, "20 minutes"),
        (Some(&ours), true, Some(late), Some(said(late, Progress::Succeeded)), Current, ""),
        (Some(&older), true, Some(late + 1), Some(said(late + 1, Progress::Running)), Upgrading, ""),
        (Some(&older), true, Some(late + 1), Some(said(late + 1, Progress::Succeeded)), Upgrading, ""),
        (Some(&older), true, Some(late), Some(said(late, Progress::Running)), Stuck, "20 minutes"),
        (Some(&older), true, Some(late), Some(able()), Stuck, "20 minutes"),
        (Some(&older), false, Some(late), Some(able()), Stuck, "20 minutes"),
        (None, false, Some(late), None, Stuck, "20 minutes"),
        // How it failed counts at once, and only of what it was told last.
        (Some(&older), true, Some(NOW), Some(said(NOW, Progress::Failed)), Stuck, "failed: why"),
        (Some(&older), true, Some(NOW), Some(said(NOW, Progress::RolledBack)), Stuck, "gave way"),
        (Some(&older), true, Some(NOW), Some(said(NOW - 1, Progress::Failed)), Upgrading, ""),
        // It took what it was told, and something newer was released meanwhile.
        (Some(&other), true, Some(NOW), Some(able()), Behind, ""),
        (None, false, None, None, Unknown, "not been heard"),
        (Some(&wild), true, None, Some(able()), Unknown, "do not say"),
        (Some(&wild), false, None, Some(able()), Unknown, "do not say"),
        (Some(&twin), true, None, Some(able()), Unknown, "do not say"),
    ];
    let mut seen = Vec::new();
    for (build, live, when, says, state, why) in cases {
        let told = when.map(told);
        let node = Facts { build, live, told: told.as_ref(), says: says.as_ref() };
        let verdict = judge(&ours, node, at(NOW));
        assert_eq!(verdict.state, state, "{node:?}");
        let shown = verdict.why.map(|why| why.to_string()).unwrap_or_default();
        assert!(
            shown.contains(why) && shown.is_empty() == why.is_empty(),
            "{node:?}: {shown:?}, not {why:?}"
        );
        seen.push(state);
    }
    for state in [Current, Ahead, Behind, Upgrading, Stuck, Unreachable, Unavailable, Unknown] {
        assert!(seen.contains(&state), "{state:?} is in no case");
    }
    let verdict =
        judge(&wild, Facts { build: Some(&older), live: true, told: None, says: Some(&able_too) }, at(NOW));
    assert_eq!((verdict.state, verdict.why), (Unknown, Some(Why::NoRelease)));
}

#[test]
fn the_first_that_is_behind_has_its_turn_while_nobody_is_at_it() {
    for (line, turn_of) in [
        (&[Current, Behind, Behind][..], Some(1)),
        (&[Unreachable, Unavailable, Unknown, Ahead, Behind], Some(4)),
        (&[Behind, Upgrading], None),
        (&[Behind, Stuck], None),
        (&[Upgrading, Behind], None),
        (&[Current, Ahead, Unreachable], None),
        (&[], None),
    ] {
        assert_eq!(turn(line.iter().copied().enumerate()), turn_of, "{line:?}");
    }
}
