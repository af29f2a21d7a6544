//! The OpenAPI document, against a fleet that answers.

use std::collections::BTreeMap;

use drowse_shared::api::{document, exec::EVENTS, verbs::Verb};
use serde_json::{Value, json};

use crate::{
    schema,
    support::{Executor, Fleet},
};

/// The document, as a judge of answers.
struct Judge {
    document: Value,
}

impl Judge {
    fn new() -> Self {
        Self { document: serde_json::from_str(document::TEXT).expect("JSON") }
    }

    fn operation(&self, verb: Verb) -> &Value {
        &self.document["paths"][verb.path()]["post"]
    }

    /// Fails unless the body is what the document says of an answer with this status.
    fn judge(&self, verb: Verb, status: u16, body: &Value) {
        let verb_word = verb.as_str();
        let mut answer = &self.operation(verb)["responses"][status.to_string()];
        assert!(!answer.is_null(), "{verb_word} answered {status}, which is not documented: {body}");
        if let Some(reference) = answer["$ref"].as_str() {
            answer = self.document.pointer(reference.trim_start_matches('#')).expect("checked elsewhere");
        }
        let content = &answer["content"];
        let events = &content[EVENTS]["schema"];
        let schema = if events.is_null() { &content["application/json"]["schema"] } else { events };
        if let Err(why) = schema::check(&self.document, schema, body) {
            panic!("{verb_word} answered {status} {body}: {why}");
        }
        if let Some(code) = body["code"].as_str() {
            let codes = &answer["x-drowse-codes"];
            assert!(codes.get(code).is_some(), "{code} came with {status}, the document has {codes}");
        }
    }
}

/// A client of one door.
struct Door {
    http: reqwest::Client,
    endpoint: String,
    token: String,
}

impl Door {
    async fn call(&self, path: &str, body: &Value) -> (u16, Value) {
        let sent =
            self.http.post(format!("{}{path}", self.endpoint)).bearer_auth(&self.token).json(body).send();
        let answer = sent.await.expect("an answer");
        let status = answer.status().as_u16();
        let text = answer.text().await.expect("a whole answer");
        // Of a stream of events the last one tells the most.
        let last = text.lines().last().unwrap_or_default();
        let text = if serde_json::from_str::<Value>(&text).is_ok() { &text } else { last };
        (status, serde_json::from_str(text).unwrap_or_else(|error| panic!("{path}: {error}: {text}")))
    }
}

#[test]
fn every_answer_is_what_the_document_says_it_is() {
    let fleet = Fleet::start(Executor::Fake);
    let read =
        |name: &str| std::fs::read_to_string(fleet.state().join(name)).expect("it runs").trim().to_owned();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::new();
    let gateway = Door { http, endpoint: read("endpoint"), token: read("token") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let served =
            gateway.http.get(format!("{}/openapi.json", gateway.endpoint)).send().await.expect("an answer");
        assert_eq!(
            (served.status().as_u16(), served.text().await.expect("text").as_str()),
            (200, document::TEXT)
        );
        let nodes = gateway.call("/listNodes", &json!({})).await.1;
        let endpoint = nodes["nodes"][0]["endpoint"].as_str().expect("a node").to_owned();
        let node = Door { http: gateway.http.clone(), endpoint, token: gateway.token.clone() };

        let judge = Judge::new();
        let mut answers = BTreeMap::new();
        // A file is read after it was written, and what destroys comes last.
        let mut verbs = Verb::ALL.to_vec();
        verbs.sort_by_key(|verb| match verb {
            Verb::ReadFile => 1,
            Verb::DestroySpace => 2,
            _ => 0,
        });
        for verb in verbs {
            let content = judge.operation(verb)["requestBody"]["content"]["application/json"].clone();
            let doors: Vec<String> =
                serde_json::from_value(judge.operation(verb)["x-drowse-doors"].clone()).expect("words");
            let door = if doors.iter().any(|door| door == "gateway") { &gateway } else { &node };
            for (says, example) in content["examples"].as_object().into_iter().flatten() {
                let (status, body) = door.call(verb.path(), &example["value"]).await;
                judge.judge(verb, status, &body);
                answers.insert(format!("{} {says}", verb.as_str()), status);
            }
            // No space of that name, nothing at all, and a field nobody knows.
            for wrong in
                [json!({ "name": "nowhere", "path": "x" }), json!([]), json!({ "name": "demo", "colour": 1 })]
            {
                let (status, body) = door.call(verb.path(), &wrong).await;
                judge.judge(verb, status, &body);
            }
        }
        let refused: Vec<_> = answers.iter().filter(|(_, status)| **status >= 300).collect();
        let expected = ["readmitNode none of that name", "readmitNode with choices"];
        assert!(
            refused.iter().all(|(says, _)| expected.contains(&says.as_str())),
            "examples were refused: {refused:?}"
        );
        assert!(answers.len() > 20, "{answers:?}");
    });
}
