//! The fleet's configuration: one bundle with a version, handed to every node whose copy is older. Pure.

use std::sync::Arc;

use drowse_shared::{
    api::{
        Code, Error,
        domains::{Binding, DOMAINS_MAX, Domains},
        nodes::{Bundle, CheckIn, Settings},
    },
    domain::Domain,
    id::FleetId,
};

/// The first configuration of a new fleet.
pub(crate) fn first(fleet_id: FleetId) -> Bundle {
    Bundle { authority_id: fleet_id, version: 1, settings: Settings::default(), domains: Arc::default() }
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

/// Has a domain lead somewhere, unless it leads to another space. Answers how it is bound now, and whether it was: asked
/// again, nothing changes but the port.
pub(crate) fn bind(
    domains: &mut Domains,
    domain: Domain,
    binding: Binding,
) -> Result<(Binding, bool), Error> {
    let full = domains.len() >= DOMAINS_MAX;
    match domains.get_mut(&domain) {
        Some(known) if known.space_id != binding.space_id => {
            let id = known.space_id;
            let message =
                format!("{domain} leads to the space {id}; unbind it first, if that is no longer meant");
            Err(Error::new(Code::DomainTaken, message).with("spaceId", id.to_string()))
        }
        Some(known) => {
            known.port = binding.port;
            Ok((*known, true))
        }
        None if full => {
            let message = format!("{DOMAINS_MAX} domains lead to spaces, as many as may; unbind some");
            Err(Error::new(Code::TooManyDomains, message))
        }
        None => {
            domains.insert(domain, binding);
            Ok((binding, false))
        }
    }
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

    #[test]
    fn a_domain_leads_to_one_space_until_it_is_unbound() {
        let id = |n: u64| format!("{n:032x}").parse().expect("an id");
        let domain = |text: &str| text.parse::<Domain>().expect("a domain");
        let at = |seconds| jiff::Timestamp::from_second(seconds).expect("a time");
        let to = |n, port, seconds| Binding { space_id: id(n), port, bound_at: at(seconds) };
        let mut domains = Domains::new();
        assert_eq!(bind(&mut domains, domain("a.b"), to(1, 80, 1)), Ok((to(1, 80, 1), false)));
        assert_eq!(bind(&mut domains, domain("a.b"), to(1, 80, 2)), Ok((to(1, 80, 1), true)), "said again");
        assert_eq!(bind(&mut domains, domain("A.B"), to(1, 81, 3)), Ok((to(1, 81, 1), true)), "another port");
        let taken = bind(&mut domains, domain("a.b"), to(2, 80, 4)).expect_err("taken");
        assert_eq!((taken.code, &taken.details["spaceId"]), (Code::DomainTaken, &id(1).to_string().into()));
        domains.remove("a.b");
        assert_eq!(bind(&mut domains, domain("a.b"), to(2, 80, 5)), Ok((to(2, 80, 5), false)));
        for n in domains.len()..DOMAINS_MAX {
            bind(&mut domains, domain(&format!("d{n}.b")), to(1, 80, 6)).expect("room");
        }
        let full = bind(&mut domains, domain("one-more.b"), to(1, 80, 7)).expect_err("full");
        assert_eq!(full.code, Code::TooManyDomains);
        assert!(bind(&mut domains, domain("a.b"), to(2, 82, 8)).is_ok(), "what is there may change");
    }
}
