//! A flood of what does not exist costs those who use what does nothing, and fills no table.

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
    crowd::{Line, request},
    fleet::Fleet,
    ground::random_hex,
    wait::{eventually, seconds},
};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Spaces in use, each by a caller of its own.
const CALLERS: usize = 4;
/// Between two calls of a caller: what is measured is the wait, not the machine.
const PAUSE: Duration = Duration::from_millis(10);
/// No call of a caller takes longer.
const CALL_WITHIN: Duration = Duration::from_secs(5);
/// Connections of the flood.
const FLOODERS: usize = 64;
/// What a flood may add to the gateway's memory.
const MEMORY_MIB_MAX: u64 = 96;

/// What a flood sends.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Name,
    Id,
    Token,
    Json,
    Head,
}

const KINDS: [Kind; 5] = [Kind::Name, Kind::Id, Kind::Token, Kind::Json, Kind::Head];

fn sent(kind: Kind, token: &str) -> Vec<u8> {
    let stranger = random_hex(16);
    let body = |name: &str| serde_json::to_vec(&json!({ "name": name })).expect("plain");
    match kind {
        Kind::Name => request("getSpace", token, &body(&format!("nobody-{stranger}"))),
        Kind::Id => request("execCommand", token, &body(&format!("0198{}", random_hex(28)))),
        Kind::Token => request("acquireSpace", &stranger, &body(&stranger)),
        Kind::Json => request("acquireSpace", token, b"{\"name\":"),
        Kind::Head => {
            let mut long = request("getSpace", token, b"");
            let at = long.len() - 2;
            long.splice(at..at, format!("x-long: {}\r\n", "x".repeat(700_000)).into_bytes());
            long
        }
    }
}

/// Whether a flood's request may be answered so.
fn is_fair(kind: Kind, status: u16) -> bool {
    match kind {
        // Not there, or one of too many.
        Kind::Name | Kind::Id => matches!(status, 404 | 503),
        Kind::Token => status == 401,
        Kind::Json => status == 400,
        Kind::Head => status == 431,
    }
}

/// What the flood was answered: how often each kind which status. 0 is a connection that ended.
type Told = BTreeMap<(String, u16), u64>;

/// Floods until it is told to stop.
async fn flood(
    to: SocketAddr,
    token: String,
    pause: Duration,
    stop: Arc<AtomicBool>,
    told: Arc<Mutex<Told>>,
) {
    let mut line = None;
    let mut kinds = KINDS.into_iter().cycle();
    while !stop.load(Ordering::Relaxed) {
        let kind = kinds.next().expect("it goes round");
        let mut open = match line.take() {
            Some(open) => open,
            None => match Line::open(to).await {
                Ok(open) => open,
                Err(_) => continue,
            },
        };
        let asked = sent(kind, &token);
        let answered = async {
            // A head that is too long is refused before all of it is sent.
            let sent = open.send(&asked).await;
            let answer = open.answer().await;
            if answer.is_err() { sent.map(|()| 0) } else { answer.map(|(status, _)| status) }
        };
        let status = tokio::time::timeout(Duration::from_secs(20), answered).await;
        let status = status.ok().and_then(Result::ok).unwrap_or(0);
        *told.lock().expect("unpoisoned").entry((format!("{kind:?}"), status)).or_default() += 1;
        if status != 0 && !matches!(kind, Kind::Head) {
            line = Some(open);
        }
        tokio::time::sleep(pause).await;
    }
}

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
    let status = std::fs::read_to_string(format!("/proc/{}/status", fleet.gateway.pid())).expect("it runs");
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).expect("every process has one");
    line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).expect("a number") / 1024
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
        ("bodies_kib", 256 << 10),
    ] {
        let had = most.get(table).copied().unwrap_or_else(|| panic!("{table} is not on the page: {most:?}"));
        assert!(had <= bound, "{table} had {had} entries, its bound is {bound}");
    }
}

/// A flood, beside which spaces are used.
async fn beside(
    fleet: &Fleet,
    names: &[String],
    flooders: usize,
    pause: Duration,
    during: Duration,
) -> (Vec<Duration>, Told) {
    let to: SocketAddr = fleet.door.endpoint.trim_start_matches("http://").parse().expect("an address");
    let (stop, told) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Told::new())));
    let flooders: Vec<_> = (0..flooders)
        .map(|_| tokio::spawn(flood(to, fleet.ground.token.clone(), pause, stop.clone(), told.clone())))
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

