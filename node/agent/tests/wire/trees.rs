use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Agent, NOBODY, alive, until};

/// Forks away from the command's session and holds a port.
const DAEMON: &str = r#"
import os, socket, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen()
for fd in (0, 1, 2): os.close(fd)
t = sys.argv[1] + ".new"
open(t, "w").write("%d %d" % (os.getpid(), s.getsockname()[1]))
os.rename(t, sys.argv[1])
time.sleep(600)
"#;

fn daemon(agent: &Agent, headers: &[(&str, &str)]) -> (crate::client::Events, u32, u16) {
    let script = agent.directory().join("daemon.py");
    let told = agent.directory().join("told");
    std::fs::write(&script, DAEMON).unwrap();
    let shell = format!("python3 {} {}; sleep 600 & sleep 600", script.display(), told.display());
    let events = agent.shell(&shell, headers);
    until("the daemon listens", || told.exists());
    let text = std::fs::read_to_string(&told).unwrap();
    let (pid, port) = text.split_once(' ').unwrap();
    (events, pid.parse().unwrap(), port.parse().unwrap())
}

#[test]
fn a_timeout_ends_the_whole_tree_and_frees_its_port() {
    // Also as another user: whose processes root of a space may not look into.
    let free = |user: &[(&str, &str)], uid: u32| {
        let agent = Agent::start();
        let headers = [&[("drowse-timeout-ms", "4000"), ("drowse-kill-grace-ms", "300")], user].concat();
        let (events, pid, port) = daemon(&agent, &headers);
        let outcome = events.outcome();
        assert_eq!((outcome.code(), outcome.end["exited"].as_bool()), (137, Some(false)));
        assert_eq!(outcome.end["status"], "timeout");
        assert!(!alive(pid), "the daemon outlived the end event");
        assert_eq!(std::fs::metadata(agent.directory().join("told")).unwrap().uid(), uid);
        TcpListener::bind(("127.0.0.1", port)).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| free(&[], 0));
        scope.spawn(|| free(&[NOBODY], 65534));
    });
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_after_the_grace() {
    let agent = Agent::start();
    let started = Instant::now();
    let headers = [("drowse-timeout-ms", "1500"), ("drowse-kill-grace-ms", "500")];
    let outcome = agent.shell("trap '' TERM; while :; do sleep 0.05; done", &headers).outcome();
    let took = started.elapsed();
    assert_eq!((outcome.code(), outcome.end["status"].as_str()), (137, Some("timeout")));
    assert!(took >= Duration::from_millis(1990) && took < Duration::from_secs(15), "{took:?}");
    // One that listens to it is not made to wait for the grace.
    let headers = [("drowse-timeout-ms", "200"), ("drowse-kill-grace-ms", "30000")];
    let started = Instant::now();
    let outcome = agent.shell("sleep 600", &headers).outcome();
    assert_eq!(outcome.end["status"], "timeout");
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    // And one that is done in time is left alone.
    assert_eq!(agent.shell("exit 4", &[("drowse-timeout-ms", "20000")]).outcome().code(), 4);
}

#[test]
fn a_client_that_leaves_kills_only_if_it_said_so() {
    let agent = Agent::start();
    let (mut events, daemon_pid, port) = daemon(&agent, &[("drowse-on-disconnect", "kill")]);
    let pid = events.pid();
    drop(events);
    until("everything is killed", || !alive(pid) && !alive(daemon_pid));
    TcpListener::bind(("127.0.0.1", port)).unwrap();

    let mut events = agent.shell("sleep 600", &[]);
    let pid = events.pid();
    drop(events);
    std::thread::sleep(Duration::from_millis(300));
    assert!(alive(pid));
    let kill = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"});
    assert_eq!(agent.unary("process.Process/SendSignal", &kill).0, 200);
    until("it is killed", || !alive(pid));
    assert_eq!(agent.join(&json!({"pid": pid})).outcome().code(), 137, "the end waits for whoever asks");
}

#[test]
fn a_signal_reaches_the_group_and_on_request_the_tree() {
    let agent = Agent::start();
    let (mut events, daemon_pid, _) = daemon(&agent, &[]);
    let pid = events.pid();
    let kill = json!({"process": {"pid": pid}, "signal": 9});
    let (status, _) = agent.unary_with("process.Process/SendSignal", &[("drowse-tree", "1")], &kill);
    assert_eq!(status, 200);
    assert!(!alive(daemon_pid));
    assert_eq!(events.outcome().code(), 137);
}

#[test]
fn a_forking_crowd_is_killed() {
    let agent = Agent::start();
    let fork = "f() { i=0; while [ $i -lt 3 ]; do (sleep 0.01; [ $1 -gt 0 ] && f $(($1 - 1)); sleep 600) & i=$((i+1)); done; wait; }; f 3";
    let headers = [("drowse-timeout-ms", "500"), ("drowse-kill-grace-ms", "0")];
    assert_eq!(agent.shell(fork, &headers).outcome().end["status"], "timeout");
    until("nothing but the launcher", || {
        std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", agent.pid()))
            .unwrap()
            .split(' ')
            .count()
            <= 2
    });
}
