use drowse_e2e::{
    door::{Door, Reply},
    fleet::{Fleet, Plan},
    relay::{Fault, Relay, Then, Way},
    wait::{eventually, seconds},
};
use drowse_shared::{
    api::{
        Code,
        nodes::{Node, NodeList, NodeReadmitted, NodeState},
        spaces::State,
    },
    id::SpaceId,
};
use serde_json::{Value, json};

/// A name with a body on n1, which was removed and is back, and one on n2, which is a member.
struct Doubled {
    fleet: Fleet,
    old: SpaceId,
    new: SpaceId,
}

async fn doubled(plan: Plan) -> Doubled {
    let mut fleet = plan.start().await;
    let old = fleet.node("n1").door.acquire("shop").await.ok().space.id;
    fleet.write("shop", "whose", "old").await;
    fleet.kill("n1");
    fleet.until_standing("n1", "is down", |n| n.state == NodeState::Down).await;
    assert!(fleet.door.remove_node("n1").await.ok().removed);
    // The other gateway hears of it from n2, within an interval.
    for other in &fleet.others {
        eventually("the other gateway knows who was removed", seconds(10), || async {
            let nodes = other.door.attempt::<NodeList>("listNodes", &json!({})).await.ok()?.ok().nodes;
            let member = |n: &Node| n.id.as_str() == "n1" && n.state != NodeState::Removed;
            (!nodes.iter().any(member)).then_some(())
        })
        .await;
    }
    let new = fleet.acquire("shop").await.space.id;
    fleet.write("shop", "whose", "new").await;
    fleet.node_mut("n1").daemon.start();
    Doubled { fleet, old, new }
}

async fn readmit(door: &Door, choice: &Value) -> Reply<NodeReadmitted> {
    let mut wish = choice.clone();
    wish["nodeId"] = "n1".into();
    door.call("readmitNode", wish).await
}

/// Once the gateway has heard that n1 is back.
async fn readmitted(door: &Door, choice: &Value) -> NodeReadmitted {
    let back = || async {
        let reply = readmit(door, choice).await;
        (reply.status == 200).then(|| reply.ok())
    };
    eventually("the returning node is compared", seconds(30), back).await
}

impl Doubled {
    fn ids(&self, keeper: &str) -> (SpaceId, SpaceId) {
        if keeper == "n1" { (self.old, self.new) } else { (self.new, self.old) }
    }

    /// Who was chosen has the name and its data; the other one has its data too, by its id.
    async fn is_settled(&self, keeper: &str) {
        let (winner, loser) = self.ids(keeper);
        let (wins, loses) = if keeper == "n1" { ("old", "new") } else { ("new", "old") };
        let fleet = &self.fleet;
        fleet.until_live("n1").await;
        let door = &fleet.door;
        // n1 is told at once, and not before the answer.
        let old = json!({ "name": self.old });
        eventually("n1 serves again", seconds(10), || async {
            let reply = door.attempt::<Value>("touchSpace", &old).await.ok()?;
            (reply.status == 200).then_some(())
        })
        .await;
        let served = || async {
            let reply = door.get("shop").await;
            (reply.status == 200).then(|| reply.ok().space)
        };
        let shown = eventually("the name is served", seconds(10), served).await;
        assert_eq!((shown.id, shown.node.as_str()), (winner, keeper));
        assert_eq!(fleet.acquire("shop").await.space.id, winner, "nothing is built anew");
        assert_eq!(fleet.read("shop", "whose").await, wins.as_bytes());

        let aside = fleet.get(&loser.to_string()).await;
        let name = format!("shop~{loser}");
        assert_eq!((aside.name.as_str(), aside.id), (&*name, loser));
        assert_eq!(fleet.read(&loser.to_string(), "whose").await, loses.as_bytes(), "by id");
        assert_eq!(fleet.read(&name, "whose").await, loses.as_bytes(), "by its new name");
        let listed: Vec<String> =
            fleet.list("shop").await.iter().map(|space| space.name.to_string()).collect();
        assert_eq!(listed, ["shop", &*name]);
    }

    /// A restart of the loser's node brings nothing of it back under the name.
    async fn end(mut self, keeper: &str) {
        let (winner, loser) = self.ids(keeper);
        let node = if keeper == "n1" { "n2" } else { "n1" };
        self.fleet.kill(node);
        self.fleet.revive(node).await;
        assert_eq!(self.fleet.get("shop").await.id, winner);
        assert!(self.fleet.destroy(&loser.to_string()).await);
        assert_eq!(self.fleet.list("shop").await.len(), 1, "only the one that was kept");
        self.fleet.end().await;
    }
}

