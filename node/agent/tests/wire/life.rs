use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::client::{Agent, alive, binary, signal, until};

#[test]
fn says_its_version_and_is_static() {
    let binary = binary();
    let version = Command::new(&binary).arg("--version").output().unwrap();
    assert_eq!(
        String::from_utf8(version.stdout).unwrap(),
        format!("drowse-agent {}\n", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(Command::new(&binary).arg("--nonsense").output().unwrap().status.code(), Some(64));
    let linked = Command::new("ldd").arg(&binary).output().unwrap();
    let said = [linked.stdout, linked.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("statically linked") || said.contains("not a dynamic executable"), "{said}");
}

#[test]
fn is_healthy_and_knows_what_it_does_not_serve() {
    let agent = Agent::start();
    assert_eq!(agent.send("GET", "/health", &[], b"").status, 204);
    assert_eq!(agent.send("GET", "/nothing", &[], b"").status, 404);
    let (status, error) = agent.unary("process.Process/Nothing", &json!({}));
    assert_eq!((status, error["code"].as_str()), (501, Some("unimplemented")));
    let (status, error) = agent.unary("filesystem.Filesystem/Nothing", &json!({}));
    assert_eq!((status, error["code"].as_str()), (501, Some("unimplemented")));
}

#[test]
fn stops_gracefully_and_leaves_nothing() {
    let mut agent = Agent::start();
    let mut polite = agent.shell("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done", &[]);
    polite.stdout_until("up");
    let kill = [("drowse-on-disconnect", "kill")];
    let mut stubborn = agent.shell("trap '' TERM; echo up; while :; do sleep 0.05; done", &kill);
    let stubborn_pid = stubborn.pid();
    stubborn.stdout_until("up");
    let mut away = agent.shell("setsid sleep 987 >/dev/null 2>&1 & echo $!; wait", &[]);
    let away_pid: u32 = away.stdout_until("\n").trim().parse().unwrap();
    let (took, status) = agent.stop();
    assert!(status.success(), "{status}");
    assert!(took >= Duration::from_millis(1900) && took < Duration::from_secs(8), "{took:?}");
    assert!(!alive(stubborn_pid) && !alive(away_pid));
}

#[test]
fn an_idle_agent_stops_at_once() {
    let mut agent = Agent::start();
    assert_eq!(agent.run("exit 3").code(), 3);
    let (took, status) = agent.stop();
    assert!(status.success() && took < Duration::from_millis(1900), "{status} {took:?}");
}

fn children_of(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn launcher_of(agent: &Agent) -> Option<u32> {
    let is_launcher = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("--launcher"))
    };
    // The oldest: a command's process looks like it until it is another program.
    children_of(agent.pid()).into_iter().find(is_launcher)
}

#[test]
fn a_killed_launcher_loses_and_doubles_nothing() {
    let agent = Agent::start();
    let log = agent.directory().join("log");
    std::fs::write(&log, "").unwrap();
    let done = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (agent, log, done) = (&agent, &log, &done);
            scope.spawn(move || {
                for round in 0..60 {
                    let script = format!("echo {client}.{round} >> {}; exit {}", log.display(), round % 50);
                    assert_eq!(agent.run(&script).code(), round % 50);
                    done.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                }
            });
        }
        // Counted from the last kill: one command is handed to three launchers at most.
        let mut next = 20;
        while next <= 200 {
            until("commands run", || done.load(std::sync::atomic::Ordering::SeqCst) >= next);
            next = done.load(std::sync::atomic::Ordering::SeqCst) + 20;
            if let Some(launcher) = launcher_of(&agent) {
                signal(launcher, libc::SIGKILL);
            }
        }
    });
    let text = std::fs::read_to_string(&log).unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 240);
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 240, "a command ran twice");
    // A stopped launcher is woken.
    until("a launcher", || launcher_of(&agent).is_some());
    signal(launcher_of(&agent).unwrap(), libc::SIGSTOP);
    assert_eq!(agent.run("exit 9").code(), 9);
}

#[test]
fn orphans_are_reaped_and_descriptors_do_not_pile_up() {
    let agent = Agent::start();
    agent.run("true");
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap().count();
    until("a quiet agent", || descriptors() > 0);
    let before = descriptors();
    for _ in 0..40 {
        assert_eq!(agent.run("(setsid sh -c 'sleep 0.05; exit 3' >/dev/null 2>&1 &) ; exit 4").code(), 4);
    }
    until("only the launcher is left", || children_of(agent.pid()).len() == 1);
    until("descriptors are closed", || descriptors() <= before);
}

#[test]
fn a_missing_socket_is_refused_in_words() {
    let null = std::fs::File::open("/dev/null").unwrap();
    assert!(null.as_raw_fd() > 2);
    let refused = Command::new(binary()).args(["--init", "0"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("descriptor 3 is not open"));
}
