use drowse_e2e::{door::Door, fleet::Fleet};
use drowse_shared::api::{Code, spaces::Acquired};
use http::Method;
use serde_json::{Value, json};

const SPACE_VERBS: [&str; 16] = [
    "acquireSpace",
    "getSpace",
    "listSpaces",
    "execCommand",
    "writeFiles",
    "readFile",
    "writeFile",
    "listFiles",
    "watchFiles",
    "freezeSpace",
    "stopSpace",
    "wakeSpace",
    "touchSpace",
    "updatePolicy",
    "updateMetadata",
    "destroySpace",
];

/// Everything both daemons know of spaces and nodes, without what moves by itself.
async fn picture(fleet: &Fleet) -> String {
    let spaces: Vec<_> =
        fleet.list("").await.into_iter().map(|s| (s.id, s.name, s.state, s.last_active_at)).collect();
    let nodes: Vec<_> =
        fleet.door.nodes().await.ok().nodes.into_iter().map(|n| (n.id, n.ledger_id)).collect();
    format!("{spaces:?} {nodes:?}")
}

fn doors(fleet: &Fleet) -> [Door; 2] {
    [fleet.door.clone(), fleet.node("n1").door.clone()]
}

async fn raw(
    door: &Door,
    method: Method,
    target: &str,
    body: impl Into<reqwest::Body>,
) -> drowse_e2e::door::Reply<Value> {
    let request = door.request(method, target).body(body);
    door.send(target, request).await.unwrap_or_else(|e| panic!("{target}: no answer: {e:?}"))
}

