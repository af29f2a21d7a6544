use drowse_e2e::{
    door::Reply,
    fleet::Fleet,
    wait::{eventually, seconds},
};
use drowse_shared::api::{Code, exec::ExecResult};
use serde_json::{Value, json};

/// Counts a run, and goes on until it may end.
const COUNTED: &str = "echo run >> count; until [ -e go ]; do sleep 0.05; done; rm go; echo done";

fn wish(key: &str) -> Value {
    json!({ "name": "a", "command": COUNTED, "idempotencyKey": key })
}

async fn runs(fleet: &Fleet) -> String {
    fleet.exec("a", "cat count 2>/dev/null | wc -l").await
}

/// Asks again and again, as a client does whose connection broke.
async fn until_answered(fleet: &Fleet, wish: Value) -> ExecResult {
    eventually("the command is answered", seconds(60), || async {
        let reply: Reply<ExecResult> = fleet.door.apart().attempt("execCommand", &wish).await.ok()?;
        match reply.status {
            200 => Some(reply.ok()),
            503 => None,
            _ => panic!("{}", reply.text()),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_with_a_key_runs_once_whoever_is_killed_meanwhile() {
    let mut fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    for (round, victim) in ["n1", "gateway"].into_iter().enumerate() {
        let door = fleet.door.apart();
        let asked = tokio::spawn(async move {
            door.attempt::<ExecResult>("execCommand", &wish(victim)).await.map(|reply| reply.status)
        });
        let expected = (round + 1).to_string();
        eventually("it runs", seconds(20), || async { (runs(&fleet).await == expected).then_some(()) }).await;
        match victim {
            "n1" => fleet.kill("n1"),
            _ => fleet.kill_gateway(),
        }
        let answer = asked.await.expect("no panics inside");
        assert!(!matches!(answer, Ok(200)), "the answer is lost with {victim}: {answer:?}");
        match victim {
            "n1" => fleet.revive("n1").await,
            _ => {
                fleet.revive_gateway().await;
                fleet.until_live("n1").await;
            }
        }
        let again = until_answered(&fleet, wish(victim));
        let (result, ()) = tokio::join!(again, async {
            fleet.exec("a", "touch go").await;
        });
        assert_eq!((result.exit_code, result.stdout.as_str()), (Some(0), "done\n"), "{victim}: {result:?}");
        assert!(!result.stdout_truncated && !result.canceled, "{victim}: {result:?}");
        let repeated = until_answered(&fleet, wish(victim)).await;
        assert!(repeated.replayed && repeated.stdout == "done\n", "{victim}: {repeated:?}");
        assert_eq!(runs(&fleet).await, expected, "{victim}: it ran once");
    }
    let other = json!({ "name": "a", "command": "echo run >> count", "idempotencyKey": "n1" });
    fleet.door.call::<ExecResult>("execCommand", other).await.refused(&Code::IdempotencyKeyReused);

    // Detached, it is answered by its pid, and goes on.
    let mut detached = wish("detached");
    detached["detach"] = true.into();
    let first = until_answered(&fleet, detached.clone()).await;
    fleet.kill("n1");
    fleet.revive("n1").await;
    let again = until_answered(&fleet, detached).await;
    assert!(again.replayed && again.pid == first.pid, "{first:?} {again:?}");
    eventually("it runs", seconds(20), || async { (runs(&fleet).await == "3").then_some(()) }).await;

    // Its space is stopped while it runs: its end was seen, or nobody can say how far it came. Either way that stays so.
    let door = fleet.door.apart();
    let asked = tokio::spawn(async move { door.call::<ExecResult>("execCommand", wish("cut")).await.status });
    eventually("it runs", seconds(20), || async { (runs(&fleet).await == "4").then_some(()) }).await;
    fleet.door.turn("stopSpace", "a").await.ok();
    let first = asked.await.expect("no panics inside");
    let again = fleet.door.call::<ExecResult>("execCommand", wish("cut")).await;
    assert_eq!(again.status, first, "{}", again.text());
    if first == 200 {
        assert!(again.ok().replayed, "it is not run again");
    } else {
        again.refused(&Code::ExecUnknown);
    }
    assert_eq!(runs(&fleet).await, "4");
    fleet.end().await;
}
