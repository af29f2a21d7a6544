//! The native API: `POST /<verb>`, JSON in, JSON out, camelCase, units in names, times in RFC 3339.
//!
//! Requests from clients refuse fields they do not know; messages between our own daemons ignore them, so that
//! versions can mix.

pub mod attach;
/// Where a page of a list begins.
pub mod cursor;
/// The OpenAPI document, as it is served.
pub mod document;
/// Domains of their own for spaces.
pub mod domains;
/// The one error body and its stable codes.
pub mod error;
/// Running a command.
pub mod exec;
/// Files in a space.
pub mod files;
/// Header names and the values they carry.
pub mod headers;
/// Whether a daemon answers.
pub mod health;
/// What nodes and gateway say to each other: check-in, roster, configuration, lookup.
pub mod nodes;
/// What a space is: state, policy, spec, metadata, and the verbs that read or change them.
pub mod spaces;
/// Rolling a fleet to another build.
pub mod upgrade;
/// Every verb, and which door answers it.
pub mod verbs;
/// Telling what changes in a directory.
pub mod watch;

pub use error::{Code, Error};

/// Largest JSON body of a verb, in bytes.
pub const JSON_BODY_BYTES_MAX: usize = 1 << 20;
/// Largest body of `writeFiles` and of `writeFile` as JSON, in bytes.
pub const WRITE_FILES_BODY_BYTES_MAX: usize = 16 << 20;

/// Reads a request body and checks every rule on it.
///
/// # Errors
/// `invalid_request`, naming the field.
pub fn parse<T>(body: &[u8]) -> Result<T, Error>
where
    T: serde::de::DeserializeOwned + garde::Validate<Context = ()>,
{
    // Verbs without a required field accept no body at all.
    let body = if body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { body };
    let request: T = serde_json::from_slice(body).map_err(|e| {
        Error::new(Code::InvalidRequest, format!("the body is not a valid request: {}", quiet(&e)))
    })?;
    check("", &request)?;
    Ok(request)
}

/// Refuses what breaks a rule. `of` is where it comes from, as words before it.
///
/// # Errors
/// `invalid_request`, naming each field as it is called on the wire.
pub fn check(of: &str, value: &impl garde::Validate<Context = ()>) -> Result<(), Error> {
    value.validate().map_err(|report| {
        let rules: Vec<String> =
            report.iter().map(|(path, error)| format!("{}: {error}", camel(&path.to_string()))).collect();
        Error::new(Code::InvalidRequest, format!("{of}{}", rules.join("; ")))
    })
}

/// What is wrong with a body, without the text it holds: that may be a secret, and errors are logged.
pub fn quiet(error: &serde_json::Error) -> String {
    let text = error.to_string();
    // As serde writes it: `invalid type: string "…", expected a map at line 1 column 9`.
    let quoted = ["invalid type: string ", "invalid value: string "];
    let Some(head) = quoted.into_iter().find(|head| text.starts_with(head)) else { return text };
    let rest = text.rfind("\", expected ").map_or("", |end| &text[end + 1..]);
    format!("{}{rest}", head.trim_end())
}

/// A field as it is called on the wire.
fn camel(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut up = false;
    for c in path.chars() {
        match c {
            '_' => up = true,
            c if std::mem::take(&mut up) => out.extend(c.to_uppercase()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_body_is_said_without_the_text_in_it() {
        let cases = [
            (r#"{"name":"a","command":"x","env":"KEY=hunter2"}"#, "expected a map"),
            (r#"{"name":"a","command":"x","env":"hunter2\", expected hunter2"}"#, "expected a map"),
            (r#"{"name":"a","command":"x","env":{"KEY=hunter2":""}}"#, "\"KEY\" is no variable"),
            (r#"{"name":"a","command":"x","timeoutSeconds":"hunter2"}"#, "expected u64"),
            (r#"{"name":"a","command":"x","detach":1}"#, "integer `1`"),
        ];
        for (body, says) in cases {
            let error = parse::<exec::ExecCommand>(body.as_bytes()).expect_err(body).message;
            assert!(error.contains(says) && !error.contains("hunter2"), "{body}: {error}");
        }
    }

    #[test]
    fn fields_are_named_as_on_the_wire_wherever_they_are_checked() {
        let policy = spaces::Policy { stop_after_seconds: Some(1), ..spaces::Policy::default() };
        let refused = check("policy: ", &policy).expect_err("it freezes after it stops").message;
        assert_eq!(refused, "policy: freezeAfterSeconds: 600 is after stopAfterSeconds (1)");
    }

    #[test]
    fn a_list_names_each_state_at_most_once() {
        let all = serde_json::json!({ "states": spaces::State::ALL }).to_string();
        assert!(parse::<spaces::ListSpaces>(all.as_bytes()).is_ok());
        let many = serde_json::json!({ "states": vec!["active"; 40_000] }).to_string();
        assert!(parse::<spaces::ListSpaces>(many.as_bytes()).expect_err("many").message.contains("states"));
    }
}
