use std::{fs, os::unix::fs::PermissionsExt};

use drowse_e2e::{
    fleet::Fleet,
    wait::{eventually, seconds, timed},
};
use serde_json::json;

/// A runtime that hangs on every call about a space that `wedged/` names.
fn wrapper(fleet_root: &str) -> String {
    format!(
        "#!/bin/sh\nfor word in \"$@\"; do\n  if [ -e {fleet_root}/wedged/\"${{word##*/}}\" ] && [ -n \"${{word##*/}}\" ]; then\n    \
         exec sh -c 'while :; do sleep 0.2; done' {fleet_root}\n  fi\ndone\nexec runc \"$@\"\n"
    )
}

#[tokio::test]
async fn one_space_whose_runtime_hangs_holds_up_nobody_else_and_can_be_destroyed() {
    let mut fleet = Fleet::real(1).start().await;
    let root = fleet.ground.root.clone();
    let program = root.join("runtime");
    fs::create_dir(root.join("wedged")).expect("our own folder");
    fs::write(&program, wrapper(root.as_str())).expect("our own folder");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("our own file");
    fleet.node_mut("n1").daemon.stop().await;
    fleet.node_mut("n1").daemon.set("DROWSE_RUNTIME", &program);
    fleet.revive("n1").await;
    let wedged = fleet.acquire("wedged").await.space.id;
    fleet.acquire("fine").await;
    fs::write(root.join("wedged").join(wedged.to_string()), "").expect("our own folder");

    let door = fleet.door.apart();
    let hanging = tokio::spawn(async move { door.turn("stopSpace", "wedged").await });
    let hangs =
        || async { fleet.ground.leftovers().iter().any(|l| l.contains("while :; do sleep")).then_some(()) };
    eventually("its stop hangs in the runtime", seconds(20), hangs).await;
    let (list, took) = timed(fleet.list("")).await;
    assert!(took < seconds(3) && list.len() == 2, "a list never waits for one space: {took:?}");
    let (said, took) = timed(fleet.exec("fine", "echo fine")).await;
    assert!(said == "fine" && took < seconds(2), "{took:?}");
    let (_, took) = timed(fleet.acquire("another")).await;
    assert!(took < seconds(5), "{took:?}");

    let (reply, took) = timed(hanging).await;
    let reply = reply.expect("it is answered");
    assert!(reply.status == 200, "nothing of it lives: {}", reply.text());
    assert!(took < seconds(60), "within the deadline of a runtime call: {took:?}");

    let door = fleet.door.apart();
    let hanging =
        tokio::spawn(
            async move { door.attempt::<()>("wakeSpace", &json!({ "name": "wedged" })).await.is_ok() },
        );
    eventually("its start hangs in the runtime", seconds(20), hangs).await;
    // `stop` expects an end by itself in bounded time.
    fleet.node_mut("n1").daemon.stop().await;
    hanging.await.expect("answered or cut");

    // It is as wedged as before, and gone all the same.
    fleet.revive("n1").await;
    assert_eq!(fleet.exec("fine", "echo still fine").await, "still fine");
    let (destroyed, took) = timed(fleet.destroy("wedged")).await;
    assert!(destroyed && took < seconds(60), "{took:?}");
    fleet.end().await;
}
