use std::fs;

use drowse_e2e::{fleet::Fleet, ground::random_hex};
use drowse_shared::api::exec::ExecResult;
use serde_json::{Value, json};

/// The command lines of every process on this machine.
fn command_lines() -> Vec<String> {
    let processes = fs::read_dir("/proc").expect("/proc is mounted").filter_map(Result::ok);
    processes
        .filter_map(|p| fs::read(p.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .collect()
}

#[tokio::test]
async fn secrets_are_in_no_argument_log_error_or_space() {
    let mut fleet =
        Fleet::real(2).node_env("DROWSE_LOG", "debug").gateway_env("DROWSE_LOG", "debug").start().await;
    let token = fleet.ground.token.clone();
    let planted: Vec<String> = (0..4).map(|_| random_hex(40)).collect();
    fleet.acquire("a").await;
    fleet.acquire("b").await;

    let wish = json!({
        "name": "a", "command": "printenv API_KEY > key; cat > in",
        "env": { "API_KEY": planted[0] }, "stdin": planted[1],
    });
    assert_eq!(fleet.door.call::<ExecResult>("execCommand", wish).await.ok().exit_code, Some(0));
    fleet.write("a", "written", planted[2].clone()).await;
    let stranger = fleet.door.with_token(Some(&planted[3]));
    let mut errors = vec![stranger.acquire("a").await.text()];
    for door in [&fleet.door, &fleet.node("n1").door] {
        for (verb, body) in [
            ("acquireSpace", json!({ "name": "" })),
            ("getSpace", json!({ "name": "nobody" })),
            (
                "execCommand",
                json!({ "name": "a", "command": "true", "env": { "API_KEY": planted[0] }, "cwd": "/no" }),
            ),
            ("noSuchVerb", json!({})),
        ] {
            errors.push(door.call::<Value>(verb, body).await.text());
        }
    }
    let lines = command_lines();
    fleet.kill("n1");
    errors.push(fleet.door.acquire("c").await.text());
    fleet.revive("n1").await;

    let mut logs = fleet.gateway.log();
    fleet.nodes.iter().for_each(|n| logs.push_str(&n.daemon.log()));
    assert!(logs.contains("acquireSpace"), "the logs tell something, so that their silence means something");
    for secret in planted.iter().chain([&token]) {
        assert!(!lines.iter().any(|l| l.contains(secret.as_str())), "a secret is an argument of a process");
        assert!(!logs.contains(secret.as_str()), "a secret is in a log");
        assert!(!errors.iter().any(|e| e.contains(secret.as_str())), "a secret is in an error");
    }

    // From inside, as root: the fleet's token is nowhere, and nothing of one space is in another.
    let search = "p=$(cat); \
                  grep -rlF -f <(echo \"$p\") --devices=skip /etc /home /root /run /tmp /var /opt /srv /mnt 2>/dev/null; \
                  cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/mounts 2>/dev/null | grep -caF -f <(echo \"$p\")";
    for (space, secrets) in [("a", vec![&token]), ("b", vec![&token, &planted[0], &planted[1], &planted[2]])]
    {
        let patterns: String = secrets.iter().map(|s| format!("{s}\n")).collect();
        let wish = json!({ "name": space, "command": search, "user": "root", "stdin": patterns });
        let found: ExecResult = fleet.door.call("execCommand", wish).await.ok();
        assert_eq!(found.stdout.trim(), "0", "found inside {space}: {found:?}");
    }
    fleet.end().await;
}
