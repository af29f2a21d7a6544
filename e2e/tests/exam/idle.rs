//! What keeps a space awake, what does not, and the edge between the two.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use drowse_e2e::{
    fleet::Fleet,
    ground::random_below,
    wait::{eventually, seconds, throughout, timed},
};
use drowse_shared::api::{
    exec::ExecResult,
    spaces::{EventList, Happened, SpaceAnswer, State},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};

use super::ports::{DOMAIN, Web};

/// A tunnel to the app of a space; its first bytes are read.
async fn tunnel(web: &Web, name: &str, protocol: &str) -> TcpStream {
    let mut io = web.connect().await;
    let asks = format!(
        "GET /ws HTTP/1.1\r\nHost: {name}.{DOMAIN}\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
    );
    io.write_all(asks.as_bytes()).await.expect("sent");
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains("hello ") {
        let read = timeout(seconds(20), io.read_buf(&mut heard)).await.expect("in time").expect("read");
        assert!(read > 0, "it ended: {}", String::from_utf8_lossy(&heard));
    }
    io
}

async fn slept(fleet: &Fleet, name: &str) -> bool {
    let told: EventList = fleet.door.call("listEvents", json!({ "name": name })).await.ok();
    told.events.iter().any(|event| event.what == Happened::Frozen)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_moves_on_a_connection_keeps_its_space_awake() {
    let web = Arc::new(Web::over(Fleet::real(1)).await);
    let names = ["pings", "asks", "trickle", "events"];
    for name in names {
        web.app(name).await;
        // An event comes each second.
        web.policy(name, json!({ "freezeAfterSeconds": 2 })).await;
    }
    let during = Duration::from_secs(6);
    let mut moves = JoinSet::new();
    let each = web.clone();
    moves.spawn(async move {
        // The app says something again and again, and nobody answers.
        let mut io = tunnel(&each, "pings", "ping").await;
        let (began, mut buffer) = (Instant::now(), [0; 256]);
        while began.elapsed() < during {
            let read = timeout(seconds(2), io.read(&mut buffer)).await.expect("it goes on").expect("read");
            assert!(read > 0, "it ended");
        }
    });
    let each = web.clone();
    moves.spawn(async move {
        // A client does.
        let mut io = tunnel(&each, "asks", "echo").await;
        let (began, mut echo) = (Instant::now(), [0; 4]);
        while began.elapsed() < during {
            io.write_all(b"ping").await.expect("sent");
            timeout(seconds(2), io.read_exact(&mut echo)).await.expect("at once").expect("read");
            tokio::time::sleep(seconds(1)).await;
        }
    });
    for (name, target, whole) in [("trickle", "/trickle", "xxxxxx"), ("events", "/events", "data: 6")] {
        let each = web.clone();
        moves.spawn(async move {
            let (page, took) = timed(each.get(name, target)).await;
            assert!(page.status == 200 && page.body.contains(whole), "{name}: {}", page.body);
            assert!(took < seconds(10), "{name} never stood still: {took:?}");
        });
    }
    moves.join_all().await;
    for name in names {
        assert!(!slept(&web.fleet, name).await, "{name} slept while something moved");
    }
    for name in names {
        eventually("it sleeps once nothing does", seconds(20), || async {
            (web.fleet.get(name).await.state == State::Frozen).then_some(())
        })
        .await;
    }
    Arc::into_inner(web).expect("nothing moves").fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_tunnel_sleeps_with_its_space_and_either_side_is_heard_again() {
    let web = Web::over(Fleet::real(1)).await;
    web.app("shop").await;
    web.policy("shop", json!({ "freezeAfterSeconds": 1 })).await;
    let mut asks = tunnel(&web, "shop", "echo").await;
    let mut told = tunnel(&web, "shop", "later").await;
    let asleep = || async { (web.fleet.get("shop").await.state == State::Frozen).then_some(()) };
    eventually("both are quiet", seconds(20), asleep).await;
    throughout("looking wakes nothing", seconds(2), || async {
        web.fleet.list("").await;
        slept(&web.fleet, "shop").await && web.fleet.get("shop").await.state == State::Frozen
    })
    .await;
    asks.write_all(b"one").await.expect("sent");
    let mut echo = [0; 3];
    timeout(seconds(10), asks.read_exact(&mut echo)).await.expect("it woke").expect("read");
    assert_eq!(&echo, b"one");
    eventually("it is quiet again", seconds(20), asleep).await;
    // What the app has to say comes once its space is awake, on the connection of before.
    web.fleet.exec("shop", "touch now").await;
    timeout(seconds(10), told.read_exact(&mut echo)).await.expect("it is heard").expect("read");
    assert_eq!(&echo, b"now");
    web.fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_space_computes_keeps_it_awake_if_its_policy_says_so() {
    let fleet = Fleet::real(1).start().await;
    for name in ["computes", "waits", "uncounted"] {
        fleet.acquire(name).await;
        let policy = match name {
            "uncounted" => json!({ "freezeAfterSeconds": 1 }),
            _ => json!({ "freezeAfterSeconds": 1, "awakeCpuPercent": 10 }),
        };
        let changed: SpaceAnswer =
            fleet.door.call("updatePolicy", json!({ "name": name, "policy": policy })).await.ok();
        assert_eq!(changed.space.policy.freeze_after_seconds, Some(1));
        fleet.detach(name, if name == "waits" { "exec sleep 600" } else { "while :; do :; done" }).await;
    }
    let frozen = async |name: &str| (fleet.get(name).await.state == State::Frozen).then_some(());
    eventually("it does nothing", seconds(20), || frozen("waits")).await;
    eventually("what it does is not counted", seconds(20), || frozen("uncounted")).await;
    throughout("it computes", seconds(6), || async { !slept(&fleet, "computes").await }).await;
    assert_eq!(fleet.get("computes").await.awake.expect("it is awake").because, "cpu");
    fleet.exec("computes", "pkill -f 'while :'").await;
    eventually("it has computed all there was", seconds(20), || frozen("computes")).await;
    fleet.end().await;
}

/// What the kernel says of the workload of a space.
fn is_suspended(fleet: &Fleet, id: &str) -> bool {
    let parents = ["/sys/fs/cgroup/freezer", "/sys/fs/cgroup"]
        .map(|top| format!("{top}/{}", fleet.ground.cgroup_parent));
    let instances = parents.iter().flat_map(|parent| fs::read_dir(parent).into_iter().flatten().flatten());
    let states: Vec<String> = instances
        .filter_map(|instance| {
            let work = instance.path().join(id).join("work");
            fs::read_to_string(work.join("freezer.state"))
                .or_else(|_| fs::read_to_string(work.join("cgroup.freeze")))
                .ok()
        })
        .collect();
    assert_eq!(states.len(), 1, "one cgroup freezes {id}");
    !matches!(states[0].trim(), "THAWED" | "0")
}

/// Runs so many commands in eight spaces, each when its space is about to freeze.
async fn at_the_edge(rounds: usize) {
    let fleet = Arc::new(Fleet::real(1).start().await);
    let names: Vec<String> = (0..8).map(|n| format!("edge-{n}")).collect();
    let policy = json!({ "freezeAfterSeconds": 1, "stopAfterSeconds": null, "hibernateAfterSeconds": null });
    for name in &names {
        fleet.door.call::<Value>("acquireSpace", json!({ "name": name, "policy": policy })).await.ok();
    }
    let (done, slowest) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut edges = JoinSet::new();
    for name in names.clone() {
        let (fleet, done, slowest) = (fleet.clone(), done.clone(), slowest.clone());
        edges.spawn(async move {
            let mut frozen = false;
            while done.fetch_add(1, Ordering::Relaxed) < rounds {
                // The clock of idle spaces ticks once a second.
                tokio::time::sleep(Duration::from_millis(900 + random_below(1200))).await;
                let (ran, took) = timed(fleet.door.exec(&name, "echo $((6 * 7))")).await;
                let ran: ExecResult = ran.ok();
                let said = (ran.stdout.as_str(), ran.exit_code, ran.timed_out);
                assert_eq!(said, ("42\n", Some(0), false), "{name}");
                assert!(took < seconds(5), "{name} answers in time: {took:?}");
                slowest.fetch_max(usize::try_from(took.as_millis()).expect("small"), Ordering::Relaxed);
                frozen |= ran.resumed.is_some();
            }
            assert!(frozen, "{name} was met asleep at least once");
        });
    }
    edges.join_all().await;
    eprintln!("{rounds} rounds, the slowest took {slowest:?} ms");
    let never = json!({ "freezeAfterSeconds": null });
    for name in &names {
        fleet.door.call::<Value>("updatePolicy", json!({ "name": name, "policy": never })).await.ok();
    }
    for name in &names {
        let space = fleet.get(name).await;
        let is = (space.state == State::Frozen, is_suspended(&fleet, &space.id.to_string()));
        assert_eq!(is.0, is.1, "{name} is called {}", space.state);
        assert_eq!(fleet.exec(name, "echo on").await, "on");
        assert!(!is_suspended(&fleet, &space.id.to_string()), "{name} runs");
    }
    Arc::into_inner(fleet).expect("all edges are done").end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_meet_an_idle_space_about_to_freeze_are_answered_in_time() {
    at_the_edge(80).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a soak: two minutes"]
async fn soak_five_hundred_commands_at_the_edge_of_idle_are_answered_in_time() {
    at_the_edge(500).await;
}
