use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::output::{Channel, Written};
use crate::connect;
use crate::launcher::control::Exit;

/// Exit code of a command whose time was up, as after SIGKILL.
const TIMEOUT_EXIT_CODE: i32 = 137;

/// How a command ended, as its watchers are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    exit_code: i32,
    exited: bool,
    status: String,
    dropped_bytes: u64,
    written: Written,
}

impl End {
    /// From the exit and what became of the output.
    pub(crate) fn new(exit: Exit, timed_out: bool, dropped_bytes: u64, written: Written) -> Self {
        let (exit_code, exited, status) = match exit {
            _ if timed_out => (TIMEOUT_EXIT_CODE, false, "timeout".to_owned()),
            Exit::Code(code) => (code, true, format!("exit status {code}")),
            Exit::Signal(signal) => (128 + signal, false, format!("signal: {}", signal_words(signal))),
        };
        Self { exit_code, exited, status, dropped_bytes, written }
    }

    /// More output was lost after the end.
    pub(super) fn add_dropped(&mut self, bytes: u64) {
        self.dropped_bytes += bytes;
    }

    fn json(&self) -> serde_json::Value {
        let mut end = serde_json::json!({
            "exitCode": self.exit_code,
            "exited": self.exited,
            "status": self.status,
            "outputBytes": places(self.written),
        });
        if self.exit_code != 0 {
            end["error"] = self.status.clone().into();
        }
        if self.dropped_bytes > 0 {
            end["droppedBytes"] = self.dropped_bytes.to_string().into();
        }
        serde_json::json!({"event": {"end": end}})
    }

    /// The end event and the end of the stream in one.
    pub(crate) fn last_message(&self) -> Bytes {
        connect::last_message(self.json().to_string().as_bytes())
    }
}

/// The first event of a command's own stream.
pub(crate) fn start(pid: i32) -> Bytes {
    connect::message(format!(r#"{{"event":{{"start":{{"pid":{pid}}}}}}}"#).as_bytes())
}

/// The first event of a stream that joins: also says at which byte of each channel it begins.
pub(crate) fn joined(pid: i32, from: Written) -> Bytes {
    let start = serde_json::json!({"pid": pid, "outputFrom": places(from)});
    connect::message(serde_json::json!({"event": {"start": start}}).to_string().as_bytes())
}

fn places(written: Written) -> serde_json::Value {
    let mut places = serde_json::json!({ "stdout": written.stdout, "stderr": written.stderr });
    if written.pty > 0 {
        places["pty"] = written.pty.into();
    }
    places
}

/// Says that there is nothing to say.
pub(crate) fn keepalive() -> Bytes {
    connect::message(br#"{"event":{"keepalive":{}}}"#)
}

/// A piece of output.
pub(crate) fn data(channel: Channel, bytes: &[u8]) -> Bytes {
    let mut json = String::with_capacity(40 + bytes.len().div_ceil(3) * 4);
    json.push_str(match channel {
        Channel::Stdout => r#"{"event":{"data":{"stdout":""#,
        Channel::Stderr => r#"{"event":{"data":{"stderr":""#,
        Channel::Pty => r#"{"event":{"data":{"pty":""#,
    });
    STANDARD.encode_string(bytes, &mut json);
    json.push_str(r#""}}}"#);
    connect::message(json.as_bytes())
}

fn signal_words(signal: i32) -> String {
    match signal {
        libc::SIGHUP => "hangup".to_owned(),
        libc::SIGINT => "interrupt".to_owned(),
        libc::SIGQUIT => "quit".to_owned(),
        libc::SIGILL => "illegal instruction".to_owned(),
        libc::SIGTRAP => "trace/breakpoint trap".to_owned(),
        libc::SIGABRT => "aborted".to_owned(),
        libc::SIGBUS => "bus error".to_owned(),
        libc::SIGFPE => "floating point exception".to_owned(),
        libc::SIGKILL => "killed".to_owned(),
        libc::SIGSEGV => "segmentation fault".to_owned(),
        libc::SIGPIPE => "broken pipe".to_owned(),
        libc::SIGALRM => "alarm clock".to_owned(),
        libc::SIGTERM => "terminated".to_owned(),
        other => format!("signal {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_say_how() {
        let cases = [
            (
                Exit::Code(0),
                false,
                0,
                r#"{"event":{"end":{"exitCode":0,"exited":true,"outputBytes":{"stderr":0,"stdout":0},"status":"exit status 0"}}}"#,
            ),
            (
                Exit::Code(3),
                false,
                9,
                r#"{"event":{"end":{"droppedBytes":"9","error":"exit status 3","exitCode":3,"exited":true,"outputBytes":{"stderr":0,"stdout":0},"status":"exit status 3"}}}"#,
            ),
            (
                Exit::Signal(15),
                false,
                0,
                r#"{"event":{"end":{"error":"signal: terminated","exitCode":143,"exited":false,"outputBytes":{"stderr":0,"stdout":0},"status":"signal: terminated"}}}"#,
            ),
            (
                Exit::Code(0),
                true,
                0,
                r#"{"event":{"end":{"error":"timeout","exitCode":137,"exited":false,"outputBytes":{"stderr":0,"stdout":0},"status":"timeout"}}}"#,
            ),
        ];
        for (exit, timed_out, dropped, json) in cases {
            assert_eq!(
                End::new(exit, timed_out, dropped, Written::default()).json(),
                serde_json::from_str::<serde_json::Value>(json).unwrap()
            );
        }
    }

    #[test]
    fn output_travels_as_base64() {
        assert_eq!(&data(Channel::Stderr, b"a\xff")[5..], br#"{"event":{"data":{"stderr":"Yf8="}}}"#);
    }
}
