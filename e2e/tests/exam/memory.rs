//! What sleeps gives its memory back, and what is gone leaves nothing.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use drowse_e2e::{
    fleet::Fleet,
    wait::{eventually, seconds, timed},
};
use drowse_shared::api::spaces::State;
use futures_util::{StreamExt as _, stream};

/// A compressed block device in memory, as swap of the machine while this lives.
struct Zram {
    number: String,
}

impl Zram {
    /// `None` where the kernel has none, or does not let us.
    fn take() -> Option<Self> {
        let number = fs::read_to_string("/sys/class/zram-control/hot_add").ok()?.trim().to_owned();
        let zram = Self { number };
        zram.set("disksize", "1G").ok()?;
        let device = zram.device();
        // Where nothing makes device nodes, they are ours to make.
        if !Path::new(&device).exists() {
            let numbers = fs::read_to_string(format!("/sys/block/zram{}/dev", zram.number)).ok()?;
            let (major, minor) = numbers.trim().split_once(':')?;
            run("mknod", &[&device, "b", major, minor])?;
        }
        run("mkswap", &[&device])?;
        run("swapon", &["-p", "100", &device])?;
        Some(zram)
    }

    fn device(&self) -> String {
        format!("/dev/zram{}", self.number)
    }

    fn set(&self, file: &str, value: &str) -> std::io::Result<()> {
        fs::write(format!("/sys/block/zram{}/{file}", self.number), value)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(self.device()).status();
        let _ = self.set("reset", "1");
        let _ = fs::write("/sys/class/zram-control/hot_remove", &self.number);
    }
}

