use drowse_e2e::{
    fleet::Fleet,
    wait::{eventually, seconds},
};
use drowse_shared::api::{Code, nodes::NodeState, spaces::State};

/// Waits until the gateway has read that so many spaces are active on a node.
async fn until_read(fleet: &Fleet, node: &str, active: u64) {
    let promise = format!("reports {active} active spaces");
    fleet
        .until_standing(node, &promise, |n| {
            let reading = n.reading.as_ref();
            reading.is_some_and(|r| r.spaces.get(&State::Active).copied().unwrap_or(0) == active)
        })
        .await;
}

#[tokio::test]
async fn a_new_name_goes_to_the_emptiest_node() {
    let fleet = Fleet::fake(3).start().await;
    for (node, spaces) in [("n1", 3), ("n2", 1), ("n3", 2)] {
        for s in 0..spaces {
            fleet.node(node).door.acquire(&format!("{node}-{s}")).await.ok();
        }
        until_read(&fleet, node, spaces).await;
    }
    let mut placed = Vec::new();
    for n in 0..3 {
        placed.push(fleet.acquire(&format!("new-{n}")).await.space.node.to_string());
    }
    assert_eq!(placed[0], "n2", "two others are fuller");
    placed.sort();
    assert_eq!(placed, ["n2", "n2", "n3"], "each goes where the fewest are by then");
    fleet.end().await;
}

#[tokio::test]
async fn a_node_with_more_cores_takes_more() {
    let cores = std::thread::available_parallelism().expect("known").get();
    assert!(cores >= 2, "one core cannot be told from another on this machine");
    // A reading that is on its way does not know what is built meanwhile, and takes the count of it with it.
    let mut fleet = Fleet::fake(2).check_in_seconds(3.0).start().await;
    let confined = &mut fleet.node_mut("n1").daemon;
    confined.stop().await;
    confined.on_one_core();
    confined.start();
    fleet
        .until_standing("n1", "reports one core", |n| n.reading.as_ref().is_some_and(|r| r.cores == 1))
        .await;
    for n in 0..(3 * (cores + 1)) {
        fleet.acquire(&format!("dense-{n}")).await;
    }
    let spread = fleet.spread().await;
    assert_eq!(spread.get("n1"), Some(&3), "one share of {} for one core: {spread:?}", cores + 1);
    fleet.end().await;
}

#[tokio::test]
async fn a_burst_inside_one_interval_spreads_evenly() {
    let fleet = Fleet::fake(3).check_in_seconds(3.0).start().await;
    let names: Vec<String> = (0..40).map(|n| format!("b-{n}")).collect();
    let acquired = futures_util::future::join_all(names.iter().map(|name| fleet.acquire(name))).await;
    assert!(acquired.iter().all(|a| a.created));
    let mut counts: Vec<usize> = fleet.spread().await.into_values().collect();
    counts.sort_unstable();
    assert_eq!(counts, [13, 13, 14]);
    fleet.end().await;
}

#[tokio::test]
async fn a_space_that_lived_shortly_gives_its_slot_back() {
    let fleet = Fleet::fake(2).check_in_seconds(3.0).start().await;
    fleet.node("n1").door.acquire("there-first").await.ok();
    until_read(&fleet, "n1", 1).await;
    for n in 0..8 {
        let name = format!("short-{n}");
        assert_eq!(fleet.acquire(&name).await.space.node.as_str(), "n2", "round {n}: n2 is empty each time");
        assert!(fleet.destroy(&name).await);
    }
    fleet.end().await;
}

#[tokio::test]
async fn each_gate_refuses_in_its_own_words() {
    let mut fleet = Fleet::fake(2).start().await;
    for (setting, value, word) in
        [("DROWSE_CPU_PERCENT_MAX", "0", "cpu"), ("DROWSE_ACTIVE_MAX", "1", "active")]
    {
        for node in ["n1", "n2"] {
            fleet.node(node).door.acquire(&format!("one-on-{node}")).await.ok();
        }
        fleet.reconfigure_gateway(&[(setting, value)]).await;
        let door = &fleet.door;
        // The first answers of a fresh gateway may still be about what it has not read yet.
        let error = eventually(&format!("a refusal that speaks of {word}"), seconds(10), || async {
            let reply = door.acquire("new").await;
            let error = (reply.status != 200).then(|| reply.refused(&Code::NoCapacity));
            if error.is_none() {
                door.destroy("new").await.ok();
            }
            error.filter(|e| e.message.to_lowercase().contains(word))
        })
        .await;
        assert!(error.retry_after_seconds.is_some());
        assert!(error.message.contains("n1") && error.message.contains("n2"), "{}", error.message);
        assert!(fleet.holders("new").await.is_empty());
        fleet.acquire("one-on-n1").await;
        fleet.gateway.set("DROWSE_ACTIVE_MAX", 400);
        fleet.reconfigure_gateway(&[("DROWSE_CPU_PERCENT_MAX", "100")]).await;
    }

    fleet.kill("n1");
    fleet.kill("n2");
    for node in ["n1", "n2"] {
        fleet.until_standing(node, "is down", |n| n.state == NodeState::Down).await;
    }
    let nodes = fleet.door.nodes().await.ok().nodes;
    let reason = nodes[0].refuses.as_deref().expect("a node that is down takes nothing");
    assert!(reason.contains("check") || reason.contains("down"), "{reason}");
    fleet.end().await;
}

#[tokio::test]
async fn a_node_whose_disk_is_nearly_full_takes_no_new_space() {
    let fleet = Fleet::fake(2).state_bytes(64 << 20).start().await;
    fleet.acquire("before").await;
    for node in ["n1", "n2"] {
        let room = fleet.node(node).state.join("filler");
        let available = rustix::fs::statvfs(fleet.node(node).state.as_str()).expect("a file system").f_bavail;
        let keep = 1 << 20;
        std::fs::write(&room, vec![0; usize::try_from(available * 4096 - keep).expect("small")])
            .expect("room");
        fleet
            .until_standing(node, "refuses for its disk", |n| {
                n.refuses.as_ref().is_some_and(|r| r.contains("disk"))
            })
            .await;
    }
    let error = fleet.door.acquire("after").await.refused(&Code::NoCapacity);
    assert!(error.message.contains("n1") && error.message.contains("n2") && error.message.contains("disk"));
    fleet.acquire("before").await;
    fleet.end().await;
}
