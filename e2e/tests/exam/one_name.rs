use std::{collections::BTreeSet, time::Duration};

use drowse_e2e::{fleet::Fleet, ground::random_below, wait::eventually};
use drowse_shared::api::spaces::Acquired;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_new_name_acquired_by_many_at_once_is_one_body_whoever_leaves() {
    contended(10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn soak_one_new_name_acquired_by_many_at_once_is_one_body() {
    contended(400).await;
}

async fn contended(rounds: usize) {
    let fleet = Fleet::real(2).start().await;
    for round in 0..rounds {
        let name = format!("wanted-{round}");
        let callers = (0..64).map(|caller| {
            let (door, name) = (fleet.door.clone(), name.clone());
            let patience = Duration::from_millis(random_below(150));
            tokio::spawn(async move {
                let door = if caller % 2 == 0 { door.apart() } else { door };
                let call = door.acquire(&name);
                if caller % 2 == 0 {
                    // Dropping the request closes its connection.
                    return tokio::time::timeout(patience, call).await.ok();
                }
                Some(call.await)
            })
        });
        let mut answers: Vec<Acquired> = Vec::new();
        for caller in callers.collect::<Vec<_>>() {
            let answer = caller.await.expect("a caller does not panic");
            answers.extend(answer.map(drowse_e2e::door::Reply::ok));
        }
        assert!(answers.len() >= 32, "round {round}: everybody who stayed was answered");
        let ids: BTreeSet<_> = answers.iter().map(|a| a.space.id).collect();
        assert_eq!(ids.len(), 1, "round {round}: {ids:?}");
        assert!(answers.iter().filter(|a| a.created).count() <= 1, "round {round}");
        fleet.holder(&name).await;
        assert_eq!(fleet.list(&name).await.len(), 1);
        fleet.exec(&name, "true").await;
        fleet.destroy(&name).await;
    }
    fleet.end().await;
}

#[tokio::test]
async fn a_create_whose_only_client_leaves_is_finished() {
    let fleet = Fleet::real(1).start().await;
    let door = fleet.door.apart();
    let wish = json!({ "name": "left" });
    let call = door.attempt::<Acquired>("acquireSpace", &wish);
    // Long enough to be sent, too short to be answered: if not, the promise holds all the same.
    let _ = tokio::time::timeout(Duration::from_millis(15), call).await;
    let node = &fleet.node("n1").door;
    eventually("the space is there although nobody waited", Duration::from_secs(10), || async {
        let space = node.get("left").await;
        (space.status == 200 && space.ok().space.state == drowse_shared::api::spaces::State::Active)
            .then_some(())
    })
    .await;
    fleet.end().await;
}
