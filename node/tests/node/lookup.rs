use std::time::Duration;

use drowse_shared::api::{
    Code,
    spaces::{Acquired, State},
};
use serde_json::{Value, json};

use crate::harness::{Ground, Life, Reply, eventually};

async fn ask(life: &Life, space: &str, intent: &str) -> Value {
    life.call("lookup", json!({ "space": space, "intent": intent })).await.ok()
}

async fn ticket(life: &Life, name: &str) -> String {
    ask(life, name, "create").await["ticket"].as_str().expect("a ticket").to_owned()
}

async fn forwarded(life: &Life, name: &str, ticket: Option<&str>) -> Reply {
    let mut request = life.request("acquireSpace").header("drowse-forwarded", "1");
    if let Some(ticket) = ticket {
        request = request.header("drowse-create", ticket);
    }
    let body = json!({ "name": name }).to_string();
    life.send(request.body(body.into()).expect("a request")).await
}

async fn expecting(life: &Life, verb: &str, space: &str, expect: &str) -> Reply {
    let request = life
        .request(verb)
        .header("drowse-forwarded", "1")
        .header("drowse-space", space)
        .header("drowse-expect", expect);
    life.send(request.body(json!({ "name": "a b" }).to_string().into()).expect("a request")).await
}

#[tokio::test]
async fn a_forwarded_create_needs_the_newest_ticket() {
    let ground = Ground::new();
    let life = ground.start().await;
    forwarded(&life, "a", None).await.refused(&Code::TicketVoid);
    let old = ticket(&life, "a").await;
    assert_eq!(ask(&life, "a", "read").await["ticket"], Value::Null, "reads issue nothing");
    let new = ticket(&life, "a").await;
    forwarded(&life, "a", Some(&old)).await.refused(&Code::TicketVoid);
    forwarded(&life, "a", Some("nonsense")).await.refused(&Code::TicketVoid);
    assert!(forwarded(&life, "a", Some(&new)).await.ok::<Acquired>().created);
    // It exists by now: the same words find it.
    assert!(!forwarded(&life, "a", Some(&new)).await.ok::<Acquired>().created);
    life.on("destroySpace", "a").await.ok::<Value>();
    forwarded(&life, "a", Some(&new)).await.refused(&Code::TicketVoid);
    assert_eq!(ground.machine.built(&"a".parse().expect("a name")), 1);
}

#[tokio::test]
async fn a_restart_voids_every_ticket() {
    let ground = Ground::new();
    let life = ground.start().await;
    let ticket = ticket(&life, "a").await;
    life.crash().await;
    let life = ground.start().await;
    forwarded(&life, "a", Some(&ticket)).await.refused(&Code::TicketVoid);
}

#[tokio::test]
async fn a_lookup_waits_for_a_create_in_flight_and_answers_yes_at_once_for_a_row() {
    let ground = Ground::new();
    let life = ground.start().await;
    ground.machine.slow(Some(Duration::from_millis(300)));
    let create = life.acquire("a");
    let asking = async {
        eventually("the create holds its slot", || async {
            life.node.slots.is_busy(&"a".parse().expect("a name"))
        })
        .await;
        ask(&life, "a", "create").await
    };
    let (made, answer) = tokio::join!(create, asking);
    assert_eq!(
        (answer["answer"].as_str(), answer["id"].as_str()),
        (Some("yes"), Some(&*made.space.id.to_string()))
    );
    assert_eq!(ask(&life, &made.space.id.to_string(), "read").await["answer"], "yes");
    assert_eq!(ask(&life, "0190f0c2a4b87c3d9e0f112233445566", "create").await, json!({ "answer": "no" }));
}

