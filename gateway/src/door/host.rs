//! What the `Host` of a request asks for: this door, or a port of a space. Pure.

use drowse_shared::{
    api::domains::DEFAULT_PORT as PORT,
    domain::{CHARACTERS_MAX, LABEL_MAX, is_label},
    id::SpaceId,
    name::SpaceRef,
};

/// Names under the domain that are no spaces.
const RESERVED: [&str; 12] =
    ["admin", "api", "app", "console", "docs", "dormice", "e2b", "gateway", "mcp", "node", "sandbox", "www"];

/// Longest domain that leaves room for a label before it.
const DOMAIN_MAX: usize = CHARACTERS_MAX - LABEL_MAX - 1;

/// What a host asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// This gateway's own verbs.
    Door,
    /// Something that is not under the domain: an address, a name of this machine, or one that is bound to a space.
    Elsewhere,
    /// A port of a space.
    Port {
        /// Of which.
        space: SpaceRef,
        /// Which.
        port: u16,
    },
    /// Something under the domain that can be no space: nested, too long, a port that is none.
    Nothing,
}

/// Reads a `Host` header or the authority of a target.
pub(crate) fn asked(host: &str, domain: Option<&str>) -> Asked {
    let Some(domain) = domain else { return Asked::Elsewhere };
    let host = plain(host);
    if host == domain {
        return Asked::Door;
    }
    let Some(label) = host.strip_suffix(domain).and_then(|rest| rest.strip_suffix('.')) else {
        return Asked::Elsewhere;
    };
    if RESERVED.contains(&label) {
        return Asked::Door;
    }
    if !is_label(label) {
        return Asked::Nothing;
    }
    let digits = label.bytes().take_while(u8::is_ascii_digit).count();
    match label[digits..].strip_prefix('-') {
        Some(rest) if digits > 0 => numbered(&label[..digits], rest),
        _ => match label.parse::<SpaceRef>() {
            Ok(space) => Asked::Port { space, port: PORT },
            Err(_) => Asked::Nothing,
        },
    }
}

/// `<port>-<id>`, and what E2B may write after it: `-<client id>`.
fn numbered(port: &str, rest: &str) -> Asked {
    let id = rest.split('-').next().unwrap_or(rest);
    match (port.parse::<u16>(), id.parse::<SpaceId>()) {
        (Ok(port @ 1..), Ok(id)) => Asked::Port { space: SpaceRef::Id(id), port },
        _ => Asked::Nothing,
    }
}

/// Whether spaces can have hosts under it.
pub(crate) fn is_domain(domain: &str) -> bool {
    domain.len() <= DOMAIN_MAX && domain.split('.').all(is_label)
}

/// The name alone: without port, without the dot of the root, in lower case.
pub(crate) fn plain(host: &str) -> String {
    without_port(host).trim_end_matches('.').to_ascii_lowercase()
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drowse_shared::name::SpaceName;
    use proptest::prelude::*;

    const ID: &str = "0190f0c2a4b87c3d9e0f112233445566";

    fn port(space: &str, port: u16) -> Asked {
        Asked::Port { space: space.parse().expect("a space"), port }
    }

    #[test]
    fn a_host_asks_for_the_door_a_port_or_nothing() {
        let long = "a".repeat(64);
        for (host, expected) in [
            ("127.0.0.1:4677", Asked::Elsewhere),
            ("[::1]:4677", Asked::Elsewhere),
            ("example.com", Asked::Door),
            ("EXAMPLE.com:443", Asked::Door),
            ("api.example.com", Asked::Door),
            ("notexample.com", Asked::Elsewhere),
            ("example.com.evil.net", Asked::Elsewhere),
            ("", Asked::Elsewhere),
            (&format!("8000-{ID}.example.com"), port(ID, 8000)),
            (&format!("8000-{ID}.Example.COM.:8443"), port(ID, 8000)),
            (&format!("8000-{ID}-6532622b.example.com"), port(ID, 8000)),
            (&format!("0-{ID}.example.com"), Asked::Nothing),
            (&format!("65536-{ID}.example.com"), Asked::Nothing),
            (&format!("8000-{ID}0.example.com"), Asked::Nothing),
            ("8000-shop.example.com", Asked::Nothing),
            ("shop.example.com", port("shop", PORT)),
            ("Shop.example.com", port("shop", PORT)),
            ("shop-2.example.com", port("shop-2", PORT)),
            ("2shop.example.com", port("2shop", PORT)),
            (&format!("{ID}.example.com"), port(ID, PORT)),
            ("a.shop.example.com", Asked::Nothing),
            ("-shop.example.com", Asked::Nothing),
            ("shop-.example.com", Asked::Nothing),
            ("sh_op.example.com", Asked::Nothing),
            (".example.com", Asked::Nothing),
            (&format!("{long}.example.com"), Asked::Nothing),
            ("käse.example.com", Asked::Nothing),
        ] {
            assert_eq!(asked(host, Some("example.com")), expected, "{host}");
            assert_eq!(asked(host, None), Asked::Elsewhere, "{host} without a domain");
        }
    }

    proptest! {
        #[test]
        fn nothing_that_is_written_makes_it_fall(host in ".*") {
            let _ = asked(&host, Some("example.com"));
            let _ = asked(&format!("{host}.example.com"), Some("example.com"));
        }

        #[test]
        fn every_name_that_is_a_label_is_reached_by_it(name in "[a-z][a-z0-9]{0,20}") {
            let reached = asked(&format!("{name}.example.com"), Some("example.com"));
            let reserved = RESERVED.contains(&name.as_str());
            let space: SpaceName = name.parse().expect("a name");
            let expected = Asked::Port { space: SpaceRef::Name(space), port: PORT };
            prop_assert!(reserved || reached == expected);
        }
    }
}
