use std::time::Duration;

use drowse_shared::api::{
    Code,
    exec::{ExecResult, KEPT_OUTPUT_BYTES_MAX},
    spaces::State,
};
use serde_json::{Value, json};

use crate::harness::{Ground, Life, Reply, eventually};

async fn keyed(life: &Life, key: &str, mut wish: Value) -> Reply {
    wish["name"] = "a".into();
    wish["idempotencyKey"] = key.into();
    life.call("execCommand", wish).await
}

#[tokio::test]
async fn a_key_runs_its_command_once_and_repeats_what_came_of_it() {
    let ground = Ground::new();
    let life = ground.start().await;
    let id = life.acquire("a").await.space.id;
    let wish = json!({ "command": "echo one" });
    let first: ExecResult = keyed(&life, "k", wish.clone()).await.ok();
    assert_eq!((first.stdout.as_str(), first.replayed), ("one\n", false));
    life.on("stopSpace", "a").await.ok::<Value>();
    let again: ExecResult = keyed(&life, "k", wish.clone()).await.ok();
    assert_eq!(again, ExecResult { replayed: true, ..first.clone() }, "a fresh run would have another pid");
    assert_eq!(life.state("a").await, State::Stopped, "repeating an answer wakes nothing");
    let by_id: ExecResult = life
        .call("execCommand", json!({ "name": id, "idempotencyKey": "k", "command": "echo one" }))
        .await
        .ok();
    assert_eq!(by_id, again, "by id it is the same command");

    keyed(&life, "k", json!({ "command": "echo two" })).await.refused(&Code::IdempotencyKeyReused);
    let other: ExecResult = keyed(&life, "other", json!({ "command": "echo two" })).await.ok();
    assert_eq!((other.stdout.as_str(), other.replayed), ("two\n", false));

    life.crash().await;
    let life = ground.start().await;
    let again: ExecResult = keyed(&life, "k", wish.clone()).await.ok();
    assert!(again.replayed && again.pid == first.pid, "it outlives the daemon: {again:?}");
    life.on("destroySpace", "a").await.ok::<Value>();
    life.acquire("a").await;
    let new: ExecResult = keyed(&life, "k", wish).await.ok();
    assert!(!new.replayed, "a new space knows no old keys");
}

#[tokio::test]
async fn who_comes_while_a_command_runs_shares_its_answer() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    let wish = json!({ "command": "cat", "stdin": "x", "timeoutSeconds": 20 });
    let sleep = json!({ "command": "sleep 1", "timeoutSeconds": 20 });
    let other = async {
        let id = life.node.known(&"a".parse().expect("a name")).await.expect("there").id;
        eventually("it runs", || async { life.node.live.seen(id).running.is_some() }).await;
        keyed(&life, "k", wish).await
    };
    let (first, second, third) =
        tokio::join!(keyed(&life, "k", sleep.clone()), keyed(&life, "k", sleep.clone()), other);
    let refused = [&first, &second, &third].into_iter().filter(|reply| reply.status == 409).count();
    assert_eq!(refused, 1, "one of three asked for something else");
    let (first, second): (ExecResult, ExecResult) = (first.ok(), second.ok());
    assert!(first.pid == second.pid && first.exit_code == Some(0), "{first:?} {second:?}");
}

#[tokio::test]
async fn what_did_not_run_leaves_its_key_free() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    for (wish, code) in [
        (json!({ "argv": ["no-such-program"] }), Code::CommandNotFound),
        (json!({ "command": "true", "user": "nobody-here" }), Code::UnknownUser),
        (json!({ "command": "true", "cwd": "/no/such" }), Code::UnknownDirectory),
    ] {
        keyed(&life, "k", wish).await.refused(&code);
    }
    let ran: ExecResult = keyed(&life, "k", json!({ "command": "true" })).await.ok();
    assert_eq!((ran.exit_code, ran.replayed), (Some(0), false));
    let nowhere = json!({ "name": "nowhere", "idempotencyKey": "k", "command": "true" });
    life.call("execCommand", nowhere).await.refused(&Code::SpaceNotFound);
}

#[tokio::test]
async fn a_repeated_answer_says_that_its_output_was_cut() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    for (encoding, key) in [("utf8", "u"), ("base64", "b")] {
        let wish = json!({ "command": "yes 200000", "outputEncoding": encoding });
        let first: ExecResult = keyed(&life, key, wish.clone()).await.ok();
        assert!(first.stdout.len() >= 200_000 && !first.stdout_truncated);
        let again: ExecResult = keyed(&life, key, wish).await.ok();
        assert!(
            again.stdout_truncated && again.stdout.len() == KEPT_OUTPUT_BYTES_MAX,
            "{}",
            again.stdout.len()
        );
        assert!(first.stdout.starts_with(&again.stdout));
    }
}

#[tokio::test]
async fn a_command_that_a_crash_cut_is_never_run_again() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    let wish = json!({ "command": "echo once" });
    let ran: ExecResult = keyed(&life, "k", wish.clone()).await.ok();
    assert_eq!(ran.exit_code, Some(0));
    life.crash().await;
    // As if it had come before the outcome was written.
    let ledger = rusqlite::Connection::open(ground.state.join("ledger.db")).expect("a ledger");
    let cut = ledger.execute("update execs set outcome = null, ended_at = null", []).expect("written");
    assert_eq!(cut, 1, "the intent is a row of its own");
    drop(ledger);
    let life = ground.start().await;
    for _ in 0..2 {
        // The agent of these bodies remembers nothing.
        let error = keyed(&life, "k", wish.clone()).await.refused(&Code::ExecUnknown);
        assert!(error.message.contains("may have run"), "{error}");
    }
    keyed(&life, "k", json!({ "command": "true" })).await.refused(&Code::IdempotencyKeyReused);
    let next: ExecResult = life.exec("a", "true").await.ok();
    assert_eq!(next.pid, ran.pid + 1, "nothing ran in between");
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_callers_all_left_is_killed_after_a_while_and_says_so() {
    let ground = Ground::new();
    let life = ground.start().await;
    let id = life.acquire("a").await.space.id;
    let wish = json!({ "command": "sleep 250", "timeoutSeconds": 280 });
    for (key, away, canceled) in [("stays", 20, false), ("leaves", 40, true)] {
        let left = tokio::time::timeout(Duration::from_secs(1), keyed(&life, key, wish.clone())).await;
        assert!(left.is_err(), "the caller leaves");
        tokio::time::sleep(Duration::from_secs(away)).await;
        assert_eq!(ground.machine.running(id), usize::from(!canceled), "{key}");
        let back: ExecResult = keyed(&life, key, wish.clone()).await.ok();
        assert_eq!((back.canceled, back.replayed), (canceled, canceled), "{key}: {back:?}");
        assert_eq!(back.exit_code, Some(if canceled { 137 } else { 0 }), "{key}");
    }
}