#[tokio::test]
async fn what_the_sender_expects_is_checked_before_the_body() {
    let ground = Ground::new();
    let life = ground.start().await;
    expecting(&life, "acquireSpace", "a%20b", "existing").await.refused(&Code::NotMine);
    expecting(&life, "destroySpace", "a%20b", "existing").await.refused(&Code::NotMine);
    life.acquire("a b").await;
    let id = life.id("a b").await;
    for verb in ["getSpace", "acquireSpace"] {
        for good in ["existing".to_owned(), format!("existing;id={id}"), format!("existing;id={id};epoch=1")]
        {
            assert_eq!(expecting(&life, verb, "a%20b", &good).await.status, 200, "{verb} {good}");
        }
        for wrong in ["existing;id=0190f0c2a4b87c3d9e0f112233445566", "existing;epoch=2"] {
            expecting(&life, verb, "a%20b", wrong).await.refused(&Code::NotMine);
        }
        expecting(&life, verb, "a%20b", "new").await.refused(&Code::InvalidRequest);
    }
    // The body of a streaming verb is not touched.
    let request = life.request("/writeFile?space=other&path=x").header("drowse-expect", "existing");
    let endless = axum::body::Body::from_stream(futures_util::stream::pending::<
        Result<bytes::Bytes, std::io::Error>,
    >());
    life.send(request.body(endless).expect("a request")).await.refused(&Code::NotMine);
}

#[tokio::test]
async fn a_request_that_was_held_never_reaches_the_space_that_has_the_name_now() {
    let ground = Ground::new();
    let life = ground.start().await;
    for (verb, rest) in [
        ("destroySpace", ""),
        ("stopSpace", ""),
        ("updateMetadata", r#","metadata":{"late":"1"}"#),
        ("execCommand", r#","command":"true""#),
        ("execStream", r#","command":"true""#),
        ("watchFiles", ""),
        ("writeFile", r#","path":"late","content":"x""#),
        ("acquireSpace", ""),
    ] {
        life.acquire("shop").await;
        let meant = life.id("shop").await;
        let (release, held) = tokio::sync::oneshot::channel::<()>();
        let (judged, head) = tokio::sync::oneshot::channel::<()>();
        let text = format!(r#"{{"name":"shop"{rest}}}"#);
        let body = axum::body::Body::from_stream(futures_util::stream::once(async move {
            judged.send(()).expect("somebody waits");
            held.await.expect("released");
            Ok::<_, std::io::Error>(bytes::Bytes::from(text))
        }));
        let request = life
            .request(verb)
            .header("drowse-space", "shop")
            .header("drowse-expect", format!("existing;id={meant}"))
            .body(body)
            .expect("a request");
        let late = async { life.send(request).await };
        let meanwhile = async {
            // Its body is read, so its head was judged before the name is another space's.
            head.await.expect("it is read");
            life.on("destroySpace", "shop").await.ok::<Value>();
            life.acquire("shop").await;
            release.send(()).expect("it waits");
        };
        let (answer, ()) = tokio::join!(late, meanwhile);
        answer.refused(&Code::NotMine);
        let now = life.get("shop").await;
        assert_ne!(now.id, meant, "{verb}");
        assert_eq!((now.state, now.metadata.len()), (State::Active, 0), "{verb} reached the new one");
        life.on("destroySpace", "shop").await.ok::<Value>();
    }
}

#[tokio::test]
async fn whoever_took_over_an_address_gives_no_no_for_the_one_before() {
    let ground = Ground::new();
    let life = ground.start().await;
    let before = "0190f0c2a4b87c3d9e0f112233445566";
    let asked = async |space: &str, ledger: &str| {
        life.call("lookup", json!({ "space": space, "intent": "create", "ledgerId": ledger })).await
    };
    let error = asked("a", before).await.refused(&Code::NodeTwin);
    let mine = life.node.ledger_id.to_string();
    for part in [before, &mine, "removeNode"] {
        assert!(error.message.contains(part), "{error}");
    }
    assert!(asked("a", &mine).await.ok::<Value>()["ticket"].is_string());
    life.acquire("a").await;
    assert_eq!(asked("a", before).await.ok::<Value>()["answer"], "yes", "two who say yes are a conflict");
}
