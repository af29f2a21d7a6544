//! Real bodies: the OCI runtime, the agent, the kernel. Needs root, runc, the base template and the agent's binary
//! (`cargo build -p drowse-agent`), and fails in words without them.
#![expect(clippy::disallowed_methods, reason = "tests measure real time and wait for real processes")]

/// Daemons that come back over the bodies of their former life.
#[path = "oci/crash.rs"]
mod crash;
/// A node that dies at every milestone.
#[path = "oci/deaths.rs"]
mod deaths;
/// A node in a process of its own.
#[path = "oci/doomed.rs"]
mod doomed;
/// What a space can take from others.
#[path = "oci/hostile.rs"]
mod hostile;
/// A machine of its own for each test.
#[path = "oci/machine.rs"]
mod machine;
/// What a space uses.
#[path = "oci/metrics.rs"]
mod metrics;
/// Ten thousand disks.
#[path = "oci/scale.rs"]
mod scale;
/// What is left on a machine.
#[path = "oci/traces.rs"]
mod traces;
/// The wire of the agent, as far as these tests need it.
#[path = "oci/wire.rs"]
mod wire;

use std::{
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use drowse_node::executor::{
    Error, Executor, Vitality,
    oci::{Oci, OciConfig},
};
use drowse_shared::seams::Env;
use machine::{Machine, until};
use wire::fetch;

/// Starts processes without a pause.
const SPAWN: &str =
    "exec python3 -c 'import os\nwhile True: os.waitpid(os.posix_spawn(\"/bin/true\", [\"true\"], {}), 0)'";
const GRACE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn a_space_lives_through_every_state_and_leaves_nothing() {
    let machine = Machine::new("life").await;
    let card = machine.card("My Shop");
    let id = card.id;
    let oci = &machine.oci;
    let mut timings = Vec::new();
    let mut timed = |what: &'static str, since: Instant| timings.push((what, since.elapsed()));

    let at = Instant::now();
    oci.create(card.clone()).await.expect("created");
    timed("create", at);
    assert_eq!(oci.vitality(id).await.expect("seen"), Vitality::Stopped);
    let at = Instant::now();
    oci.start(card.clone()).await.expect("started");
    timed("start", at);
    assert_eq!(oci.vitality(id).await.expect("seen"), Vitality::Running);
    oci.start(card.clone()).await.expect("running already");

    let (code, text) = machine.run(id, "user", "id -un; hostname; pwd; ls -A ~ | sort | tr '\\n' ' '").await;
    assert_eq!((code, text.as_str()), (0, "user\nmy-shop\n/home/user\n.bash_logout .bashrc .profile "));
    let (code, text) = machine.run(id, "user", "sudo -n id -u && python --version && git --version").await;
    assert_eq!(code, 0, "{text}");
    assert!(text.starts_with("0\nPython 3") && !text.contains("unable to resolve"), "{text}");
    let write =
        "echo home > ~/file; sudo sh -c 'echo root > /opt/file; chown user /opt/file'; echo tmp > /tmp/file";
    assert_eq!(machine.run(id, "user", write).await, (0, String::new()));

    // A counter goes on, stops, goes on.
    let count = "i=0; while :; do i=$((i+1)); echo $i > /tmp/counter; sleep 0.01; done";
    let counter = machine.start(id, "user", count).await;
    until("the counter counts", async || machine.run(id, "user", "cat /tmp/counter").await.0 == 0).await;
    let at = Instant::now();
    oci.freeze(id).await.expect("frozen");
    timed("freeze", at);
    assert_eq!(oci.vitality(id).await.expect("seen"), Vitality::Frozen);
    oci.freeze(id).await.expect("frozen already");
    let before = machine.read(id, "/tmp/counter").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(
        machine.read(id, "/tmp/counter").await,
        before,
        "the agent answers, the counter does not move"
    );
    let stats = oci.stats(id).await.expect("measured");
    assert!(
        stats.memory_bytes > 0 && stats.pids >= 3 && stats.disk_bytes > 0 && stats.cpu_us > 0,
        "{stats:?}"
    );
    assert!(matches!(oci.start(card.clone()).await, Err(Error::Vitality { vitality: Vitality::Frozen, .. })));
    let at = Instant::now();
    oci.thaw(id).await.expect("thawed");
    timed("thaw", at);
    oci.thaw(id).await.expect("thawed already");
    until("the counter moves", async || machine.read(id, "/tmp/counter").await != before).await;
    drop(counter);

    let at = Instant::now();
    oci.stop(id, GRACE).await.expect("stopped");
    timed("stop", at);
    oci.stop(id, GRACE).await.expect("stopped already");
    assert_eq!(oci.vitality(id).await.expect("seen"), Vitality::Stopped);
    machine.assert_clean("after a stop");
    assert!(oci.agent(id).await.is_err());
    assert!(matches!(oci.freeze(id).await, Err(Error::Vitality { .. })));

    let at = Instant::now();
    oci.start(card.clone()).await.expect("started again");
    timed("start again", at);
    let (code, text) =
        machine.run(id, "user", "cat ~/file /opt/file /tmp/file; stat -c %U:%u /opt/file").await;
    assert_eq!((code, text.as_str()), (0, "home\nroot\ntmp\nuser:1000\n"));

    // Frozen spaces stop and are destroyed too.
    oci.freeze(id).await.expect("frozen");
    let at = Instant::now();
    oci.stop(id, GRACE).await.expect("stopped while frozen");
    timed("stop while frozen", at);
    oci.start(card.clone()).await.expect("started");
    let found = oci.list().await.expect("listed");
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].card.as_ref(), found[0].disk, found[0].vitality),
        (Some(&card), true, Vitality::Running)
    );
    oci.freeze(id).await.expect("frozen");
    let at = Instant::now();
    oci.destroy(id).await.expect("destroyed");
    timed("destroy", at);
    oci.destroy(id).await.expect("destroyed already");
    assert_eq!(oci.list().await.expect("listed"), []);
    machine.assert_clean("after a destroy");
    assert!(matches!(oci.start(card.clone()).await, Err(Error::DiskMissing { .. })));
    assert!(matches!(oci.write_card(card).await, Err(Error::DiskMissing { .. })));
    machine.assert_clean("after a start without a disk");
    for (what, took) in timings {
        println!("{what:18} {:7.2} ms", took.as_secs_f64() * 1e3);
    }
    machine.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_inside_is_nobody_outside_and_cannot_reach_the_host() {
    let machine = Machine::new("walls").await;
    let card = machine.card("walls");
    let id = card.id;
    machine.oci.create(card.clone()).await.expect("created");
    machine.oci.start(card).await.expect("started");
    let sleeper = machine.start(id, "root", "exec sleep 1000").await;
    let owner = machine.owner_of_command(id, "sleep").await;
    assert!(owner >= 1 << 20, "root inside is {owner} outside");
    drop(sleeper);
    // The host's own files, the state and run directories, and the agent's descriptors are out of reach.
    let marker = machine.dir().join("marker");
    std::fs::write(&marker, "secret").expect("written");
    for script in [
        format!("cat {marker}"),
        format!("ls {}", machine.run_dir()),
        "ls /proc/1/fd".to_owned(),
        "ls /proc/1/root/".to_owned(),
        "cat /.drowse/*/drowse-agent".to_owned(),
        "cat /.drowse/$(tr '\\0' '\\n' < /proc/1/cmdline | head -1 | cut -d/ -f3)/drowse-agent".to_owned(),
        "mount -t tmpfs x /mnt".to_owned(),
        "unshare -m true".to_owned(),
        "echo 1 > /proc/sys/kernel/sysrq".to_owned(),
        "mknod /tmp/disk b 7 0 && cat /tmp/disk".to_owned(),
        "cat /proc/kcore | head -c 1 | grep -q .".to_owned(),
        "date -s 2000-01-01".to_owned(),
        "kill -9 1; sleep 0.1; kill -0 1 && exit 7".to_owned(),
        "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 2)'".to_owned(),
    ] {
        let (code, text) = machine.run(id, "root", &script).await;
        assert_ne!(code, 0, "{script}: {text}");
    }
    // Its view of itself: its own pids, host name, one loopback, limits.
    let (_, text) = machine
        .run(
            id,
            "root",
            "cat /proc/net/dev | tail -n +3 | cut -d: -f1; readlink /proc/1/ns/net || echo hidden",
        )
        .await;
    assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["lo", "hidden"]);
    let (_, text) = machine.run(id, "root", "ulimit -n; cat /proc/self/uid_map").await;
    assert!(text.contains("65536") && text.contains(&(owner / 65_536 * 65_536).to_string()), "{text}");
    machine.oci.destroy(id).await.expect("destroyed");
    machine.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_and_the_agent_outlives_them() {
    let machine = Machine::new("limits").await;
    let mut card = machine.card("limits");
    card.spec.memory_bytes = 64 << 20;
    card.spec.pids = 64;
    card.spec.disk_bytes = 64 << 20;
    let id = card.id;
    machine.oci.create(card.clone()).await.expect("created");
    machine.oci.start(card).await.expect("started");
    let (code, _) = machine.run(id, "user", "python3 -c 'x = bytearray(512 << 20)'").await;
    assert_ne!(code, 0, "twice the memory is refused");
    let (code, text) = machine.run(id, "user", "for i in $(seq 100); do sleep 3 & done; wait").await;
    assert!(code != 0 || text.contains("fork"), "{code} {text}");
    let (code, text) = machine
        .run(id, "user", "head -c 128M /dev/zero > ~/big; rm ~/big; df -B1 --output=size ~ | tail -1")
        .await;
    let size: u64 = text.lines().last().and_then(|line| line.trim().parse().ok()).expect("a size");
    assert!(code == 0 && size < 64 << 20, "{code} {text}");
    assert_eq!(machine.run(id, "user", "echo well").await, (0, "well\n".to_owned()));
    machine.oci.destroy(id).await.expect("destroyed");
    machine.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_inside_are_dialled() {
    let machine = Machine::new("dial").await;
    let card = machine.card("dial");
    let id = card.id;
    machine.oci.create(card.clone()).await.expect("created");
    machine.oci.start(card).await.expect("started");
    let refused = machine.oci.dial(id, 8000).await.map(|_| ()).expect_err("nobody listens");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let v4 = machine.start(id, "user", "cd /etc; exec python3 -m http.server 8000 --bind 127.0.0.1").await;
    let v6 = machine.start(id, "user", "cd /etc; exec python3 -m http.server 8001 --bind ::1").await;
    for port in [8000, 8001] {
        until("the server listens", async || machine.oci.dial(id, port).await.is_ok()).await;
        let stream = machine.oci.dial(id, port).await.expect("connected");
        let answer = fetch(stream, "GET /hostname HTTP/1.0\r\n\r\n").await;
        assert!(answer.ends_with("dial\n"), "{answer}");
    }
    drop((v4, v6));
    machine.oci.stop(id, GRACE).await.expect("stopped");
    assert!(machine.oci.dial(id, 8000).await.is_err());
    machine.oci.destroy(id).await.expect("destroyed");
    machine.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_first_process_is_noticed_and_start_recovers() {
    let machine = Machine::new("killed").await;
    let card = machine.card("killed");
    let id = card.id;
    machine.oci.create(card.clone()).await.expect("created");
    machine.oci.start(card.clone()).await.expect("started");
    assert_eq!(machine.run(id, "user", "echo kept > ~/file; sync").await.0, 0);
    machine.kill_first_process(id);
    until("it is noticed", async || machine.oci.vitality(id).await.expect("seen") == Vitality::Stopped).await;
    // What ends closes its door a moment later.
    let is_refused = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
    until("nobody answers", async || machine.oci.agent(id).await.err().is_some_and(is_refused)).await;
    machine.oci.start(card.clone()).await.expect("started over the leftovers");
    assert_eq!(machine.run(id, "user", "cat ~/file").await, (0, "kept\n".to_owned()));
    // The runtime's own record lost, and the run directory too: still everything is found and ended.
    machine.lose_runtime_record(id);
    machine.oci.stop(id, GRACE).await.expect("stopped without a record");
    machine.assert_clean("without a record");
    machine.oci.start(card.clone()).await.expect("started");
    machine.lose_body(id);
    assert_eq!(machine.oci.vitality(id).await.expect("seen"), Vitality::Stopped);
    machine.oci.start(card).await.expect("started over a body without files");
    assert_eq!(machine.run(id, "user", "cat ~/file").await, (0, "kept\n".to_owned()));
    machine.oci.destroy(id).await.expect("destroyed");
    machine.assert_clean("after a destroy");
    machine.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_share_one_kernel() {
    let first = Machine::new("pair").await;
    let second = first.neighbour().await;
    assert_ne!(first.oci.instance(), second.oci.instance());
    let (a, b) = (first.card("same"), second.card("same"));
    first.oci.create(a.clone()).await.expect("created");
    second.oci.create(b.clone()).await.expect("created");
    let (one, two) = tokio::join!(first.oci.start(a.clone()), second.oci.start(b.clone()));
    one.expect("started");
    two.expect("started");
    assert_eq!(first.oci.list().await.expect("listed").len(), 1);
    let owner = async |machine: &Machine, id| {
        let _sleeper = machine.start(id, "root", "exec sleep 1000").await;
        machine.owner_of_command(id, "sleep").await
    };
    assert_ne!(owner(&first, a.id).await, owner(&second, b.id).await);
    first.oci.destroy(a.id).await.expect("destroyed");
    assert!(first.oci.leave().await.expect("left"));
    assert!(!second.oci.leave().await.expect("asked"), "a body is still there");
    assert_eq!(second.run(b.id, "user", "echo on").await, (0, "on\n".to_owned()));
    second.oci.destroy(b.id).await.expect("destroyed");
    second.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_hangs_wedges_only_its_own_space() {
    let machine = Machine::with_hanging_runtime("hang").await;
    let (stuck, well) = (machine.card("stuck"), machine.card("well"));
    for card in [&stuck, &well] {
        machine.oci.create(card.clone()).await.expect("created");
    }
    machine.oci.start(stuck.clone()).await.expect("started");
    machine.hang(stuck.id, "delete");
    let begun = Instant::now();
    let wedged = machine.oci.stop(stuck.id, GRACE);
    let (wedged, started) = tokio::join!(wedged, machine.oci.start(well.clone()));
    wedged.expect("nothing of it lives, so the runtime is not needed to forget it");
    started.expect("the other starts meanwhile");
    assert_eq!(machine.oci.list().await.expect("listed").len(), 2);
    assert_eq!(machine.oci.vitality(stuck.id).await.expect("seen"), Vitality::Stopped);
    machine.hang(stuck.id, "run");
    let error = machine.oci.start(stuck.clone()).await.expect_err("it hangs");
    assert!(matches!(error, Error::Timeout { what: "start the container", .. }), "{error:?}");
    machine.unhang(stuck.id);
    machine.oci.start(stuck.clone()).await.expect("well again");
    machine.hang(stuck.id, "delete");
    for id in [stuck.id, well.id] {
        machine.oci.destroy(id).await.expect("destroyed");
    }
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    machine.unhang(stuck.id);
    machine.assert_clean("in the end");
    machine.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn freezing_in_the_middle_of_spawns_always_ends() {
    let machine = Machine::new("storm").await;
    let card = machine.card("storm");
    let id = card.id;
    machine.oci.create(card.clone()).await.expect("created");
    machine.oci.start(card).await.expect("started");
    let storm = machine.start(id, "user", SPAWN).await;
    let mut slowest = Duration::ZERO;
    for _ in 0..100 {
        let at = Instant::now();
        machine.oci.freeze(id).await.expect("frozen");
        slowest = slowest.max(at.elapsed());
        machine.oci.thaw(id).await.expect("thawed");
    }
    println!("slowest of 100 freezes among spawns: {slowest:?}");
    drop(storm);
    machine.oci.destroy(id).await.expect("destroyed");
    machine.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_said_and_destroy_works() {
    let machine = Machine::new("full").await;
    let limit = machine.limit_disks(16 << 20);
    let (first, second) = (machine.card("first"), machine.card("second"));
    machine.oci.create(first.clone()).await.expect("there is room");
    limit.fill();
    let refused = machine.oci.create(second).await;
    assert!(matches!(refused, Err(Error::DiskFull)), "{refused:?}");
    assert!(matches!(machine.oci.write_card(first.clone()).await, Err(Error::DiskFull)));
    let found = machine.oci.list().await.expect("listed");
    assert_eq!((found.len(), found[0].card.as_ref()), (1, Some(&first)), "a failed create leaves nothing");
    machine.oci.destroy(first.id).await.expect("destroyed");
    assert_eq!(machine.oci.list().await.expect("listed"), []);
    drop(limit);
    machine.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_is_refused_at_boot_in_words() {
    let machine = Machine::new("boot").await;
    let open = async |change: &dyn Fn(&mut OciConfig)| {
        let mut config = machine.config();
        change(&mut config);
        let error = Oci::open(Env::real(), config).await.map(|_| ()).expect_err("refused");
        let mut words = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            words = format!("{words}: {error}");
            cause = error.source();
        }
        words
    };
    let closed = machine.dir().join("closed");
    std::fs::create_dir(&closed).expect("made");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).expect("closed");
    let elsewhere = |config: &mut OciConfig| {
        config.run = format!("{}y", config.run).into();
        config.cgroup_parent += "y";
    };
    for (change, says) in [
        (&(|_: &mut OciConfig| {}) as &dyn Fn(&mut OciConfig), "stop it first"),
        (&|config| config.run = "here".into(), "must be absolute"),
        (&|config| config.run = format!("/run/{}", "x".repeat(90)).into(), "choose a shorter"),
        (&|config| config.run = "/run/a:b".into(), "colon"),
        (&|config| config.run = closed.join("run"), "chmod o+x"),
        (
            &|config| {
                elsewhere(config);
                config.runtime = "/no/such/runtime".into();
            },
            "set DROWSE_RUNTIME",
        ),
        (
            &|config| {
                elsewhere(config);
                config.agent = "/no/such/agent".into();
            },
            "read the agent /no/such/agent",
        ),
        (
            &|config| {
                elsewhere(config);
                config.templates = "/proc".into();
            },
            "mapped owners",
        ),
    ] {
        let words = open(change).await;
        assert!(words.contains(says), "{words}");
    }
    std::fs::remove_dir_all(format!("{}y", machine.run_dir())).expect("what a refused boot made");
    machine.leave().await;
}
