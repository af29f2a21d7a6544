use std::time::Duration;

use drowse_node::executor::fake::Fault;
use drowse_shared::{
    api::{
        Code,
        exec::ExecResult,
        spaces::{Acquired, Resumed, SpaceAnswer, SpaceList, State, Waking},
    },
    slots::QUEUE_MAX,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::harness::{Ground, eventually};

#[tokio::test]
async fn the_same_name_is_the_same_space_until_it_is_destroyed() {
    let ground = Ground::new();
    let life = ground.start().await;
    let first = life.acquire("a").await;
    assert!(first.created && first.space.state == State::Active);
    let again: Acquired =
        life.call("acquireSpace", json!({ "name": "a", "spec": { "cpus": 2.0 }, "metadata": {} })).await.ok();
    assert_eq!((again.space.id, again.created), (first.space.id, false));
    assert_eq!(again.unchanged, ["spec"], "wishes that differ are named, not applied");
    assert_eq!(life.on("destroySpace", "a").await.ok::<Value>(), json!({ "destroyed": true }));
    assert_eq!(life.on("destroySpace", "a").await.ok::<Value>(), json!({ "destroyed": false }));
    assert_ne!(life.acquire("a").await.space.id, first.space.id);
}

#[tokio::test]
async fn sleep_is_idempotent_and_any_use_wakes() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    for (verb, state) in [
        ("freezeSpace", State::Frozen),
        ("freezeSpace", State::Frozen),
        ("wakeSpace", State::Active),
        ("wakeSpace", State::Active),
        ("stopSpace", State::Stopped),
        ("stopSpace", State::Stopped),
    ] {
        assert_eq!(life.on(verb, "a").await.ok::<SpaceAnswer>().space.state, state, "{verb}");
    }
    life.on("freezeSpace", "a").await.refused(&Code::WrongState);
    let ran: ExecResult = life.exec("a", "echo hi").await.ok();
    assert_eq!((ran.stdout.as_str(), ran.resumed), ("hi\n", Some(Resumed::Restarted)));
    life.on("freezeSpace", "a").await.ok::<Value>();
    let before = life.get("a").await;
    assert_eq!(before.state, State::Frozen);
    assert_eq!(life.get("a").await, before, "looking never wakes");
    let touched: SpaceAnswer = life.on("touchSpace", "a").await.ok();
    assert_eq!(touched.resumed, Some(Resumed::Thawed));
    assert!(touched.space.last_active_at > before.last_active_at);
    assert_eq!(ground.machine.starts(before.id), 2);
}

#[tokio::test]
async fn a_freeze_that_was_had_but_failed_to_say_so_does_not_pass_for_awake() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    ground.machine.on("frozen", None, Some(Fault::Fail));
    life.on("freezeSpace", "a").await.refused(&Code::RuntimeFailed);
    assert_eq!(life.get("a").await.state, State::Frozen, "the kernel knows better");
    let ran: ExecResult = life.exec("a", "echo hi").await.ok();
    assert_eq!((ran.stdout.as_str(), ran.resumed), ("hi\n", Some(Resumed::Thawed)));
}

#[tokio::test]
async fn a_stop_that_was_had_but_failed_to_say_so_does_not_pass_for_awake() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    ground.machine.on("stopped", None, Some(Fault::Fail));
    life.on("stopSpace", "a").await.refused(&Code::RuntimeFailed);
    assert_eq!(life.get("a").await.state, State::Stopped, "the kernel knows better");
    let ran: ExecResult = life.exec("a", "echo hi").await.ok();
    assert_eq!((ran.stdout.as_str(), ran.resumed), ("hi\n", Some(Resumed::Restarted)));
}

