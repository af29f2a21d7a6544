use std::os::unix::fs::PermissionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use drowse_e2e::{
    daemon::binary,
    fleet::Fleet,
    wait::{eventually, seconds},
};
use drowse_shared::api::{
    Code,
    upgrade::{FleetUpgrade, UpgradeState},
};
use serde_json::{Value, json};

/// Stands for `deploy/upgrade`: it leaves what a node that was told has fetched, and has the end written by a test.
const UPGRADER: &str = r#"#!/bin/sh
cp "$1" "$2/fetched"
( flock 8; echo '{"state":"running"}' >"$2/status.json"
  while [ ! -e "$2/end" ]; do sleep 0.02; done; mv "$2/end" "$2/status.json" ) 8>"$2/lock" >/dev/null 2>&1 </dev/null &
"#;

/// A release in a folder of its own, as `install.sh` leaves it.
fn release(root: &Utf8Path, name: &str, day: u8) -> Utf8PathBuf {
    let folder = root.join(name);
    std::fs::create_dir(&folder).expect("the ground is ours");
    for program in ["drowse-gateway", "drowse-node", "drowse-agent"] {
        std::fs::copy(binary(program), folder.join(program)).expect("there is room");
    }
    let stamp =
        json!({ "version": "0.0.1", "commit": name, "committedAt": format!("2026-01-{day:02}T00:00:00Z") });
    std::fs::write(folder.join("release.json"), stamp.to_string()).expect("written");
    folder
}

