use std::{collections::BTreeMap, fs};

use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::TEXT;
use crate::api::{
    Code, Error,
    attach::{ATTACH, AttachEvent, AttachOrder, AttachQuery},
    exec::EVENTS,
    files::FileQuery,
    headers,
    health::Health,
    verbs::{Door, PAGES, Verb},
};
use verbs::{Described, Streams, described};

/// The document against the rules the doors apply.
mod limits;
mod verbs;

const REGENERATE: &str = "DROWSE_WRITE_OPENAPI=1 cargo test --release -p drowse-shared the_document";
const DEFINITIONS: &str = "#/components/schemas/";

fn generator(answers: bool) -> SchemaGenerator {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let settings = if answers { settings.for_serialize() } else { settings.for_deserialize() };
    settings.into_generator()
}

/// The whole document.
fn document() -> Value {
    let (mut requests, mut answers) = (generator(false), generator(true));
    let mut paths = Map::new();
    for verb in Verb::ALL {
        let operation = operation(*verb, &described(*verb), &mut requests, &mut answers);
        paths.insert(verb.path().to_owned(), json!({ "post": operation }));
    }
    for page in PAGES {
        paths.insert(page.to_owned(), json!({ "get": page_of(page, &mut answers) }));
    }
    answers.subschema_for::<Error>();
    let mut schemas = answers.take_definitions(true);
    let mut taken: BTreeMap<String, Value> = requests.take_definitions(true).into_iter().collect();
    // A type that a request may leave parts of, and an answer never does, is two types here.
    let renamed: Vec<String> = taken
        .keys()
        .filter(|name| schemas.get(*name).is_some_and(|other| *other != taken[*name]))
        .cloned()
        .collect();
    for definition in taken.values_mut() {
        rename(definition, &renamed);
    }
    for operation in paths.values_mut() {
        if let Some(body) = operation.pointer_mut("/post/requestBody") {
            rename(body, &renamed);
        }
    }
    for (name, definition) in taken {
        let name = if renamed.contains(&name) { format!("{name}Request") } else { name };
        schemas.insert(name, definition);
    }
    let mut schemas: BTreeMap<String, Value> = schemas.into_iter().collect();
    schemas.values_mut().for_each(tidy);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Drowse",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Named, permanent Linux spaces. Every verb is `POST /<verb>` with a JSON body, whatever its content \
                type says; fields that are not known are refused. Units are in the names of fields, times are in RFC 3339. \
                `x-drowse-doors` says who answers a verb: a gateway for the whole fleet, a node for itself. Clients use the \
                gateway. docs/api.md has examples, docs/ERRORS.md every code and what to do.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" }
        },
        "servers": [
            { "url": "http://127.0.0.1:4677", "description": "a gateway on this machine" },
            { "url": "http://127.0.0.1:4676", "description": "a node on this machine" }
        ],
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "description": "The token of the fleet, at least 32 characters." }
            },
            "parameters": parameters(),
            "headers": {
                "RequestId": {
                    "description": "Follows the request through the logs of the fleet.",
                    "schema": { "type": "string", "pattern": "^[0-9a-f]{32}$" }
                },
                "RetryAfter": {
                    "description": "Seconds after which trying again makes sense.",
                    "schema": { "type": "integer", "minimum": 0 }
                }
            },
            "responses": refusals(),
            "schemas": schemas
        }
    })
}

fn operation(
    verb: Verb,
    said: &Described,
    requests: &mut SchemaGenerator,
    answers: &mut SchemaGenerator,
) -> Value {
    let request = (said.request)(requests);
    let mut content = Map::new();
    let mut examples = Map::new();
    for (says, body) in &said.examples {
        examples.insert((*says).to_owned(), json!({ "value": body }));
    }
    content.insert("application/json".to_owned(), json!({ "schema": request }));
    if !examples.is_empty() {
        content["application/json"]["examples"] = examples.into();
    }
    let octets = json!({ "schema": { "type": "string", "format": "binary" } });
    let mut parameters = vec![json!({ "$ref": "#/components/parameters/RequestId" })];
    if let Some(streams) = said.streams.filter(|streams| !streams.is_lines()) {
        for name in ["Space", "Path", "User", "SpaceHeader"] {
            parameters.push(json!({ "$ref": format!("#/components/parameters/{name}") }));
        }
        if streams == Streams::Request {
            parameters.push(json!({ "$ref": "#/components/parameters/Mode" }));
            content.insert("application/octet-stream".to_owned(), octets.clone());
        }
    }
    let mut responses = Map::new();
    for (status, answer) in &said.answers {
        let kind = if said.streams.is_some_and(Streams::is_lines) { EVENTS } else { "application/json" };
        let mut content = json!({ kind: { "schema": answer(answers) } });
        if said.streams == Some(Streams::Answer) {
            content["application/octet-stream"] = octets.clone();
        }
        let says = if *status == 202 { "It needs longer than the caller waits: ask again." } else { "Done." };
        responses.insert(
            status.to_string(),
            json!({
                "description": says,
                "headers": { "Drowse-Request-Id": { "$ref": "#/components/headers/RequestId" } },
                "content": content
            }),
        );
    }
    for status in statuses(said) {
        responses.insert(status.to_string(), json!({ "$ref": format!("#/components/responses/{status}") }));
    }
    let doors: Vec<&str> = [(Door::Gateway, "gateway"), (Door::Node, "node")]
        .into_iter()
        .filter(|(door, _)| verb.is_at(*door))
        .map(|(_, word)| word)
        .collect();
    json!({
        "operationId": verb.as_str(),
        "summary": verb.says(),
        "description": description(verb, said),
        "x-drowse-doors": doors,
        "x-drowse-body-bytes-max": said.body_bytes_max,
        "parameters": parameters,
        "requestBody": { "required": !is_optional(said), "content": content },
        "responses": responses
    })
}

