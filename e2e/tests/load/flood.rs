//! A flood of what does not exist, with a token or at the public hosts, costs those who use what does nothing, and fills no table.
//!
//! Flood, gateways, nodes and callers share the processors of one machine, so that a flood costs everybody something
//! whatever a gateway does. What is measured is therefore a ratio: the same flood, sent at one time to the callers' own gateway
//! and at another to a second gateway over the same nodes. All of it costs the machine and the nodes the same; only what the
//! callers' gateway makes them share with the flood, its tables, queues, locks and threads, tells the two apart. Both, and a
//! time without a flood, take turns, so that what else the machine does hits all of them.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use drowse_e2e::{
    crowd::Line,
    door::Door,
    fleet::Fleet,
    gauge,
    wait::{eventually, seconds, timed},
};
use drowse_shared::api::Code;
use rustix::process::Signal;
use serde_json::{Value, json};

use pour::{DOMAIN, KINDS, Kind, Told, is_fair, pour, sent};

/// What a flood is made of.
mod pour;

/// Spaces in use, each by a caller of its own.
const CALLERS: usize = 4;
/// Between two calls of a caller: what is measured is the wait, not the machine.
const PAUSE: Duration = Duration::from_millis(10);
/// No call of a caller takes longer.
const CALL_WITHIN: Duration = Duration::from_secs(5);
/// Connections of the flood.
const FLOODERS: usize = 64;
/// What a flood may add to the gateway's memory.
const MEMORY_MIB_MAX: u64 = 64;
/// How much slower calls may be while the flood is at their gateway than while it is beside it: the median, and the
/// slowest of a hundred, of which there are few.
const RATIOS_MAX: [f64; 2] = [1.5, 3.0];
/// What is less than this is the machine's own unrest. A caller that waited behind the flood's questions would wait for
/// hundreds.
const UNREST_MS: [f64; 2] = [0.5, 8.0];

/// Uses spaces for so long: acquire, exec, and again. Answers how long each call took.
async fn use_spaces(fleet: &Fleet, names: &[String], during: Duration) -> Vec<Duration> {
    let begun = Instant::now();
    let users = names.iter().map(|name| {
        let (door, name) = (fleet.door.apart(), name.clone());
        tokio::spawn(async move {
            let mut took = Vec::new();
            while begun.elapsed() < during {
                let called = Instant::now();
                let acquired = door.acquire(&name).await;
                assert_eq!(acquired.status, 200, "acquire of {name}: {}", acquired.text());
                took.push(called.elapsed());
                let called = Instant::now();
                let ran = door.exec(&name, "true").await;
                assert_eq!(ran.status, 200, "exec in {name}: {}", ran.text());
                took.push(called.elapsed());
                tokio::time::sleep(PAUSE).await;
            }
            took
        })
    });
    let mut all = Vec::new();
    for user in users.collect::<Vec<_>>() {
        all.extend(user.await.expect("every call succeeds"));
    }
    all.sort();
    let longest = all.last().copied().unwrap_or_default();
    assert!(longest < CALL_WITHIN, "a call took {longest:?}");
    all
}

fn at(took: &[Duration], percent: usize) -> f64 {
    let place = (took.len() * percent / 100).min(took.len().saturating_sub(1));
    took.get(place).copied().unwrap_or_default().as_secs_f64() * 1000.0
}

/// The sizes of the gateway's tables.
async fn tables(fleet: &Fleet) -> BTreeMap<String, u64> {
    let page = fleet.door.page("/metrics").await.text();
    let rows = page.lines().filter_map(|line| {
        let row = line.strip_prefix("drowse_gateway_table_entries{table=\"")?;
        let (table, count) = row.split_once("\"}")?;
        Some((table.to_owned(), count.trim().parse().ok()?))
    });
    rows.collect()
}

fn resident_mib(fleet: &Fleet) -> u64 {
    gauge::resident_bytes(fleet.gateway.pid()) >> 20
}

/// The most each table had while `work` ran.
async fn watched<T>(fleet: &Fleet, work: impl Future<Output = T>) -> (T, BTreeMap<String, u64>) {
    let mut most: BTreeMap<String, u64> = BTreeMap::new();
    let mut work = std::pin::pin!(work);
    loop {
        if let Ok(done) = tokio::time::timeout(Duration::from_millis(200), work.as_mut()).await {
            return (done, most);
        }
        for (table, count) in tables(fleet).await {
            let seen = most.entry(table).or_default();
            *seen = count.max(*seen);
        }
    }
}

fn bounded(most: &BTreeMap<String, u64>) {
    for (table, bound) in [
        ("cache", 100),
        ("reads", 64 + 1024),
        ("lookups_strangers", 2048),
        ("lookups_strangers_waiting", 1024),
        ("lookups_known", 1024),
        ("lookups_known_waiting", 4096),
        ("creates", 1024),
        ("crowds", CALLERS as u64),
        ("slots", FLOODERS as u64),
        ("forwards", 400 + CALLERS as u64),
        ("apps", 400),
        ("bodies_kib", 256 << 10),
    ] {
        let had = most.get(table).copied().unwrap_or_else(|| panic!("{table} is not on the page: {most:?}"));
        assert!(had <= bound, "{table} had {had} entries, its bound is {bound}");
    }
}

