use std::{
    collections::BTreeSet,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use drowse_e2e::{
    fleet::Fleet,
    gauge,
    swarm::{Mood, Plan, Swarm, name_of},
    wait::{eventually, seconds, timed},
};
use drowse_shared::api::{
    Code,
    nodes::{NodeList, NodeState},
};
use serde_json::json;

/// One gateway is designed for so many nodes.
const NODES: usize = 1000;
/// And for a million names.
const NAMES_EACH: usize = 1000;
/// What check-ins of all may cost at most, in cores.
const CHECK_INS_MAX: f64 = 0.1;
/// A fleet of a thousand that joins takes new spaces on every node within this.
const ANNOUNCED_WITHIN: Duration = Duration::from_secs(30);
/// Each of a thousand has to get a roster of 150 KB once, which is 150 MiB; a version per node would be 75,000.
const TOLD_MIB_MAX: u64 = 1500;
/// A known name is found within the grace, or five times as much on a busy machine.
const FOUND_WITHIN: Duration = Duration::from_millis(5 * 150);
/// A lookup ends after two seconds, and what follows from it is said within two more.
const REFUSED_WITHIN: Duration = Duration::from_secs(4);

/// A gateway alone, and a thousand nodes that join it.
async fn stage(interval: Duration, joins_over: Duration) -> (Fleet, Swarm) {
    let fleet = Fleet::fake(0).start().await;
    let swarm = Swarm::start(Plan {
        gateway: fleet.door.endpoint.clone(),
        token: fleet.ground.token.clone(),
        nodes: NODES,
        names_each: NAMES_EACH,
        interval,
        joins_over,
    });
    (fleet, swarm)
}

async fn nodes(fleet: &Fleet) -> NodeList {
    fleet.door.nodes().await.ok()
}

fn in_state(list: &NodeList, state: NodeState) -> BTreeSet<String> {
    list.nodes.iter().filter(|node| node.state == state).map(|node| node.id.to_string()).collect()
}

/// Waits until a new space could be placed on every node. Answers how long that took.
async fn announced(fleet: &Fleet) -> Duration {
    let took = timed(eventually("every node takes new spaces", ANNOUNCED_WITHIN, || async {
        let reply = fleet.door.attempt::<NodeList>("listNodes", &json!({})).await.ok()?;
        let list = (reply.status == 200).then(|| reply.ok())?;
        let all = list.nodes.len() == NODES && list.nodes.iter().all(|node| node.refuses.is_none());
        if !all {
            // Looking costs the gateway what it needs for the others.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        all.then_some(())
    }))
    .await;
    took.1
}

/// Waits until every node keeps the roster of all.
async fn all_know(swarm: &Swarm) {
    eventually("every node knows every node", seconds(30), || async {
        (swarm.who_know(NODES) == NODES).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_ins_of_a_thousand_nodes_cost_under_a_tenth_of_a_core() {
    let interval = seconds(5);
    let (fleet, swarm) = stage(interval, interval).await;
    let pid = fleet.gateway.pid();
    let before = gauge::resident_bytes(pid);
    let took = announced(&fleet).await;
    all_know(&swarm).await;
    let joined = gauge::cpu(pid);
    let counts = swarm.counts();
    let told = (counts.answer_bytes.load(Relaxed) + counts.report_bytes.load(Relaxed)) >> 20;
    let look = || {
        let of = [&counts.check_ins, &counts.refused, &counts.wanted, &counts.reports];
        let bytes = counts.check_in_bytes.load(Relaxed) + counts.answer_bytes.load(Relaxed);
        (of.map(|count| count.load(Relaxed)), bytes)
    };
    // Whoever was told last has said so.
    tokio::time::sleep(interval).await;
    let (first, first_bytes) = look();
    let (began, cpu) = (Instant::now(), gauge::cpu(pid));
    tokio::time::sleep(interval * 3).await;
    let cost = (gauge::cpu(pid) - cpu).as_secs_f64() / began.elapsed().as_secs_f64();
    let (last, last_bytes) = look();
    let [check_ins, refused, wanted, reports] = [0, 1, 2, 3].map(|n| last[n] - first[n]);
    let each = (last_bytes - first_bytes) / check_ins.max(1);
    let memory = gauge::resident_bytes(pid).saturating_sub(before) / NODES as u64;
    println!(
        "{NODES} nodes joined over {interval:?} and took spaces after {took:?}, which cost {joined:?} of a core and {told} MiB; \
         then {check_ins} check-ins of {each} bytes, answers included, cost {cost:.3} cores; {memory} bytes of memory a node"
    );
    assert!(check_ins > 2 * NODES as u64, "the swarm fell behind: {check_ins} check-ins");
    assert_eq!((refused, wanted, reports), (0, 0, 0), "nothing but check-ins");
    assert!(told < TOLD_MIB_MAX, "a thousand that join were told {told} MiB");
    assert!(cost < CHECK_INS_MAX, "check-ins of all cost {cost:.3} cores");
    assert!(each < 4096, "a check-in does not grow with the fleet: {each} bytes");
    assert!(memory < 128 << 10, "{memory} bytes of memory a node");
    drop(swarm);
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_hung_node_in_a_hundred_stops_nothing_but_what_it_may_hold() {
    // All join at once.
    let (fleet, swarm) = stage(seconds(2), Duration::ZERO).await;
    let took = announced(&fleet).await;
    println!("{NODES} nodes joined at once and took spaces after {took:?}");
    all_know(&swarm).await;
    let door = &fleet.door;

    // New names go to nodes that are empty.
    for n in 0..5 {
        let (acquired, took) = timed(door.acquire(&format!("new-{n}"))).await;
        assert!(acquired.ok().created, "new-{n}");
        assert!(took < REFUSED_WITHIN, "placed after {took:?}");
    }
    assert!((0..NODES).all(|n| swarm.built_on(n) <= 1), "five spaces, and a thousand nodes to choose from");

    let ill: Vec<usize> = (0..NODES).step_by(100).collect();
    let before: Vec<usize> = ill.iter().map(|n| swarm.built_on(*n)).collect();
    // One in a hundred hangs: of half of them not even a connection comes about.
    swarm.turn(ill.iter().copied().step_by(2), Mood::Hung).await;
    swarm.turn(ill.iter().copied().skip(1).step_by(2), Mood::Dark).await;
    // At once, when nobody has noticed yet, and when all are down.
    known_names_are_found_and_unknown_ones_are_not_built(&fleet, &ill, 0).await;
    let down = eventually("the hung ones are down", seconds(20), || async {
        let down = in_state(&nodes(&fleet).await, NodeState::Down);
        (down.len() >= ill.len()).then_some(down)
    })
    .await;
    assert_eq!(down, ill.iter().map(|n| swarm.id(*n)).collect(), "and nobody else is");
    known_names_are_found_and_unknown_ones_are_not_built(&fleet, &ill, 1).await;
    let open = gauge::open_files(fleet.gateway.pid());
    assert!(open < 3 * NODES, "connections are kept, one or two a node: {open} open files");

    // A person decides that they are gone for good.
    for n in &ill {
        assert!(door.remove_node(&swarm.id(*n)).await.ok().removed);
    }
    for n in 0..5 {
        let (acquired, took) = timed(door.acquire(&format!("after-{n}"))).await;
        assert!(acquired.ok().created, "after-{n}");
        assert!(took < REFUSED_WITHIN, "placed after {took:?}");
    }
    let built: Vec<usize> = ill.iter().map(|n| swarm.built_on(*n)).collect();
    assert_eq!(built, before, "nothing was built on a hung node");

    // What people and machines look at stays of a size.
    let (list, took) = timed(door.nodes()).await;
    assert!(took < seconds(2) && list.bytes.len() < 2 << 20, "{} bytes after {took:?}", list.bytes.len());
    let metrics = door.page("/metrics").await.text();
    assert!(metrics.len() < 64 << 10, "metrics of a thousand nodes are {} bytes", metrics.len());
    assert!(metrics.contains(r#"nodes{state="removed"} 10"#), "{metrics}");
    drop(swarm);
    fleet.end().await;
}

async fn known_names_are_found_and_unknown_ones_are_not_built(fleet: &Fleet, ill: &[usize], round: usize) {
    let door = &fleet.door;
    let mut slowest = Duration::ZERO;
    for k in 0..10 {
        // Not one of the hung ones, and never asked for before.
        let name = name_of(k * 97 + 1, round * 10 + k);
        let (found, took) = timed(door.get(&name)).await;
        assert_eq!(found.ok().space.name.as_str(), name);
        slowest = slowest.max(took);
    }
    assert!(slowest < FOUND_WITHIN, "a known name was found after {slowest:?}");
    let (refused, took) = timed(door.acquire(&format!("unknown-{round}"))).await;
    let error = refused.refused(&Code::NodeSilent);
    assert!(took < REFUSED_WITHIN, "refused after {took:?}");
    assert_eq!(error.details["nodes"].as_array().map(Vec::len), Some(ill.len()), "{error:?}");
    assert!(error.message.contains("s0000") && error.message.contains("and 5 more"), "{}", error.message);
    assert!(error.message.len() < 1000, "{}", error.message);
    // What a hung node holds is neither found nor made anew.
    door.acquire(&name_of(ill[1], round)).await.refused(&Code::NodeSilent);
    println!("round {round}: found within {slowest:?}, refused within {took:?}");
}
