//! What is said on a connection that is not served: short, in words, and never waited for.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::api::Error;

/// Longest time spent on it.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a client may take to begin its request: many take an answer that comes before for an answer to nothing.
const BEGINNING: Duration = Duration::from_millis(20);

/// Answers `error` and closes. What the client still sends is read for a moment: unread, it would turn the close into a
/// reset, which may destroy the answer on its way.
pub(super) async fn refuse<I>(mut io: I, error: &Error)
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let words = words(error);
    let said = async {
        let mut first = [0; 4096];
        let _ = tokio::time::timeout(BEGINNING, io.read(&mut first)).await;
        io.write_all(&words).await?;
        io.shutdown().await?;
        let mut rest = [0; 4096];
        while io.read(&mut rest).await? > 0 {}
        Ok::<(), std::io::Error>(())
    };
    // A client that does not listen has left already.
    let _ = tokio::time::timeout(PATIENCE, said).await;
}

fn words(error: &Error) -> Vec<u8> {
    let status = error.code.status();
    let body = serde_json::to_vec(error).unwrap_or_default();
    let wait = error.retry_after_seconds.map(|s| format!("retry-after: {s}\r\n")).unwrap_or_default();
    let mut words = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{wait}connection: close\r\n\r\n",
        status.as_u16(),
        status.canonical_reason().unwrap_or_default(),
        body.len()
    )
    .into_bytes();
    words.extend(body);
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Code;

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_a_whole_answer_and_waits_for_nobody() {
        let (ours, mut theirs) = tokio::io::duplex(4096);
        theirs.write_all(b"POST /getSpace HTTP/1.1\r\nhost: a").await.expect("open");
        refuse(ours, &Error::new(Code::TooManyConnections, "as many as it may have")).await;
        let mut said = String::new();
        theirs.read_to_string(&mut said).await.expect("an end");
        let (head, body) = said.split_once("\r\n\r\n").expect("a head and a body");
        assert!(
            head.starts_with("HTTP/1.1 503 Service Unavailable\r\n") && head.contains("retry-after: 5"),
            "{head}"
        );
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
        assert_eq!(serde_json::from_str::<Error>(body).expect("an error").code, Code::TooManyConnections);
    }
}
