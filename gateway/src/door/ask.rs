//! `GET /ask?domain=HOST`: whether a name leads anywhere, for a proxy on this machine that is about to get a certificate
//! for it. It tells nothing else, wakes nothing, and answers nobody who is not on this machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::extract::{Request, State};
use drowse_shared::{
    api::{Code, Error},
    domain::Domain,
    name::SpaceRef,
    seams::Caller,
};
use http::{HeaderMap, StatusCode};
use percent_encoding::percent_decode_str;
use tokio::time::Instant;

use super::host::{self, Asked};
use crate::{find::verdict::Verdict, service::Gateway};

/// Where it is asked.
pub(super) const PATH: &str = "/ask";
/// How long a "no" is remembered.
const NO_AGE: Duration = Duration::from_secs(2);
/// Most of them.
const NOS_MAX: usize = 4096;
/// Most questions within a second that nodes are asked for.
const LOOKUPS_PER_SECOND: u32 = 50;
const SECOND: Duration = Duration::from_secs(1);
/// Most ports of one space that get a name of their own within a [`DAY`]. Whoever knows the id of one space could ask for
/// 65,535 names, and an authority gives out some fifty certificates for a domain in a week.
const PORTS_MAX: usize = 16;
/// Most spaces whose ports are counted; beyond that nobody's are.
const SPACES_MAX: usize = 65_536;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What was asked lately.
#[derive(Default)]
pub(crate) struct Asks(Mutex<Lately>);

#[derive(Default)]
struct Lately {
    /// Spaces that do not exist, and until when that is believed.
    nos: BTreeMap<SpaceRef, Instant>,
    since: Option<Instant>,
    lookups: u32,
    /// Ports that got a name, by space, and since when they are counted.
    ports: BTreeMap<SpaceRef, BTreeSet<u16>>,
    day: Option<Instant>,
}

impl Lately {
    fn is_no(&self, space: &SpaceRef, now: Instant) -> bool {
        self.nos.get(space).is_some_and(|until| now < *until)
    }

    fn no(&mut self, space: SpaceRef, now: Instant) {
        if self.nos.len() >= NOS_MAX {
            self.nos.retain(|_, until| now < *until);
        }
        // Of a flood of names that do not exist, the first are remembered as well as the last.
        if self.nos.len() < NOS_MAX {
            self.nos.insert(space, now + NO_AGE);
        }
    }

    /// Whether one more port of a space may have a name.
    fn names(&mut self, space: &SpaceRef, port: u16, now: Instant) -> bool {
        if self.day.is_none_or(|since| now.saturating_duration_since(since) >= DAY) {
            (self.day, self.ports) = (Some(now), BTreeMap::new());
        }
        if let Some(ports) = self.ports.get_mut(space) {
            return ports.contains(&port) || (ports.len() < PORTS_MAX && ports.insert(port));
        }
        if self.ports.len() < SPACES_MAX {
            self.ports.insert(space.clone(), BTreeSet::from([port]));
        }
        true
    }

    /// Whether nodes may be asked now.
    fn admit(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= SECOND) {
            (self.since, self.lookups) = (Some(now), 0);
        }
        self.lookups += 1;
        self.lookups <= LOOKUPS_PER_SECOND
    }
}

impl Asks {
    fn lately(&self) -> MutexGuard<'_, Lately> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many names are remembered that do not exist.
    pub(crate) fn len(&self) -> usize {
        self.lately().nos.len()
    }
}

/// What a name means, before any space is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    /// It leads here.
    Known,
    /// It leads to this port of this space, if there is one.
    Space(SpaceRef, u16),
    /// It may be bound to a space.
    Bound(Domain),
    /// It leads nowhere.
    Nothing,
}

/// Reads the name as a certificate would bear it: no port, no dot at the end.
fn subject(name: &str, domain: Option<&str>) -> Subject {
    let Ok(name) = name.parse::<Domain>() else { return Subject::Nothing };
    match host::asked(name.as_str(), domain) {
        Asked::Door => Subject::Known,
        Asked::Elsewhere => Subject::Bound(name),
        Asked::Nothing => Subject::Nothing,
        Asked::Port { space, port } => {
            // What E2B may write after an id has no end, and so would the certificates for one space.
            let label = name.as_str().split('.').next().unwrap_or_default();
            let canonical = match &space {
                SpaceRef::Id(id) => label == format!("{port}-{id}") || label == id.to_string(),
                SpaceRef::Name(_) => true,
            };
            if canonical { Subject::Space(space, port) } else { Subject::Nothing }
        }
    }
}

