use drowse_node::{executor::Vitality, executor::fake::Fault, ledger, service};
use drowse_shared::{
    api::{
        Code,
        spaces::{SpaceAnswer, State},
    },
    name::SpaceRef,
};
use serde_json::{Value, json};

use crate::harness::{Ground, eventually};

#[tokio::test]
async fn a_crash_loses_nothing_and_bodies_run_on() {
    let ground = Ground::new();
    let life = ground.start().await;
    for name in ["active", "frozen", "stopped"] {
        life.acquire(name).await;
    }
    life.call("updateMetadata", json!({ "name": "active", "metadata": { "k": "v" } })).await.ok::<Value>();
    life.on("freezeSpace", "frozen").await.ok::<Value>();
    life.on("stopSpace", "stopped").await.ok::<Value>();
    let (ledger_id, ids) =
        (life.node.ledger_id, [life.id("active").await, life.id("frozen").await, life.id("stopped").await]);
    life.crash().await;

    let life = ground.start().await;
    assert_eq!(life.node.ledger_id, ledger_id);
    assert_eq!([life.id("active").await, life.id("frozen").await, life.id("stopped").await], ids);
    assert_eq!(life.state("active").await, State::Active);
    assert_eq!(life.state("frozen").await, State::Frozen);
    assert_eq!(life.state("stopped").await, State::Stopped);
    assert_eq!(life.get("active").await.metadata["k"], "v");
    assert_eq!(ground.machine.starts(ids[0]), 1, "it was never started again");
}

#[tokio::test]
async fn what_was_begun_is_brought_to_an_end() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("gone").await;
    life.acquire("kept").await;
    // The daemon dies while a create and a removal hang in the runtime.
    ground.machine.on("destroy", None, Some(Fault::Hang));
    ground.machine.on("start", None, Some(Fault::Hang));
    let half = life.call("acquireSpace", json!({ "name": "half", "waitSeconds": 0 })).await;
    assert_eq!(half.status, 202);
    drop(tokio::time::timeout(std::time::Duration::from_millis(100), life.on("destroySpace", "gone")).await);
    eventually("both are begun", || async {
        life.state("gone").await == State::Destroying
            && life.state("half").await == State::Creating
            && ground.machine.calls("start") == 3
    })
    .await;
    // A crash cannot be told from a life whose tasks never go on; the lock is what the next one needs.
    std::fs::remove_file(ground.state.join("ledger.db.lock")).expect("held by the old life");
    ground.machine.on("destroy", None, None);
    ground.machine.on("start", None, None);

    let next = ground.start().await;
    eventually("what was half made or half removed is gone", || async { ground.machine.bodies().len() == 1 })
        .await;
    eventually("and so are its rows", || async {
        next.on("getSpace", "half").await.status == 404 && next.on("getSpace", "gone").await.status == 404
    })
    .await;
    assert_eq!(next.state("kept").await, State::Active);
    assert!(next.acquire("half").await.created);
}

#[tokio::test]
async fn a_lost_ledger_is_rebuilt_from_the_disks() {
    for lose_identity in [false, true] {
        let ground = Ground::new();
        let life = ground.start().await;
        life.call("acquireSpace", json!({ "name": "a", "metadata": { "k": "v" }, "policy": { "stopAfterSeconds": null, "hibernateAfterSeconds": null } })).await.ok::<Value>();
        life.call("updateMetadata", json!({ "name": "a", "metadata": { "k": "w" } })).await.ok::<Value>();
        life.acquire("b").await;
        life.on("freezeSpace", "b").await.ok::<Value>();
        let (before, ledger_id) = (life.get("a").await, life.node.ledger_id);
        life.crash().await;
        for file in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
            let _ = std::fs::remove_file(ground.state.join(file));
        }
        if lose_identity {
            std::fs::remove_file(ground.state.join("node.json")).expect("it was written");
        }

        let life = ground.start().await;
        assert_eq!(life.node.ledger_id, ledger_id, "the disks say whose they are");
        let after = life.get("a").await;
        assert_eq!(
            (after.id, &after.metadata, after.policy, after.spec),
            (before.id, &[("k".to_owned(), "w".to_owned())].into(), before.policy, before.spec)
        );
        assert_eq!(life.state("b").await, State::Frozen);
        assert!(!life.acquire("a").await.created, "no twin");
    }
}

#[tokio::test]
async fn leftovers_go_and_what_may_be_data_stays() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("lost").await;
    life.acquire("spoilt").await;
    let (lost, spoilt) = (life.id("lost").await, life.id("spoilt").await);
    // A body the ledger knows nothing of, without a card: left by a create that was cut.
    life.acquire("debris").await;
    let debris = life.id("debris").await;
    life.node.ledger.forget(debris, None).await.expect("written");
    life.crash().await;
    ground.machine.leave_debris(debris);
    ground.machine.spoil_card(spoilt);
    ground.machine.lose_disk(lost);

    let life = ground.start().await;
    let broken = life.get("lost").await;
    assert_eq!(
        (broken.state, broken.broken.map(|b| b.cause).as_deref()),
        (State::Broken, Some("disk_missing"))
    );
    life.exec("lost", "true").await.refused(&Code::SpaceBroken);
    assert_eq!(life.state("spoilt").await, State::Active, "the ledger knows it, whatever its card says");
    eventually("debris is removed, nothing else", || async {
        ground.machine.bodies().iter().map(|(id, ..)| *id).eq([spoilt])
    })
    .await;
    eventually("a spoilt card is written again", || async { ground.machine.bodies()[0].1.is_some() }).await;

    // With the ledger lost as well, a disk without a card may be all that is left: it is not touched, however often the
    // node starts.
    life.crash().await;
    ground.machine.spoil_card(spoilt);
    lose_ledger(&ground);
    for restarts in 0..3 {
        let life = ground.start().await;
        life.acquire("another").await;
        assert_eq!(ground.machine.bodies().len(), 2, "after {restarts} restarts");
        life.crash().await;
    }
}