/// What nodes fetch: more than one piece of it.
fn archive() -> Vec<u8> {
    (0..3_000_001_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

struct Rolling {
    fleet: Fleet,
    older: Utf8PathBuf,
    newer: Utf8PathBuf,
    _dir: tempfile::TempDir,
}

impl Rolling {
    /// Two nodes of a release before the gateway's.
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("room");
        let root = Utf8PathBuf::from_path_buf(dir.path().to_owned()).expect("UTF-8");
        let upgrader = root.join("upgrader");
        std::fs::write(&upgrader, UPGRADER).expect("written");
        std::fs::set_permissions(&upgrader, std::fs::Permissions::from_mode(0o755)).expect("ours");
        let (older, newer) = (release(&root, "older", 1), release(&root, "newer", 2));
        let fleet = Fleet::fake(2).node_env("DROWSE_UPGRADER", &upgrader).start().await;
        let mut rolling = Self { fleet, older, newer, _dir: dir };
        for node in ["n1", "n2"] {
            rolling.exchange(node, &rolling.older.clone()).await;
        }
        rolling.exchange_gateway(&rolling.newer.clone()).await;
        rolling
    }

    /// The node's daemon is that of this release from now on.
    async fn exchange(&mut self, node: &str, release: &Utf8Path) {
        let daemon = &mut self.fleet.node_mut(node).daemon;
        daemon.stop().await;
        daemon.run_from(release);
        self.fleet.revive(node).await;
    }

    /// The nodes' states, in the order of their ids.
    async fn until<const N: usize>(&self, states: [UpgradeState; N]) -> FleetUpgrade {
        eventually(&format!("the nodes are {states:?}"), seconds(20), || async {
            let shown = self.fleet.door.call::<FleetUpgrade>("getUpgrade", json!({})).await.ok();
            (shown.nodes.iter().map(|node| node.state).eq(states)).then_some(shown)
        })
        .await
    }

    /// Until the node has all of the release.
    async fn fetched(&self, node: &str) -> Utf8PathBuf {
        let path = self.files(node).join("fetched");
        eventually("the release is fetched", seconds(20), || async {
            std::fs::read(&path).ok().filter(|bytes| *bytes == archive())
        })
        .await;
        path
    }

    /// The gateway is that of this release from now on, with an archive of it.
    async fn exchange_gateway(&mut self, release: &Utf8Path) {
        std::fs::write(release.join("release.tar.gz"), archive()).expect("written");
        self.fleet.gateway.stop().await;
        self.fleet.gateway.run_from(release);
        self.fleet.revive_gateway().await;
        self.fleet.until_all_live().await;
    }

    fn files(&self, node: &str) -> Utf8PathBuf {
        self.fleet.node(node).state.join("upgrade")
    }

    /// What the node's installer says in the end.
    fn ends(&self, node: &str, status: &Value) {
        let files = self.files(node);
        std::fs::write(files.join("end.part"), status.to_string()).expect("the node made it");
        std::fs::rename(files.join("end.part"), files.join("end")).expect("the node made it");
    }
}

#[tokio::test]
async fn nodes_take_the_gateways_release_one_after_another() {
    use UpgradeState::{Behind, Current, Stuck, Upgrading};
    let mut rolling = Rolling::start().await;
    let shown = rolling.until([Behind, Behind]).await;
    assert!(!shown.rolling, "nobody asked for it");
    let door = rolling.fleet.door.clone();
    door.call::<FleetUpgrade>("upgradeFleet", json!({})).await.ok();
    let shown = rolling.until([Upgrading, Behind]).await;
    assert!(shown.rolling && shown.nodes[0].told_at.is_some(), "{shown:?}");
    // It has all of it before it lets go of itself, and another life of it does not begin again.
    let fetched = rolling.fetched("n1").await;
    rolling.fleet.kill("n1");
    std::fs::remove_file(&fetched).expect("it is there");
    rolling.fleet.revive("n1").await;
    rolling.fleet.kill_gateway();
    rolling.fleet.revive_gateway().await;
    rolling.fleet.until_all_live().await;
    rolling.until([Upgrading, Behind]).await;
    assert!(!fetched.exists(), "it was told once");
    rolling.ends("n1", &json!({ "state": "succeeded" }));
    rolling.exchange("n1", &rolling.newer.clone()).await;

    rolling.until([Current, Upgrading]).await;
    let refused = door.call::<Value>("retryUpgrade", json!({ "nodeId": "n2" })).await;
    refused.refused(&Code::NotStuck);
    rolling.ends("n2", &json!({ "state": "rolled-back", "error": "it did not serve" }));
    let shown = rolling.until([Current, Stuck]).await;
    assert!(shown.nodes[1].reason.as_ref().is_some_and(|why| why.contains("it did not serve")), "{shown:?}");
    door.call::<FleetUpgrade>("retryUpgrade", json!({ "nodeId": "n2" })).await.ok();
    rolling.until([Current, Upgrading]).await;
    rolling.fetched("n2").await;
    rolling.ends("n2", &json!({ "state": "succeeded" }));
    rolling.exchange("n2", &rolling.newer.clone()).await;
    rolling.until([Current, Current]).await;
    rolling.fleet.end().await;
}

#[tokio::test]
async fn a_roll_goes_on_after_a_build_on_its_heels_and_the_removal_of_a_node() {
    use UpgradeState::{Behind, Current, Upgrading};
    let mut rolling = Rolling::start().await;
    let door = rolling.fleet.door.clone();
    door.call::<FleetUpgrade>("upgradeFleet", json!({})).await.ok();
    let told = rolling.until([Upgrading, Behind]).await.nodes[0].told_at;
    let fetched = rolling.fetched("n1").await;

    let newest = release(rolling.older.parent().expect("a folder"), "newest", 3);
    rolling.exchange_gateway(&newest).await;
    door.call::<FleetUpgrade>("upgradeFleet", json!({})).await.ok();
    let shown = rolling.until([Upgrading, Behind]).await;
    assert_eq!(shown.nodes[0].told_at, told, "it is still at the build before");
    std::fs::remove_file(&fetched).expect("it is there");
    rolling.ends("n1", &json!({ "state": "succeeded" }));
    rolling.exchange("n1", &rolling.newer.clone()).await;
    // There, it is behind again, and still the first.
    assert_eq!(rolling.fetched("n1").await, fetched);
    let shown = rolling.until([Upgrading, Behind]).await;
    assert!(shown.nodes[0].told_at > told, "{shown:?}");

    // It goes up in smoke, and once a person says so the next one is told.
    rolling.fleet.kill("n1");
    rolling.ends("n1", &json!({ "state": "failed" }));
    eventually("its removal is taken", seconds(20), || async {
        (door.remove_node("n1").await.status == 200).then_some(())
    })
    .await;
    rolling.until([Upgrading]).await;
    rolling.fetched("n2").await;
    rolling.ends("n2", &json!({ "state": "succeeded" }));
    rolling.exchange("n2", &newest).await;
    rolling.until([Current]).await;
    rolling.fleet.end().await;
}

#[tokio::test]
async fn what_cannot_be_rolled_is_said_in_words() {
    let mut fleet = Fleet::fake(1).start().await;
    let door = fleet.door.clone();
    // Built, and no release.
    let shown = door.call::<FleetUpgrade>("getUpgrade", json!({})).await.ok();
    assert_eq!(shown.nodes[0].state, UpgradeState::Unknown, "{shown:?}");
    door.call::<Value>("upgradeFleet", json!({})).await.refused(&Code::NoRelease);
    door.call::<Value>("retryUpgrade", json!({ "nodeId": "nobody" })).await.refused(&Code::NodeNotFound);
    door.call::<Value>("retryUpgrade", json!({})).await.refused(&Code::InvalidRequest);
    door.call::<FleetUpgrade>("stopUpgrade", json!({})).await.ok();
    // A release whose archive was lost is told to nobody, and a node that nothing replaces is unavailable.
    let newer = release(&fleet.ground.root, "newer", 2);
    fleet.gateway.stop().await;
    fleet.gateway.run_from(&newer);
    fleet.revive_gateway().await;
    door.call::<Value>("upgradeFleet", json!({})).await.refused(&Code::NoRelease);
    let older = release(&fleet.ground.root, "older", 1);
    fleet.node_mut("n1").daemon.stop().await;
    fleet.node_mut("n1").daemon.run_from(&older);
    fleet.revive("n1").await;
    let shown = door.call::<FleetUpgrade>("getUpgrade", json!({})).await.ok();
    assert_eq!(shown.nodes[0].state, UpgradeState::Unavailable, "{shown:?}");
    fleet.end().await;
}
