//! Names that lead to spaces: who asks whether one does, and domains bound to a space.

use std::fs;

use drowse_e2e::{
    door::Door,
    fleet::Fleet,
    wait::{eventually, seconds, timed},
};
use drowse_shared::api::{
    Code,
    domains::{DomainBound, DomainList, DomainUnbound, Leads},
    nodes::Node,
    spaces::State,
};
use serde_json::{Value, json};

use super::ports::{DOMAIN, Web};

/// Asks as a proxy on this machine does; answers the status.
async fn ask(door: &Door, name: &str) -> u16 {
    let door = door.with_token(None);
    let request = door.request(http::Method::GET, "/ask").query(&[("domain", name)]);
    door.send::<()>("ask", request).await.expect("an answer").status
}

#[tokio::test]
async fn a_proxy_is_told_of_names_that_lead_somewhere_and_of_nothing_else() {
    let mut fleet = Fleet::fake(2).gateway_env("DROWSE_DOMAIN", DOMAIN).start().await;
    let id = fleet.acquire("shop").await.space.id;
    fleet.door.turn("freezeSpace", "shop").await.ok();
    let bound = json!({ "name": "shop", "domain": "shop.customer.test" });
    fleet.door.call::<DomainBound>("bindDomain", bound).await.ok();
    // Nothing is remembered of the space.
    fleet.kill_gateway();
    fleet.revive_gateway().await;
    fleet.until_all_live().await;

    for (name, expected) in [
        (DOMAIN.to_owned(), 200),
        (format!("api.{DOMAIN}"), 200),
        (format!("shop.{DOMAIN}"), 200),
        (format!("8080-{id}.{DOMAIN}"), 200),
        (format!("1-{id}.{}", DOMAIN.to_uppercase()), 200),
        ("shop.customer.test".to_owned(), 200),
        ("other.customer.test".to_owned(), 404),
        ("customer.test".to_owned(), 404),
        (format!("nobody.{DOMAIN}"), 404),
        (format!("8080-{}.{DOMAIN}", "0".repeat(32)), 404),
        (format!("8080-{id}-anything.{DOMAIN}"), 404),
        (format!("99999-{id}.{DOMAIN}"), 404),
        (format!("a.shop.{DOMAIN}"), 404),
        (format!("shop.{DOMAIN}.evil.test"), 404),
        (format!("*.{DOMAIN}"), 404),
        ("127.0.0.1".to_owned(), 404),
        ("xn--.test".to_owned(), 404),
        (String::new(), 400),
    ] {
        assert_eq!(ask(&fleet.door, &name).await, expected, "{name:?}");
    }
    assert_eq!(fleet.get("shop").await.state, State::Frozen, "asking wakes nothing");

    // A "no" is forgotten within two seconds, a "yes" ends with its space.
    fleet.acquire("nobody").await;
    let name = format!("nobody.{DOMAIN}");
    eventually("a new space has its name", seconds(3), || async {
        (ask(&fleet.door, &name).await == 200).then_some(())
    })
    .await;
    fleet.destroy("nobody").await;
    assert_eq!(ask(&fleet.door, &name).await, 404);

    // Whoever is not on this machine is not answered; nor is who was passed on by a proxy that is.
    let asked = fleet.door.request(http::Method::GET, &format!("/ask?domain={DOMAIN}"));
    let passed_on = asked.header("x-forwarded-for", "203.0.113.7");
    let reply = fleet.door.send::<()>("ask", passed_on).await.expect("an answer");
    reply.refused(&Code::UnknownVerb);

    // A flood of names that do not exist is answered at once, and takes nobody's place.
    let flood = (0..500).map(|n| {
        let (door, name) = (fleet.door.clone(), format!("flood-{n}.{DOMAIN}"));
        async move { ask(&door, &name).await }
    });
    let (flood, shop) = tokio::join!(futures_util::future::join_all(flood), fleet.door.acquire("shop"));
    assert_eq!(shop.status, 200);
    assert!(flood.iter().all(|status| [404, 503].contains(status)), "{flood:?}");
    assert!(flood.contains(&503), "no more than some are looked for in a second");

    // A burst about spaces that sleep is answered at once and wakes none of them, nor does it make them look used.
    fleet.acquire("stopped").await;
    fleet.door.turn("stopSpace", "stopped").await.ok();
    fleet.door.turn("freezeSpace", "shop").await.ok();
    let looks = async || {
        let mut seen = Vec::new();
        for name in ["shop", "stopped"] {
            let events = fleet.door.call::<Value>("listEvents", json!({ "name": name })).await.ok();
            let space = fleet.get(name).await;
            seen.push((space.state, space.last_active_at, events["events"].as_array().map(Vec::len)));
        }
        seen
    };
    let before = looks().await;
    assert_eq!((before[0].0, before[1].0), (State::Frozen, State::Stopped));
    let burst = (0..500).map(|n| {
        let (name, leads) = match n % 4 {
            0 => (format!("shop.{DOMAIN}"), true),
            1 => (format!("{}-{id}.{DOMAIN}", 9000 + n % 12), true),
            2 => (format!("stopped.{DOMAIN}"), true),
            _ => (format!("burst-{n}.{DOMAIN}"), false),
        };
        let door = fleet.door.clone();
        async move {
            let (status, took) = timed(ask(&door, &name)).await;
            assert!(status == if leads { 200 } else { 404 } || status == 503, "{name}: {status}");
            // What a proxy waits for in the middle of a handshake.
            assert!(took < seconds(5), "{name}: {took:?}");
            status
        }
    });
    let burst = futures_util::future::join_all(burst).await;
    assert!(burst.iter().filter(|status| **status == 200).count() > 100, "{burst:?}");
    assert_eq!(looks().await, before);

    // Silence is not "no": a certificate is refused for now, and that is not remembered.
    let holder = fleet.holder("shop").await;
    let other = if holder == "n1" { "n2" } else { "n1" };
    fleet.kill(other);
    assert_eq!(ask(&fleet.door, &format!("shop.{DOMAIN}")).await, 200);
    eventually("nobody says no for the silent one", seconds(5), || async {
        (ask(&fleet.door, &format!("silent.{DOMAIN}")).await == 503).then_some(())
    })
    .await;
    fleet.revive(other).await;
    eventually("it is back", seconds(5), || async {
        (ask(&fleet.door, &format!("silent.{DOMAIN}")).await == 404).then_some(())
    })
    .await;
    fleet.end().await;
}

