//! A create that is bent on the wire, whatever happens meanwhile: one body, and everybody is led to it.

use std::{collections::BTreeSet, fs, time::Duration};

use drowse_e2e::{
    door::Door,
    fleet::Fleet,
    relay::{Fault, Relay, Then, Way},
    wait::{eventually, seconds},
};
use drowse_shared::api::spaces::Acquired;
use tokio::task::JoinHandle;

/// What happens between the create and the release of what was held.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Meanwhile {
    ClientLeaves,
    GatewayKilled,
    DatabaseDeleted,
    NodeRestarted,
    SecondGatewayAsks,
    GatewayKilledSecondAsks,
    NodeRestartedSecondAsks,
    DatabaseDeletedNodeRestarted,
}
use Meanwhile::{
    ClientLeaves, DatabaseDeleted, DatabaseDeletedNodeRestarted, GatewayKilled, GatewayKilledSecondAsks,
    NodeRestarted, NodeRestartedSecondAsks, SecondGatewayAsks,
};

impl Meanwhile {
    fn words(self) -> &'static str {
        match self {
            ClientLeaves => "client leaves",
            GatewayKilled => "gateway killed",
            DatabaseDeleted => "gateway's database deleted",
            NodeRestarted => "node restarted",
            SecondGatewayAsks => "second gateway asks",
            GatewayKilledSecondAsks => "gateway killed, second asks",
            NodeRestartedSecondAsks => "node restarted, second gateway asks",
            DatabaseDeletedNodeRestarted => "database deleted, node restarted",
        }
    }

    fn ends_gateway(self) -> bool {
        matches!(
            self,
            GatewayKilled | DatabaseDeleted | GatewayKilledSecondAsks | DatabaseDeletedNodeRestarted
        )
    }

    fn deletes_database(self) -> bool {
        matches!(self, DatabaseDeleted | DatabaseDeletedNodeRestarted)
    }

    fn restarts_node(self) -> bool {
        matches!(self, NodeRestarted | NodeRestartedSecondAsks | DatabaseDeletedNodeRestarted)
    }

    fn second_asks(self) -> bool {
        matches!(self, SecondGatewayAsks | GatewayKilledSecondAsks | NodeRestartedSecondAsks)
    }
}

/// What happens on the wire, to which request.
const COLUMNS: [(&str, &str, Fault); 12] = [
    ("request held", "POST /acquireSpace", Fault::at_once(Way::Request, Then::Hold)),
    ("answer held", "POST /acquireSpace", Fault::at_once(Way::Answer, Then::Hold)),
    ("lookup held", "POST /lookup", Fault::at_once(Way::Request, Then::Hold)),
    ("lookup's answer held", "POST /lookup", Fault::at_once(Way::Answer, Then::Hold)),
    ("request cut", "POST /acquireSpace", Fault::after(Way::Request, 60, Then::Cut)),
    ("answer cut", "POST /acquireSpace", Fault::after(Way::Answer, 60, Then::Cut)),
    ("request reset", "POST /acquireSpace", Fault::after(Way::Request, 60, Then::Reset)),
    ("answer reset", "POST /acquireSpace", Fault::at_once(Way::Answer, Then::Reset)),
    ("request delayed", "POST /acquireSpace", Fault::at_once(Way::Request, Then::Later(DELAY))),
    ("answer delayed", "POST /acquireSpace", Fault::at_once(Way::Answer, Then::Later(DELAY))),
    ("request half open", "POST /acquireSpace", Fault::after(Way::Request, 60, Then::Lose)),
    ("answer half open", "POST /acquireSpace", Fault::after(Way::Answer, 60, Then::Lose)),
];

/// A delay that is over while the second caller is at it.
const DELAY: Duration = Duration::from_millis(200);

/// How long the second caller may take before what is held is let go: it may be right to wait for that.
const HEAD_START: Duration = Duration::from_millis(400);

/// Acquires until it is given the space. A refusal asks to come again.
fn insist(door: Door, name: String) -> JoinHandle<Acquired> {
    tokio::spawn(async move {
        eventually(&format!("{name} is acquired"), seconds(40), || async {
            let reply = door.acquire(&name).await;
            if reply.status != 200 {
                assert_eq!(reply.status, 503, "{}", reply.text());
                reply.error();
                return None;
            }
            Some(reply.ok())
        })
        .await
    })
}