#[tokio::test]
async fn without_the_token_nothing_is_told_or_done() {
    let fleet = Fleet::fake(1).start().await;
    fleet.acquire("a").await;
    let before = picture(&fleet).await;
    let right = fleet.ground.token.clone();
    let almost = format!("{}x", &right[..right.len() - 1]);
    for door in doors(&fleet) {
        for token in [None, Some(""), Some("wrong"), Some(&almost[..]), Some(&right[..32])] {
            let stranger = door.with_token(token);
            for verb in SPACE_VERBS.iter().chain(&[
                "lookup",
                "report",
                "checkIn",
                "listNodes",
                "removeNode",
                "noSuchVerb",
            ]) {
                let reply = stranger.call::<Value>(verb, json!({ "name": "a", "nodeId": "n1" })).await;
                reply.refused(&Code::Unauthenticated);
                assert!(!reply.text().contains(&right[..16]), "{}", reply.text());
            }
            assert_eq!(stranger.page("/metrics").await.status, 401);
            assert_eq!(stranger.page("/healthz").await.status, 200, "health is open");
        }
        let scheme = door.with_token(None).request(Method::POST, "/getSpace").header("authorization", &right);
        door.send::<Value>("getSpace", scheme.body("{}"))
            .await
            .expect("answer")
            .refused(&Code::Unauthenticated);
        let query = format!("/getSpace?token={right}");
        raw(&door.with_token(None), Method::POST, &query, r#"{"name":"a"}"#)
            .await
            .refused(&Code::Unauthenticated);
    }
    assert_eq!(picture(&fleet).await, before);
    fleet.end().await;
}

#[tokio::test]
async fn what_is_malformed_is_refused_in_words_and_changes_nothing() {
    let fleet = Fleet::fake(1).start().await;
    fleet.acquire("a").await;
    let before = picture(&fleet).await;
    let too_long = "x".repeat(129);
    let bodies: Vec<(&str, String, Code, &str)> = vec![
        ("acquireSpace", "{".into(), Code::InvalidRequest, "valid"),
        ("acquireSpace", "[]".into(), Code::InvalidRequest, "valid"),
        ("acquireSpace", "nul".into(), Code::InvalidRequest, "valid"),
        ("acquireSpace", String::new(), Code::InvalidRequest, "name"),
        ("acquireSpace", json!({ "name": 5 }).to_string(), Code::InvalidRequest, "string"),
        (
            "acquireSpace",
            json!({ "name": "new", "colour": "red" }).to_string(),
            Code::InvalidRequest,
            "colour",
        ),
        (
            "acquireSpace",
            json!({ "name": "new", "spec": { "cpus": -1 } }).to_string(),
            Code::InvalidRequest,
            "cpus",
        ),
        (
            "acquireSpace",
            json!({ "name": "new", "template": "no-such" }).to_string(),
            Code::TemplateNotFound,
            "no-such",
        ),
        (
            "acquireSpace",
            json!({ "name": "new", "policy": { "freezeAfterSeconds": 9, "stopAfterSeconds": 5 } })
                .to_string(),
            Code::InvalidRequest,
            "stopAfterSeconds",
        ),
        ("execCommand", json!({ "name": "a" }).to_string(), Code::InvalidRequest, "command"),
        (
            "execCommand",
            json!({ "name": "a", "command": "ls", "tty": true }).to_string(),
            Code::InvalidRequest,
            "tty",
        ),
        ("writeFiles", json!({ "name": "a", "files": [] }).to_string(), Code::InvalidRequest, "files"),
        (
            "writeFile",
            json!({ "name": "a", "path": "x", "content": "", "mode": "rwx" }).to_string(),
            Code::InvalidRequest,
            "octal",
        ),
        (
            "updatePolicy",
            json!({ "name": "a", "policy": { "freezeAfterSeconds": 0 } }).to_string(),
            Code::InvalidRequest,
            "at least 1",
        ),
        ("listSpaces", json!({ "limit": 0 }).to_string(), Code::InvalidRequest, "limit"),
        ("listSpaces", json!({ "cursor": "\u{0}forged" }).to_string(), Code::InvalidRequest, "cursor"),
        ("getSpace", json!({ "name": "nobody" }).to_string(), Code::SpaceNotFound, "nobody"),
        (
            "getSpace",
            json!({ "name": "0190f0c2a4b87c3d9e0f112233445566" }).to_string(),
            Code::SpaceNotFound,
            "0190f0c2",
        ),
        (
            "acquireSpace",
            json!({ "name": "0190f0c2a4b87c3d9e0f112233445566" }).to_string(),
            Code::SpaceNotFound,
            "0190f0c2",
        ),
        (
            "execCommand",
            json!({ "name": "nobody", "command": "ls" }).to_string(),
            Code::SpaceNotFound,
            "nobody",
        ),
    ];
    let odd = ["", &too_long, " a", "a ", "a\nb", "a\u{0}", "e\u{301}", "\u{3000}a"];
    for door in doors(&fleet) {
        for (verb, body, code, says) in &bodies {
            let error = raw(&door, Method::POST, &format!("/{verb}"), body.clone()).await.refused(code);
            assert!(
                error.message.contains(says),
                "{verb} {body}: {says:?} is missing in {:?}",
                error.message
            );
        }
        for name in odd {
            for verb in ["acquireSpace", "getSpace", "destroySpace"] {
                let reply = door.call::<Value>(verb, json!({ "name": name })).await;
                let error = reply.refused(&Code::InvalidRequest);
                assert!(error.message.contains("name"), "{name:?}: {}", error.message);
            }
        }
        for target in ["/noSuchVerb", "/acquirespace", "/acquireSpace/", "/", "/acquireSpace/x"] {
            raw(&door, Method::POST, target, "{}").await.refused(&Code::UnknownVerb);
        }
        for method in [Method::GET, Method::PUT, Method::DELETE] {
            raw(&door, method, "/acquireSpace", r#"{"name":"new"}"#).await.refused(&Code::MethodNotAllowed);
        }
        let large = json!({ "name": "new", "metadata": { "a": "x".repeat(1 << 20) } }).to_string();
        raw(&door, Method::POST, "/acquireSpace", large).await.refused(&Code::TooLarge);
        let large =
            json!({ "name": "a", "files": [{ "path": "x", "content": "x".repeat(16 << 20) }] }).to_string();
        raw(&door, Method::POST, "/writeFiles", large).await.refused(&Code::TooLarge);
        raw(&door, Method::POST, "/readFile?space=a", "").await.refused(&Code::InvalidRequest);
        raw(&door, Method::POST, "/readFile?space=a&path=x&colour=red", "")
            .await
            .refused(&Code::InvalidRequest);
        raw(&door, Method::POST, "/writeFile?space=a&path=a%00b", "x").await.refused(&Code::InvalidRequest);
        raw(&door, Method::POST, "/writeFile?space=nobody&path=x", "x").await.refused(&Code::SpaceNotFound);
        raw(&door, Method::POST, "/writeFile?space=a&path=x&mode=9", "x")
            .await
            .refused(&Code::InvalidRequest);
        assert!(!door.destroy("nobody").await.ok().destroyed, "destroying what is not there is no error");
    }
    for verb in ["lookup", "report"] {
        fleet.door.call::<Value>(verb, json!({})).await.refused(&Code::UnknownVerb);
    }
    for verb in ["checkIn", "listNodes", "removeNode", "readmitNode"] {
        fleet.node("n1").door.call::<Value>(verb, json!({})).await.refused(&Code::UnknownVerb);
    }
    assert!(!fleet.door.remove_node("no-such").await.ok().removed, "there is no such node");
    fleet.door.readmit_node("no-such").await.refused(&Code::NodeNotFound);
    assert_eq!(picture(&fleet).await, before);
    fleet.end().await;
}

#[tokio::test]
async fn a_verb_in_the_wrong_state_says_so() {
    let fleet = Fleet::fake(1).start().await;
    fleet.acquire("a").await;
    fleet.door.turn("stopSpace", "a").await.ok();
    for door in doors(&fleet) {
        let error = door.turn("freezeSpace", "a").await.refused(&Code::WrongState);
        assert!(error.message.contains("stopped"), "{}", error.message);
    }
    assert_eq!(fleet.get("a").await.state, drowse_shared::api::spaces::State::Stopped);
    fleet.end().await;
}

#[tokio::test]
async fn headers_that_only_daemons_may_set_are_worth_nothing_from_a_client() {
    let fleet = Fleet::fake(2).start().await;
    fleet.acquire("a").await;
    for (name, value) in [
        ("drowse-expect", "existing;id=0190f0c2a4b87c3d9e0f112233445566"),
        ("drowse-expect", "nonsense"),
        ("drowse-create", "0190f0c2a4b87c3d9e0f112233445566"),
        ("drowse-create", "nonsense"),
        ("drowse-forwarded", "1"),
        ("x-forwarded-for", "10.0.0.1"),
    ] {
        for space in ["a", &format!("new-{}-{}", name, value.len())] {
            let request = fleet
                .door
                .request(Method::POST, "/acquireSpace")
                .header(name, value)
                .json(&json!({ "name": space }));
            let acquired: Acquired = fleet.door.send("acquireSpace", request).await.expect("an answer").ok();
            assert_eq!(acquired.created, space != "a", "{name}: {value}");
        }
    }
    // A node believes them, since they come from its gateway; there they are checked.
    let node = &fleet.node(&fleet.holder("a").await).door;
    let request = node
        .request(Method::POST, "/getSpace")
        .header("drowse-space", "a")
        .header("drowse-expect", "existing;id=0190f0c2a4b87c3d9e0f112233445566")
        .json(&json!({ "name": "a" }));
    node.send::<Value>("getSpace", request).await.expect("an answer").refused(&Code::NotMine);
    let request = node
        .request(Method::POST, "/acquireSpace")
        .header("drowse-forwarded", "1")
        .header("drowse-create", "0190f0c2a4b87c3d9e0f112233445566")
        .json(&json!({ "name": "late" }));
    node.send::<Value>("acquireSpace", request).await.expect("an answer").refused(&Code::TicketVoid);
    assert!(fleet.holders("late").await.is_empty());
    fleet.end().await;
}
