use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::client::{Agent, Answer, Event, ROOT, alive, binary, head, signal_threads, until};

fn replace(agent: &Agent, path: &Path) -> (u16, Value) {
    agent.unary("replace", &json!({"path": path}))
}

/// Replaces the agent by its like.
fn replaced(agent: &Agent) {
    let (status, answer) = replace(agent, &binary());
    assert_eq!((status, &answer["version"]), (200, &json!(env!("CARGO_PKG_VERSION"))), "{answer}");
    let line = std::fs::read_to_string(format!("/proc/{}/cmdline", agent.pid())).unwrap();
    assert!(line.contains("--resume"), "{line}");
}

fn descriptors(agent: &Agent) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap().count()
}

#[test]
fn commands_terminals_and_their_clients_go_on() {
    let agent = Agent::start();
    let gate = agent.directory().join("gate");
    let ticks = "i=0; while [ $i -lt 30 ]; do echo tick $i; i=$((i+1)); sleep 0.02; done; read x; echo got $x; exit 33";
    let mut terminal = agent.terminal(&["sh", "-c", ticks], (90, 30), &[]);
    let terminal_pid = terminal.pid();
    let mut seen = terminal.stdout_until("tick 2");

    let wait = format!("while [ ! -e {} ]; do sleep 0.02; done", gate.display());
    let script = format!("echo early; {wait}; echo late; exit 44");
    let tagged = json!({"process": {"cmd": "sh", "args": ["-c", script]}, "tag": "job"});
    let mut starter = agent.stream("Start", &[ROOT], &tagged);
    let job_pid = starter.pid();
    starter.stdout_until("early");
    drop(starter);

    let mut cat = agent.stream("Start", &[ROOT], &json!({"process": {"cmd": "cat"}}));
    let cat_pid = cat.pid();
    let ended = json!({"process": {"cmd": "sh", "args": ["-c", "echo out; exit 5"]}, "tag": "ended"});
    assert_eq!(agent.stream("Start", &[ROOT], &ended).outcome().code(), 5);
    let short: Vec<_> =
        (0..6).map(|number| agent.shell(&format!("sleep 0.0{number}; exit {}", 60 + number), &[])).collect();

    // A connection that is kept.
    let mut kept = agent.connect();
    kept.write_all(&head("GET", "/health", &[], None)).unwrap();
    assert_eq!(Answer::read(kept.try_clone().unwrap()).status, 204);

    for _ in 0..3 {
        replaced(&agent);
    }
    for (number, events) in (0..).zip(short) {
        assert_eq!(events.outcome().code(), 60 + number);
    }
    kept.write_all(&head("GET", "/health", &[], None)).unwrap();
    assert_eq!(Answer::read(kept).status, 204);

    let input = json!({"process": {"pid": cat_pid}, "input": {"stdin": STANDARD.encode("old pipe\n")}});
    assert_eq!(agent.unary("process.Process/SendInput", &input).0, 200);
    assert_eq!(cat.stdout_until("\n"), "old pipe\n");
    assert_eq!(agent.unary("process.Process/CloseStdin", &json!({"process": {"pid": cat_pid}})).0, 200);
    assert_eq!(cat.outcome().code(), 0);

    seen += &terminal.stdout_until("tick 29");
    let resize = json!({"process": {"pid": terminal_pid}, "pty": {"size": {"cols": 70, "rows": 20}}});
    assert_eq!(agent.unary("process.Process/Update", &resize).0, 200);
    agent.type_in(terminal_pid, b"hello\n");
    let outcome = terminal.outcome();
    assert_eq!(outcome.code(), 33);
    let seen = seen + &String::from_utf8(outcome.pty).unwrap();
    let wanted: Vec<String> = (0..30).map(|number| format!("tick {number}")).collect();
    assert_eq!(seen.lines().filter(|line| line.starts_with("tick")).collect::<Vec<_>>(), wanted);
    assert!(seen.contains("got hello"));

    std::fs::write(&gate, "").unwrap();
    let mut job = agent.join(&json!({"tag": "job"}));
    assert_eq!(job.pid(), job_pid);
    let outcome = job.outcome();
    assert_eq!((outcome.code(), outcome.text().as_str()), (44, "early\nlate\n"));
    let outcome = agent.join(&json!({"tag": "ended"})).outcome();
    assert_eq!((outcome.code(), outcome.text().as_str()), (5, "out\n"));
    assert_eq!(agent.run("echo new; exit 3").code(), 3);
}

