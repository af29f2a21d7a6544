use serde_json::{Value, json};

use super::{DEFINITIONS, document, verbs::described};
use crate::api::verbs::Verb;

#[test]
fn every_example_is_a_request_the_doors_take() {
    for verb in Verb::ALL {
        for (says, body) in described(*verb).examples {
            let checked = (described(*verb).check)(body.to_string().as_bytes());
            assert!(checked.is_ok(), "{} {says}: {checked:?}", verb.as_str());
        }
    }
}

const LIMITS: [&str; 7] =
    ["minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties"];

/// A number on each side of a limit, or a text, or a list.
fn at(schema: &Value, key: &str, limit: &Value, beyond: bool) -> Value {
    let item = || schema["items"]["$ref"].as_str().map_or(json!("a"), |_| json!("active"));
    let step = if key.starts_with("min") { -1_i64 } else { 1 };
    let step = if beyond { step } else { 0 };
    match key {
        "minimum" | "maximum" if limit.is_f64() => {
            json!(limit.as_f64().unwrap_or_default() + 0.01 * step as f64)
        }
        "minimum" | "maximum" => json!(limit.as_i64().unwrap_or_default() + step),
        "minLength" | "maxLength" => {
            let length = usize::try_from(limit.as_i64().unwrap_or_default() + step).unwrap_or(0);
            // Permission bits are the one text that is not free.
            json!("7".repeat(length))
        }
        "maxProperties" => {
            let entries = limit.as_i64().unwrap_or_default() + step;
            (0..entries).map(|n| (format!("k{n}"), json!("v"))).collect::<serde_json::Map<_, _>>().into()
        }
        _ => {
            let length = usize::try_from(limit.as_i64().unwrap_or_default() + step).unwrap_or(0);
            json!(vec![item(); length])
        }
    }
}

/// The request's own schema, through references.
fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let schema = schema["anyOf"]
        .as_array()
        .and_then(|any| any.iter().find(|s| s.get("$ref").is_some()))
        .unwrap_or(schema);
    match schema["$ref"].as_str().and_then(|reference| reference.strip_prefix(DEFINITIONS)) {
        Some(name) => &document["components"]["schemas"][name],
        None => schema,
    }
}

#[test]
fn the_limits_in_the_document_are_those_the_doors_apply() {
    let document = document();
    let mut probed = 0;
    for verb in Verb::ALL {
        let said = described(*verb);
        let Some((_, example)) = said.examples.first() else { continue };
        let body =
            &document["paths"][verb.path()]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let request = resolve(&document, body);
        let mut fields: Vec<(Vec<&str>, &Value)> = Vec::new();
        for (name, schema) in request["properties"].as_object().into_iter().flatten() {
            let inner = resolve(&document, schema);
            fields.push((vec![name], inner));
            if inner.get("required").is_some() {
                continue;
            }
            for (part, schema) in inner["properties"].as_object().into_iter().flatten() {
                fields.push((vec![name, part], resolve(&document, schema)));
            }
        }
        for (path, schema) in fields {
            for key in LIMITS {
                let Some(limit) = schema.get(key) else { continue };
                if schema["items"].get("$ref").is_some()
                    && schema["items"]["$ref"] != json!(format!("{DEFINITIONS}State"))
                {
                    continue;
                }
                for beyond in [false, true] {
                    // What no type can hold is refused before any rule.
                    if beyond && key.starts_with("min") && limit.as_f64() == Some(0.0) {
                        continue;
                    }
                    let mut body = example.clone();
                    let value = at(schema, key, limit, beyond);
                    match path.as_slice() {
                        [field] => body[*field] = value.clone(),
                        [field, part] => body[*field] = json!({ *part: value.clone() }),
                        _ => continue,
                    }
                    // One of two fields that exclude each other.
                    if path == ["argv"] {
                        body.as_object_mut().expect("an object").remove("command");
                    }
                    let short: String = value.to_string().chars().take(40).collect();
                    let checked = (said.check)(body.to_string().as_bytes());
                    let says =
                        format!("{} {path:?} {key} {limit}, given {short}: {checked:?}", verb.as_str());
                    assert_eq!(checked.is_err(), beyond, "{says}");
                    probed += 1;
                }
            }
        }
    }
    assert!(probed > 60, "only {probed} limits were tried");
}

#[test]
fn no_rule_is_written_where_the_document_does_not_see_it() {
    let sources = [
        ("exec.rs", include_str!("../../exec.rs")),
        ("files.rs", include_str!("../../files.rs")),
        ("nodes.rs", include_str!("../../nodes.rs")),
        ("spaces.rs", include_str!("../../spaces.rs")),
        ("list.rs", include_str!("../../spaces/list.rs")),
        ("spec.rs", include_str!("../../spaces/spec.rs")),
        ("policy.rs", include_str!("../../spaces/policy.rs")),
    ];
    for (name, text) in sources {
        for (number, line) in text.lines().enumerate() {
            let hidden = line.contains("inner(range(") || line.contains("inner(length(");
            assert!(!hidden, "{name}:{}: garde takes an Option as it is; leave out `inner`", number + 1);
        }
    }
}