#[tokio::test]
async fn many_at_once_make_one_body_and_a_client_that_leaves_stops_nothing() {
    let ground = Ground::new();
    let life = ground.start().await;
    ground.machine.slow(Some(Duration::from_millis(20)));
    let mut all = Vec::new();
    for n in 0..32 {
        let call = life.acquire("a");
        all.push(async move {
            // Half of them leave at once.
            let patience = if n % 2 == 0 { Duration::from_millis(n) } else { Duration::from_secs(20) };
            tokio::time::timeout(patience, call).await.ok().map(|acquired| acquired.space.id)
        });
    }
    let ids: Vec<_> = futures_util::future::join_all(all).await.into_iter().flatten().collect();
    assert!(ids.len() >= 16 && ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(ground.machine.built(&"a".parse().expect("a name")), 1);
}

#[tokio::test]
async fn one_more_than_may_wait_for_a_space_is_told_so_at_once() {
    let ground = Ground::new();
    let life = ground.start().await;
    let held = life.node.slot(&"a".parse().expect("a name"), Duration::from_secs(10)).await.expect("free");
    let crowd = futures_util::future::join_all((0..QUEUE_MAX).map(|_| life.on("acquireSpace", "a")));
    let one_more = async {
        eventually("as many wait as may", || async { life.node.slots.waiting() == QUEUE_MAX }).await;
        let began = Instant::now();
        let error = life.on("acquireSpace", "a").await.refused(&Code::QueueFull);
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert!(error.retry_after_seconds.is_some() && error.message.contains("256 requests"), "{error:?}");
        assert!(life.acquire("another").await.created, "other names do not wait for it");
        drop(held);
    };
    let (answers, ()) = tokio::join!(crowd, one_more);
    let answers: Vec<Acquired> = answers.iter().map(|reply| reply.ok()).collect();
    assert!(answers.iter().all(|answer| answer.space.id == answers[0].space.id), "one body");
    assert_eq!(answers.iter().filter(|answer| answer.created).count(), 1, "one of them made it");
    life.crash().await;
}

#[tokio::test]
async fn who_does_not_wait_is_told_that_it_goes_on() {
    let ground = Ground::new();
    let life = ground.start().await;
    ground.machine.slow(Some(Duration::from_millis(200)));
    let later = life.call("acquireSpace", json!({ "name": "a", "waitSeconds": 0 })).await;
    assert_eq!(later.status, 202);
    let waking: Waking = serde_json::from_value(later.json()).expect("a waking body");
    assert_eq!(waking.state, State::Creating);
    ground.machine.slow(None);
    assert!(!life.acquire("a").await.created, "the first call made it");
}

#[tokio::test]
async fn a_create_that_fails_leaves_nothing() {
    let ground = Ground::new();
    let life = ground.start().await;
    for (call, fault, code) in [
        ("create", Fault::DiskFull, Code::NodeDiskFull),
        ("start", Fault::Fail, Code::RuntimeFailed),
        ("start", Fault::Timeout, Code::RuntimeTimeout),
    ] {
        ground.machine.on(call, None, Some(fault));
        life.on("acquireSpace", "a").await.refused(&code);
        ground.machine.on(call, None, None);
        life.on("getSpace", "a").await.refused(&Code::SpaceNotFound);
        assert!(ground.machine.bodies().is_empty());
    }
    assert!(life.acquire("a").await.created);
}

#[tokio::test]
async fn one_wedged_space_is_marked_and_holds_up_nobody() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("fine").await;
    life.acquire("wedged").await;
    let id = life.id("wedged").await;
    ground.machine.on("freeze", Some(id), Some(Fault::Hang));
    let hanging = life.on("freezeSpace", "wedged");
    let watching = async {
        eventually("the list marks it", || async {
            let list: SpaceList = life.call("listSpaces", json!({})).await.ok();
            list.spaces.iter().filter(|space| space.unresponsive).map(|space| space.id).eq([id])
        })
        .await;
        assert_eq!(life.exec("fine", "echo fine").await.ok::<ExecResult>().stdout, "fine\n");
    };
    drowse_shared::select_biased! {
        _ = hanging => panic!("it hangs"),
        () = watching => {}
    }
}

#[tokio::test]
async fn a_body_that_died_unseen_is_started_again() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    ground.machine.kill(life.id("a").await);
    let ran: ExecResult = life.exec("a", "echo back").await.ok();
    assert_eq!((ran.stdout.as_str(), ran.resumed), ("back\n", Some(Resumed::Restarted)));
    life.on("freezeSpace", "a").await.ok::<Value>();
    ground.machine.kill(life.id("a").await);
    let acquired: Acquired = life.on("acquireSpace", "a").await.ok();
    assert_eq!((acquired.space.state, ground.machine.starts(acquired.space.id)), (State::Active, 3));
}