fn is_optional(said: &Described) -> bool {
    (said.check)(b"").is_ok() || matches!(said.streams, Some(Streams::Request | Streams::Answer))
}

fn description(verb: Verb, said: &Described) -> String {
    let mut says = match said.streams {
        None => String::new(),
        Some(Streams::Request) => {
            "With a query the body is the file itself, of any size, and everything else is in the \
            query; without one it is JSON. "
                .to_owned()
        }
        Some(Streams::Answer) => format!(
            "With a query the answer is the file itself, of any size; without one it is JSON, for files up to {} bytes. ",
            verbs::JSON_FILE_BYTES_MAX
        ),
        Some(Streams::Events) => "The answer is one JSON document a line: the first is `started`, the last \
            `ended` or `failed`; a stream that ends otherwise was cut. Whoever leaves early kills the command, \
            unless it is detached. "
            .to_owned(),
        Some(Streams::Changes) => "The answer is one JSON document a line: the first is `started`, the last \
            `overflow` or `failed`; a stream that ends otherwise was cut. Whatever happens after `started` was \
            written is told. Whoever leaves ends the watch. "
            .to_owned(),
    };
    if !verb.is_at(Door::Gateway) {
        says.push_str("Only nodes answer it; a client has no need of it. ");
    } else if verb == Verb::CheckIn {
        says.push_str("From nodes; a client has no need of it. ");
    }
    says.push_str(&format!("A JSON body has at most {} bytes.", said.body_bytes_max));
    says
}

/// Statuses a verb may be refused with.
fn statuses(said: &Described) -> Vec<u16> {
    let mut statuses = vec![400, 401, 404, 408, 409, 413, 500, 501, 503, 504];
    if said.about_a_space {
        statuses.push(507);
    }
    if said.inside {
        statuses.push(403);
    }
    let mut known: Vec<u16> =
        statuses.into_iter().filter(|status| refused_with(*status).next().is_some()).collect();
    known.sort_unstable();
    known
}

fn refused_with(status: u16) -> impl Iterator<Item = &'static Code> {
    Code::ALL.iter().filter(move |code| code.status().as_u16() == status)
}

/// One answer per status, with the codes that come with it.
fn refusals() -> Map<String, Value> {
    let mut statuses: Vec<u16> = Code::ALL.iter().map(|code| code.status().as_u16()).collect();
    statuses.sort_unstable();
    statuses.dedup();
    let refusal = |status: u16| {
        let codes: Map<String, Value> =
            refused_with(status).map(|code| (code.as_str().to_owned(), code.says().into())).collect();
        let words: Vec<String> = codes.keys().map(|code| format!("`{code}`")).collect();
        let mut headers = json!({ "Drowse-Request-Id": { "$ref": "#/components/headers/RequestId" } });
        if status == 503 {
            headers["Retry-After"] = json!({ "$ref": "#/components/headers/RetryAfter" });
        }
        json!({
            "description": format!("Refused: {}.", words.join(", ")),
            "x-drowse-codes": codes,
            "headers": headers,
            "content": { "application/json": { "schema": { "$ref": format!("{DEFINITIONS}Error") } } }
        })
    };
    statuses.into_iter().map(|status| (status.to_string(), refusal(status))).collect()
}

/// Headers and queries.
fn parameters() -> Map<String, Value> {
    let schema = generator(false).into_root_schema_for::<FileQuery>().to_value();
    let mut parameters = Map::new();
    let mut header = |name: &str, header: &str, says: &str| {
        let schema = json!({ "type": "string" });
        let parameter = json!({ "name": header, "in": "header", "required": false, "description": says, "schema": schema });
        parameters.insert(name.to_owned(), parameter);
    };
    header(
        "RequestId",
        headers::REQUEST_ID,
        "Your own id for this request, 32 lower-case hexadecimal digits.",
    );
    header(
        "SpaceHeader",
        headers::SPACE,
        "The space of a streaming request, percent-encoded, when it is not in the query.",
    );
    let fields = schema["properties"].as_object().cloned().unwrap_or_default();
    for (name, field) in fields {
        let says = field["description"].as_str().unwrap_or_default().to_owned();
        let parameter = json!({
            "name": name, "in": "query", "required": false, "description": format!("Of a streaming request. {says}"),
            "schema": { "type": "string" }
        });
        parameters.insert(name[..1].to_uppercase() + &name[1..], parameter);
    }
    parameters
}