fn requests(told: &Told) -> u64 {
    told.values().sum()
}

fn show(what: &str, took: &[Duration], alone: &[Duration], flood: &str) {
    eprintln!(
        "{what:<28} p50 {:6.2} ms ({:.2} x)   p99 {:6.2} ms ({:.2} x)   {} calls   {flood}",
        at(took, 50),
        at(took, 50) / at(alone, 50),
        at(took, 99),
        at(took, 99) / at(alone, 99),
        took.len(),
    );
}

async fn flooded(measure: Duration, uncapped: bool) {
    let mut fleet = Fleet::fake(3)
        // A node that stands still is not down.
        .check_in_seconds(30.0)
        // Hints end in the middle of it all, so callers' names are looked up again.
        .gateway_env("DROWSE_CACHE_AGE", "1s")
        .gateway_env("DROWSE_CACHE_ENTRIES", "100")
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

    let alone = use_spaces(&fleet, &names, measure).await;
    show("alone", &alone, &alone, "");
    let before = (tables(&fleet).await, resident_mib(&fleet));
    // At a fixed rate, so that the processors of this machine are not what is measured.
    let pause = Duration::from_millis(160);
    let (took, told) = beside(&fleet, &names, FLOODERS, pause, measure).await;
    let rate = requests(&told) as f64 / measure.as_secs_f64();
    show("beside a flood", &took, &alone, &format!("{rate:.0} flood requests/s {told:?}"));
    if uncapped {
        let (took, told) = beside(&fleet, &names, FLOODERS, Duration::ZERO, measure).await;
        let rate = requests(&told) as f64 / measure.as_secs_f64();
        show("beside all it can send", &took, &alone, &format!("{rate:.0} flood requests/s {told:?}"));
    }

    // With a silent node each question of the flood lasts as long as questions may: it is soon told to wait, at once.
    fleet.node_mut("n3").daemon.signal(Signal::STOP);
    let (took, told) = beside(&fleet, &names, 400, Duration::ZERO, measure.max(seconds(5))).await;
    fleet.node_mut("n3").daemon.signal(Signal::CONT);
    show("and a silent node", &took, &alone, &format!("{told:?}"));
    let waits = told.get(&("Name".to_owned(), 503)).copied().unwrap_or(0);
    assert!(waits > 0, "nobody was told to wait: {told:?}");

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
#[ignore = "floods a gateway"]
async fn soak_whoever_uses_spaces_notices_no_flood_of_what_does_not_exist() {
    flooded(seconds(3), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures; benches/run flood prints it"]
async fn soak_measures_a_flood() {
    flooded(seconds(12), true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "floods a gateway"]
async fn soak_a_gateway_that_is_busy_says_so_at_once_and_when_to_come_again() {
    let mut fleet = Fleet::fake(2).check_in_seconds(30.0).start().await;
    fleet.acquire("used").await;
    let (holder, other) =
        (fleet.holder("used").await, if fleet.holder("used").await == "n1" { "n2" } else { "n1" });
    fleet.node_mut(other).daemon.signal(Signal::STOP);
    let mut strangers = Vec::new();
    for n in 0..64 + 1024 + 64 {
        let (door, name) = (fleet.door.clone(), format!("stranger-{n}"));
        strangers.push(tokio::spawn(async move { door.get(&name).await }));
    }
    let refused = eventually("one is refused", seconds(10), || async {
        let asked = Instant::now();
        let reply = fleet.door.apart().get("one-more").await;
        (reply.status == 503 && reply.error().code == drowse_shared::api::Code::GatewayBusy)
            .then(|| (asked.elapsed(), reply))
    })
    .await;
    assert_eq!(refused.1.headers["retry-after"], "2");
    assert!(refused.0 < Duration::from_millis(1900), "it waited {:?} for it", refused.0);
    let used: Value = fleet.door.apart().call("getSpace", json!({ "name": "used" })).await.ok();
    assert_eq!(used["space"]["node"], json!(holder), "who uses a space is served meanwhile");
    for stranger in strangers {
        let reply = stranger.await.expect("no panic");
        assert_eq!(reply.status, 503, "{}", reply.text());
    }
    fleet.node_mut(other).daemon.signal(Signal::CONT);
    fleet.end().await;
}