#[test]
fn signals_of_what_ends_meanwhile_are_no_reason_to_stay_as_one_is() {
    let agent = Agent::start();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (agent, over) = (&agent, &over);
        scope.spawn(move || {
            // The one that asks the other program gets it where the first thread has it blocked.
            while !over.load(Ordering::SeqCst) {
                signal_threads(agent.pid(), libc::SIGCHLD);
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let answers: Vec<_> = (0..5).map(|_| replace(agent, &binary())).collect();
        over.store(true, Ordering::SeqCst);
        assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    });
}

#[test]
fn no_command_is_lost_or_doubled_while_agents_come_and_go() {
    let agent = Agent::start();
    let log = agent.directory().join("log");
    std::fs::write(&log, "").unwrap();
    let (done, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for client in 0..3 {
            let (agent, log, done) = (&agent, &log, &done);
            scope.spawn(move || {
                for round in 0..100 {
                    let script =
                        format!("echo {client}.{round} >> {}; echo out; exit {}", log.display(), round % 50);
                    let outcome = agent.run(&script);
                    assert_eq!((outcome.code(), outcome.text().as_str()), (round % 50, "out\n"));
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let (agent, done, over) = (&agent, &done, &over);
        scope.spawn(move || {
            let mut times = 0;
            while done.load(Ordering::SeqCst) < 300 && !over.load(Ordering::SeqCst) {
                match replace(agent, &binary()) {
                    (200, _) => times += 1,
                    (503, _) => {}
                    other => panic!("{other:?}"),
                }
            }
            assert!(times >= 3, "replaced {times} times");
        });
        let stuck = Instant::now();
        while done.load(Ordering::SeqCst) < 300 {
            if stuck.elapsed() > Duration::from_secs(60) {
                over.store(true, Ordering::SeqCst);
                panic!("commands hang");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let text = std::fs::read_to_string(&log).unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!((text.lines().count(), lines.len()), (300, 300));
    let before = descriptors(&agent);
    for _ in 0..5 {
        until("a quiet agent", || replace(&agent, &binary()).0 == 200);
    }
    until("descriptors are closed", || descriptors(&agent) <= before);
}

#[test]
fn output_is_whole_over_replacements() {
    let agent = Agent::start();
    let mut events = agent.shell("i=0; while [ $i -lt 400 ]; do seq 1 9999; i=$((i+1)); done", &[]);
    events.pid();
    // A client that does not read has bytes on the way that no other agent could send.
    until("the pipes are full", || replace(&agent, &binary()).1["code"] == "unavailable");
    let (mut output, over) = (Vec::new(), AtomicBool::new(false));
    let (end, times) = std::thread::scope(|scope| {
        let replacing = scope.spawn(|| {
            let mut times = 0;
            while !over.load(Ordering::SeqCst) {
                times += usize::from(replace(&agent, &binary()).0 == 200);
            }
            times
        });
        let end = loop {
            match events.next() {
                Event::Stdout(bytes) => output.extend(bytes),
                Event::Keepalive => {}
                Event::End(end) => break end,
                other => panic!("{other:?}"),
            }
        };
        over.store(true, Ordering::SeqCst);
        (end, replacing.join().unwrap())
    });
    let round: Vec<u8> = (1..=9999).flat_map(|number: u32| format!("{number}\n").into_bytes()).collect();
    assert!(output == round.repeat(400), "{} bytes", output.len());
    assert_eq!(end["outputBytes"]["stdout"], 400 * round.len());
    assert!(times > 0, "never replaced");
}

#[test]
fn what_is_to_end_ends_after_a_replacement_too() {
    let agent = Agent::start();
    let timed = agent.shell("sleep 600", &[("drowse-timeout-ms", "1500"), ("drowse-kill-grace-ms", "100")]);
    let mut tied = agent.shell("sleep 600", &[("drowse-on-disconnect", "kill")]);
    let tied_pid = tied.pid();
    let mut quiet =
        agent.shell("sleep 600", &[("keepalive-ping-interval", "1"), ("connect-timeout-ms", "2500")]);
    quiet.pid();
    replaced(&agent);
    assert!(alive(tied_pid), "its client did not leave");
    drop(tied);
    until("it is killed", || !alive(tied_pid));
    assert_eq!(timed.outcome().end["status"], "timeout");
    assert_eq!(quiet.next(), Event::Keepalive);
    loop {
        match quiet.next() {
            Event::Keepalive => {}
            Event::Over(over) => {
                assert_eq!(over["error"]["code"], "deadline_exceeded");
                break;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_bad_successor_is_refused_and_everything_goes_on() {
    let agent = Agent::start();
    let directory = agent.directory().to_owned();
    let mut cat = agent.stream("Start", &[ROOT], &json!({"process": {"cmd": "cat"}}));
    let pid = cat.pid();
    let script = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    let silent = script("silent", "#!/bin/sh\nexec sleep 600\n");
    let liar = script("liar", "#!/bin/sh\necho yes\n");
    // It understands, but cannot be executed by then.
    let fleeting = script(
        "fleeting",
        &format!(
            "#!/bin/sh\nrm {}/fleeting; echo 'drowse-agent understands the state'\n",
            directory.display()
        ),
    );
    let refused = [
        (directory.join("none"), "not_found"),
        ("/bin/true".into(), "failed_precondition"),
        (liar, "failed_precondition"),
        (silent, "failed_precondition"),
        (fleeting, "not_found"),
        ("relative".into(), "invalid_argument"),
    ];
    for (path, code) in refused {
        assert_eq!(replace(&agent, &path).1["code"], code, "{}", path.display());
        let input = json!({"process": {"pid": pid}, "input": {"stdin": STANDARD.encode("x\n")}});
        assert_eq!(agent.unary("process.Process/SendInput", &input).0, 200);
        assert_eq!(cat.stdout_until("\n"), "x\n");
    }
    assert_eq!(agent.run("exit 8").code(), 8);
    replaced(&agent);
    assert_eq!(agent.run("exit 9").code(), 9);
}

#[test]
fn watchers_are_told_that_they_are_over() {
    let agent = Agent::start();
    let watch = json!({"path": agent.directory()});
    let mut stream = agent.stream_of("filesystem.Filesystem/WatchDir", &[ROOT], &watch);
    assert_eq!(stream.message(), json!({"start": {}}));
    let (_, made) = agent.unary_with("filesystem.Filesystem/CreateWatcher", &[ROOT], &watch);
    replaced(&agent);
    assert_eq!(stream.message()["error"]["code"], "unavailable");
    let id = json!({"watcherId": made["watcherId"]});
    assert_eq!(agent.unary("filesystem.Filesystem/GetWatcherEvents", &id).1["code"], "not_found");
}
