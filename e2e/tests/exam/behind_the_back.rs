use drowse_e2e::{door::Door, fleet::Fleet};
use drowse_shared::api::{Code, files::FilesWritten};

#[tokio::test]
async fn a_space_built_behind_the_gateways_back_is_routed_at_once() {
    let fleet = Fleet::real(2).start().await;
    for node in ["n1", "n2"] {
        let name = format!("direct-{node}");
        let made = fleet.node(node).door.acquire(&name).await.ok().space;
        assert_eq!(fleet.exec(&name, "echo found").await, "found");
        let acquired = fleet.acquire(&name).await;
        assert_eq!((acquired.created, acquired.space.id), (false, made.id));
        assert_eq!(fleet.get(&made.id.to_string()).await.node.as_str(), node);
    }
    fleet.end().await;
}

#[tokio::test]
async fn a_space_moved_behind_the_gateways_back_is_never_a_404() {
    let fleet = Fleet::real(2).start().await;
    let mut at = fleet.acquire("nomad").await.space.node.to_string();
    for round in 0..6 {
        let to = if at == "n1" { "n2" } else { "n1" };
        // The gateway knows the old place for sure now.
        fleet.exec("nomad", "true").await;
        assert!(fleet.node(&at).door.destroy("nomad").await.ok().destroyed);
        fleet.node(to).door.acquire("nomad").await.ok();
        let new = &fleet.node(to).door;
        new.write("nomad", b"here", format!("round {round}")).await.ok();

        let expected = format!("round {round}");
        match round % 6 {
            0 => assert_eq!(fleet.exec("nomad", "cat here").await, expected),
            1 => assert_eq!(fleet.read("nomad", "here").await, expected.as_bytes()),
            2 => assert_eq!(fleet.get("nomad").await.node.as_str(), to),
            3 => assert_eq!(fleet.acquire("nomad").await.space.node.as_str(), to),
            4 => {
                // A body of unknown length cannot be sent twice.
                let pieces = (0..8).map(|_| Ok::<_, std::io::Error>(vec![b'x'; 1 << 20]));
                let body = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
                let request = fleet
                    .door
                    .request(http::Method::POST, &Door::stream_target("writeFile", "nomad", b"big"));
                let written: FilesWritten =
                    fleet.door.send("writeFile", request.body(body)).await.expect("an answer").ok();
                assert_eq!(written.files[0].size_bytes, 8 << 20);
                assert_eq!(new.exec("nomad", "stat -c %s big").await.ok().stdout.trim(), "8388608");
            }
            _ => {
                let files = fleet.door.files("nomad", "/home/user").await.ok().entries;
                assert!(files.iter().any(|f| f.name == "here") && files.iter().all(|f| f.name != "big"));
            }
        }
        at = to.to_owned();
    }
    fleet.end().await;
}

#[tokio::test]
async fn a_space_destroyed_behind_the_gateways_back_is_gone_and_is_built_anew_by_placement() {
    let fleet = Fleet::real(2).start().await;
    let old = fleet.acquire("gone").await.space;
    let (was, other) = if old.node.as_str() == "n1" { ("n1", "n2") } else { ("n2", "n1") };
    for n in 0..3 {
        fleet.node(was).door.acquire(&format!("crowd-{n}")).await.ok();
    }
    fleet
        .until_standing(was, "reports its crowd", |n| {
            n.reading.as_ref().is_some_and(|r| r.spaces.values().sum::<u64>() == 4)
        })
        .await;
    for verb in ["exec", "read", "get", "acquire"] {
        fleet.acquire("gone").await;
        fleet.exec("gone", "true").await;
        let at = fleet.holder("gone").await;
        assert!(fleet.node(&at).door.destroy("gone").await.ok().destroyed);
        match verb {
            "exec" => drop(fleet.door.exec("gone", "true").await.refused(&Code::SpaceNotFound)),
            "read" => drop(fleet.door.read("gone", b"x").await.refused(&Code::SpaceNotFound)),
            "get" => drop(fleet.door.get("gone").await.refused(&Code::SpaceNotFound)),
            _ => {
                let new = fleet.acquire("gone").await;
                assert!(new.created && new.space.id != old.id);
                assert_eq!(new.space.node.as_str(), other, "the emptier node, not the remembered one");
            }
        }
    }
    fleet.end().await;
}
