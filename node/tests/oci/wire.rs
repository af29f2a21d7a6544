use std::{fmt::Write as _, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use drowse_shared::seams::BoxIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Reads the events of a command to their end: its code, and all it said.
pub(crate) async fn outcome(mut stream: BoxIo) -> (i64, String) {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.expect("read");
    let (head, body) = split(&bytes);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let (mut text, mut code) = (String::new(), None);
    let mut rest = &body[..];
    while let Some((head, after)) = rest.split_at_checked(5) {
        let length = u32::from_be_bytes(head[1..].try_into().expect("four")) as usize;
        let value: Value = serde_json::from_slice(&after[..length]).expect("JSON");
        rest = &after[length..];
        let event = &value["event"];
        for output in ["stdout", "stderr"] {
            if let Some(part) = event["data"][output].as_str() {
                text += &String::from_utf8_lossy(&STANDARD.decode(part).expect("base64"));
            }
        }
        if let Some(end) = event.get("end") {
            code = Some(end["exitCode"].as_i64().unwrap_or(0));
        }
        if let Some(error) = value.get("error") {
            write!(text, "{error}").expect("a string");
        }
    }
    (code.unwrap_or(-1), text)
}

/// Sends a request and reads the answer to its end.
pub(crate) async fn fetch(mut stream: BoxIo, request: &str) -> String {
    let work = async {
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.expect("read");
        let (head, body) = split(&bytes);
        format!("{head}\r\n\r\n{}", String::from_utf8_lossy(&body))
    };
    tokio::time::timeout(Duration::from_secs(10), work).await.expect("answers in time")
}

/// Head and body of an answer, chunks joined.
fn split(bytes: &[u8]) -> (String, Vec<u8>) {
    let at = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let (head, mut rest) = (String::from_utf8_lossy(&bytes[..at]).into_owned(), &bytes[at + 4..]);
    if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return (head, rest.to_vec());
    }
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|two| two == b"\r\n").expect("a length");
        let length = std::str::from_utf8(&rest[..line]).expect("a length");
        let length = usize::from_str_radix(length, 16).expect("a length");
        if length == 0 {
            return (head, body);
        }
        body.extend(&rest[line + 2..line + 2 + length]);
        rest = &rest[line + 2 + length + 2..];
    }
}