/// Asks the gateway behind `door` by a host; answers the status and the body.
async fn by_host(door: &Door, host: &str) -> (u16, String) {
    let request = door.with_token(None).request(http::Method::GET, "/page").header("host", host);
    let reply = door.send::<()>(host, request).await.expect("an answer");
    (reply.status, reply.text())
}

fn holds(version: u64) -> impl Fn(&Node) -> bool {
    move |node| node.bundle.is_some_and(|bundle| bundle.version >= version)
}

#[tokio::test]
async fn a_domain_leads_to_its_space_until_it_is_unbound_whatever_the_gateway_loses() {
    let mut web = Web::over(Fleet::real(1).gateways(2)).await;
    let id = web.app("shop").await;
    let other = web.fleet.acquire("other").await.space.id.to_string();
    let door = web.fleet.door.clone();
    let bind = |name: &str, domain: &str| {
        let (door, wish) = (door.clone(), json!({ "name": name, "domain": domain }));
        async move { door.call::<DomainBound>("bindDomain", wish).await }
    };
    let bound = bind("shop", "Shop.Customer.test").await.ok();
    assert_eq!(
        (bound.domain.space_id.to_string(), bound.domain.port, bound.existed),
        (id.clone(), 8080, false)
    );
    assert!(bind("shop", "shop.customer.test").await.ok().existed, "said again");
    let (status, page) = by_host(&door, "SHOP.customer.test:443").await;
    assert!(status == 200 && page.starts_with("GET /page"), "{status} {page}");

    // Whoever shows the fleet's token means the fleet, by whatever host: no app is handed it.
    for (verb, body) in [("listDomains", "{}"), ("page", "{}")] {
        let asked =
            door.request(http::Method::POST, &format!("/{verb}")).header("host", "shop.customer.test");
        let asked = asked.header("content-type", "application/json").body(body);
        let reply = door.send::<DomainList>(verb, asked).await.expect("an answer");
        match verb {
            "listDomains" => assert_eq!(reply.ok().domains[0].domain, bound.domain.domain),
            _ => drop(reply.refused(&Code::UnknownVerb)),
        }
    }

    bind(&other, "shop.customer.test").await.refused(&Code::DomainTaken);
    bind("nobody", "nobody.customer.test").await.refused(&Code::SpaceNotFound);
    for ours in [DOMAIN.to_owned(), format!("any.{DOMAIN}"), format!("a.b.{DOMAIN}"), "10.0.0.7".to_owned()] {
        bind("shop", &ours).await.refused(&Code::InvalidRequest);
    }

    // The other gateway learns it from the node, and so does one that lost its database.
    web.fleet.until_standing("n1", "holds the domain", holds(2)).await;
    let second = web.fleet.others[0].door.clone();
    eventually("the other gateway leads there too", seconds(10), || async {
        (by_host(&second, "shop.customer.test").await.0 == 200).then_some(())
    })
    .await;
    web.fleet.kill_gateway();
    fs::remove_dir_all(web.fleet.ground.root.join("gateway")).expect("the gateway's state");
    web.fleet.revive_gateway().await;
    web.fleet.until_all_live().await;
    eventually("the domain leads there again", seconds(10), || async {
        (by_host(&door, "shop.customer.test").await.0 == 200).then_some(())
    })
    .await;

    // It belongs to the space, not to its name.
    web.fleet.destroy("shop").await;
    web.fleet.acquire("shop").await;
    let (status, said) = by_host(&door, "shop.customer.test").await;
    assert!(status == 404 && said.contains("space_not_found"), "{status} {said}");
    assert_eq!(ask(&door, "shop.customer.test").await, 404, "and needs no certificate");
    let list = door.call::<DomainList>("listDomains", json!({})).await.ok();
    assert_eq!(list.domains.len(), 1, "{list:?}");
    assert_eq!((&list.domains[0].leads, list.domains[0].space_id.to_string()), (&Leads::Nowhere, id));
    let of = door.call::<DomainList>("listDomains", json!({ "name": "other" })).await.ok();
    assert_eq!(of.domains, []);

    let gone = json!({ "domain": "shop.customer.test" });
    assert!(door.call::<DomainUnbound>("unbindDomain", gone.clone()).await.ok().unbound);
    assert!(!door.call::<DomainUnbound>("unbindDomain", gone).await.ok().unbound);
    let (_, said) = by_host(&door, "shop.customer.test").await;
    assert!(said.contains("unauthenticated"), "the gateway's own door: {said}");
    bind(&other, "shop.customer.test").await.ok();
    assert_eq!(ask(&door, "shop.customer.test").await, 200);
    let list: Value = door.call::<Value>("listDomains", json!({ "name": other, "limit": 1 })).await.ok();
    assert_eq!(list["domains"][0]["leads"], "space", "{list}");
    web.fleet.end().await;
}
