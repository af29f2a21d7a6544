use drowse_shared::{
    api::spaces::{Exposure, Metadata, Policy, PolicyPatch, PortKey, Spec, Template},
    id::{Epoch, SpaceId},
    seams::Env,
};
use jiff::Timestamp;

use super::*;
use crate::space::State;

const FLEET: &str = "fleet-0123456789abcdef0123456789";
const PORTS: &str = "ports-0123456789abcdef0123456789";

fn space(state: State, policy: Policy) -> Space {
    Space {
        id: SpaceId::mint(&Env::real()),
        name: "shop".parse().expect("a name"),
        state,
        epoch: Epoch::FIRST,
        created_at: Timestamp::UNIX_EPOCH,
        last_active_at: Timestamp::UNIX_EPOCH,
        policy,
        spec: Spec::default(),
        template: Template { name: "base".to_owned(), digest: "blake3:00".to_owned() },
        metadata: Metadata::new(),
    }
}

fn knock(shown: &[&str], path: &str) -> Knock {
    let headers =
        shown.iter().map(|token| (http::HeaderName::from_static(TOKEN), token.parse().expect("a value")));
    let token = Token::checked(FLEET, "a test").expect("strong");
    Knock::new(&HeaderMap::from_iter(headers), path, 8080, &token)
}

fn policy() -> Policy {
    let port_token = Some(Some(PORTS.to_owned().try_into().expect("strong")));
    PolicyPatch { port_token, ..PolicyPatch::default() }.apply(Policy::default())
}

fn code(knock: &Knock, space: &Space) -> Option<Code> {
    knock.admits(space, Look::First, &Live::default()).err().map(|error| error.code)
}

#[test]
fn a_private_port_is_for_those_who_show_a_token_whatever_the_space_does() {
    let ports = [(PortKey::One(8080), Exposure::Private)].into();
    let private = Policy { ports, ..policy() };
    for state in [State::Active, State::Frozen, State::Stopped] {
        let space = space(state, private.clone());
        for (shown, refused) in [
            (&[][..], Some(Code::PortPrivate)),
            (&["wrong"], Some(Code::PortPrivate)),
            (&[FLEET, FLEET], Some(Code::PortPrivate)),
            (&[FLEET], None),
            (&[PORTS], None),
        ] {
            assert_eq!(code(&knock(shown, "/"), &space), refused, "{shown:?}");
            assert_eq!(code(&Knock { port: 8081, ..knock(shown, "/") }, &space), None, "another port");
        }
    }
}

#[test]
fn who_wakes_a_sleeping_space_is_for_its_policy_to_say() {
    for (wake_on, shown, path, refused) in [
        (WakeOn::Any, None, "/", false),
        (WakeOn::Any, Some(FLEET), "/favicon.ico", true),
        (WakeOn::Authenticated, None, "/", true),
        (WakeOn::Authenticated, Some("wrong"), "/", true),
        (WakeOn::Authenticated, Some(FLEET), "/", false),
        (WakeOn::Authenticated, Some(PORTS), "/", false),
        (WakeOn::Authenticated, Some(PORTS), "/robots.txt", true),
        (WakeOn::None, Some(FLEET), "/", true),
    ] {
        let policy = Policy { wake_on, ..policy() };
        let knock = knock(shown.as_slice(), path);
        let refused = refused.then_some(Code::SpaceAsleep);
        for state in [State::Frozen, State::Stopped] {
            assert_eq!(code(&knock, &space(state, policy.clone())), refused, "{wake_on:?} {shown:?} {path}");
        }
        for state in [State::Active, State::Waking, State::Creating] {
            assert_eq!(code(&knock, &space(state, policy.clone())), None, "it is awake, or woken by another");
        }
        let of_a_tunnel = code(&knock.of_a_tunnel(), &space(State::Frozen, policy));
        assert_eq!(of_a_tunnel, refused.filter(|_| path == "/"), "a tunnel has no path any more");
    }
}

#[tokio::test(start_paused = true)]
async fn only_so_many_wakes_are_made_in_a_minute_and_only_wakes_count() {
    let live = Live::default();
    let space = space(State::Frozen, Policy { wakes_per_minute_max: 2, ..policy() });
    let knock = knock(&[], "/");
    let asks =
        |look| knock.admits(&space, look, &live).map_err(|error| (error.code, error.retry_after_seconds));
    for _ in 0..5 {
        assert_eq!(asks(Look::First), Ok(()));
    }
    assert_eq!((asks(Look::ToWake), asks(Look::ToWake)), (Ok(()), Ok(())));
    let refused = |seconds| Err((Code::TooManyWakes, Some(seconds)));
    assert_eq!((asks(Look::ToWake), asks(Look::First)), (refused(60), Ok(())), "others may be waking it");
    tokio::time::advance(Duration::from_millis(58_500)).await;
    assert_eq!(asks(Look::ToWake), refused(2), "rounded up");
    tokio::time::advance(Duration::from_millis(1_500)).await;
    assert_eq!(asks(Look::ToWake), Ok(()));
}
