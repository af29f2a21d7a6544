use std::time::Duration;

use drowse_node::executor::{Executor, Vitality};

use crate::{GRACE, machine::Machine};

#[tokio::test(flavor = "multi_thread")]
async fn a_new_daemon_finds_the_bodies_of_the_old_one() {
    let mut machine = Machine::new("adopt").await;
    let (running, frozen, half) = (machine.card("running"), machine.card("frozen"), machine.card("half"));
    for card in [&running, &frozen] {
        machine.oci.create(card.clone()).await.expect("created");
        machine.oci.start(card.clone()).await.expect("started");
    }
    machine.oci.freeze(frozen.id).await.expect("frozen");
    // A create and a destroy that were cut, and a start that never came to answer.
    machine.half_made_disk(half.id);
    let trash = machine.trash_disk();
    let cut = machine.card("cut");
    machine.oci.create(cut.clone()).await.expect("created");
    machine.oci.start(cut.clone()).await.expect("started");
    machine.forget_started(cut.id);
    machine.reopen().await;
    let oci = &machine.oci;
    let found = oci.list().await.expect("listed");
    let of = |id| found.iter().find(|f| f.id == id).expect("found");
    assert_eq!(found.len(), 5);
    assert_eq!((of(running.id).card.as_ref(), of(running.id).vitality), (Some(&running), Vitality::Running));
    assert_eq!(of(frozen.id).vitality, Vitality::Frozen);
    assert_eq!((of(cut.id).vitality, of(cut.id).disk), (Vitality::Stopped, true));
    assert_eq!((of(half.id).card.as_ref(), of(half.id).disk), (None, true));
    assert_eq!((of(trash).card.as_ref(), of(trash).disk), (None, false));
    assert_eq!(machine.run(running.id, "user", "echo here").await, (0, "here\n".to_owned()));
    // The leases of those that go on are known: a new one gets another range.
    oci.create(half.clone()).await.expect("what a cut create left is replaced");
    oci.start(half.clone()).await.expect("started");
    oci.thaw(frozen.id).await.expect("thawed");
    let mut owners = Vec::new();
    for id in [running.id, frozen.id, half.id] {
        let sleeper = machine.start(id, "root", "exec sleep 1000").await;
        owners.push(machine.owner_of_command(id, "sleep").await);
        drop(sleeper);
    }
    owners.dedup();
    assert_eq!(owners.len(), 3, "{owners:?}");
    for id in [running.id, frozen.id, half.id, trash, cut.id] {
        oci.destroy(id).await.expect("destroyed");
    }
    assert_eq!(oci.list().await.expect("listed"), []);
    machine.assert_clean("in the end");
    machine.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freeze_that_was_cut_never_comes_true_later() {
    let mut machine = Machine::new("cut").await;
    let card = machine.card("cut");
    let id = card.id;
    machine.oci.create(card.clone()).await.expect("created");
    machine.oci.start(card).await.expect("started");
    let storm = machine.start(id, "user", crate::SPAWN).await;
    let between = machine.begin_to_freeze(id);
    machine.reopen().await;
    // The kernel may have come to the end of it meanwhile. What is seen running goes on running: were the workload about
    // to freeze, this would hang once it has.
    if machine.oci.vitality(id).await.expect("seen") == Vitality::Frozen {
        machine.oci.thaw(id).await.expect("thawed");
    }
    for _ in 0..10 {
        assert_eq!(machine.run(id, "user", "echo runs").await, (0, "runs\n".to_owned()));
    }
    println!("the freezer was met in between: {between}");
    drop(storm);
    machine.oci.destroy(id).await.expect("destroyed");
    machine.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_at_any_moment_leaves_nothing_that_is_not_found() {
    let mut machine = Machine::new("crash").await;
    let mut seen = std::collections::BTreeMap::new();
    for round in 0..15 {
        let mut daemon = machine.hand_over().await;
        // From the first create to the third destroy, and wherever the load of the machine puts it.
        tokio::time::sleep(Duration::from_millis(10 + 23 * round)).await;
        daemon.kill().expect("killed");
        daemon.wait().expect("ended");
        machine.take_back().await;
        for found in machine.oci.list().await.expect("listed") {
            let what = format!("{:?}, card {}, disk {}", found.vitality, found.card.is_some(), found.disk);
            *seen.entry(what).or_insert(0) += 1;
            match (found.vitality, found.card) {
                (Vitality::Stopped, Some(card)) => {
                    assert!(found.disk);
                    machine.oci.start(card).await.expect("started");
                    assert_eq!(machine.run(found.id, "user", "echo up").await, (0, "up\n".to_owned()));
                }
                (Vitality::Frozen, _) => machine.oci.thaw(found.id).await.expect("thawed"),
                // It may have been told to end already, so it need not answer.
                (Vitality::Running, card) => assert!(card.is_some()),
                (Vitality::Stopped, None) => {}
            }
            machine.oci.destroy(found.id).await.expect("destroyed");
        }
        machine.assert_clean(&format!("after round {round}"));
    }
    println!("found after 15 kills: {seen:#?}");
    machine.leave().await;
}

/// Not a test by itself: the daemon that the test above kills.
#[tokio::test(flavor = "multi_thread")]
async fn daemon_to_be_killed() {
    let Some(machine) = Machine::handed_over().await else { return };
    loop {
        let card = machine.card("victim");
        let id = card.id;
        machine.oci.create(card.clone()).await.expect("created");
        machine.oci.start(card.clone()).await.expect("started");
        machine.oci.freeze(id).await.expect("frozen");
        machine.oci.thaw(id).await.expect("thawed");
        machine.oci.stop(id, GRACE).await.expect("stopped");
        machine.oci.start(card).await.expect("started");
        machine.oci.destroy(id).await.expect("destroyed");
    }
}
