use drowse_e2e::{daemon::Daemon, fleet::Fleet, ground::random_hex};
use serde_json::{Value, json};

/// The lines of a daemon about one request.
fn lines(daemon: &Daemon, request: &str) -> Vec<Value> {
    let log = daemon.log();
    let lines = log.lines().map(|line| {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{}: {error}: {line}", daemon.name))
    });
    lines.filter(|line| line["request"] == request).collect()
}

#[tokio::test]
async fn a_refused_request_is_followed_by_its_id_through_gateway_and_node() {
    let fleet = Fleet::fake(1)
        .gateway_env("DROWSE_LOG_FORMAT", "json")
        .node_env("DROWSE_LOG_FORMAT", "json")
        .start()
        .await;
    fleet.acquire("a").await;
    let (id, secret) = (random_hex(32), random_hex(40));
    // What the node refuses, not the gateway.
    let wish = json!({ "name": "a", "path": "x", "content": secret, "mode": "rwx" });
    let request = fleet.door.request(http::Method::POST, "/writeFile").json(&wish);
    let reply = fleet.door.send::<Value>("writeFile", request.header("drowse-request-id", &id)).await;
    let reply = reply.expect("an answer");
    assert_eq!((reply.status, reply.headers["drowse-request-id"].to_str().ok()), (400, Some(id.as_str())));
    for daemon in [&fleet.gateway, &fleet.nodes[0].daemon] {
        let lines = lines(daemon, &id);
        assert_eq!(lines.len(), 1, "{}: {lines:?}", daemon.name);
        assert!(lines[0]["level"] == "INFO" && lines[0]["status"] == 400, "{lines:?}");
        for hidden in [&secret, &fleet.ground.token] {
            assert!(!daemon.log().contains(hidden.as_str()), "{} wrote down a secret", daemon.name);
        }
    }
    fleet.end().await;
}
