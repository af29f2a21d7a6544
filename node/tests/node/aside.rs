use std::time::Duration;

use drowse_node::{checkin, executor::fake::Fault};
use drowse_shared::{
    api::{
        Code,
        nodes::{CheckedIn, Measured, SetAsideBody},
        spaces::{SpaceAnswer, SpaceList, State},
    },
    id::SpaceId,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::harness::{Ground, Life, Reply, eventually};

const KEEPER: &str = "0190f0c2a4b87c3d9e0f112233445566";
const FLEET: &str = "0190f0c2a4b87c3d9e0f112233445577";

/// A node of a fleet, so that gateways ask it.
async fn ground() -> (Ground, Life) {
    let mut ground = Ground::new();
    ground.gateways = vec!["http://127.0.0.1:9".to_owned()];
    let life = ground.start().await;
    told(&life, 1, &[]).await;
    (ground, life)
}

/// A gateway took a check-in and showed a roster with these ledgers.
async fn told(life: &Life, version: u64, ledgers: &[&str]) {
    let node =
        |ledger: &&str| json!({ "id": "n9", "ledgerId": ledger, "endpoint": "http://n9", "sinceVersion": 1 });
    let nodes: Vec<Value> = ledgers.iter().map(node).collect();
    let answer =
        json!({ "standing": "member", "roster": { "fleetId": FLEET, "version": version, "nodes": nodes } });
    let answer: CheckedIn = serde_json::from_value(answer).expect("an answer");
    checkin::take(&life.node, answer, Instant::now()).await;
}

async fn set_aside(life: &Life, id: SpaceId, name: &str) -> Reply {
    let ledger = life.node.ledger_id;
    let wish = json!({ "id": id, "name": name, "keeper": KEEPER, "ledgerId": ledger });
    life.call("setAside", wish).await
}

async fn lookup(life: &Life, space: &str, intent: &str) -> Reply {
    life.call("lookup", json!({ "space": space, "intent": intent })).await
}

#[tokio::test]
async fn a_space_set_aside_rests_with_its_data_under_a_name_nobody_asks_for() {
    let (ground, life) = ground().await;
    let id = life.acquire("a").await.space.id;
    life.call("updateMetadata", json!({ "name": "a", "metadata": { "k": "v" } })).await.ok::<Value>();
    set_aside(&life, id, "b").await.refused(&Code::WrongState);
    let stranger = json!({ "id": id, "name": "a", "keeper": KEEPER, "ledgerId": KEEPER });
    life.call("setAside", stranger).await.refused(&Code::NodeTwin);
    let name = format!("a~{id}");
    for _ in 0..2 {
        let body: SetAsideBody = set_aside(&life, id, "a").await.ok();
        assert_eq!((body.was.as_str(), body.name.as_str(), body.id), ("a", &*name, id));
    }
    life.on("getSpace", "a").await.refused(&Code::SpaceNotFound);
    let shown = life.get(&id.to_string()).await;
    assert_eq!((shown.state, shown.name.as_str(), &*shown.metadata["k"]), (State::Frozen, &*name, "v"));
    let measured: Measured = life.call("measure", json!({ "id": id })).await.ok();
    assert_eq!((measured.space.name.as_str(), measured.disk_bytes), (&*name, Some(0)));
    life.exec(&id.to_string(), "true").await.ok::<Value>();
    assert_eq!(life.state(&name).await, State::Active);
    assert_eq!(life.call("listSpaces", json!({})).await.ok::<SpaceList>().spaces.len(), 1);

    // Neither a restart nor a lost ledger brings it back under the name.
    life.crash().await;
    let life = ground.start().await;
    assert_eq!(life.get(&id.to_string()).await.name.as_str(), name);
    life.crash().await;
    for file in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
        let _ = std::fs::remove_file(ground.state.join(file));
    }
    let life = ground.start().await;
    assert_eq!(life.get(&id.to_string()).await.name.as_str(), name);
    life.on("destroySpace", &id.to_string()).await.ok::<Value>();
    set_aside(&life, id, "a").await.refused(&Code::SpaceNotFound);
}

