use drowse_e2e::{
    fleet::Fleet,
    relay::{Fault, Relay, Then, Way},
    wait::{eventually, seconds},
};

const CREATE: &str = "POST /acquireSpace";

fn relays(fleet: &Fleet) -> Vec<Relay> {
    fleet.nodes.iter().filter_map(|n| n.inward.clone()).collect()
}

/// Starts an acquire whose create is held back on the wire, and lets its client leave.
async fn abandoned_create(fleet: &Fleet, name: &str) -> Relay {
    let relays = relays(fleet);
    relays.iter().for_each(|r| r.arm(CREATE, Fault::at_once(Way::Request, Then::Hold)));
    let door = fleet.door.apart();
    let (wanted, name) = (name.to_owned(), name);
    let client = tokio::spawn(async move { door.acquire(&wanted).await.status });
    let relay = eventually(&format!("the create of {name} is on the wire"), seconds(10), || async {
        relays.iter().find(|r| r.met() > 0).cloned()
    })
    .await;
    relays.iter().for_each(Relay::disarm);
    client.abort();
    relay
}

#[tokio::test]
async fn a_create_held_on_the_wire_is_waited_for_not_repeated() {
    let fleet = Fleet::real(2).wired().start().await;
    let relay = abandoned_create(&fleet, "a").await;

    let door = fleet.door.clone();
    let second = tokio::spawn(async move { door.acquire("a").await.ok() });
    // The second caller is in the gateway before the create goes on: another name, sent later, is through.
    fleet.acquire("other").await;
    assert!(fleet.holders("a").await.is_empty(), "the second caller did not build beside the first create");
    relay.release();
    let second = second.await.expect("the second caller is answered");
    assert_eq!(fleet.holder("a").await, second.space.node.as_str());
    assert_eq!(fleet.exec("a", "echo one").await, "one");
    fleet.end().await;
}

#[tokio::test]
async fn a_create_that_arrives_after_its_gateway_died_builds_nothing() {
    let mut fleet = Fleet::real(2).wired().start().await;
    let relay = abandoned_create(&fleet, "a").await;
    fleet.kill_gateway();
    fleet.revive_gateway().await;
    fleet.until_all_live().await;

    let space = fleet.acquire("a").await.space;
    assert!(fleet.exec("a", "echo here > where; cat where").await == "here");
    relay.release();
    relay.until_late(1).await;
    assert_eq!(fleet.holder("a").await, space.node.as_str());
    assert_eq!(fleet.acquire("a").await.space.id, space.id);
    assert_eq!(fleet.exec("a", "cat where").await, "here");
    fleet.end().await;
}
