use std::{fs, io::Write};

use camino::Utf8PathBuf;
use drowse_e2e::fleet::Fleet;
use drowse_shared::api::{nodes::NodeState, spaces::State};
use serde_json::{Value, json};

/// Fills a file system to its last byte.
fn fill(path: &str) {
    let mut file = fs::File::create(path).expect("a new file needs no room");
    for size in [1 << 20, 4096, 1] {
        while file.write_all(&vec![7; size]).is_ok() {}
    }
}

#[tokio::test]
async fn with_a_full_disk_spaces_are_still_listed_and_destroyed() {
    let mut fleet = Fleet::real(1).state_bytes(512 << 20).start().await;
    for name in ["a", "b", "c"] {
        fleet.acquire(name).await;
    }
    fleet.write("a", "kept", "safe").await;
    fleet.exec("a", "sync").await;
    fleet.freeze("b").await;
    let state = fleet.node("n1").state.clone();
    let filler = state.join("filler");
    fill(filler.as_str());

    assert_eq!(fleet.list("").await.len(), 3);
    assert_eq!(fleet.get("b").await.state, State::Frozen);
    assert_eq!(fleet.read("a", "kept").await, b"safe");
    let refused = fleet.door.acquire("new").await;
    assert!(refused.status == 503 || refused.status == 507, "{}", refused.text());
    assert!(refused.error().message.to_lowercase().contains("disk"), "{}", refused.text());
    assert!(fleet.destroy("b").await, "what frees room is never refused for want of room");

    // A daemon started over a full disk serves too.
    fill(filler.as_str());
    fleet.kill("n1");
    fleet.node_mut("n1").daemon.start();
    fleet.until_answers("n1").await;
    fleet
        .until_standing("n1", "is live on a full disk", |n| {
            n.state == drowse_shared::api::nodes::NodeState::Live && n.refuses.is_some()
        })
        .await;
    assert_eq!(fleet.list("").await.len(), 2);
    assert!(fleet.destroy("c").await);

    fs::remove_file(filler).expect("our own file");
    fleet.until_live("n1").await;
    assert_eq!(fleet.read("a", "kept").await, b"safe");
    fleet.acquire("new").await;
    fleet.end().await;
}

#[tokio::test]
async fn a_gateway_starts_over_a_full_disk_and_the_fleet_can_still_be_changed() {
    let mut fleet = Fleet::fake(2).gateway_state_bytes(64 << 20).start().await;
    fleet.node("n1").door.acquire("a").await.ok();
    let bind = |domain: &str| json!({ "name": "a", "domain": domain });
    fleet.door.call::<Value>("bindDomain", bind("a.example.org")).await.ok();
    let state = Utf8PathBuf::from(&fleet.gateway.env["DROWSE_STATE"]);
    let (filler, ballast) = (state.join("filler"), state.join("gateway.ballast"));
    assert!(ballast.exists(), "it was made when there was room");

    // One that ends takes away what its database had beside it, and that has to be made anew.
    fleet.gateway.stop().await;
    fill(filler.as_str());
    fleet.revive_gateway().await;
    fleet.until_all_live().await;
    assert!(!ballast.exists(), "it was given up");
    let domains = fleet.door.call::<Value>("listDomains", json!({})).await.ok();
    assert_eq!(domains["domains"][0]["domain"], "a.example.org");
    fleet.door.call::<Value>("unbindDomain", json!({ "domain": "a.example.org" })).await.ok();
    fleet.kill("n2");
    fleet.until_standing("n2", "is down", |n| n.state == NodeState::Down).await;
    assert_eq!(fleet.door.call::<Value>("removeNode", json!({ "nodeId": "n2" })).await.ok()["removed"], true);

    // With room again, the next change makes it anew.
    fs::remove_file(filler).expect("our own file");
    fleet.door.call::<Value>("bindDomain", bind("b.example.org")).await.ok();
    assert!(ballast.exists());
    fleet.end().await;
}
