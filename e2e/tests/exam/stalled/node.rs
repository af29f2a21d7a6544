use drowse_e2e::{
    door::Door,
    fleet::Fleet,
    relay::{Fault, Then, Way},
    wait::timed,
};
use drowse_shared::api::Code;
use serde_json::json;

use super::{
    ANSWER, ASKED, LARGE_BYTES, ROOM, all, as_before, ended_well, every_verb, furnish, hasty, quiet, upload,
};

const GONE: [Code; 3] = [Code::NodeUnreachable, Code::NodeSilent, Code::SpaceBusy];

#[tokio::test]
async fn a_node_that_stands_still_costs_each_caller_its_deadline_and_the_fleet_nothing() {
    let fleet = hasty(Fleet::fake(1).wired()).start().await;
    furnish(&fleet, "warm").await;
    all(every_verb(&fleet.door, "warm")).await;
    let before = quiet(&fleet).await;
    let wire = fleet.node("n1").inward.clone().expect("wired");

    // Its check-ins arrive all the while: only these wires stand still.
    for (what, ways, lose) in [
        ("no answer arrives", &[Way::Answer][..], true),
        ("no request arrives", &[Way::Request][..], true),
        ("nothing is read, either way", &[Way::Request, Way::Answer][..], false),
    ] {
        let name = what.split(' ').collect::<Vec<_>>().join("-");
        furnish(&fleet, &name).await;
        if lose {
            wire.lose(ways);
        } else {
            wire.stall(ways);
        }
        let ended = all(every_verb(&fleet.door, &name)).await;
        wire.forward();
        ended_well(what, &ended, &GONE);
        for ended in ended.iter().filter(|e| !matches!(e.verb, "listSpaces" | "listNodes")) {
            let reply = ended.reply.as_ref().expect("checked above");
            assert_eq!(reply.status, 503, "{what}: {} cannot have succeeded: {}", ended.verb, reply.text());
        }
        let list = ended.into_iter().find(|e| e.verb == "listSpaces").and_then(|e| e.reply).expect("asked");
        assert!(
            list.text().contains("\"silent\":[{"),
            "{what}: a list names who is missing: {}",
            list.text()
        );

        let space = fleet.acquire(&name).await.space;
        assert_eq!(fleet.exec(&name, "echo back").await, "back");
        assert_eq!(fleet.get(&name).await.id, space.id);
    }
    as_before(&fleet, &before).await;
    fleet.end().await;
}

/// A download that does not come to its end: what it announced, how much came, and how it ended.
async fn partly(door: &Door, space: &str, path: &str) -> (u64, usize, reqwest::Error) {
    let door = door.apart();
    let target = Door::stream_target("readFile", space, path.as_bytes());
    let mut response = door.request(http::Method::POST, &target).send().await.expect("it begins");
    let announced = response.content_length().expect("its length is known");
    let mut got = 0;
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) => got += chunk.len(),
            Ok(None) => panic!("{got} of {announced} bytes passed for the whole"),
            Err(why) => return (announced, got, why),
        }
    }
}

#[tokio::test]
async fn an_answer_that_stops_half_way_ends_its_call_in_time() {
    let fleet = hasty(Fleet::fake(1).wired()).start().await;
    furnish(&fleet, "a").await;
    let before = quiet(&fleet).await;
    let wire = fleet.node("n1").inward.clone().expect("wired");
    let limit = ANSWER + ASKED + ROOM;

    // Within the head: the gateway can still say what happened.
    for verb in ["getSpace", "execCommand", "listFiles", "touchSpace", "readFile", "destroySpace"] {
        wire.arm(&format!("POST /{verb}"), Fault::after(Way::Answer, 20, Then::Hold));
    }
    let calls = every_verb(&fleet.door, "a").into_iter();
    let ended = all(calls.collect()).await;
    ended_well("20 bytes of the answer", &ended, &GONE);
    assert!(wire.met() >= 6, "each of them met its fault: {}", wire.met());
    wire.release();
    wire.disarm();
    let again = fleet.door.turn("getSpace", "a").await;
    assert_eq!(again.status, 200, "{}", again.text());

    // Within the body: all that is left is to end the connection. The file is one that no window holds.
    let (met, half) = (wire.met(), LARGE_BYTES / 2);
    wire.arm("POST /readFile", Fault::after(Way::Answer, half as u64, Then::Hold));
    let (got, took) = timed(partly(&fleet.door, "a", "large")).await;
    let (announced, got, why) = got;
    assert_eq!((wire.met(), announced), (met + 1, LARGE_BYTES as u64), "it met its fault");
    assert!(got <= half && got > half / 2, "{got} bytes came");
    assert!(!why.is_timeout(), "cut by the gateway, not given up by its client: {why:?}");
    assert!(took >= ANSWER && took < limit, "{took:?}");
    wire.release();

    // An upload that is not read any more.
    wire.arm("POST /writeFile", Fault::after(Way::Request, 1 << 20, Then::Hold));
    let ended = all(vec![upload(&fleet.door, "a")]).await;
    // The node sees an upload that pauses, and the gateway one that is not taken: whoever is first says so.
    ended_well("1 MiB of the upload", &ended, &[GONE.as_slice(), &[Code::RequestTimeout]].concat());
    assert!(ended[0].reply.as_ref().expect("checked").status >= 400);
    assert_eq!(wire.met(), met + 2, "it met its fault");
    wire.release();
    assert_eq!(fleet.read("a", "file").await.len(), 1, "what other verbs wrote is there");
    assert_eq!(fleet.door.read("a", b"large").await.status, 200, "the whole upload of before is kept");
    as_before(&fleet, &before).await;
    fleet.door.list(json!({})).await.ok();
    fleet.end().await;
}
