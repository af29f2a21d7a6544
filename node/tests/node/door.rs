use axum::body::Body;
use drowse_shared::api::Code;
use http::{Method, Request};
use serde_json::json;

use crate::harness::{Ground, TOKEN};

const VERBS: [&str; 18] = [
    "acquireSpace",
    "destroySpace",
    "execCommand",
    "freezeSpace",
    "getSpace",
    "listFiles",
    "listSpaces",
    "lookup",
    "readFile",
    "report",
    "stopSpace",
    "touchSpace",
    "updateMetadata",
    "updatePolicy",
    "wakeSpace",
    "watchFiles",
    "writeFile",
    "writeFiles",
];

#[tokio::test]
async fn nothing_but_health_is_told_without_the_token() {
    let ground = Ground::new();
    let life = ground.start().await;
    for verb in VERBS.iter().chain(&["metrics", "checkIn", "nonsense"]) {
        for header in [
            None,
            Some(""),
            Some(TOKEN),
            Some("Bearer wrong"),
            Some("bearer 0123456789abcdef0123456789abcdef"),
        ] {
            let mut request = Request::post(format!("/{verb}"));
            if let Some(value) = header {
                request = request.header("authorization", value);
            }
            let reply = life.send(request.body(Body::from("{}")).expect("a request")).await;
            reply.refused(&Code::Unauthenticated);
            assert!(!reply.text().contains(TOKEN));
        }
    }
    let reply = life.send(Request::get("/healthz").body(Body::empty()).expect("a request")).await;
    assert_eq!(reply.status, 200);
    assert!(reply.text().contains(r#""status":"ok""#), "{}", reply.text());
}

#[tokio::test]
async fn every_verb_says_what_is_wrong_with_its_input() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    for verb in VERBS {
        // Verbs without a required field take an empty object.
        let bad = if matches!(verb, "listSpaces" | "report") { "[" } else { "{}" };
        life.raw(verb, bad).await.refused(&Code::InvalidRequest);
        life.raw(verb, r#"{"name":"a","space":"a","path":"x","files":7}garbage"#)
            .await
            .refused(&Code::InvalidRequest);
        let wrong = Request::get(format!("/{verb}")).header("authorization", format!("Bearer {TOKEN}"));
        let reply = life.send(wrong.body(Body::empty()).expect("a request")).await;
        assert!(reply.refused(&Code::MethodNotAllowed).message.contains("POST"));
        let limit = if matches!(verb, "writeFile" | "writeFiles") { 16 << 20 } else { 1 << 20 };
        let large = format!(r#"{{"name":"{}"}}"#, "x".repeat(limit));
        life.raw(verb, large).await.refused(&Code::TooLarge);
    }
    for verb in VERBS.iter().filter(|verb| !matches!(**verb, "lookup" | "report" | "listSpaces")) {
        let mut body = json!({ "name": "nobody" });
        match *verb {
            "acquireSpace" => continue,
            "destroySpace" => continue,
            "execCommand" => body["command"] = "true".into(),
            "readFile" => body["path"] = "x".into(),
            "writeFile" => body = json!({ "name": "nobody", "path": "x", "content": "" }),
            "writeFiles" => body["files"] = json!([{ "path": "x", "content": "" }]),
            "updateMetadata" => body["metadata"] = json!({}),
            "updatePolicy" => body["policy"] = json!({}),
            _ => {}
        }
        let error = life.call(verb, body).await.refused(&Code::SpaceNotFound);
        assert!(error.message.contains("nobody"), "{verb}: {}", error.message);
    }
}

#[tokio::test]
async fn values_out_of_range_are_refused_and_change_nothing() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    let cases = [
        ("acquireSpace", json!({ "name": "b", "template": "gone" }), Code::TemplateNotFound),
        (
            "acquireSpace",
            json!({ "name": "b", "policy": { "freezeAfterSeconds": 999_999 } }),
            Code::InvalidRequest,
        ),
        ("acquireSpace", json!({ "name": "0190f0c2a4b87c3d9e0f112233445566" }), Code::SpaceNotFound),
        ("updatePolicy", json!({ "name": "a", "policy": { "stopAfterSeconds": 5 } }), Code::InvalidRequest),
        ("updateMetadata", json!({ "name": "a", "metadata": { "": "x" } }), Code::InvalidRequest),
        ("listSpaces", json!({ "cursor": "!" }), Code::InvalidRequest),
        ("listSpaces", json!({ "limit": 1001 }), Code::InvalidRequest),
        ("execCommand", json!({ "name": "a", "argv": ["true"], "stdinBase64": "!" }), Code::InvalidRequest),
        ("execCommand", json!({ "name": "a", "command": "true", "cwd": "/gone" }), Code::UnknownDirectory),
        ("execCommand", json!({ "name": "a", "command": "true", "user": "bob" }), Code::UnknownUser),
        ("execCommand", json!({ "name": "a", "argv": ["gone"] }), Code::CommandNotFound),
        ("readFile", json!({ "name": "a", "path": "gone" }), Code::FileNotFound),
        ("readFile", json!({ "name": "a", "path": "/home/user" }), Code::NotAFile),
        ("listFiles", json!({ "name": "a", "path": "/gone" }), Code::FileNotFound),
        ("writeFile", json!({ "name": "a", "path": "x", "contentBase64": "!" }), Code::InvalidRequest),
        ("writeFile", json!({ "name": "a", "path": "x", "content": "", "user": "bob" }), Code::UnknownUser),
    ];
    for (verb, body, code) in cases {
        life.call(verb, body.clone()).await.refused(&code);
    }
    for target in [
        "/readFile?space=a",
        "/readFile?space=a&path=x&colour=red",
        "/readFile?path=x",
        "/writeFile?space=a&path=a%00b",
        "/writeFile?space=a&path=x&mode=9",
        "/writeFile?space=%20a&path=x",
    ] {
        life.raw(target, "x").await.refused(&Code::InvalidRequest);
    }
    let spaces = life.call("listSpaces", json!({})).await.json();
    assert_eq!(spaces["spaces"].as_array().map(Vec::len), Some(1), "nothing was made: {spaces}");
}

#[tokio::test]
async fn unknown_verbs_name_the_closest_and_where_the_others_live() {
    let ground = Ground::new();
    let life = ground.start().await;
    for (verb, says) in [
        ("aquireSpace", "acquireSpace"),
        ("listNodes", "gateway"),
        ("checkIn", "gateway"),
        ("x", "acquireSpace,"),
    ] {
        let error = life.raw(verb, "{}").await.refused(&Code::UnknownVerb);
        assert!(error.message.contains(says), "{}", error.message);
    }
    let request = Request::builder()
        .method(Method::PUT)
        .uri("/acquireSpace")
        .header("authorization", format!("Bearer {TOKEN}"));
    life.send(request.body(Body::empty()).expect("a request")).await.refused(&Code::MethodNotAllowed);
}

#[tokio::test]
async fn metrics_and_reports_look_without_waking() {
    let ground = Ground::new();
    let life = ground.start().await;
    life.acquire("a").await;
    life.on("freezeSpace", "a").await.ok::<serde_json::Value>();
    let before = life.get("a").await;
    let request = Request::get("/metrics").header("authorization", format!("Bearer {TOKEN}"));
    let metrics = life.send(request.body(Body::empty()).expect("a request")).await.text();
    assert!(metrics.contains("drowse_node_spaces{state=\"frozen\"} 1"), "{metrics}");
    let report = life.raw("report", "").await.json();
    assert_eq!(report["reading"]["spaces"]["frozen"], 1, "{report}");
    assert_eq!(report["intervalMs"], 5000);
    assert_eq!(life.get("a").await, before);
}