/// A flood, while which spaces are used.
#[derive(Debug, Clone, Copy)]
struct Flood {
    flooders: usize,
    /// Of each of them between two requests.
    pause: Duration,
    during: Duration,
}

fn address(door: &Door) -> SocketAddr {
    door.endpoint.trim_start_matches("http://").parse().expect("an address")
}

/// Uses spaces while `door` is flooded.
async fn beside(fleet: &Fleet, names: &[String], flood: Flood, door: &Door) -> (Vec<Duration>, Told) {
    let (to, Flood { flooders, pause, during }) = (address(door), flood);
    let (stop, told) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Told::new())));
    let flooders: Vec<_> = (0..flooders)
        .map(|_| tokio::spawn(pour(to, fleet.ground.token.clone(), pause, stop.clone(), told.clone())))
        .collect();
    let (took, most) = watched(fleet, use_spaces(fleet, names, during)).await;
    stop.store(true, Ordering::Relaxed);
    for flooder in flooders {
        flooder.await.expect("no panic");
    }
    bounded(&most);
    let told = told.lock().expect("unpoisoned").clone();
    for ((kind, status), times) in &told {
        let kind = KINDS.into_iter().find(|k| format!("{k:?}") == *kind).expect("one of them");
        // A connection may be cut under a head that is too long.
        let fair = is_fair(kind, *status) || (matches!(kind, Kind::Head) && *status == 0);
        assert!(fair, "{kind:?} was answered {status}, {times} times");
    }
    (took, told)
}

/// What calls took: without a flood, with one beside their gateway, and with one at it.
#[derive(Default)]
struct Took {
    alone: Vec<Duration>,
    beside: Vec<Duration>,
    here: Vec<Duration>,
    told: Told,
}

/// Lets the three take turns.
async fn in_turn(fleet: &Fleet, names: &[String], flood: Flood, rounds: usize) -> Took {
    let mut all = Took::default();
    for _ in 0..rounds {
        all.alone.extend(use_spaces(fleet, names, flood.during).await);
        all.beside.extend(beside(fleet, names, flood, &fleet.others[0].door).await.0);
        let (took, told) = beside(fleet, names, flood, &fleet.door).await;
        all.here.extend(took);
        for (what, times) in told {
            *all.told.entry(what).or_default() += times;
        }
    }
    for took in [&mut all.alone, &mut all.beside, &mut all.here] {
        took.sort();
    }
    all
}

fn show(what: &str, took: &Took, rounds: usize, flood: Flood) {
    let seconds = flood.during.as_secs_f64() * rounds as f64;
    let rate = took.told.values().sum::<u64>() as f64 / seconds;
    eprintln!("{what}: {rate:.0} requests/s of a flood, {:?}", took.told);
    for (whose, calls) in
        [("no flood", &took.alone), ("at another gateway", &took.beside), ("at this gateway", &took.here)]
    {
        eprintln!(
            "  {whose:<20} p50 {:6.2} ms ({:.2} x)   p99 {:6.2} ms ({:.2} x)   {} calls",
            at(calls, 50),
            at(calls, 50) / at(&took.beside, 50),
            at(calls, 99),
            at(calls, 99) / at(&took.beside, 99),
            calls.len(),
        );
    }
}

/// Nothing measurable is what sets the two floods apart.
fn unnoticed(what: &str, took: &Took) {
    for (n, percent) in [50, 99].into_iter().enumerate() {
        let (here, beside) = (at(&took.here, percent), at(&took.beside, percent));
        let most = (beside * RATIOS_MAX[n]).max(beside + UNREST_MS[n]);
        assert!(
            here <= most,
            "{what}: p{percent} {here:.2} ms, and {beside:.2} ms beside the same flood elsewhere"
        );
    }
}

/// How long each stage takes.
struct Stages {
    rounds: usize,
    during: Duration,
    /// As much as can be sent, which fills the processors of this machine; only measured.
    uncapped: bool,
    silent: bool,
}

