use axum::body::Body;
use drowse_gateway::Parts;
use http::Request;
use serde_json::json;

use crate::fleet::Fleet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_said_before_any_node_is_asked() {
    let fleet = Fleet::start(1).await;
    // The gateway's own calls about the roster have nothing to do with a request.
    let asked = || fleet.nodes[0].calls.lock().unwrap().iter().filter(|call| *call != "report").count();
    for (verb, body, status, code, says) in [
        ("acquireSpace", "{", 400, "invalid_request", "not a valid request"),
        ("acquireSpace", r#"{"name":" a"}"#, 400, "invalid_request", "white space"),
        ("acquireSpace", r#"{"name":"a","colour":1}"#, 400, "invalid_request", "colour"),
        ("getSpace", r#"{"name":""}"#, 400, "invalid_request", "1 to 128"),
        ("execCommand", r#"{"command":"ls"}"#, 400, "invalid_request", "name"),
        ("execCommand", "", 400, "invalid_request", "not a valid request"),
        ("readFile?path=/x", "", 400, "invalid_request", "?space="),
        ("listSpaces", r#"{"limit":0}"#, 400, "invalid_request", "limit"),
        ("removeNode", r#"{"nodeId":"A"}"#, 400, "invalid_request", "node id"),
        ("checkIn", "{}", 400, "invalid_request", "nodeId"),
        ("acquireSpaces", "{}", 404, "unknown_verb", "acquireSpace"),
        ("lookup", "{}", 404, "unknown_verb", "verb of nodes"),
        ("report", "{}", 404, "unknown_verb", "verb of nodes"),
        ("a/b", "{}", 404, "unknown_verb", "no verb"),
        ("healthz", "", 405, "method_not_allowed", "GET"),
    ] {
        fleet.raw(verb, body).await.is(status, code).says(says);
    }
    let large = "x".repeat((1 << 20) + 1);
    fleet.raw("getSpace", large.clone()).await.is(413, "too_large");
    fleet.raw("acquireSpace", large).await.is(413, "too_large");
    fleet.raw("writeFiles", "x".repeat((16 << 20) + 1)).await.is(413, "too_large");
    assert_eq!(asked(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_methods_and_public_faces() {
    let fleet = Fleet::start(1).await;
    let send = |method: &str, path: &str, token: Option<&str>| {
        let mut request = Request::builder().method(method).uri(format!("{}/{path}", fleet.endpoint));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        fleet.send(request.body(Body::empty()).unwrap())
    };
    send("POST", "getSpace", None).await.is(401, "unauthenticated").says("no token");
    send("POST", "getSpace", Some("wrong")).await.is(401, "unauthenticated").says("not this fleet's");
    send("POST", "checkIn", None).await.is(401, "unauthenticated");
    send("GET", "metrics", None).await.is(401, "unauthenticated");
    let token = "0123456789abcdef0123456789abcdef";
    let wrong = send("GET", "getSpace", Some(token)).await;
    wrong.is(405, "method_not_allowed").says("wants POST");
    assert_eq!(wrong.headers["allow"], "POST");
    let health = send("GET", "healthz", None).await;
    assert_eq!((health.status, &health.body["status"]), (200, &json!("ok")));
    fleet.acquire("counted").await;
    let metrics = send("GET", "metrics", Some(token)).await;
    let text = metrics.body.as_str().unwrap();
    for line in [
        "drowse_gateway_requests_total{verb=\"acquireSpace\",status=\"200\"} 1",
        // Asked, and asked again right before the create.
        "drowse_gateway_lookups_total{answer=\"no\"} 2",
        "drowse_gateway_placements_total{outcome=\"built\"} 1",
        "drowse_gateway_nodes{state=\"live\"} 1",
    ] {
        assert!(text.contains(line), "{text} has no {line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forward_says_our_words_and_keeps_a_well_formed_request_id() {
    let fleet = Fleet::start(1).await;
    fleet.nodes[0].hold("a");
    let id = "0190f0c2a4b87c3d9e0f112233445566";
    let request = |id: &str| {
        Request::post(format!("{}/getSpace", fleet.endpoint))
            .header("authorization", "Bearer 0123456789abcdef0123456789abcdef")
            .header("drowse-request-id", id)
            .header("drowse-expect", "existing;id=0190f0c2a4b87c3d9e0f112233445566")
            .header("cookie", "kept=1")
            .body(Body::from(r#"{"name":"a"}"#))
            .unwrap()
    };
    let answer = fleet.send(request(id)).await;
    assert_eq!(answer.headers["drowse-request-id"], id);
    let seen = answer.body["headers"].as_str().unwrap();
    assert!(seen.contains(id) && seen.contains("kept=1"), "{seen}");
    let other = fleet.send(request("not an id")).await;
    assert_ne!(other.headers["drowse-request-id"], id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_gateway_on_one_database_is_refused() {
    let fleet = Fleet::start(0).await;
    let error = Parts::open(&fleet.env, &fleet.config).err().unwrap().to_string();
    assert!(error.contains("gateway.db") && error.contains("DROWSE_STATE"), "{error}");
}