/// Plays one cell; answers which node has the body.
async fn play(
    fleet: &mut Fleet,
    row: Meanwhile,
    (_, request, fault): (&str, &str, Fault),
    name: &str,
) -> String {
    let relays: Vec<Relay> = fleet.nodes.iter().filter_map(|n| n.inward.clone()).collect();
    let before: Vec<(u64, u64)> = relays.iter().map(|r| (r.met(), r.late())).collect();
    relays.iter().for_each(|relay| relay.arm(request, fault));
    let first = {
        let (door, name) = (fleet.door.apart(), name.to_owned());
        tokio::spawn(async move {
            door.attempt::<Acquired>("acquireSpace", &serde_json::json!({ "name": name })).await
        })
    };
    let bent = eventually("the create is bent on its way", seconds(10), || async {
        (0..relays.len()).find(|n| relays[*n].met() > before[*n].0)
    })
    .await;
    relays.iter().for_each(Relay::disarm);
    let held = matches!(fault, Fault { way: Way::Request, then: Then::Hold | Then::Later(_), .. });

    if row == ClientLeaves {
        first.abort();
    }
    if row.ends_gateway() {
        fleet.kill_gateway();
    }
    if row.restarts_node() {
        let node = &mut fleet.nodes[bent].daemon;
        node.kill();
        node.start();
    }
    if row.deletes_database() {
        fs::remove_dir_all(fleet.ground.root.join("gateway")).expect("the gateway's own folder");
    }
    if row.ends_gateway() {
        fleet.revive_gateway().await;
    }
    let asks = if row.second_asks() { &fleet.others[0].door } else { &fleet.door };
    let mut second = insist(asks.apart(), name.to_owned());
    // Answered or not, what is held goes on now.
    let early = tokio::time::timeout(HEAD_START, &mut second).await;
    if row.restarts_node() {
        let id = fleet.nodes[bent].id.clone();
        fleet.until_answers(&id).await;
    }
    relays.iter().for_each(Relay::release);
    if held {
        relays[bent].until_late(before[bent].1 + 1).await;
    }
    let second = match early {
        Ok(acquired) => acquired,
        Err(_) => second.await,
    };
    let id = second.expect("the second caller is answered").space.id;
    if let Ok(Ok(first)) = first.await
        && first.status == 200
    {
        assert_eq!(first.ok().space.id, id, "both callers are led to the same body");
    }

    let one = BTreeSet::from([id.to_string()]);
    for node in fleet.nodes.iter().map(|n| n.id.clone()).collect::<Vec<_>>() {
        fleet.until_live(&node).await;
    }
    eventually("there is one body and nothing of another", seconds(10), || async {
        let (ledgers, disks) = (fleet.in_ledgers().await, fleet.disks());
        let (kernel, runtime) = (fleet.ground.spaces_in_kernel(), fleet.ground.spaces_in_runtime());
        ([ledgers, disks, kernel, runtime].iter().all(|found| *found == one)).then_some(())
    })
    .await;
    for door in [&fleet.door, &fleet.others[0].door] {
        assert_eq!(insist(door.clone(), name.to_owned()).await.expect("answered").space.id, id);
    }
    let holder = fleet.holder(name).await;
    assert!(fleet.destroy(name).await, "it was there to destroy");
    holder
}

async fn matrix(rows: &[Meanwhile]) {
    // A lookup that is held costs its deadline in each cell.
    let plan = Fleet::real(2).wired().gateways(2).gateway_env("DROWSE_LOOKUP_DEADLINE", "500ms");
    let mut fleet = plan.start().await;
    for (r, row) in rows.iter().enumerate() {
        for (c, column) in COLUMNS.into_iter().enumerate() {
            let cell = format!("{} × {}", row.words(), column.0);
            let (holder, took) =
                drowse_e2e::wait::timed(play(&mut fleet, *row, column, &format!("cell-{r}-{c}"))).await;
            println!("{cell}: one body on {holder}, after {} ms", took.as_millis());
        }
    }
    fleet.end().await;
}

#[tokio::test]
async fn a_bent_create_leaves_one_body_when_clients_or_nodes_come_and_go() {
    matrix(&[ClientLeaves, SecondGatewayAsks, NodeRestarted, NodeRestartedSecondAsks]).await;
}

#[tokio::test]
async fn a_bent_create_leaves_one_body_when_its_gateway_dies() {
    matrix(&[GatewayKilled, GatewayKilledSecondAsks, DatabaseDeleted, DatabaseDeletedNodeRestarted]).await;
}
