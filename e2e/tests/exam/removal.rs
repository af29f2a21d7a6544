use drowse_e2e::{
    fleet::Fleet,
    relay::{Fault, Then, Way},
    wait::{eventually, seconds, timed},
};
use drowse_shared::api::{Code, nodes::NodeState};

#[tokio::test]
async fn a_node_that_answers_is_not_removed_and_one_that_is_serves_nobody_from_that_moment() {
    let fleet = Fleet::fake(2).wired().start().await;
    fleet.acquire("pet").await;
    let holder = fleet.holder("pet").await;
    let door = fleet.door.apart();
    let long = tokio::spawn(async move { timed(door.exec("pet", "sleep 60")).await });
    eventually("the command runs", seconds(10), || async {
        let awake = fleet.get("pet").await.awake;
        awake.is_some_and(|awake| awake.because.contains("pid")).then_some(())
    })
    .await;
    // Its check-ins are lost on the way; it is reached as ever.
    let (inward, outward) = (fleet.node(&holder).inward.clone(), fleet.node(&holder).outward.clone());
    let (inward, outward) = (inward.expect("wired"), outward.expect("wired"));
    outward.lose(&[Way::Request]);
    fleet.until_standing(&holder, "is down", |n| n.state == NodeState::Down).await;
    let refused = fleet.door.remove_node(&holder).await.refused(&Code::NodeLive);
    assert!(refused.message.contains("answers at"), "{refused}");
    assert!(!long.is_finished(), "a node that answers is not given up");

    // Whoever waits for it asks as well.
    for _ in 0..4 {
        inward.arm("POST /report", Fault::at_once(Way::Request, Then::Cut));
    }
    assert!(fleet.door.remove_node(&holder).await.ok().removed);
    let (cut, took) = timed(long).await;
    let (reply, _) = cut.expect("it is answered");
    let error = reply.refused(&Code::NodeUnreachable);
    assert!(error.message.contains("may have been done"), "{error}");
    assert!(took < seconds(5), "it was talked with for {took:?} after its removal");
    fleet.end().await;
}
