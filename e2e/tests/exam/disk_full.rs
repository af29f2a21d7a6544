use std::{fs, io::Write};

use drowse_e2e::fleet::Fleet;
use drowse_shared::api::spaces::State;

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
