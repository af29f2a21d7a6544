use drowse_e2e::{
    door::Door,
    fleet::Fleet,
    relay::{Fault, Then, Way},
};
use drowse_shared::api::exec::ExecResult;
use serde_json::json;

#[tokio::test]
async fn an_answer_that_is_cut_on_the_wire_never_passes_for_a_whole_one() {
    let fleet = Fleet::real(1).wired().start().await;
    fleet.acquire("a").await;
    fleet.write("a", "large", vec![b'x'; 8 << 20]).await;
    let wire = fleet.node("n1").inward.clone().expect("wired");

    wire.arm("POST /readFile", Fault::after(Way::Answer, 1 << 20, Then::Cut));
    let request = fleet.door.request(http::Method::POST, &Door::stream_target("readFile", "a", b"large"));
    let cut = fleet.door.send::<()>("readFile", request).await.map(|reply| (reply.status, reply.bytes.len()));
    assert!(cut.is_err(), "the client must see that it is not the whole file: {cut:?}");
    assert_eq!(fleet.read("a", "large").await.len(), 8 << 20, "the next one finds a new connection");
    fleet.end().await;
}

#[tokio::test]
async fn a_command_whose_answer_is_lost_is_not_run_again() {
    let fleet = Fleet::real(1).wired().start().await;
    fleet.acquire("a").await;
    fleet.exec("a", "true").await;
    let wire = fleet.node("n1").inward.clone().expect("wired");

    wire.arm("POST /execCommand", Fault::after(Way::Answer, 10, Then::Cut));
    let wish = json!({ "name": "a", "command": "echo ran >> count" });
    let reply = fleet.door.call::<ExecResult>("execCommand", wish).await;
    assert!(reply.status == 502 || reply.status == 503, "{}: {}", reply.status, reply.text());
    assert!(reply.error().message.contains("n1"), "it names who fell silent: {}", reply.text());
    assert_eq!(fleet.exec("a", "cat count").await, "ran");
    fleet.end().await;
}