#[tokio::test]
async fn what_lost_its_template_is_broken_and_can_be_destroyed() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    life.on("stopSpace", "a").await.ok::<Value>();
    ground.machine.set_template("base", None);
    let error = life.on("wakeSpace", "a").await.refused(&Code::SpaceBroken);
    assert_eq!(error.details["cause"], "template_missing");
    life.exec("a", "true").await.refused(&Code::SpaceBroken);
    let broken = life.get("a").await.broken.expect("it says why");
    assert_eq!(broken.cause, "template_missing");
    assert_eq!(life.on("destroySpace", "a").await.ok::<Value>(), json!({ "destroyed": true }));
}

#[tokio::test]
async fn a_command_keeps_its_space_awake_and_dies_with_its_client() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    let id = life.id("a").await;
    let running = life.exec("a", "sleep 60");
    let watching = eventually("it says what keeps it awake", || async {
        life.get("a")
            .await
            .awake
            .is_some_and(|awake| awake.because.starts_with("exec sleep (pid ") && awake.at.is_none())
    });
    drowse_shared::select_biased! {
        _ = running => panic!("it sleeps for a minute"),
        () = watching => {}
    }
    eventually("the command goes with its client", || async { ground.machine.running(id) == 0 }).await;
    assert_eq!(life.get("a").await.awake.expect("awake").because, "execCommand");
    let fed: ExecResult = life
        .call("execCommand", json!({ "name": "a", "argv": ["cat"], "stdin": "x".repeat(300_000) }))
        .await
        .ok();
    assert_eq!((fed.stdout.len(), fed.stdout_truncated), (300_000, false));
    let much: ExecResult = life.exec("a", "yes 3000000").await.ok();
    assert_eq!((much.stdout.len(), much.stdout_truncated), (1 << 20, true));
    let late: ExecResult = life
        .call("execCommand", json!({ "name": "a", "command": "sleep 60", "timeoutSeconds": 1 }))
        .await
        .ok();
    assert!(late.timed_out);
}

#[tokio::test]
async fn files_go_through_whole_and_a_cut_upload_changes_nothing() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    let id = life.id("a").await;
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let written = life.raw("/writeFile?space=a&path=big%20one", content.clone()).await.json();
    assert_eq!(written["files"][0], json!({ "path": "/home/user/big one", "sizeBytes": content.len() }));
    assert!(life.raw("/readFile?space=a&path=big%20one", "").await.bytes == content);
    let error =
        life.call("readFile", json!({ "name": "a", "path": "big one" })).await.refused(&Code::TooLarge);
    assert!(error.message.contains("streaming"), "{}", error.message);

    let cut = futures_util::stream::iter([
        Ok(bytes::Bytes::from_static(b"half")),
        Err(std::io::Error::other("cut")),
    ]);
    let reply = life.raw("/writeFile?space=a&path=big%20one", axum::body::Body::from_stream(cut)).await;
    assert!(!reply.status.is_success(), "{}", reply.text());
    assert_eq!(ground.machine.file(id, "/home/user/big one").map(|kept| kept.len()), Some(content.len()));
}

#[tokio::test]
async fn lists_filter_and_page_in_byte_order() {
    let ground = Ground::new();
    let life = ground.start().await;
    for name in ["b", "a%", "a_b", "ab", "ä", "Z", "a"] {
        let even = (name.len() % 2 == 0).to_string();
        life.call("acquireSpace", json!({ "name": name, "metadata": { "even": even, "x": "1" } }))
            .await
            .ok::<Value>();
    }
    life.on("freezeSpace", "ab").await.ok::<Value>();
    let names = |list: &SpaceList| list.spaces.iter().map(|space| space.name.to_string()).collect::<Vec<_>>();
    let list = async |wish: Value| life.call("listSpaces", wish).await.ok::<SpaceList>();
    assert_eq!(names(&list(json!({})).await), ["Z", "a", "a%", "a_b", "ab", "b", "ä"]);
    assert_eq!(names(&list(json!({ "namePrefix": "a_" })).await), ["a_b"]);
    assert_eq!(names(&list(json!({ "namePrefix": "a" })).await), ["a", "a%", "a_b", "ab"]);
    assert_eq!(names(&list(json!({ "states": ["frozen"] })).await), ["ab"]);
    assert_eq!(names(&list(json!({ "states": [] })).await), [""; 0]);
    assert_eq!(names(&list(json!({ "metadata": { "even": "true", "x": "1" } })).await), ["a%", "ab", "ä"]);
    let mut cursor = None;
    let mut seen = Vec::new();
    loop {
        let page = list(json!({ "limit": 3, "cursor": cursor })).await;
        seen.extend(names(&page));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, ["Z", "a", "a%", "a_b", "ab", "b", "ä"]);
}