fn lose_ledger(ground: &Ground) {
    for file in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
        let _ = std::fs::remove_file(ground.state.join(file));
    }
}

#[tokio::test]
async fn two_disks_of_one_name_are_both_kept_and_a_person_chooses() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    let first = life.id("a").await;
    // Its row is lost and the name is given away, as when a disk is put back from a copy.
    life.node.ledger.forget(first, None).await.expect("written");
    life.acquire("a").await;
    let second = life.id("a").await;
    life.crash().await;
    for ledger_is_lost in [false, false, true] {
        if ledger_is_lost {
            lose_ledger(&ground);
        }
        let life = ground.start().await;
        assert_eq!(life.id("a").await, second, "the name means what it meant last");
        let twin = life.get(&first.to_string()).await;
        let broken = twin.broken.expect("the other is broken");
        assert_eq!(broken.cause, "name_taken");
        assert!(broken.message.contains(&second.to_string()), "{}", broken.message);
        assert_ne!(twin.name.as_str(), "a");
        life.exec(&first.to_string(), "true").await.refused(&Code::SpaceBroken);
        // Notes about it may change; its card keeps its name.
        let notes = json!({ "name": first.to_string(), "metadata": { "k": "v" } });
        life.call("updateMetadata", notes).await.ok::<Value>();
        life.crash().await;
    }
    let life = ground.start().await;
    life.on("destroySpace", &second.to_string()).await.ok::<Value>();
    life.crash().await;
    let life = ground.start().await;
    let chosen = life.get("a").await;
    assert_eq!((chosen.id, chosen.state), (first, State::Active), "the name is free, and its own again");
    life.exec("a", "true").await.ok::<Value>();
}

#[tokio::test]
async fn a_stop_that_was_cut_is_brought_to_its_end_before_anybody_uses_the_space() {
    let ground = Ground::new();
    let life = ground.start().await;
    for name in ["cut", "failed"] {
        life.acquire(name).await;
    }
    ground.machine.on("stop", None, Some(Fault::Fail));
    life.on("stopSpace", "failed").await.refused(&Code::RuntimeFailed);
    ground.machine.on("stop", None, Some(Fault::Hang));
    drop(tokio::time::timeout(std::time::Duration::from_millis(100), life.on("stopSpace", "cut")).await);
    eventually("it is begun", || async { ground.machine.calls("stop") == 2 }).await;
    std::fs::remove_file(ground.state.join("ledger.db.lock")).expect("held by the old life");
    ground.machine.on("stop", None, None);

    let next = ground.start().await;
    let run = next.exec("cut", "true").await.ok::<Value>();
    assert_eq!(run["resumed"], "restarted", "it waited for the stop, and woke it: {run}");
    assert_eq!(next.state("failed").await, State::Active, "a stop that failed was told so, and is over");
    assert_eq!(ground.machine.calls("stop"), 3);
}

#[tokio::test]
async fn a_reboot_stops_what_ran() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    life.crash().await;
    ground.machine.reboot();
    let life = ground.start().await;
    assert_eq!(life.state("a").await, State::Stopped);
    let woken: SpaceAnswer = life.on("wakeSpace", "a").await.ok();
    assert_eq!(ground.machine.bodies()[0].2, Vitality::Running, "{woken:?}");
}

#[tokio::test]
async fn activity_is_remembered_to_the_moment() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    life.exec("a", "true").await.ok::<Value>();
    let before = life.get("a").await.last_active_at;
    life.crash().await;
    let life = ground.start().await;
    assert_eq!(life.get("a").await.last_active_at, before);
}

#[tokio::test]
async fn a_second_daemon_or_a_strange_pair_does_not_start() {
    let ground = Ground::new();
    let life = ground.start().await;
    let Err(error) = ground.try_start().await else { panic!("two daemons on one ledger") };
    let text = error.to_string();
    assert!(text.contains("ledger.db") && text.contains("DROWSE_STATE"), "{text}");
    life.crash().await;
    std::fs::write(
        ground.state.join("node.json"),
        r#"{"format":1,"ledgerId":"0190f0c2a4b87c3d9e0f112233445566"}"#,
    )
    .expect("ours");
    assert!(matches!(
        ground.try_start().await,
        Err(service::Error::Ledger(ledger::Error::TwoIdentities { .. }))
    ));
}

#[tokio::test]
async fn a_name_is_found_by_id_as_well() {
    let ground = Ground::new();
    let life = ground.start().await;
    let made = life.acquire("a").await.space;
    let row = life.node.ledger.find(&SpaceRef::Id(made.id)).await.expect("readable").expect("there");
    assert_eq!(row.name.as_str(), "a");
    assert_eq!(life.acquire(&made.id.to_string()).await.space.id, made.id);
}
