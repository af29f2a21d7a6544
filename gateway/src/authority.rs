//! The fleet's configuration: one bundle with a version, handed to every node whose copy is older. Pure.

use drowse_shared::{
    api::nodes::{Bundle, CheckIn, Settings},
    id::FleetId,
};

/// The first configuration of a new fleet.
pub(crate) fn first(fleet_id: FleetId) -> Bundle {
    Bundle { authority_id: fleet_id, version: 1, settings: Settings::default() }
}

/// What a check-in means for the configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Exchange {
    /// What the gateway holds from now on, when the node brought something newer.
    pub(crate) adopt: Option<Box<Bundle>>,
    /// Whether the node shall have ours.
    pub(crate) hand_out: bool,
    /// Whether the node shall send its own, because it is newer and we have not seen it.
    pub(crate) want: bool,
}

/// Compares the node's copy with ours. The fleets are known to be the same.
pub(crate) fn exchange(ours: Option<&Bundle>, said: &CheckIn) -> Exchange {
    let held = ours.map_or(0, |bundle| bundle.version);
    let adopt = said.bundle_copy.clone().filter(|copy| copy.version > held);
    let held = adopt.as_ref().map_or(held, |copy| copy.version);
    let theirs = said.bundle.map_or(0, |bundle| bundle.version);
    Exchange { adopt: adopt.map(Box::new), hand_out: theirs < held, want: theirs > held }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::check_in_for_tests as check_in;
    use drowse_shared::api::nodes::BundleVersion;

    #[test]
    fn the_newest_copy_wins_in_both_directions() {
        let fleet: FleetId = format!("{:032x}", 1).parse().expect("an id");
        let bundle = |version| Bundle { version, ..first(fleet) };
        // ours, what the node says it holds, what it sends -> (adopted, hand out, want)
        let cases = [
            (None, None, None, (None, false, false)),
            (Some(1), None, None, (None, true, false)),
            (Some(1), Some(1), None, (None, false, false)),
            (Some(2), Some(1), None, (None, true, false)),
            (None, Some(3), None, (None, false, true)),
            (Some(1), Some(3), None, (None, false, true)),
            (None, Some(3), Some(3), (Some(3), false, false)),
            (Some(4), Some(3), Some(3), (None, true, false)),
        ];
        for (ours, holds, sends, expected) in cases {
            let mut said = check_in("a", 1, "http://a");
            said.bundle = holds.map(|version| BundleVersion { authority_id: fleet, version });
            said.bundle_copy = sends.map(bundle);
            let ours = ours.map(bundle);
            let got = exchange(ours.as_ref(), &said);
            let got = (got.adopt.map(|b| b.version), got.hand_out, got.want);
            assert_eq!(got, expected, "{ours:?} {holds:?} {sends:?}");
        }
    }
}