/// Whether a request was made on this machine, and for whoever made it.
fn is_near(caller: Option<&Caller>, headers: &HeaderMap) -> bool {
    const PASSED_ON: [&str; 6] =
        ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via"];
    caller.is_some_and(|caller| caller.is_near) && !PASSED_ON.iter().any(|name| headers.contains_key(*name))
}

pub(super) async fn ask(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<StatusCode, Error> {
    if !is_near(request.extensions().get(), request.headers()) {
        return Err(Error::new(Code::UnknownVerb, format!("there is no verb {PATH}")));
    }
    let Some(name) = named(request.uri().query().unwrap_or_default()) else {
        return Err(Error::new(Code::InvalidRequest, "domain: which name is asked about"));
    };
    let nowhere = || Error::new(Code::SpaceNotFound, "this name leads nowhere");
    let (space, port) = match subject(&name, gateway.domain.as_deref()) {
        Subject::Known => return Ok(StatusCode::OK),
        Subject::Nothing => return Err(nowhere()),
        // A domain of its own is one name, and leads nowhere when its space is gone.
        Subject::Bound(domain) => match gateway.nodes.fleet.bound(domain.as_str()) {
            Some(binding) => (SpaceRef::Id(binding.space_id), None),
            None => return Err(nowhere()),
        },
        Subject::Space(space, port) => (space, Some(port)),
    };
    if gateway.finder.hint(&space).is_some() {
        return granted(&gateway, &space, port);
    }
    let now = Instant::now();
    let admitted = {
        let mut lately = gateway.asks.lately();
        if lately.is_no(&space, now) {
            return Err(nowhere());
        }
        lately.admit(now)
    };
    if !admitted {
        let message = format!("more than {LOOKUPS_PER_SECOND} names a second are asked about; ask again");
        return Err(Error::new(Code::GatewayBusy, message).retry_after(1));
    }
    match gateway.finder.find(&space).await? {
        Verdict::Holder { .. } | Verdict::Conflict { .. } => granted(&gateway, &space, port),
        Verdict::Nobody { .. } => {
            gateway.nodes.fleet.knows_its_nodes()?;
            gateway.asks.lately().no(space, Instant::now());
            Err(nowhere())
        }
        Verdict::Unsure(_) | Verdict::Contested => {
            let message = "a node that may hold the space did not answer; ask again";
            Err(Error::new(Code::NodeSilent, message).retry_after(1))
        }
    }
}

/// A space has no end of ports, and a certificate costs somebody something.
fn granted(gateway: &Gateway, space: &SpaceRef, port: Option<u16>) -> Result<StatusCode, Error> {
    if port.is_none_or(|port| gateway.asks.lately().names(space, port, Instant::now())) {
        return Ok(StatusCode::OK);
    }
    let message = format!("{PORTS_MAX} ports of this space were given names within a day, as many as may be");
    Err(Error::new(Code::TooManyDomains, message))
}

fn named(query: &str) -> Option<String> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("domain="))?;
    let name = percent_decode_str(value).decode_utf8().ok()?;
    (!name.is_empty()).then(|| name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0190f0c2a4b87c3d9e0f112233445566";

    fn space(text: &str, port: u16) -> Subject {
        Subject::Space(text.parse().expect("a space"), port)
    }

    #[test]
    fn a_name_is_read_as_a_certificate_bears_it() {
        let bound = |text: &str| Subject::Bound(text.parse().expect("a domain"));
        for (name, expected) in [
            ("example.com", Subject::Known),
            ("Example.COM", Subject::Known),
            ("api.example.com", Subject::Known),
            ("shop.example.com", space("shop", 8080)),
            (&format!("8000-{ID}.example.com"), space(ID, 8000)),
            (&format!("{ID}.example.com"), space(ID, 8080)),
            // As a host it leads to the app; as a name there would be no end of them.
            (&format!("8000-{ID}-6532622b.example.com"), Subject::Nothing),
            (&format!("08000-{ID}.example.com"), Subject::Nothing),
            (&format!("0-{ID}.example.com"), Subject::Nothing),
            ("8000-shop.example.com", Subject::Nothing),
            ("a.shop.example.com", Subject::Nothing),
            (&format!("a.8000-{ID}.example.com"), Subject::Nothing),
            ("*.example.com", Subject::Nothing),
            ("shop.example.com:443", Subject::Nothing),
            ("shop.example.com.", Subject::Nothing),
            (".example.com", Subject::Nothing),
            ("sh_op.example.com", Subject::Nothing),
            ("käse.example.com", Subject::Nothing),
            ("127.0.0.1", Subject::Nothing),
            ("localhost", Subject::Nothing),
            ("", Subject::Nothing),
            ("[::1]", Subject::Nothing),
            ("::1", Subject::Nothing),
            ("shop.example.com\0", Subject::Nothing),
            ("shop.example.com\n", Subject::Nothing),
            (" shop.example.com", Subject::Nothing),
            ("shop..example.com", Subject::Nothing),
            (&format!("{}.example.com", "a".repeat(64)), Subject::Nothing),
            (&format!("{}shop.example.com", "a.".repeat(150)), Subject::Nothing),
            (&format!("{}.net", "a.".repeat(150)), Subject::Nothing),
            ("shop.customer.net", bound("shop.customer.net")),
            ("notexample.com", bound("notexample.com")),
            ("example.com.evil.net", bound("example.com.evil.net")),
        ] {
            assert_eq!(subject(name, Some("example.com")), expected, "{name}");
        }
        assert_eq!(subject("example.com", None), bound("example.com"), "no domain is ours");
    }

    #[test]
    fn only_who_asks_from_this_machine_for_itself_is_answered() {
        let asked = |is_near: bool, said: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            if let Some(name) = said {
                headers.insert(name, http::HeaderValue::from_static("x"));
            }
            super::is_near(Some(&Caller { address: "10.0.0.1:5".to_owned(), is_near }), &headers)
        };
        assert!(asked(true, None) && !asked(false, None));
        for header in ["x-forwarded-for", "forwarded", "x-real-ip", "via", "x-forwarded-host"] {
            assert!(!asked(true, Some(header)), "{header}");
        }
        assert!(!is_near(None, &HeaderMap::new()));
    }

    #[test]
    fn the_name_is_in_the_query() {
        assert_eq!(named("domain=a.b").as_deref(), Some("a.b"));
        assert_eq!(named("x=1&domain=a%2Eb").as_deref(), Some("a.b"));
        for query in ["", "domain", "domain=", "domain=%ff", "mydomain=a.b"] {
            assert_eq!(named(query), None, "{query}");
        }
    }

    #[test]
    fn one_space_does_not_use_up_the_certificates_of_all() {
        let (mut lately, now) = (Lately::default(), Instant::now());
        let name = |n: usize| format!("s{n}").parse::<SpaceRef>().expect("a name");
        let granted = (1..=100).filter(|port| lately.names(&name(0), *port, now)).count();
        assert_eq!(granted, PORTS_MAX);
        assert!(lately.names(&name(0), 1, now) && !lately.names(&name(0), 100, now), "what has one keeps it");
        assert!(lately.names(&name(1), 100, now), "others have their own");
        assert!(lately.names(&name(0), 100, now + DAY));
        for n in 0..SPACES_MAX + 10 {
            assert!(lately.names(&name(n), 1, now + DAY));
        }
        assert_eq!(lately.ports.len(), SPACES_MAX);
    }

    #[test]
    fn what_is_remembered_of_questions_is_bounded_and_short() {
        let (mut lately, now) = (Lately::default(), Instant::now());
        let name = |n: usize| format!("s{n}").parse::<SpaceRef>().expect("a name");
        for n in 0..2 * NOS_MAX {
            lately.no(name(n), now);
        }
        assert_eq!(lately.nos.len(), NOS_MAX);
        assert!(lately.is_no(&name(0), now) && !lately.is_no(&name(0), now + NO_AGE));
        lately.no(name(7777), now + NO_AGE);
        assert_eq!(lately.nos.len(), 1, "those that ended make room");
        let admitted = (0..200).filter(|_| lately.admit(now)).count();
        assert_eq!(admitted, LOOKUPS_PER_SECOND as usize);
        assert!(lately.admit(now + SECOND));
    }
}
