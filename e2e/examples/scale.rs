//! What a thousand nodes cost one gateway: check-ins, and asking all of them for a name beside a bare socket loop that
//! sends the same bytes. Run by `benches/run scale`.
#![expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use drowse_e2e::{
    fleet::Fleet,
    gauge,
    swarm::{Plan, Swarm, bare, name_of},
    wait::{eventually, seconds, timed},
};
use drowse_shared::api::nodes::NodeList;

const NODES: usize = 1000;
const NAMES_EACH: usize = 1000;
const INTERVAL: Duration = Duration::from_secs(5);
const ROUNDS: usize = 60;

#[tokio::main]
async fn main() {
    let fleet = Fleet::fake(0).gateway_env("DROWSE_LOG", "warn").start().await;
    let pid = fleet.gateway.pid();
    let empty = gauge::resident_bytes(pid);
    let swarm = Swarm::start(Plan {
        gateway: fleet.door.endpoint.clone(),
        token: fleet.ground.token.clone(),
        nodes: NODES,
        names_each: NAMES_EACH,
        interval: INTERVAL,
        joins_over: INTERVAL,
    });
    let ((), joined) = timed(eventually("every node takes new spaces", seconds(60), || async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let list: NodeList = fleet.door.nodes().await.ok();
        let all = list.nodes.len() == NODES && list.nodes.iter().all(|node| node.refuses.is_none());
        (all && swarm.who_know(NODES) == NODES).then_some(())
    }))
    .await;
    println!("{NODES} nodes join over {} s", INTERVAL.as_secs());
    println!("  all take new spaces and know each other after {:.1} s", joined.as_secs_f64());
    println!("  cpu of the gateway {:.2} s", gauge::cpu(pid).as_secs_f64());
    check_ins(&fleet, &swarm).await;
    let kept = gauge::resident_bytes(pid).saturating_sub(empty);
    println!("  memory of the gateway {:.1} KiB a node", kib(kept) / f64::from(NODES as u32));
    lookups(&fleet, &swarm).await;
    creates(&fleet).await;
    drop(swarm);
    fleet.end().await;
}

#[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
fn kib(bytes: u64) -> f64 {
    bytes as f64 / 1024.0
}

/// Processor time of the gateway while nothing but check-ins comes.
async fn check_ins(fleet: &Fleet, swarm: &Swarm) {
    tokio::time::sleep(INTERVAL).await;
    let pid = fleet.gateway.pid();
    let counts = swarm.counts();
    let bytes = || counts.check_in_bytes.load(Relaxed) + counts.answer_bytes.load(Relaxed);
    let (came, sent, cpu, began) = (counts.check_ins.load(Relaxed), bytes(), gauge::cpu(pid), Instant::now());
    tokio::time::sleep(INTERVAL * 4).await;
    let came = counts.check_ins.load(Relaxed) - came;
    let cpu = gauge::cpu(pid) - cpu;
    println!("check-ins of {NODES} nodes every {} s", INTERVAL.as_secs());
    println!("  {:.4} cores in all", cpu.as_secs_f64() / began.elapsed().as_secs_f64());
    println!("  {:.0} us of cpu each, {} came", cpu.as_secs_f64() * 1e6 / came as f64, came);
    println!("  {} bytes each, answer included", (bytes() - sent) / came.max(1));
}

/// Names nobody holds: every node is asked, and all have to answer.
async fn lookups(fleet: &Fleet, swarm: &Swarm) {
    // Connections are opened and kept.
    fleet.door.get("warm-up").await;
    let mut bare = bare::Loop::to(&swarm.addresses()).expect("every node accepts");
    let pid = fleet.gateway.pid();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (mut cpu, mut bare_cpu) = (Duration::ZERO, Duration::ZERO);
    for n in 0..ROUNDS {
        let before = gauge::cpu(pid);
        let (reply, took) = timed(fleet.door.get(&format!("unknown-{n}"))).await;
        assert_eq!(reply.status, 404, "{}", reply.text());
        cpu += gauge::cpu(pid) - before;
        ours.push(took);
        let asked = swarm.asked();
        let round = tokio::task::block_in_place(|| bare.round(&asked)).expect("every node answers");
        theirs.push(round.wall);
        bare_cpu += round.cpu;
    }
    let (ours, theirs) = (spread(ours), spread(theirs));
    let each = |cpu: Duration| cpu.as_secs_f64() * 1e3 / ROUNDS as f64;
    println!("lookup of an unknown name at {NODES} nodes, {ROUNDS} rounds, interleaved");
    println!("  gateway          p50 {:6.1} ms   p99 {:6.1} ms   cpu {:6.1} ms", ours.0, ours.1, each(cpu));
    println!(
        "  bare socket loop p50 {:6.1} ms   p99 {:6.1} ms   cpu {:6.1} ms",
        theirs.0,
        theirs.1,
        each(bare_cpu)
    );
    println!("  ratio            wall {:.1}   cpu {:.1}", ours.0 / theirs.0, each(cpu) / each(bare_cpu));
    let mut known = Vec::new();
    for n in 0..20 {
        let (reply, took) = timed(fleet.door.get(&name_of(n * 37, n))).await;
        reply.ok();
        known.push(took);
    }
    let known = spread(known);
    println!("  a known name, not remembered: p50 {:.1} ms   p99 {:.1} ms", known.0, known.1);
}

/// New names: every node is asked twice, one is chosen, and it builds.
async fn creates(fleet: &Fleet) {
    let mut all = Vec::new();
    for n in 0..20 {
        let (reply, took) = timed(fleet.door.acquire(&format!("new-{n}"))).await;
        assert!(reply.ok().created);
        all.push(took);
    }
    let all = spread(all);
    println!("  a new name: p50 {:.1} ms   p99 {:.1} ms", all.0, all.1);
}

/// Median and nearly the worst, in milliseconds.
fn spread(mut all: Vec<Duration>) -> (f64, f64) {
    all.sort();
    let at = |n: usize| all[n.min(all.len() - 1)].as_secs_f64() * 1e3;
    (at(all.len() / 2), at(all.len() * 99 / 100))
}