fn run(program: &str, args: &[&str]) -> Option<()> {
    let done = Command::new(program).args(args).output().ok()?;
    if !done.status.success() {
        eprintln!("{program} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
    done.status.success().then_some(())
}

/// Holds 200 MiB that it made itself, and says what they are whenever it is asked.
const HOLDER: &str = r#"
import hashlib, os, time
data = bytearray()
for n in range(200 << 8): data += hashlib.md5(b'%d' % n).digest() * 256
open('made', 'w').write(hashlib.sha256(data).hexdigest())
while True:
    if os.path.exists('ask'):
        os.remove('ask')
        open('said', 'w').write(hashlib.sha256(data).hexdigest())
    time.sleep(0.05)
"#;

const SIZE: u64 = 200 << 20;

/// Memory of the workload of a space.
fn memory(fleet: &Fleet, id: &str) -> u64 {
    for (top, file) in
        [("/sys/fs/cgroup/memory", "memory.usage_in_bytes"), ("/sys/fs/cgroup", "memory.current")]
    {
        let instances =
            fs::read_dir(format!("{top}/{}", fleet.ground.cgroup_parent)).into_iter().flatten().flatten();
        for instance in instances {
            if let Ok(text) = fs::read_to_string(instance.path().join(id).join("work").join(file)) {
                return text.trim().parse().expect("a number");
            }
        }
    }
    panic!("the workload of {id} has no memory cgroup");
}

async fn paged_out(fleet: &Fleet) -> u64 {
    let text = fleet.node("n1").door.page("/metrics").await.text();
    let line = text.lines().find_map(|line| line.strip_prefix("drowse_node_paged_out_bytes_total "));
    line.unwrap_or_else(|| panic!("no such metric: {text}")).parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_of_a_frozen_space_goes_back_to_the_host_and_comes_back_intact() {
    let zram = Zram::take().expect("zram to swap to: modprobe zram");
    let fleet = Fleet::real(1).start().await;
    let id = fleet.acquire("a").await.space.id.to_string();
    fleet.write("a", "holder.py", HOLDER).await;
    fleet.detach("a", "exec python3 holder.py").await;
    let made = eventually("it holds its memory", seconds(60), || async {
        let made = fleet.door.read("a", b"made").await;
        (made.status == 200 && made.bytes.len() == 64).then_some(made.bytes)
    })
    .await;
    let awake = memory(&fleet, &id);
    assert!(awake > SIZE, "{awake} bytes");
    assert_eq!(paged_out(&fleet).await, 0);
    let said = || async {
        fleet.exec("a", "rm -f said; touch ask; until test -s said; do sleep 0.05; done; cat said").await
    };

    let (_, took) = timed(fleet.freeze("a")).await;
    assert!(took < seconds(1), "nobody waits for that: {took:?}");
    let asleep = eventually("its memory is the host's again", seconds(60), || async {
        Some(memory(&fleet, &id)).filter(|bytes| *bytes < SIZE / 8)
    })
    .await;
    let went = eventually("it is counted", seconds(10), || async {
        Some(paged_out(&fleet).await).filter(|bytes| *bytes > SIZE / 2)
    })
    .await;
    assert_eq!(fleet.get("a").await.state, State::Frozen);
    let (ran, took) = timed(fleet.exec("a", "echo awake")).await;
    assert!(ran == "awake" && took < seconds(2), "{took:?}");
    let (back, whole) = timed(said()).await;
    assert_eq!(back.as_bytes(), made, "intact");
    eprintln!(
        "{awake} bytes awake, {asleep} asleep, {went} went; first command {took:?}, all of it back {whole:?}"
    );

    // Whoever wakes it at once waits for nothing, and loses nothing.
    for round in 0..5 {
        fleet.freeze("a").await;
        let (_, took) = timed(fleet.exec("a", "true")).await;
        assert!(took < seconds(1), "round {round}: {took:?}");
    }
    assert_eq!(said().await.as_bytes(), made, "still intact");
    fleet.destroy("a").await;
    let written = paged_out(&fleet).await;
    fleet.end().await;
    assert!(written >= went);
    drop(zram);
}

/// Network interfaces of the machine.
fn interfaces() -> BTreeSet<String> {
    let all = fs::read_dir("/sys/class/net").expect("/sys is mounted").flatten();
    all.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// How many descriptors a daemon has open.
fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count()
}

async fn lives(spaces: usize) {
    let mut fleet = Fleet::real(1).start().await;
    let daemon = fleet.node_mut("n1").daemon.pid();
    let live = |n: usize| {
        let fleet = &fleet;
        async move {
            let name = format!("life-{n}");
            fleet.acquire(&name).await;
            fleet.write(&name, "kept", name.clone()).await;
            fleet.detach(&name, "exec sleep 1000").await;
            fleet.freeze(&name).await;
            assert_eq!(fleet.exec(&name, "cat kept").await, name);
            fleet.door.turn("stopSpace", &name).await.ok();
            assert_eq!(fleet.exec(&name, "cat kept").await, name);
            if n.is_multiple_of(3) {
                fleet.freeze(&name).await;
            }
            assert!(fleet.destroy(&name).await);
        }
    };
    // The first ones leave what is kept for all: connections, and their pools.
    stream::iter(0..8).for_each_concurrent(8, live).await;
    let (interfaces_before, open_before) = (interfaces(), descriptors(daemon));
    stream::iter(8..8 + spaces).for_each_concurrent(8, live).await;
    let left = |what: &str, ids: BTreeSet<String>| assert_eq!(ids, BTreeSet::new(), "{what}");
    left("in the kernel", fleet.ground.spaces_in_kernel());
    left("of the runtime", fleet.ground.spaces_in_runtime());
    left("on disk", fleet.disks());
    left("in ledgers", fleet.in_ledgers().await);
    let new: Vec<_> = interfaces().difference(&interfaces_before).cloned().collect();
    assert!(new.is_empty(), "network interfaces: {new:?}");
    eventually("the daemon holds no more than before", seconds(30), || async {
        (descriptors(daemon) <= open_before + 16).then_some(())
    })
    .await;
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_whole_lives_of_spaces_leave_nothing() {
    lives(20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a soak: two minutes"]
async fn soak_two_hundred_whole_lives_of_spaces_leave_nothing() {
    lives(200).await;
}
