use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use drowse_e2e::{
    door::Door,
    fleet::Fleet,
    ground::random_below,
    wait::{eventually, seconds},
};
use drowse_shared::api::spaces::{Acquired, Space};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// Acquires one name after another until told to stop, and notes what was acknowledged.
async fn worker(
    door: Door,
    number: usize,
    noted: Arc<Mutex<BTreeMap<String, String>>>,
    stop: CancellationToken,
) {
    for n in 0.. {
        if stop.is_cancelled() {
            return;
        }
        // Four workers share each name, so that races are part of the load.
        let name = format!("w{}-{n}", number / 4);
        let reply = door.attempt::<Acquired>("acquireSpace", &json!({ "name": name })).await;
        match reply {
            Ok(reply) if reply.status == 200 => {
                let id = reply.ok().space.id.to_string();
                let before = noted.lock().expect("no panics inside").insert(name.clone(), id.clone());
                assert!(before.is_none_or(|b| b == id), "{name} has two ids");
            }
            Ok(reply) => assert!(reply.error().code.status().is_server_error(), "{}", reply.text()),
            // The gateway is dead: look again soon.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_the_gateway_under_load_loses_and_doubles_nothing() {
    let mut fleet = Fleet::real(2).start().await;
    let noted = Arc::new(Mutex::new(BTreeMap::new()));
    let stop = CancellationToken::new();
    let workers: Vec<_> =
        (0..8).map(|n| tokio::spawn(worker(fleet.door.apart(), n, noted.clone(), stop.clone()))).collect();
    for round in 1..=4 {
        let enough = round * 6;
        eventually("the load makes spaces", seconds(30), || async {
            (noted.lock().expect("no panics inside").len() >= enough).then_some(())
        })
        .await;
        // Somewhere inside a request, never twice at the same place.
        tokio::time::sleep(Duration::from_millis(random_below(60))).await;
        fleet.kill_gateway();
        fleet.revive_gateway().await;
    }
    stop.cancel();
    for worker in workers {
        worker.await.expect("no worker saw a name with two ids");
    }

    fleet.until_all_live().await;
    let noted = noted.lock().expect("no panics inside").clone();
    for (name, id) in &noted {
        assert_eq!(fleet.acquire(name).await.space.id.to_string(), *id, "{name}");
    }
    let spaces: Vec<Space> = fleet.list("w").await;
    let names: BTreeSet<_> = spaces.iter().map(|s| &s.name).collect();
    assert_eq!(names.len(), spaces.len(), "no name is on two nodes");
    for (name, _) in noted.iter().take(3) {
        fleet.exec(name, "true").await;
    }
    fleet.end().await;
}

#[tokio::test]
async fn a_gateway_that_lost_its_database_builds_no_existing_name_again() {
    let mut fleet = Fleet::real(2).start().await;
    let made: Vec<Acquired> = vec![fleet.acquire("a").await, fleet.acquire("b").await];
    fleet.write("a", "kept", "safe").await;
    let fleet_id = fleet.door.nodes().await.ok().fleet_id;

    fleet.kill_gateway();
    fs::remove_dir_all(fleet.ground.root.join("gateway")).expect("the gateway's state");
    fleet.gateway.env.remove("DROWSE_NEW_FLEET");
    fleet.gateway.start();
    // At once, and again until it is answered.
    let door = fleet.door.clone();
    let again = eventually("the existing name is acquired", seconds(20), || async {
        let reply = door.attempt::<Acquired>("acquireSpace", &json!({ "name": "a" })).await.ok()?;
        if reply.status != 200 {
            assert_eq!(reply.status, 503, "until it knows its nodes it asks to wait: {}", reply.text());
            reply.error();
            return None;
        }
        Some(reply.ok())
    })
    .await;
    assert_eq!((again.created, again.space.id), (false, made[0].space.id));
    fleet.until_all_live().await;
    assert_eq!(fleet.acquire("b").await.space.id, made[1].space.id);
    assert_eq!(fleet.read("a", "kept").await, b"safe");
    fleet.holder("a").await;
    assert_eq!(fleet.door.nodes().await.ok().fleet_id, fleet_id, "it is still the same fleet");
    // A node builds nothing new before the gateway has taken a check-in of it again.
    eventually("a new name is built", seconds(5), || async {
        let reply = door.acquire("new").await;
        (reply.status == 200).then(|| reply.ok().created)
    })
    .await;
    fleet.end().await;
}

#[tokio::test]
async fn a_gateway_that_lost_its_database_does_not_forget_a_node_that_is_down() {
    let mut fleet = Fleet::real(3).start().await;
    let made = fleet.node("n3").door.acquire("asleep").await.ok().space;
    fleet.kill("n3");
    fleet.kill_gateway();
    fs::remove_dir_all(fleet.ground.root.join("gateway")).expect("the gateway's state");
    fleet.revive_gateway().await;
    for node in ["n1", "n2"] {
        fleet.until_live(node).await;
    }
    let reply = fleet.door.acquire("asleep").await;
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert!(reply.error().message.contains("n3"), "the other nodes remember it: {}", reply.text());
    assert!(fleet.holders_but("asleep", "n3").await.is_empty());
    fleet.revive("n3").await;
    assert_eq!(fleet.acquire("asleep").await.space.id, made.id);
    fleet.end().await;
}
