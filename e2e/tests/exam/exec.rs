use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use drowse_e2e::{
    fleet::Fleet,
    wait::{eventually, seconds, timed},
};
use drowse_shared::api::{Code, exec::ExecResult};
use serde_json::{Value, json};

async fn run(fleet: &Fleet, mut wish: Value) -> ExecResult {
    wish["name"] = "a".into();
    fleet.door.call("execCommand", wish).await.ok()
}

#[tokio::test]
async fn a_command_gets_what_it_was_given_and_its_end_is_told_exactly() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    let cases = [
        (json!({ "command": "exit 7" }), 7, "", ""),
        (json!({ "command": "kill -9 $$" }), 137, "", ""),
        (json!({ "command": "kill -TERM $$" }), 143, "", ""),
        (json!({ "command": "echo out; echo err >&2; exit 1" }), 1, "out\n", "err\n"),
        (json!({ "argv": ["printf", "%s|", "a b", "$HOME", ""] }), 0, "a b|$HOME||", ""),
        (json!({ "command": "cat", "stdin": "in\nwards" }), 0, "in\nwards", ""),
        (json!({ "command": "wc -c", "stdinBase64": STANDARD.encode([0, 255, 10]) }), 0, "3\n", ""),
        (json!({ "command": "read x || echo no input" }), 0, "no input\n", ""),
        (json!({ "command": "echo $A-$B", "env": { "A": "1 2", "B": "ü" } }), 0, "1 2-ü\n", ""),
        (json!({ "command": "pwd; whoami; echo $HOME" }), 0, "/home/user\nuser\n/home/user\n", ""),
        (
            json!({ "command": "pwd; whoami; echo $HOME", "user": "root", "cwd": "/etc" }),
            0,
            "/etc\nroot\n/root\n",
            "",
        ),
        (json!({ "command": "sudo id -u" }), 0, "0\n", ""),
        (json!({ "command": "python -c 'import sys; print(sys.version_info[0])'" }), 0, "3\n", ""),
        (json!({ "command": "printf '\\377a'" }), 0, "\u{fffd}a", ""),
        (json!({ "command": "printf '\\377a'", "outputEncoding": "base64" }), 0, "/2E=", ""),
    ];
    for (wish, code, stdout, stderr) in cases {
        let result = run(&fleet, wish.clone()).await;
        let told = (result.exit_code, result.stdout.as_str(), result.stderr.as_str());
        assert_eq!(told, (Some(code), stdout, stderr), "{wish}");
        assert!(!result.timed_out && !result.stdout_truncated && !result.stderr_truncated, "{wish}");
    }
    for (wish, code) in [
        (json!({ "command": "true", "cwd": "/no/such" }), Code::UnknownDirectory),
        (json!({ "command": "true", "user": "nobody-here" }), Code::UnknownUser),
        (json!({ "argv": ["no-such-program"] }), Code::CommandNotFound),
    ] {
        let mut body = wish.clone();
        body["name"] = "a".into();
        let error = fleet.door.call::<ExecResult>("execCommand", body).await.refused(&code);
        let named = ["/no/such", "nobody-here", "no-such-program"].iter().any(|w| error.message.contains(w));
        assert!(named, "it names what is unknown: {}", error.message);
    }
    fleet.end().await;
}

#[tokio::test]
async fn output_beyond_the_cap_is_dropped_and_said_so() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    fleet.node("n1").daemon.forget_peak();
    let before = fleet.node("n1").daemon.peak_bytes();
    let flood = json!({ "command": "head -c 64M /dev/zero | tr '\\0' x; echo done >&2; exit 3" });
    let result = run(&fleet, flood).await;
    assert_eq!(result.exit_code, Some(3), "it was not blocked or killed by the cap");
    assert_eq!(result.stdout.len(), 1 << 20);
    assert!(result.stdout.bytes().all(|b| b == b'x'));
    assert!(result.stdout_truncated && !result.stderr_truncated);
    assert_eq!(result.stderr, "done\n");
    let grown = fleet.node("n1").daemon.peak_bytes().saturating_sub(before);
    assert!(grown < 24 << 20, "64 MB pass through, {grown} bytes stay");
    fleet.end().await;
}

