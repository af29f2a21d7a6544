//! The native API: `POST /<verb>`, JSON in, JSON out, camelCase, units in names, times in RFC 3339.
//!
//! Requests from clients refuse fields they do not know; messages between our own daemons ignore them, so that
//! versions can mix.

/// Where a page of a list begins.
pub mod cursor;
/// The one error body and its stable codes.
pub mod error;
/// Running a command.
pub mod exec;
/// Files in a space.
pub mod files;
/// Header names and the values they carry.
pub mod headers;
/// What nodes and gateway say to each other: check-in, roster, configuration, lookup.
pub mod nodes;
/// What a space is: state, policy, spec, metadata, and the verbs that read or change them.
pub mod spaces;

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
    let request: T = serde_json::from_slice(body)
        .map_err(|e| Error::new(Code::InvalidRequest, format!("the body is not a valid request: {e}")))?;
    request.validate().map_err(|report| {
        let rules: Vec<String> =
            report.iter().map(|(path, error)| format!("{}: {error}", camel(&path.to_string()))).collect();
        Error::new(Code::InvalidRequest, rules.join("; "))
    })?;
    Ok(request)
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
