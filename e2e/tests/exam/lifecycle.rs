use drowse_e2e::fleet::Fleet;
use drowse_shared::api::{Code, spaces::State};
use serde_json::json;

#[tokio::test]
async fn a_name_is_one_space_from_acquire_to_destroy() {
    let fleet = Fleet::real(2).start().await;

    let first = fleet.acquire("shop").await;
    assert!(first.created);
    assert_eq!(first.space.state, State::Active);
    assert_eq!(fleet.holder("shop").await, first.space.node.as_str());

    let again = fleet.acquire("shop").await;
    assert_eq!((again.created, again.space.id), (false, first.space.id));
    assert_eq!(fleet.get(&first.space.id.to_string()).await.name.as_str(), "shop");

    assert_eq!(fleet.exec("shop", "echo hello from $(whoami)").await, "hello from user");
    fleet.write("shop", "notes/today.txt", "buy milk").await;
    assert_eq!(fleet.read("shop", "/home/user/notes/today.txt").await, b"buy milk");
    assert_eq!(fleet.exec("shop", "cat notes/today.txt").await, "buy milk");
    let files = fleet.door.files("shop", "/home/user/notes").await.ok().entries;
    assert_eq!(files.iter().map(|f| (f.name.as_str(), f.size_bytes)).collect::<Vec<_>>(), [("today.txt", 8)]);
    let listed = fleet.list("shop").await;
    assert_eq!(listed.iter().map(|s| s.id).collect::<Vec<_>>(), [first.space.id]);

    assert!(fleet.destroy("shop").await);
    assert!(!fleet.destroy("shop").await, "a second destroy finds nothing");
    fleet.door.get("shop").await.refused(&Code::SpaceNotFound);
    assert!(fleet.list("shop").await.is_empty());

    let reborn = fleet.acquire("shop").await;
    assert!(reborn.created);
    assert_ne!(reborn.space.id, first.space.id, "an id is never used again");
    assert_eq!(fleet.exec("shop", "ls notes 2>/dev/null | wc -l").await, "0");
    fleet.end().await;
}

#[tokio::test]
async fn a_space_keeps_its_files_and_its_settings_through_every_state() {
    let fleet = Fleet::real(1).start().await;
    let wish = json!({
        "name": "a",
        "metadata": { "owner": "ada" },
        "policy": { "freezeAfterSeconds": 3600, "stopAfterSeconds": null, "hibernateAfterSeconds": null },
        "spec": { "memoryBytes": 512 << 20, "diskBytes": 1 << 30 },
    });
    let made: drowse_shared::api::spaces::Acquired = fleet.door.call("acquireSpace", wish).await.ok();
    assert_eq!(made.space.metadata["owner"], "ada");
    assert_eq!(made.space.spec.memory_bytes, 512 << 20);

    fleet.write("a", "kept", "in the home").await;
    fleet.exec("a", "sudo sh -c 'echo in the root > /etc/kept'").await;
    let stopped = fleet.door.turn("stopSpace", "a").await.ok().space;
    assert_eq!(stopped.state, State::Stopped);
    assert_eq!(fleet.exec("a", "cat kept /etc/kept").await, "in the homein the root");

    let other = json!({ "name": "a", "metadata": { "owner": "bob" }, "spec": { "cpus": 2.0 } });
    let again: drowse_shared::api::spaces::Acquired = fleet.door.call("acquireSpace", other).await.ok();
    let mut unchanged = again.unchanged;
    unchanged.sort();
    assert_eq!(unchanged, ["metadata", "spec"], "wishes that were not applied are named");

    let change = json!({ "name": "a", "policy": { "freezeAfterSeconds": 60 } });
    let after = fleet.door.call::<drowse_shared::api::spaces::SpaceAnswer>("updatePolicy", change).await.ok();
    assert_eq!(after.space.policy.freeze_after_seconds, Some(60));
    let change = json!({ "name": "a", "metadata": { "owner": "eve" } });
    fleet.door.call::<drowse_shared::api::spaces::SpaceAnswer>("updateMetadata", change).await.ok();
    assert_eq!(fleet.get("a").await.metadata["owner"], "eve");
    fleet.end().await;
}