#[tokio::test]
async fn a_person_chooses_whose_space_keeps_a_name_and_the_other_one_keeps_its_data() {
    for (keeper, choice) in
        [("n1", json!({ "keep": { "shop": "n1" } })), ("n2", json!({ "keepAll": "member" }))]
    {
        let doubled = doubled(Fleet::real(2)).await;
        let door = &doubled.fleet.door;
        let asked = readmitted(door, &json!({})).await;
        assert!(!asked.readmitted && asked.set_aside.is_empty(), "{asked:?}");
        let bodies: Vec<_> = asked.conflicts[0].bodies.iter().map(|b| (b.node.as_str(), b.id)).collect();
        assert_eq!(bodies, [("n1", doubled.old), ("n2", doubled.new)]);
        for body in &asked.conflicts[0].bodies {
            assert!(body.created_at.is_some() && body.last_active_at.is_some(), "{body:?}");
            assert!(body.disk_bytes.is_some_and(|bytes| bytes > 0), "{body:?}");
        }
        for wrong in [
            json!({ "keep": { "shop": "n3" }, "keepAll": "member" }),
            json!({ "keep": { "shpo": "n1" }, "keepAll": "member" }),
            json!({ "keepAll": "n1" }),
        ] {
            readmit(door, &wrong).await.refused(&Code::InvalidRequest);
        }
        assert_eq!(doubled.fleet.get("shop").await.id, doubled.new, "nothing has changed");

        let done = readmitted(door, &choice).await;
        let (_, loser) = doubled.ids(keeper);
        assert!(done.readmitted && done.conflicts.is_empty(), "{done:?}");
        assert_eq!(done.set_aside.iter().map(|body| body.id).collect::<Vec<_>>(), [loser]);
        doubled.is_settled(keeper).await;
        doubled.end(keeper).await;
    }
}

/// The word of n2 that it has set its space aside does not go through. Answers the call that waits for it.
async fn unheard(
    doubled: &Doubled,
    wire: &Relay,
    then: Then,
) -> tokio::task::JoinHandle<Option<Reply<NodeReadmitted>>> {
    let asked = readmitted(&doubled.fleet.door, &json!({})).await;
    assert!(!asked.readmitted);
    wire.arm("POST /setAside", Fault::at_once(Way::Answer, then));
    let door = doubled.fleet.door.apart();
    let call = tokio::spawn(async move {
        let wish = json!({ "nodeId": "n1", "keepAll": "returning" });
        door.attempt::<NodeReadmitted>("readmitNode", &wish).await.ok()
    });
    wire.until_met(1).await;
    // Whoever asks n2 itself sees that it is done: only its word is missing.
    let node = &doubled.fleet.node("n2").door;
    eventually("it is set aside", seconds(10), || async {
        let space = node.get(&doubled.new.to_string()).await.ok().space;
        (space.name.as_str() != "shop" && space.state == State::Frozen).then_some(())
    })
    .await;
    call
}

/// Nobody is given a body of the name, at any gateway, and none is built.
async fn nobody_is_served(fleet: &Fleet) {
    for door in std::iter::once(&fleet.door).chain(fleet.others.iter().map(|other| &other.door)) {
        for reply in [door.acquire("shop").await.status, door.get("shop").await.status] {
            assert_eq!(reply, 503, "at {}", door.endpoint);
        }
        let reply = door.acquire("shop").await;
        assert!(reply.error().message.contains("n2"), "{}", reply.text());
    }
}

#[tokio::test]
async fn a_gateway_killed_before_the_readmission_leaves_the_name_to_who_repeats_it() {
    let mut doubled = doubled(Fleet::real(2).wired().gateways(2)).await;
    let wire = doubled.fleet.node("n2").inward.clone().expect("wired");
    let call = unheard(&doubled, &wire, Then::Hold).await;
    nobody_is_served(&doubled.fleet).await;
    doubled.fleet.kill_gateway();
    assert!(call.await.expect("no panic").is_none());
    wire.release();
    doubled.fleet.revive_gateway().await;
    doubled.fleet.until_live("n2").await;
    nobody_is_served(&doubled.fleet).await;
    let again = json!({ "keep": { "shop": "n1" } });
    assert!(readmitted(&doubled.fleet.door, &again).await.readmitted);
    doubled.is_settled("n1").await;
    doubled.end("n1").await;
}

#[tokio::test]
async fn a_node_killed_before_its_word_came_keeps_the_other_out_until_it_is_back() {
    let mut doubled = doubled(Fleet::real(2).wired().gateways(2)).await;
    let wire = doubled.fleet.node("n2").inward.clone().expect("wired");
    let call = unheard(&doubled, &wire, Then::Lose).await;
    doubled.fleet.kill("n2");
    wire.release();
    let error = call.await.expect("no panic").expect("an answer").refused(&Code::NodeSilent);
    assert!(error.message.contains("n2") && error.message.contains("stays removed"), "{}", error.message);
    doubled.fleet.revive("n2").await;
    nobody_is_served(&doubled.fleet).await;
    assert!(readmitted(&doubled.fleet.door, &json!({ "keepAll": "returning" })).await.readmitted);
    doubled.is_settled("n1").await;
    doubled.end("n1").await;
}
