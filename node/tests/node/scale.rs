//! A node with 10,000 spaces in its ledger: what every request, tick and start costs.

use std::{collections::BTreeMap, time::Duration};

use drowse_node::{
    executor::{Executor, fake::Fake},
    ledger::{Database, Ledger},
    space::{Space, State},
};
use drowse_shared::{
    api::spaces::{Broken, Order, Policy, Sort, SpaceList, Spec, Template},
    id::{Epoch, LedgerId},
    seams::Env,
};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::harness::{Ground, Life};

const SPACES: u32 = 10_000;
/// What check-in and list are to stay under, in every state of the machine that tests run on.
const PROMISE: Duration = Duration::from_millis(50 * 5);
/// A start over so many spaces, likewise.
const BOOT: Duration = Duration::from_secs(5 * 5);

/// One space of many: three in ten active, four frozen, the rest stopped, a few broken.
fn space(number: u32) -> Space {
    let at = |seconds: u32| Timestamp::from_second(1_700_000_000 + i64::from(seconds)).expect("in range");
    let broken = || Broken { cause: "disk_missing".to_owned(), message: "gone".to_owned(), since: at(0) };
    let state = match number % 100 {
        0 => State::Broken(broken()),
        1..30 => State::Active,
        30..70 => State::Frozen,
        _ => State::Stopped,
    };
    let team = ["web", "data", "ops"][number as usize % 3].to_owned();
    Space {
        id: format!("{:032x}", u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15)).parse().expect("an id"),
        name: format!("customer-{:06}", number.wrapping_mul(7919) % SPACES).parse().expect("a name"),
        state,
        epoch: Epoch::FIRST,
        created_at: at(number.wrapping_mul(31) % SPACES),
        last_active_at: at(number.wrapping_mul(17) % SPACES),
        policy: Policy {
            freeze_after_seconds: None,
            stop_after_seconds: None,
            hibernate_after_seconds: None,
            ..Policy::default()
        },
        spec: Spec::default(),
        template: Template { name: "base".to_owned(), digest: "fake".to_owned() },
        metadata: [("team".to_owned(), team), ("plan".to_owned(), format!("p{}", number % 50))].into(),
    }
}

/// A machine with 10,000 bodies and a ledger that knows them.
async fn crowded(with_ledger: bool) -> Ground {
    let ground = Ground::new();
    let env = Env::real();
    let ledger_id: LedgerId = "0190f0c2a4b87c3d9e0f112233445566".parse().expect("an id");
    ground.machine.set_template("base", Some("fake"));
    let fake = Fake::new(&env, ground.machine.clone());
    let spaces: Vec<Space> = (0..SPACES).map(space).collect();
    for space in &spaces {
        let card = space.card(ledger_id);
        fake.create(card.clone()).await.expect("made");
        match space.state {
            State::Active => fake.start(card).await.expect("started"),
            State::Frozen => {
                fake.start(card).await.expect("started");
                fake.freeze(space.id).await.expect("frozen");
            }
            _ => {}
        }
    }
    if with_ledger {
        let ledger = Ledger::open(&env, &ground.state, Database::File).await.expect("fresh");
        ledger.insert_all(spaces).await.expect("room");
        ledger.set_ledger_id(ledger_id).await.expect("room");
    }
    ground
}

/// What a request took, the middle one of several.
async fn took(life: &Life, verb: &str, body: Value) -> Duration {
    let mut times = Vec::new();
    for _ in 0..7 {
        let begun = Instant::now();
        let reply = life.call(verb, body.clone()).await;
        times.push(begun.elapsed());
        assert_eq!(reply.status, 200, "{verb} {body}: {}", reply.text());
    }
    times.sort();
    times[times.len() / 2]
}

/// Every list a client may want, from its beginning and from its middle.
async fn lists(life: &Life, limit: u32) -> BTreeMap<String, Duration> {
    let mut times = BTreeMap::new();
    let filters = [
        ("all", json!({})),
        ("frozen", json!({ "states": ["frozen"] })),
        ("broken", json!({ "states": ["broken"] })),
        ("none creating", json!({ "states": ["creating"] })),
        ("of a team", json!({ "metadata": { "team": "ops", "plan": "p7" } })),
        ("of nobody", json!({ "metadata": { "team": "none" } })),
        ("by prefix", json!({ "namePrefix": "customer-0012" })),
    ];
    for sort in Sort::ALL {
        for order in Order::ALL {
            for (says, filter) in &filters {
                let mut wish = filter.clone();
                wish["sort"] = json!(sort);
                wish["order"] = json!(order);
                wish["limit"] = json!(limit);
                let key = format!("{sort} {order} {says}");
                times.insert(key.clone(), took(life, "listSpaces", wish.clone()).await);
                let page: SpaceList = life.call("listSpaces", wish.clone()).await.ok();
                if let Some(cursor) = page.next_cursor {
                    wish["cursor"] = json!(cursor);
                    times.insert(format!("{key}, second page"), took(life, "listSpaces", wish).await);
                }
            }
        }
    }
    times
}