async fn flooded(stages: Stages) {
    let Stages { rounds, during, uncapped, silent } = stages;
    let mut fleet = Fleet::fake(3)
        .gateways(2)
        // A node that stands still is not down.
        .check_in_seconds(30.0)
        // Hints end in the middle of it all, so callers' names are looked up again.
        .gateway_env("DROWSE_CACHE_AGE", "1s")
        .gateway_env("DROWSE_CACHE_ENTRIES", "100")
        .gateway_env("DROWSE_DOMAIN", DOMAIN)
        .start()
        .await;
    let mut names = Vec::new();
    for n in 0..3 * CALLERS {
        let name = format!("used-{n}");
        if fleet.acquire(&name).await.space.node.as_str() != "n3" && names.len() < CALLERS {
            names.push(name);
        }
    }
    assert_eq!(names.len(), CALLERS, "a burst spreads over all nodes");
    let before = (tables(&fleet).await, resident_mib(&fleet));

    // At a rate that leaves the processors of this machine room.
    let flood = Flood { flooders: FLOODERS, pause: Duration::from_millis(160), during };
    let took = in_turn(&fleet, &names, flood, rounds).await;
    show("a flood", &took, rounds, flood);
    unnoticed("a flood", &took);
    if uncapped {
        let flood = Flood { pause: Duration::ZERO, ..flood };
        let took = in_turn(&fleet, &names, flood, rounds).await;
        show("all that can be sent", &took, rounds, flood);
    }
    if silent {
        // Each question of the flood lasts as long as questions may: it is soon told to wait, at once.
        fleet.node_mut("n3").daemon.signal(Signal::STOP);
        let flood = Flood { flooders: 400, pause: Duration::from_millis(50), during: during.max(seconds(5)) };
        let took = in_turn(&fleet, &names, flood, 1).await;
        fleet.node_mut("n3").daemon.signal(Signal::CONT);
        show("a flood and a silent node", &took, 1, flood);
        unnoticed("a flood and a silent node", &took);
        let waits = took.told.get(&("Name".to_owned(), 503)).copied().unwrap_or(0);
        assert!(waits > 0, "nobody was told to wait: {:?}", took.told);
    }

    eventually("every table is as it was", seconds(15), || async {
        let now = tables(&fleet).await;
        before.0.iter().all(|(table, count)| table == "cache" || now.get(table) <= Some(count)).then_some(())
    })
    .await;
    let grown = resident_mib(&fleet).saturating_sub(before.1);
    eprintln!("the gateway's memory grew by {grown} MiB, from {} MiB", before.1);
    assert!(grown <= MEMORY_MIB_MAX, "the gateway's memory grew by {grown} MiB");
    let lines = fleet.gateway.log_bytes();
    assert!(lines < 2 << 20, "the gateway wrote {lines} bytes of log");
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_uses_spaces_notices_no_flood_and_no_table_grows() {
    let during = Duration::from_millis(700);
    flooded(Stages { rounds: 2, during, uncapped: false, silent: false }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "floods a gateway"]
async fn soak_whoever_uses_spaces_notices_no_flood_of_what_does_not_exist() {
    flooded(Stages { rounds: 4, during: seconds(2), uncapped: false, silent: true }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures; benches/run flood prints it"]
async fn soak_measures_a_flood() {
    flooded(Stages { rounds: 6, during: seconds(3), uncapped: true, silent: true }).await;
}

/// Asks for names that nobody has until it is told to stop; each answer says to come again, or that there is none.
async fn stray(to: SocketAddr, token: String, stop: Arc<AtomicBool>) {
    let mut line = Line::open(to).await.expect("there is room for it");
    while !stop.load(Ordering::Relaxed) {
        line.send(&sent(Kind::Name, &token)).await.expect("it is kept");
        let (status, body) = line.answer().await.expect("it is answered");
        assert!(is_fair(Kind::Name, status), "{status}: {}", String::from_utf8_lossy(&body));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_busy_says_so_at_once_and_when_to_come_again() {
    let mut fleet = Fleet::fake(2).check_in_seconds(30.0).start().await;
    fleet.acquire("used").await;
    let holder = fleet.holder("used").await;
    fleet.node_mut(if holder == "n1" { "n2" } else { "n1" }).daemon.signal(Signal::STOP);
    let stop = Arc::new(AtomicBool::new(false));
    // More than may ask and wait.
    let strangers: Vec<_> = (0..64 + 1024 + 200)
        .map(|_| tokio::spawn(stray(address(&fleet.door), fleet.ground.token.clone(), stop.clone())))
        .collect();
    let (took, reply) = eventually("one is refused at once", seconds(20), || async {
        let (reply, took) = timed(fleet.door.apart().get("one-more")).await;
        // Others waited for as long as they may.
        (reply.status == 503 && took < seconds(1)).then_some((took, reply))
    })
    .await;
    println!("refused after {took:?}");
    assert_eq!(reply.headers["retry-after"], "2");
    assert_eq!(reply.error().code, Code::GatewayBusy);
    let used: Value = fleet.door.apart().call("getSpace", json!({ "name": "used" })).await.ok();
    assert_eq!(used["space"]["node"], json!(holder), "who uses a space is served meanwhile");
    stop.store(true, Ordering::Relaxed);
    for stranger in strangers {
        stranger.await.expect("no panic");
    }
    fleet.nodes.iter_mut().for_each(|node| node.daemon.signal(Signal::CONT));
    fleet.end().await;
}