fn page_of(page: &str, answers: &mut SchemaGenerator) -> Value {
    let ok = |kind: &str, schema: Value| json!({ "200": { "description": "Done.", "content": { kind: { "schema": schema } } } });
    match page {
        "/healthz" => json!({
            "operationId": "healthz", "summary": "Whether the daemon answers, and whether all of it still moves.",
            "x-drowse-doors": ["gateway", "node"], "security": [],
            "responses": ok("application/json", json!(answers.subschema_for::<Health>()))
        }),
        "/metrics" => {
            let mut responses = ok("application/openmetrics-text", json!({ "type": "string" }));
            responses["401"] = json!({ "$ref": "#/components/responses/401" });
            json!({
                "operationId": "metrics", "summary": "Counters and gauges as OpenMetrics text.",
                "x-drowse-doors": ["gateway", "node"], "responses": responses
            })
        }
        "/openapi.json" => json!({
            "operationId": "openapi", "summary": "This document.", "x-drowse-doors": ["gateway", "node"], "security": [],
            "responses": ok("application/json", json!({ "type": "object" }))
        }),
        ATTACH => attach(answers),
        other => panic!("{other} is served and not described"),
    }
}

/// A websocket: its query, and what is said in its text messages.
fn attach(answers: &mut SchemaGenerator) -> Value {
    let query = answers.root_schema_for::<AttachQuery>().to_value();
    let fields = query["properties"].as_object().into_iter().flatten();
    let parameters: Vec<Value> = fields
        .map(|(name, schema)| {
            let mut schema = schema.clone();
            let says = schema.as_object_mut().and_then(|schema| schema.remove("description"));
            json!({ "name": name, "in": "query", "description": says, "schema": schema })
        })
        .collect();
    let mut responses = json!({ "101": {
        "description": "A websocket. Binary messages are bytes of the terminal or of the command, either way. Text messages \
            are JSON: AttachOrder from the client, AttachEvent to it; the first is `started`, the last `ended` or `failed`.",
        "x-drowse-text-messages": {
            "from-client": answers.subschema_for::<AttachOrder>(), "to-client": answers.subschema_for::<AttachEvent>()
        }
    } });
    for status in [400, 401, 404, 409, 503] {
        responses[status.to_string()] = json!({ "$ref": format!("#/components/responses/{status}") });
    }
    json!({
        "operationId": "attach", "summary": "A terminal in a space, or a command that runs there, over a websocket.",
        "x-drowse-doors": ["gateway", "node"], "parameters": parameters, "responses": responses
    })
}

fn rename(value: &mut Value, renamed: &[String]) {
    each(value, &mut |object| {
        if let Some(Value::String(reference)) = object.get_mut("$ref")
            && let Some(name) = reference.strip_prefix(DEFINITIONS)
            && renamed.iter().any(|known| known == name)
        {
            *reference = format!("{DEFINITIONS}{name}Request");
        }
    });
}

/// Without what only Rust means by it: formats such as `uint64`, and markup of its documentation.
fn tidy(value: &mut Value) {
    each(value, &mut |object| {
        if object.get("format").and_then(Value::as_str).is_some_and(|format| format != "date-time") {
            object.remove("format");
        }
        if let Some(Value::String(says)) = object.get_mut("description") {
            *says = says.replace("[`", "`").replace("`]", "`").replace('\n', " ");
        }
    });
}

fn each(value: &mut Value, edit: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            edit(object);
            object.values_mut().for_each(|value| each(value, edit));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| each(value, edit)),
        _ => {}
    }
}

#[test]
fn the_document_is_the_one_in_the_clone() {
    let text = format!("{:#}\n", document());
    if std::env::vars().any(|(name, _)| name == "DROWSE_WRITE_OPENAPI") {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.json");
        return fs::write(path, text).expect("our own clone");
    }
    assert!(
        text == TEXT,
        "docs/openapi.json is not what the types say now; write it anew with: {REGENERATE}"
    );
}

#[test]
fn every_reference_leads_somewhere() {
    let mut document = document();
    let mut references = Vec::new();
    each(&mut document, &mut |object| {
        references.extend(object.get("$ref").and_then(Value::as_str).map(str::to_owned));
    });
    assert!(references.len() > 100, "{} references", references.len());
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap_or(&reference);
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
}