async fn walk(life: &Life, limit: u32) -> (Duration, usize) {
    let begun = Instant::now();
    let (mut seen, mut cursor) = (0, None);
    loop {
        let page: SpaceList = life.call("listSpaces", json!({ "limit": limit, "cursor": cursor })).await.ok();
        seen += page.spaces.len();
        cursor = page.next_cursor;
        if cursor.is_none() {
            return (begun.elapsed(), seen);
        }
    }
}

#[tokio::test]
async fn ten_thousand_spaces_are_listed_found_and_reported_within_the_promise() {
    let ground = crowded(true).await;
    let begun = Instant::now();
    let life = ground.start().await;
    let boot = begun.elapsed();
    assert!(boot < BOOT, "a start over {SPACES} spaces took {boot:?}");
    // Everything that is awake was used a moment ago, and none of it is written down yet.
    for number in (0..SPACES).filter(|number| matches!(space(*number).state, State::Active)) {
        life.node.touch(&space(number), "touchSpace");
    }
    let (name, id) = (space(1234).name, space(1234).id);
    let mut times = lists(&life, 100).await;
    times.extend([
        ("lookup by name".to_owned(), took(&life, "lookup", json!({ "space": name })).await),
        ("lookup by id".to_owned(), took(&life, "lookup", json!({ "space": id })).await),
        (
            "lookup of none".to_owned(),
            took(&life, "lookup", json!({ "space": "nobody", "intent": "create" })).await,
        ),
        ("get".to_owned(), took(&life, "getSpace", json!({ "name": name })).await),
        ("report".to_owned(), took(&life, "report", json!({})).await),
    ]);
    let begun = Instant::now();
    assert!(life.node.live.due(Instant::now()).is_empty(), "nobody is to sleep");
    times.insert("idle tick".to_owned(), begun.elapsed());
    let slow: Vec<_> = times.iter().filter(|(_, took)| **took > PROMISE).collect();
    assert!(slow.is_empty(), "longer than {PROMISE:?}: {slow:?}");
    let (_, seen) = walk(&life, 1000).await;
    assert_eq!(seen, SPACES as usize, "every space is listed once");
}

#[tokio::test]
async fn a_start_over_ten_thousand_spaces_ends_soon_whatever_was_lost() {
    let ground = crowded(true).await;
    ground.machine.reboot();
    let begun = Instant::now();
    let life = ground.start().await;
    let rebooted = begun.elapsed();
    assert!(rebooted < BOOT, "bringing {SPACES} rows in line with a machine that rebooted took {rebooted:?}");
    let asleep: SpaceList = life.call("listSpaces", json!({ "states": ["active", "frozen"] })).await.ok();
    assert!(asleep.spaces.is_empty(), "no process outlived the machine");
    life.crash().await;

    let ground = crowded(false).await;
    let begun = Instant::now();
    let life = ground.start().await;
    let rebuilt = begun.elapsed();
    assert!(rebuilt < BOOT, "building {SPACES} rows anew from their disks took {rebuilt:?}");
    let (_, seen) = walk(&life, 1000).await;
    assert_eq!(seen, SPACES as usize);
    println!("start after a reboot {rebooted:.0?}, after the loss of the ledger {rebuilt:.0?}");
}

#[tokio::test]
#[ignore = "prints figures for docs/PERFORMANCE.md"]
async fn soak_the_figures_of_ten_thousand_spaces() {
    let ground = crowded(true).await;
    let begun = Instant::now();
    let life = ground.start().await;
    let boot = begun.elapsed();
    let ms = |took: Duration| format!("{:.1} ms", took.as_secs_f64() * 1000.0);
    println!("start                                   {}", ms(boot));
    for limit in [100, 1000] {
        let times = lists(&life, limit).await;
        for (says, took) in &times {
            println!("page of {limit}, {says:<50} {}", ms(*took));
        }
        let (whole, pages) = walk(&life, limit).await;
        println!("list of 10,000 in pages of {limit}: {} for {pages} spaces", ms(whole));
    }
    for (verb, body) in [
        ("lookup", json!({ "space": "customer-000001" })),
        ("report", json!({})),
        ("getSpace", json!({ "name": "customer-000001" })),
    ] {
        println!("{verb:<40}{}", ms(took(&life, verb, body).await));
    }
    let request =
        http::Request::get("/metrics").header("authorization", format!("Bearer {}", crate::harness::TOKEN));
    let begun = Instant::now();
    let reply = life.send(request.body(axum::body::Body::empty()).expect("a request")).await;
    println!("metrics                                 {} ({})", ms(begun.elapsed()), reply.status);
}
