use drowse_e2e::{
    fleet::Fleet,
    wait::{eventually, seconds, throughout, timed},
};
use drowse_shared::api::spaces::{Acquired, Resumed, State};
use serde_json::json;

/// Counts and notes the time, a hundred times a second.
const COUNTER: &str = "exec python3 -c 'import time\nwith open(\"ticks\", \"a\", 1) as f:\n while True:\n  print(time.monotonic(), file=f); time.sleep(0.01)'";

/// The longest pause between two ticks, in seconds.
const PAUSE: &str = "python3 -c 't = [float(x) for x in open(\"ticks\").read().split(\"\\n\")[:-1]]; print(max(b - a for a, b in zip(t, t[1:])))'";

#[tokio::test]
async fn freeze_suspends_and_wake_goes_on_with_the_same_process() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    let pid = fleet.detach("a", COUNTER).await;
    eventually("it counts", seconds(10), || async {
        let ticks = fleet.door.read("a", b"ticks").await;
        (ticks.status == 200 && ticks.bytes.len() > 200).then_some(())
    })
    .await;
    let started = fleet.exec("a", &format!("cut -d' ' -f22 /proc/{pid}/stat")).await;

    let frozen = fleet.freeze("a").await;
    assert_eq!(frozen.state, State::Frozen);
    assert!(frozen.awake.is_none());
    assert_eq!(fleet.freeze("a").await.state, State::Frozen, "a second freeze finds it frozen");
    throughout("looking neither wakes nor touches it, and the node sees into it", seconds(2), || async {
        let space = fleet.get("a").await;
        let listed = fleet.list("a").await.remove(0);
        let metrics = fleet.node("n1").door.page("/metrics").await;
        assert_eq!((metrics.status, fleet.door.page("/metrics").await.status), (200, 200));
        assert_eq!(
            (space.last_active_at, listed.last_active_at),
            (frozen.last_active_at, frozen.last_active_at)
        );
        space.state == State::Frozen
            && listed.state == State::Frozen
            && !space.unresponsive
            && !listed.unresponsive
    })
    .await;

    let (woken, took) = timed(fleet.door.turn("wakeSpace", "a")).await;
    let woken = woken.ok();
    assert_eq!((woken.space.state, woken.resumed), (State::Active, Some(Resumed::Thawed)));
    assert!(took < seconds(1), "{took:?}");
    assert_eq!(
        fleet.exec("a", &format!("cut -d' ' -f22 /proc/{pid}/stat")).await,
        started,
        "the same process"
    );
    let pause: f64 = fleet.exec("a", PAUSE).await.parse().expect("a number");
    assert!(pause > 1.9, "the counter stood still while it was frozen: {pause}");
    let before = fleet.read("a", "ticks").await.len();
    eventually("it counts again", seconds(5), || async {
        (fleet.read("a", "ticks").await.len() > before).then_some(())
    })
    .await;
    fleet.end().await;
}

#[tokio::test]
async fn any_use_wakes_a_sleeping_space_and_says_how() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    fleet.write("a", "kept", "safe").await;
    let pid = fleet.detach("a", "exec sleep 7777").await;

    fleet.freeze("a").await;
    let ran = fleet.door.exec("a", "cat kept").await.ok();
    assert_eq!((ran.stdout.as_str(), ran.resumed), ("safe", Some(Resumed::Thawed)));
    fleet.freeze("a").await;
    let acquired: Acquired = fleet.acquire("a").await;
    assert_eq!((acquired.resumed, acquired.space.state), (Some(Resumed::Thawed), State::Active));
    assert!(acquired.space.awake.is_some(), "an answer says why it is awake");
    fleet.freeze("a").await;
    assert_eq!(fleet.read("a", "kept").await, b"safe");
    fleet.freeze("a").await;
    assert_eq!(fleet.door.files("a", "/home/user").await.ok().resumed, Some(Resumed::Thawed));
    assert_eq!(fleet.exec("a", &format!("cat /proc/{pid}/comm")).await, "sleep");

    assert_eq!(fleet.door.turn("stopSpace", "a").await.ok().space.state, State::Stopped);
    assert_eq!(fleet.get("a").await.state, State::Stopped, "looking does not start it");
    let ran = fleet.door.exec("a", "cat kept; pgrep -c sleep").await.ok();
    assert_eq!((ran.stdout.as_str(), ran.resumed), ("safe0\n", Some(Resumed::Restarted)));
    fleet.freeze("a").await;
    assert_eq!(fleet.door.turn("stopSpace", "a").await.ok().space.state, State::Stopped, "from frozen too");
    assert_eq!(fleet.door.turn("wakeSpace", "a").await.ok().resumed, Some(Resumed::Restarted));
    fleet.end().await;
}

#[tokio::test]
async fn an_idle_space_freezes_although_it_is_looked_at_and_a_busy_one_does_not() {
    let fleet = Fleet::real(1).start().await;
    let policy = json!({ "freezeAfterSeconds": 1, "stopAfterSeconds": null, "hibernateAfterSeconds": null });
    for name in ["idle", "busy"] {
        let wish = json!({ "name": name, "policy": policy });
        let made = fleet.door.call::<Acquired>("acquireSpace", wish).await.ok();
        let awake = made.space.awake.expect("it is awake");
        assert_eq!(awake.next_step, Some(State::Frozen));
    }
    let door = fleet.door.clone();
    let busy = tokio::spawn(async move { door.exec("busy", "sleep 4; echo done").await.ok() });
    eventually("the idle one freezes while it is watched", seconds(10), || async {
        fleet.list("").await;
        (fleet.get("idle").await.state == State::Frozen).then_some(())
    })
    .await;
    assert_eq!(fleet.get("busy").await.state, State::Active);
    let busy = busy.await.expect("answered");
    assert_eq!(busy.stdout, "done\n");
    assert!(busy.duration_ms < 5500, "it was never suspended: {} ms", busy.duration_ms);
    eventually("the busy one freezes after its work", seconds(10), || async {
        (fleet.get("busy").await.state == State::Frozen).then_some(())
    })
    .await;
    fleet.end().await;
}
