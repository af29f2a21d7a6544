//! As much of JSON Schema as the document uses. Stricter in one point: an answer has no field that its schema does not
//! name, so that nothing is answered undocumented.

use serde_json::{Map, Value};

/// Keywords that say something to people only, or that types already hold, such as the pattern of an id.
const REMARKS: [&str; 8] =
    ["description", "default", "examples", "format", "pattern", "title", "maxLength", "minLength"];

/// Why a value is not what the schema says, or nothing.
pub(crate) fn check(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    judge(document, schema, value, "", true)
}

/// `whole`: the schema is all that is said of the value, not a part beside others.
fn judge(document: &Value, schema: &Value, value: &Value, at: &str, whole: bool) -> Result<(), String> {
    let Some(schema) = schema.as_object() else { return Ok(()) };
    if whole {
        known_fields(document, schema, value, at)?;
    }
    for (keyword, rule) in schema {
        let fits = match keyword.as_str() {
            "$ref" => {
                let alone = !schema.contains_key("properties");
                return_to(document, rule).and_then(|other| judge(document, other, value, at, alone))
            }
            "type" => typed(rule, value, at),
            "const" => (rule == value).then_some(()).ok_or_else(|| format!("{at} is not {rule}: {value}")),
            "enum" => {
                let one = rule.as_array().is_some_and(|words| words.contains(value));
                one.then_some(()).ok_or_else(|| format!("{at} is none of {rule}: {value}"))
            }
            "anyOf" | "oneOf" => {
                let judged: Vec<_> = rule
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|one| judge(document, one, value, at, true))
                    .collect();
                let fitting = judged.iter().filter(|judged| judged.is_ok()).count();
                let enough = if keyword == "oneOf" { fitting == 1 } else { fitting > 0 };
                enough
                    .then_some(())
                    .ok_or_else(|| format!("{at} fits {fitting} of {keyword}: {value}: {judged:?}"))
            }
            "properties" => rule.as_object().into_iter().flatten().try_for_each(|(name, schema)| {
                value
                    .get(name)
                    .map_or(Ok(()), |value| judge(document, schema, value, &format!("{at}.{name}"), true))
            }),
            "required" => {
                let object = value.as_object();
                let missing = rule.as_array().into_iter().flatten().filter_map(Value::as_str);
                let missing: Vec<_> =
                    missing.filter(|name| object.is_some_and(|object| !object.contains_key(*name))).collect();
                missing.is_empty().then_some(()).ok_or_else(|| format!("{at} lacks {missing:?}"))
            }
            "items" => value.as_array().into_iter().flatten().enumerate().try_for_each(|(number, value)| {
                judge(document, rule, value, &format!("{at}[{number}]"), true)
            }),
            "minimum" => {
                let low = value.as_f64().zip(rule.as_f64()).is_some_and(|(value, least)| value < least);
                (!low).then_some(()).ok_or_else(|| format!("{at} is below {rule}: {value}"))
            }
            "maximum" => {
                let high = value.as_f64().zip(rule.as_f64()).is_some_and(|(value, most)| value > most);
                (!high).then_some(()).ok_or_else(|| format!("{at} is above {rule}: {value}"))
            }
            // Judged with the fields.
            "additionalProperties" | "propertyNames" | "maxProperties" | "maxItems" | "minItems" => Ok(()),
            remark if REMARKS.contains(&remark) || remark.starts_with("x-") => Ok(()),
            other => Err(format!("{at}: the document uses {other}, which this test does not know")),
        };
        fits?;
    }
    Ok(())
}

fn return_to<'a>(document: &'a Value, reference: &Value) -> Result<&'a Value, String> {
    let pointer = reference.as_str().unwrap_or_default().trim_start_matches('#');
    document.pointer(pointer).ok_or_else(|| format!("{reference} leads nowhere"))
}

fn typed(rule: &Value, value: &Value, at: &str) -> Result<(), String> {
    let is = |word: &str| match word {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    };
    let fits = match rule {
        Value::String(word) => is(word),
        Value::Array(words) => words.iter().filter_map(Value::as_str).any(is),
        _ => false,
    };
    fits.then_some(()).ok_or_else(|| format!("{at} is no {rule}: {value}"))
}

/// Every field is named, or the schema says what unnamed ones are.
fn known_fields(
    document: &Value,
    schema: &Map<String, Value>,
    value: &Value,
    at: &str,
) -> Result<(), String> {
    let Some(fields) = value.as_object() else { return Ok(()) };
    if !["properties", "additionalProperties"].iter().any(|keyword| schema.contains_key(*keyword)) {
        return Ok(());
    }
    let mut named: Vec<&String> =
        schema.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys).collect();
    // What is said beside a reference belongs to the same object.
    if let Some(reference) = schema.get("$ref") {
        let beside = return_to(document, reference)?;
        named.extend(beside["properties"].as_object().into_iter().flat_map(Map::keys));
    }
    for (name, value) in fields.iter().filter(|(name, _)| !named.contains(name)) {
        let at = format!("{at}.{name}");
        match schema.get("additionalProperties") {
            Some(Value::Bool(true)) => {}
            Some(schema @ Value::Object(_)) => judge(document, schema, value, &at, true)?,
            _ => return Err(format!("{at} is answered and not documented")),
        }
    }
    Ok(())
}

#[test]
fn a_wrong_answer_is_told_from_a_right_one() {
    let schema = serde_json::json!({
        "type": "object", "required": ["a"],
        "properties": { "a": { "type": ["integer", "null"], "minimum": 1 }, "b": { "items": { "const": "x" } } }
    });
    let judged = |value: Value| check(&Value::Null, &schema, &value);
    for right in [serde_json::json!({ "a": 1 }), serde_json::json!({ "a": null, "b": ["x", "x"] })] {
        assert_eq!(judged(right), Ok(()));
    }
    for (wrong, says) in [
        (serde_json::json!([]), "is no"),
        (serde_json::json!({}), "lacks"),
        (serde_json::json!({ "a": 0 }), "below"),
        (serde_json::json!({ "a": 1, "b": ["y"] }), "is not"),
        (serde_json::json!({ "a": 1, "c": 1 }), "not documented"),
    ] {
        let why = judged(wrong).expect_err(says);
        assert!(why.contains(says), "{why}");
    }
}
