use std::fs;

use drowse_e2e::{
    fleet::Fleet,
    wait::{eventually, seconds, timed},
};
use drowse_shared::api::{Code, spaces::State};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::{ANSWER, ASKED, ROOM, all, as_before, ended_well, hasty, inside, quiet};

/// Sends a signal to the agent of a space: pid 1 inside, and what it is made of.
fn signal(fleet: &Fleet, id: &str, signal: Signal) {
    let mut sent = 0;
    for entry in fs::read_dir("/proc").expect("/proc is mounted").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let read = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let group = read("cgroup");
        let ours = group.contains(&fleet.ground.cgroup_parent) && group.contains(&format!("{id}/agent"));
        if ours && read("comm").starts_with("drowse-agent") {
            kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("our own space");
            sent += 1;
        }
    }
    assert!(sent > 0, "the agent of {id} runs");
}

#[tokio::test]
async fn an_agent_that_stands_still_costs_its_callers_their_deadline_and_nobody_else_anything() {
    let fleet = hasty(Fleet::real(1)).start().await;
    let id = fleet.acquire("a").await.space.id.to_string();
    fleet.write("a", "file", "x").await;
    all(inside(&fleet.door, "a")).await;
    fleet.acquire("other").await;
    fleet.exec("other", "true").await;
    let before = quiet(&fleet).await;

    let door = fleet.door.apart();
    let running = tokio::spawn(async move { timed(door.exec("a", "touch runs; sleep 100")).await });
    eventually("a command runs", seconds(10), || async {
        (fleet.door.read("a", b"runs").await.status == 200).then_some(())
    })
    .await;
    signal(&fleet, &id, Signal::STOP);
    let ended = all(inside(&fleet.door, "a")).await;
    ended_well("the agent is stopped", &ended, &[Code::RuntimeTimeout]);
    for ended in &ended {
        let reply = ended.reply.as_ref().expect("checked above");
        assert_eq!(reply.status, 503, "{}: {}", ended.verb, reply.text());
    }
    let (reply, took) = running.await.expect("no panic");
    reply.refused(&Code::RuntimeTimeout);
    assert!(took < ANSWER + ASKED + ROOM * 2, "a command that ran is not waited for in vain: {took:?}");
    let (said, took) = timed(fleet.exec("other", "echo fine")).await;
    assert!(said == "fine" && took < seconds(2), "{took:?}");
    assert_eq!(fleet.get("a").await.state, State::Active, "looking needs no agent");

    signal(&fleet, &id, Signal::CONT);
    assert_eq!(fleet.exec("a", "echo back").await, "back");
    let gone = json!({ "name": "a", "command": "pgrep -x sleep || echo none" });
    eventually("the command nobody waits for is ended", seconds(10), || async {
        let reply =
            fleet.door.call::<drowse_shared::api::exec::ExecResult>("execCommand", gone.clone()).await;
        reply.ok().stdout.contains("none").then_some(())
    })
    .await;
    as_before(&fleet, &before).await;
    fleet.end().await;
}
