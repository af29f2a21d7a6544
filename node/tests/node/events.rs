//! What happened to a space is told to whoever asks, with its reason.

use drowse_node::executor::{
    Executor as _,
    fake::{Fake, Fault},
};
use drowse_shared::{
    api::{
        Code,
        spaces::{EventList, Happened, SpaceEvent},
    },
    seams::Env,
};
use serde_json::{Value, json};

use crate::harness::{Ground, Life, eventually};

async fn events(life: &Life, name: &str) -> Vec<SpaceEvent> {
    life.on("listEvents", name).await.ok::<EventList>().events
}

/// What, and why: the newest first.
async fn told(life: &Life, name: &str) -> Vec<(Happened, String)> {
    events(life, name).await.into_iter().map(|event| (event.what, event.because)).collect()
}

#[tokio::test]
async fn every_change_is_told_with_who_asked_for_it_and_looking_changes_nothing() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    for (verb, _) in [("freezeSpace", 0), ("freezeSpace", 1), ("touchSpace", 0), ("stopSpace", 0)] {
        life.on(verb, "a").await.ok::<Value>();
    }
    life.exec("a", "echo hi").await.ok::<Value>();
    life.on("freezeSpace", "a").await.ok::<Value>();
    let before = life.get("a").await;
    let all = events(&life, "a").await;
    let expected = [
        (Happened::Frozen, "freezeSpace"),
        (Happened::Restarted, "execCommand"),
        (Happened::Stopped, "stopSpace"),
        (Happened::Thawed, "touchSpace"),
        (Happened::Frozen, "freezeSpace"),
        (Happened::Created, "acquireSpace"),
    ];
    let words: Vec<_> = all.iter().map(|event| (event.what, event.because.as_str())).collect();
    assert_eq!(words, expected);
    assert!(all.iter().all(|event| event.id == before.id && event.took_us.is_some()), "{all:?}");
    assert!(all.windows(2).all(|pair| pair[0].at >= pair[1].at), "{all:?}");
    assert_eq!(life.get("a").await, before, "it sleeps on");

    let page: EventList = life.call("listEvents", json!({ "name": "a", "limit": 4 })).await.ok();
    let rest = json!({ "name": "a", "limit": 4, "cursor": page.next_cursor });
    let rest: EventList = life.call("listEvents", rest).await.ok();
    assert_eq!((&all[..4], &all[4..]), (&page.events[..], &rest.events[..]));
    assert_eq!(rest.next_cursor, None);
    life.call("listEvents", json!({ "name": "a", "limit": 0 })).await.refused(&Code::InvalidRequest);
    life.on("listEvents", "b").await.refused(&Code::SpaceNotFound);

    life.on("destroySpace", "a").await.ok::<Value>();
    life.on("listEvents", "a").await.refused(&Code::SpaceNotFound);
    life.acquire("a").await;
    let ended =
        [(Happened::Created, "acquireSpace".to_owned()), (Happened::Destroyed, "destroySpace".to_owned())];
    assert_eq!(told(&life, "a").await, ended);
    assert_eq!(events(&life, "a").await[1].id, before.id, "the one before it");
}

#[tokio::test]
async fn what_nobody_asked_for_is_told_as_what_it_was() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    ground.machine.on("freeze", None, Some(Fault::Fail));
    life.on("freezeSpace", "a").await.refused(&Code::RuntimeFailed);
    ground.machine.on("freeze", None, None);
    assert_eq!(events(&life, "a").await.len(), 1, "nothing came of it");

    // Its body ends by itself, and whoever uses it next notices.
    let outside = Fake::new(&Env::real(), ground.machine.clone());
    let id = life.id("a").await;
    outside.stop(id, std::time::Duration::ZERO).await.expect("it is there");
    life.exec("a", "echo hi").await.ok::<Value>();
    let noticed = "its processes had ended; noticed by execCommand".to_owned();
    let all = told(&life, "a").await;
    assert_eq!(all[..2], [(Happened::Restarted, "execCommand".to_owned()), (Happened::Died, noticed)]);
    outside.stop(id, std::time::Duration::ZERO).await.expect("it is there");
    life.on("freezeSpace", "a").await.refused(&Code::WrongState);
    let noticed = "its processes had ended; noticed by freezeSpace".to_owned();
    assert_eq!(told(&life, "a").await[0], (Happened::Died, noticed));
    life.exec("a", "echo hi").await.ok::<Value>();

    // The same, while no daemon is there.
    life.crash().await;
    outside.stop(id, std::time::Duration::ZERO).await.expect("it is there");
    let life = ground.start().await;
    let noticed = "its processes had ended when the node started".to_owned();
    assert_eq!(told(&life, "a").await[0], (Happened::Died, noticed));

    // By its policy.
    let policy = json!({ "freezeAfterSeconds": 1, "stopAfterSeconds": 1, "hibernateAfterSeconds": null });
    life.exec("a", "echo hi").await.ok::<Value>();
    life.call("updatePolicy", json!({ "name": "a", "policy": policy })).await.ok::<Value>();
    eventually("it is stopped", || async { events(&life, "a").await[0].what == Happened::Stopped }).await;
    let all = told(&life, "a").await;
    let idle = "idle for 1 s".to_owned();
    assert_eq!(all[..2], [(Happened::Stopped, idle.clone()), (Happened::Frozen, idle)]);

    // A create that fails leaves its reason to the next one of the name.
    ground.machine.on("start", None, Some(Fault::Fail));
    life.on("acquireSpace", "b").await.refused(&Code::RuntimeFailed);
    ground.machine.on("start", None, None);
    life.acquire("b").await;
    let (what, because) = &told(&life, "b").await[1];
    assert_eq!(*what, Happened::Destroyed);
    assert!(because.starts_with("acquireSpace: the runtime could not start"), "{because}");
}