#[tokio::test]
async fn what_idles_sleeps_step_by_step_and_what_works_does_not() {
    let ground = Ground::new();
    let life = ground.start().await;
    let policy = json!({ "freezeAfterSeconds": 1, "stopAfterSeconds": 3, "hibernateAfterSeconds": null });
    for name in ["idle", "busy"] {
        life.call("acquireSpace", json!({ "name": name, "policy": policy })).await.ok::<Value>();
    }
    let working = life.exec("busy", "sleep 3");
    let watching = async {
        for state in [State::Frozen, State::Stopped] {
            eventually("the idle one steps down although it is looked at", || async {
                life.state("idle").await == state
            })
            .await;
            if state == State::Frozen {
                assert_eq!(life.state("busy").await, State::Active);
            }
        }
    };
    let (worked, ()) = tokio::join!(working, watching);
    assert_eq!(worked.ok::<ExecResult>().exit_code, Some(0));
    eventually("the busy one freezes after its work", || async { life.state("busy").await == State::Frozen })
        .await;
}

#[tokio::test]
async fn what_was_used_since_it_was_due_does_not_step_down() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("used").await;
    let id = life.id("used").await;
    // The clock found it due, and a verb was faster than the step.
    drowse_node::lifecycle::idle::step_down(&life.node, id).await;
    assert_eq!((life.state("used").await, ground.machine.calls("freeze")), (State::Active, 0));
}

#[tokio::test]
async fn many_that_are_due_at_once_step_down_a_few_at_a_time() {
    let ground = Ground::new();
    let life = ground.start().await;
    ground.machine.on("freeze", None, Some(Fault::Hang));
    let policy = json!({ "freezeAfterSeconds": 1, "stopAfterSeconds": null, "hibernateAfterSeconds": null });
    for n in 0..40 {
        life.call("acquireSpace", json!({ "name": format!("n{n}"), "policy": policy })).await.ok::<Value>();
    }
    eventually("the first ones are under way", || async { ground.machine.calls("freeze") == 32 }).await;
    // Two more looks of the idle clock.
    tokio::time::sleep(Duration::from_millis(2200)).await;
    assert_eq!(ground.machine.calls("freeze"), 32);
}

#[tokio::test]
async fn a_verb_that_ends_after_its_space_leaves_nothing_to_look_after() {
    let ground = Ground::new();
    let life = ground.start().await;
    let policy = json!({ "freezeAfterSeconds": 1, "stopAfterSeconds": null, "hibernateAfterSeconds": null });
    for (name, end) in [("stopped", "stopSpace"), ("gone", "destroySpace")] {
        life.call("acquireSpace", json!({ "name": name, "policy": policy })).await.ok::<Value>();
        let row = life.node.known(&name.parse().expect("a name")).await.expect("there");
        life.on(end, name).await.ok::<Value>();
        life.node.touch(&row, "execCommand");
        eventually(end, || async { life.node.live.seen(row.id) == drowse_node::live::Seen::default() }).await;
    }
}

#[tokio::test]
async fn starts_that_hang_hold_up_the_others_for_seconds_only() {
    let ground = Ground::new();
    let life = ground.start().await;
    let at_once = drowse_node::starts::Limits::default().at_once;
    for n in 0..=at_once {
        life.acquire(&format!("s{n}")).await;
        life.on("stopSpace", &format!("s{n}")).await.ok::<Value>();
    }
    for n in 0..at_once {
        ground.machine.on("start", Some(life.id(&format!("s{n}")).await), Some(Fault::Hang));
        let wish = json!({ "name": format!("s{n}"), "waitSeconds": 0 });
        let hangs: Waking =
            serde_json::from_value(life.call("acquireSpace", wish).await.json()).expect("202");
        assert_eq!(hangs.state, State::Waking);
    }
    eventually("all turns are taken", || async { ground.machine.calls("start") == 2 * at_once as u64 + 1 })
        .await;
    let began = Instant::now();
    life.exec(&format!("s{at_once}"), "echo hi").await.ok::<ExecResult>();
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}
