//! Why a space woke, slept or ended is told afterwards, whoever asks.

use std::fs;

use drowse_e2e::{
    fleet::Fleet,
    wait::{eventually, seconds},
};
use drowse_shared::api::{
    Code,
    spaces::{EventList, Happened, SpaceEvent, State},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::ports::Web;

async fn events(fleet: &Fleet, name: &str) -> Vec<SpaceEvent> {
    fleet.door.call::<EventList>("listEvents", json!({ "name": name })).await.ok().events
}

/// The newest event.
async fn last(fleet: &Fleet, name: &str) -> (Happened, String) {
    let event = events(fleet, name).await.remove(0);
    (event.what, event.because)
}

fn said(what: Happened, because: &str) -> (Happened, String) {
    (what, because.to_owned())
}

/// What runs in a space.
fn processes(id: &str) -> Vec<Pid> {
    let all = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let ours = all.filter(|entry| {
        fs::read_to_string(entry.path().join("cgroup")).is_ok_and(|groups| groups.contains(id))
    });
    ours.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// Everything in a space ends at once, and is gone.
async fn kill_all(id: &str) {
    eventually("all of it is gone", seconds(10), || async {
        for pid in processes(id) {
            // It may have ended with another one.
            let _ = kill_process(pid, Signal::KILL);
        }
        processes(id).is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_a_space_woke_slept_or_ended_is_told_and_asking_wakes_nothing() {
    let mut web = Web::over(Fleet::real(1)).await;
    let id = web.app("shop").await;
    assert_eq!(last(&web.fleet, "shop").await, said(Happened::Created, "acquireSpace"));
    for label in ["shop", &format!("8080-{id}")] {
        web.freeze("shop").await;
        assert_eq!(web.knock(label, "/", "").await.0, 200);
        assert_eq!(
            last(&web.fleet, "shop").await,
            said(Happened::Thawed, "request for port 8080"),
            "{label}"
        );
    }
    web.policy("shop", json!({ "freezeAfterSeconds": 1 })).await;
    eventually("it idles", seconds(20), || async {
        (last(&web.fleet, "shop").await == said(Happened::Frozen, "idle for 1 s")).then_some(())
    })
    .await;
    let asleep = web.fleet.get("shop").await;
    assert_eq!((asleep.state, events(&web.fleet, "shop").await.len()), (State::Frozen, 6));
    assert_eq!(web.fleet.get("shop").await.last_active_at, asleep.last_active_at, "asking is no use");

    web.policy("shop", json!({ "freezeAfterSeconds": 600 })).await;
    web.fleet.exec("shop", "true").await;
    assert_eq!(last(&web.fleet, "shop").await, said(Happened::Thawed, "execCommand"));
    kill_all(&id).await;
    web.fleet.exec("shop", "true").await;
    let all = events(&web.fleet, "shop").await;
    assert_eq!((all[0].what, all[0].because.as_str()), (Happened::Restarted, "execCommand"));
    assert_eq!(all[1].because, "its processes had ended; noticed by execCommand");
    assert!(all[0].took_us.is_some_and(|us| us > 1000) && all[1].what == Happened::Died, "{all:?}");

    // A machine that fell: its node tells what it found.
    web.fleet.kill("n1");
    kill_all(&id).await;
    web.fleet.revive("n1").await;
    let noticed = said(Happened::Died, "its processes had ended when the node started");
    assert_eq!(last(&web.fleet, "shop").await, noticed);

    web.fleet.destroy("shop").await;
    web.fleet.door.call::<Value>("listEvents", json!({ "name": "shop" })).await.refused(&Code::SpaceNotFound);
    web.fleet.acquire("shop").await;
    let all = events(&web.fleet, "shop").await;
    assert_eq!(all.len(), 2, "{all:?}");
    assert_eq!((all[1].what, all[1].id.to_string()), (Happened::Destroyed, id), "the one before it");
    web.fleet.end().await;
}

/// Where memory is a controller of version 1, the ceiling of the agent can be lowered under it.
#[tokio::test]
async fn a_space_whose_agent_ran_out_of_memory_is_told_so() {
    let fleet = Fleet::real(1).start().await;
    let id = fleet.acquire("a").await.space.id;
    fleet.exec("a", "true").await;
    let v1 = format!("/sys/fs/cgroup/memory/{}", fleet.ground.cgroup_parent);
    let v2 = format!("/sys/fs/cgroup/{}", fleet.ground.cgroup_parent);
    let find = |top: &str, file: &str| {
        let instances = fs::read_dir(top).into_iter().flatten().flatten();
        instances.map(|entry| entry.path().join(format!("{id}/agent/{file}"))).find(|path| path.exists())
    };
    let limit = find(&v1, "memory.limit_in_bytes").or_else(|| find(&v2, "memory.max")).expect("a limit");
    // What it holds already may be more; then it goes at its next page.
    let lowered = fs::write(&limit, "1M");
    let kept = json!({ "name": "a", "command": "head -c 900000 /dev/urandom", "detach": true });
    for _ in 0..40 {
        let _ = fleet.door.attempt::<Value>("execCommand", &kept).await;
        if events(&fleet, "a").await[0].what != Happened::Created {
            break;
        }
    }
    let all = events(&fleet, "a").await;
    let died = all.iter().find(|event| event.what == Happened::Died);
    let because = died.map(|event| event.because.as_str());
    assert_eq!(because, Some("its memory ran out; noticed by execCommand"), "{lowered:?} {all:?}");
    fleet.end().await;
}