#[tokio::test]
async fn a_name_given_up_is_not_free_before_everybody_can_know_who_has_it() {
    let (ground, life) = ground().await;
    let id = life.acquire("a").await.space.id;
    set_aside(&life, id, "a").await.ok::<Value>();
    let not_free = async |life: &Life| {
        for intent in ["read", "create"] {
            let error = lookup(life, "a", intent).await.refused(&Code::SpaceBusy);
            assert!(error.message.contains(KEEPER), "{}", error.message);
        }
        life.on("acquireSpace", "a").await.refused(&Code::SpaceBusy);
        let compared = lookup(life, "a", "compare").await.json();
        assert_eq!(compared, json!({ "answer": "no" }), "who readmits it goes on");
        assert_eq!(lookup(life, "other", "create").await.json()["answer"], "no");
    };
    not_free(&life).await;
    life.crash().await;
    let life = ground.start().await;
    told(&life, 2, &[]).await;
    not_free(&life).await;
    told(&life, 3, &[KEEPER]).await;
    not_free(&life).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(10)).await;
    tokio::time::resume();
    assert_eq!(lookup(&life, "a", "create").await.json()["answer"], "no");
    eventually("and it is forgotten", || async {
        life.node.kept.release(&life.node.ledger, &life.node.fleet).await.expect("written");
        life.node.ledger.kept_names().await.expect("read").is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_comparison_voids_the_tickets_that_are_out() {
    let (_ground, life) = ground().await;
    let ticket = lookup(&life, "a", "create").await.json()["ticket"].as_str().expect("a ticket").to_owned();
    assert_eq!(lookup(&life, "a", "compare").await.json(), json!({ "answer": "no" }));
    let request =
        life.request("acquireSpace").header("drowse-forwarded", "1").header("drowse-create", ticket);
    let create = request.body(json!({ "name": "a" }).to_string().into()).expect("a request");
    life.send(create).await.refused(&Code::TicketVoid);
}

#[tokio::test]
async fn what_cannot_be_suspended_or_written_is_not_said_to_be_set_aside() {
    let (ground, life) = ground().await;
    let id = life.acquire("a").await.space.id;
    ground.machine.on("freeze", Some(id), Some(Fault::Fail));
    set_aside(&life, id, "a").await.refused(&Code::RuntimeFailed);
    assert_eq!(life.get("a").await.id, id, "it has its name");
    ground.machine.on("freeze", Some(id), None);
    ground.machine.on("write_card", Some(id), Some(Fault::Fail));
    set_aside(&life, id, "a").await.refused(&Code::RuntimeFailed);
    assert_eq!(life.get(&id.to_string()).await.name.as_str(), format!("a~{id}"));
    ground.machine.on("write_card", Some(id), None);
    life.crash().await;
    // The card follows at the next start, and the call may be repeated.
    let life = ground.start().await;
    eventually("its card says so too", || async {
        ground.machine.bodies()[0].1.as_ref().is_some_and(|name| name.as_str() != "a")
    })
    .await;
    set_aside(&life, id, "a").await.ok::<Value>();
}

#[tokio::test]
async fn verbs_that_queued_by_id_go_on_under_the_new_name() {
    let (ground, life) = ground().await;
    let id = life.acquire("a").await.space.id;
    ground.machine.slow(Some(Duration::from_millis(200)));
    let by_id = id.to_string();
    let aside = set_aside(&life, id, "a");
    let others = async {
        eventually("its slot is held", || async { life.node.slots.is_busy(&"a".parse().expect("a name")) })
            .await;
        tokio::join!(life.on("stopSpace", &by_id), life.on("stopSpace", "a"))
    };
    let (aside, (stopped, gone)) = tokio::join!(aside, others);
    aside.ok::<Value>();
    assert_eq!(stopped.ok::<SpaceAnswer>().space.name.as_str(), format!("a~{id}"));
    gone.refused(&Code::SpaceNotFound);
}