#[tokio::test]
async fn a_timeout_kills_everything_the_command_started_and_frees_its_port() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    let server =
        "setsid python3 -m http.server 8123 >/dev/null 2>&1 & python3 -m http.server 8124 & sleep 4321";
    let (result, took) = timed(run(&fleet, json!({ "command": server, "timeoutSeconds": 2 }))).await;
    assert!(result.timed_out, "{result:?}");
    assert!(took < seconds(12), "{took:?}");
    let bind = "import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind((\"\", 8124)); s.listen()";
    assert_eq!(fleet.exec("a", &format!("python3 -c '{bind}' && echo free")).await, "free");
    assert_eq!(fleet.exec("a", "pgrep -f 'sleep [4]321' | wc -l").await, "0");
    assert_eq!(fleet.exec("a", "pgrep -f 'http.server 812[4]' | wc -l").await, "0");

    let deaf = json!({ "command": "trap '' TERM INT HUP; while :; do sleep 1; done", "timeoutSeconds": 1 });
    let (result, took) = timed(run(&fleet, deaf)).await;
    assert!(result.timed_out && took < seconds(12), "a command that ignores SIGTERM: {took:?} {result:?}");
    assert_eq!(fleet.exec("a", "pgrep -f '[t]rap' | wc -l").await, "0");
    fleet.end().await;
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_command_along_unless_it_detached_it() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    let leaving = fleet.door.apart();
    let listens =
        "import socket, time; s = socket.socket(); s.bind((\"\", 8125)); s.listen(); time.sleep(5551)";
    let command = format!("sleep 5551 & python3 -c '{listens}' & sleep 5552");
    let call = tokio::spawn(async move { leaving.exec("a", &command).await.status });
    let count = |pattern: &'static str| {
        let fleet = &fleet;
        async move { fleet.exec("a", &format!("pgrep -f '{pattern}' | wc -l")).await }
    };
    eventually("the command runs", seconds(10), || async {
        // Its port is taken by then.
        let listens = fleet.exec("a", "grep -c ' 00000000:1FBD ' /proc/net/tcp || true").await;
        (count("^sleep 555[12]").await == "2" && listens == "1").then_some(())
    })
    .await;
    call.abort();
    eventually("it ended with its client", seconds(10), || async {
        (count("^sleep 555[12]\\|[s]leep(5551)").await == "0").then_some(())
    })
    .await;
    let bind = "import socket; s = socket.socket(); s.bind((\"\", 8125)); s.listen()";
    assert_eq!(fleet.exec("a", &format!("python3 -c '{bind}' && echo free")).await, "free");

    let leaving = fleet.door.apart();
    let (result, took) = timed(leaving.detach("a", "sleep 5553; echo over > over")).await;
    let result = result.ok();
    assert!(result.detached && result.exit_code.is_none() && took < seconds(5), "{result:?}");
    drop(leaving);
    assert_eq!(fleet.exec("a", &format!("test -d /proc/{} && echo runs", result.pid)).await, "runs");
    assert_eq!(count("^sleep 5553").await, "1");
    fleet.exec("a", "pkill -f '^sleep 5553'").await;
    eventually("a detached command comes to its own end", Duration::from_secs(5), || async {
        (fleet.door.read("a", b"over").await.status == 200).then_some(())
    })
    .await;

    let (said, took) = timed(fleet.exec("a", "sleep 5554 >/dev/null 2>&1 & echo started")).await;
    assert!(
        said == "started" && took < seconds(5),
        "a server left in the background does not hold the answer: {took:?}"
    );
    fleet.end().await;
}
