use std::io::Write;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::client::{Agent, Answer, Event, Events, NOBODY, ROOT, envelope, head, until};

#[test]
fn exit_codes_and_signals_are_told() {
    let agent = Agent::start();
    for code in [0, 1, 77, 255] {
        let outcome = agent.run(&format!("exit {code}"));
        assert_eq!((outcome.code(), outcome.end["exited"].as_bool()), (code, Some(true)));
        assert_eq!(outcome.end["status"], format!("exit status {code}"));
        assert_eq!(outcome.end.get("error").is_some(), code != 0);
        assert!(outcome.error.is_null() && outcome.pid > 1);
    }
    let killed = agent.run("kill -9 $$");
    assert_eq!((killed.code(), killed.end["exited"].as_bool()), (137, Some(false)));
    assert_eq!(killed.end["status"], "signal: killed");
    let pipe = agent.run("yes | head -1; kill -s PIPE $$");
    assert_eq!((pipe.text().as_str(), pipe.end["status"].as_str()), ("y\n", Some("signal: broken pipe")));
}

#[test]
fn stdout_and_stderr_come_apart_and_whole() {
    let agent = Agent::start();
    let outcome = agent.run(r"printf 'out\377'; printf err >&2; printf out2");
    assert_eq!((outcome.stdout.as_slice(), outcome.stderr.as_slice()), (&b"out\xffout2"[..], &b"err"[..]));
}

#[test]
fn stdin_is_sent_and_closed() {
    let agent = Agent::start();
    let request = json!({"process": {"cmd": "cat"}});
    let mut events = agent.stream("Start", &[ROOT], &request);
    let pid = events.pid();
    let send = |bytes: &[u8]| {
        let input = json!({"process": {"pid": pid}, "input": {"stdin": STANDARD.encode(bytes)}});
        agent.unary("process.Process/SendInput", &input)
    };
    assert_eq!(send(b"one\n").0, 200);
    assert_eq!(events.next(), Event::Stdout(b"one\n".to_vec()));
    let big = vec![b'x'; 300_000];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(send(&big).0, 200);
            assert_eq!(agent.unary("process.Process/CloseStdin", &json!({"process": {"pid": pid}})).0, 200);
            let (status, error) = send(b"late");
            assert!(status == 400 || status == 404, "{error}");
        });
        let outcome = events.outcome();
        assert_eq!((outcome.code(), outcome.stdout.len()), (0, big.len()));
    });
    let absent = json!({"process": {"cmd": "cat"}, "stdin": false});
    assert_eq!(agent.stream("Start", &[ROOT], &absent).outcome().code(), 0);
}

#[test]
fn much_output_arrives_to_the_byte_in_little_memory() {
    let agent = Agent::start();
    let mut events = agent.shell("head -c 67108864 /dev/zero; head -c 1000 /dev/zero >&2", &[]);
    let (mut out, mut err) = (0, 0);
    let end = loop {
        match events.next() {
            Event::Stdout(bytes) => out += bytes.len(),
            Event::Stderr(bytes) => err += bytes.len(),
            Event::End(end) => break end,
            Event::Start(_) | Event::Keepalive | Event::Pty(_) => {}
            Event::Over(over) => panic!("{over}"),
        }
    };
    assert_eq!((out, err, end["exitCode"].as_i64()), (64 << 20, 1000, Some(0)));
    assert!(end.get("droppedBytes").is_none());
    let peak = peak_kib(agent.pid());
    assert!(peak < 24 * 1024, "peak of {peak} KiB");
}

fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_slow_reader_holds_the_command_back() {
    let agent = Agent::start();
    let marker = agent.directory().join("done");
    let mut events = agent.shell(&format!("head -c 8000000 /dev/zero; touch {}", marker.display()), &[]);
    events.pid();
    std::thread::sleep(Duration::from_millis(300));
    assert!(!marker.exists(), "8 MB went into some buffer");
    assert_eq!(events.outcome().stdout.len(), 8_000_000);
    assert!(marker.exists());
}

#[test]
fn a_background_child_does_not_hold_the_end_and_keeps_its_pipe() {
    let agent = Agent::start();
    let marker = agent.directory().join("marker");
    let script = format!("(sleep 0.3; echo late && touch {}; sleep 0.1) & echo now", marker.display());
    let outcome = agent.run(&script);
    assert_eq!((outcome.code(), outcome.text().as_str()), (0, "now\n"));
    until("the child writes without a broken pipe", || marker.exists());
}

#[test]
fn however_many_commands_are_waited_for_the_agent_answers() {
    let agent = Agent::start();
    let mut waited: Vec<_> = (0..256).map(|_| agent.shell("exec sleep 60", &[])).collect();
    for events in &mut waited {
        events.pid();
    }
    // One more is told, in time; everything else goes on meanwhile.
    let (code, listed) = std::thread::scope(|scope| {
        let more = scope.spawn(|| agent.run("true").error["code"].clone());
        let (status, listed) = agent.unary("process.Process/List", &json!({}));
        (more.join().expect("told"), (status, listed["processes"].as_array().map(Vec::len)))
    });
    assert_eq!((code, listed), (json!("resource_exhausted"), (200, Some(256))));
    drop(waited.remove(0));
    assert_eq!(agent.run("echo well").text(), "well\n");
}

#[test]
fn what_is_missing_is_named() {
    let agent = Agent::start();
    let start =
        |header, process| agent.stream("Start", &[header], &json!({"process": process})).outcome().error;
    let cwd = start(ROOT, json!({"cmd": "true", "cwd": "/no/such"}));
    assert_eq!(
        (&cwd["code"], &cwd["message"]),
        (&json!("invalid_argument"), &json!(r#"cwd "/no/such" does not exist"#))
    );
    let file = start(ROOT, json!({"cmd": "true", "cwd": "/etc/passwd"}));
    assert_eq!(file["message"], r#"cwd "/etc/passwd" is not a directory"#);
    let cmd = start(ROOT, json!({"cmd": "no-such-command"}));
    assert_eq!(cmd["code"], "invalid_argument");
    assert_eq!(cmd["message"], r#"cmd "no-such-command": No such file or directory"#);
    let denied = start(NOBODY, json!({"cmd": "/etc/shadow"}));
    assert_eq!(denied["code"], "permission_denied");
    let user = start(("authorization", "Basic bm8tb25lOg=="), json!({"cmd": "true"}));
    assert_eq!(
        (&user["code"], &user["message"]),
        (&json!("unauthenticated"), &json!(r#"unknown user "no-one""#))
    );
    let (status, error) =
        agent.unary("process.Process/SendSignal", &json!({"process": {"pid": 1}, "signal": 9}));
    assert_eq!((status, error["code"].as_str()), (404, Some("not_found")));
    assert_eq!(agent.join(&json!({"tag": "none"})).outcome().error["code"], "not_found");
}

#[test]
fn a_command_gets_its_user_environment_and_directory() {
    let agent = Agent::start();
    let directory = agent.directory();
    let request = json!({"process": {
        "cmd": "sh",
        "args": ["-c", "id -un; id -gn; pwd; echo $HOME $USER $LOGNAME $EXTRA; ls /proc/self/fd | wc -l; umask"],
        "envs": {"EXTRA": "a b"},
        "cwd": directory,
    }});
    let outcome = agent.stream("Start", &[NOBODY], &request).outcome();
    let wanted =
        format!("nobody\nnogroup\n{}\n/nonexistent nobody nobody a b\n4\n0022\n", directory.display());
    assert_eq!(outcome.text(), wanted);
    // No directory asked for, and the home does not exist: it still runs.
    let homeless = json!({"process": {"cmd": "pwd"}});
    assert_eq!(agent.stream("Start", &[NOBODY], &homeless).outcome().text(), "/\n");
}

#[test]
fn large_arguments_and_environments_pass() {
    let agent = Agent::start();
    let args: Vec<String> = std::iter::repeat_n("x".repeat(100_000), 8).collect();
    let envs = json!({"A": "y".repeat(100_000), "B": "z".repeat(100_000)});
    let script = r#"echo ${#1} $# ${#A} ${#B}"#;
    let all: Vec<&str> = ["-c", script, "sh"].into_iter().chain(args.iter().map(String::as_str)).collect();
    let request = json!({"process": {"cmd": "sh", "args": all, "envs": envs}});
    assert_eq!(agent.stream("Start", &[ROOT], &request).outcome().text(), "100000 8 100000 100000\n");
    let too_long = json!({"process": {"cmd": "true", "args": ["x".repeat(200_000)]}});
    let error = agent.stream("Start", &[ROOT], &too_long).outcome().error;
    assert!(error["message"].as_str().unwrap().contains("Argument list too long"), "{error}");
}

#[test]
fn running_commands_are_listed_and_joined() {
    let agent = Agent::start();
    let mut first = agent.shell("echo one; read x < /dev/tty; sleep 600", &[]);
    let pid = first.pid();
    first.stdout_until("one");
    let (_, list) = agent.unary("process.Process/List", &json!({}));
    assert_eq!(list["processes"][0]["pid"], pid);
    assert_eq!(list["processes"][0]["config"]["cmd"], "sh");
    let mut second = agent.join(&json!({"pid": pid}));
    assert_eq!(second.pid(), pid);
    let kill = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGTERM"});
    assert_eq!(agent.unary("process.Process/SendSignal", &kill).0, 200);
    for events in [first, second] {
        let outcome = events.outcome();
        assert_eq!((outcome.end["status"].as_str(), outcome.stdout.len()), (Some("signal: terminated"), 0));
    }
    assert_eq!(agent.unary("process.Process/List", &json!({})).1["processes"], json!([]));
    assert_eq!(agent.join(&json!({"pid": pid})).outcome().error["code"], "not_found");
}

#[test]
fn a_detached_command_is_joined_by_tag_while_it_runs_and_after() {
    let agent = Agent::start();
    let gate = agent.directory().join("gate");
    let wait = format!("while [ ! -e {} ]; do sleep 0.02; done", gate.display());
    let script =
        format!("printf early; printf warn >&2; {wait}; head -c 600000 /dev/zero; printf last; exit 5");
    let request = json!({"process": {"cmd": "sh", "args": ["-c", script]}, "tag": "job"});
    let mut starter = agent.stream("Start", &[ROOT], &request);
    let pid = starter.pid();
    drop(starter);
    let joined = || agent.join(&json!({"tag": "job"}));
    for _ in 0..2 {
        let mut events = joined();
        assert_eq!(events.pid(), pid);
        events.stdout_until("early");
    }
    std::fs::write(&gate, "").unwrap();
    until("the end", || agent.unary("process.Process/List", &json!({})).1["processes"] == json!([]));
    for _ in 0..2 {
        let outcome = joined().outcome();
        assert_eq!((outcome.pid, outcome.code(), outcome.stderr.as_slice()), (pid, 5, &b"warn"[..]));
        assert_eq!(outcome.stdout.len(), 256 * 1024);
        assert!(outcome.stdout.ends_with(b"last"));
        let all = 600_000 + 9;
        // What the two joiners were given already is not counted as lost.
        let dropped: usize = outcome.end["droppedBytes"].as_str().unwrap().parse().unwrap();
        assert!((all - 256 * 1024 - 5..=all - 256 * 1024).contains(&dropped), "{dropped}");
    }
}

#[test]
fn silence_is_broken_by_keepalives_and_ended_by_the_deadline() {
    let agent = Agent::start();
    let mut events =
        agent.shell("sleep 600", &[("keepalive-ping-interval", "1"), ("connect-timeout-ms", "1900")]);
    let pid = events.pid();
    assert_eq!(events.next(), Event::Keepalive);
    let Event::Over(over) = events.next() else { panic!("no deadline") };
    assert_eq!(over["error"]["code"], "deadline_exceeded");
    assert_eq!(agent.join(&json!({"pid": pid})).pid(), pid, "the command goes on");
}

#[test]
fn ended_commands_are_remembered_within_bounds() {
    let agent = Agent::start();
    for index in 0..70 {
        let script = format!("head -c 300000 /dev/zero; exit {}", index % 100);
        let request =
            json!({"process": {"cmd": "sh", "args": ["-c", script]}, "tag": format!("job-{index}")});
        let mut events = agent.stream("Start", &[ROOT], &request);
        events.pid();
    }
    until("all have ended", || agent.unary("process.Process/List", &json!({})).1["processes"] == json!([]));
    let (mut all, mut remembered) = (0, 0);
    for index in 0..70 {
        let outcome = agent.join(&json!({"tag": format!("job-{index}")})).outcome();
        if outcome.error["code"] == "not_found" {
            continue;
        }
        assert_eq!(outcome.code(), index);
        remembered += 1;
        all += outcome.stdout.len();
        // What the starter was given before it left is neither dropped nor, perhaps, kept.
        let dropped = outcome.end.get("droppedBytes").map_or("0", |dropped| dropped.as_str().unwrap());
        assert!(outcome.stdout.len() + dropped.parse::<usize>().unwrap() <= 300_000);
    }
    assert_eq!(remembered, 64);
    assert!(all > 1 << 20 && all <= 4 << 20, "{all} bytes are kept");
    assert!(peak_kib(agent.pid()) < 40 * 1024);
}

#[test]
fn several_join_at_once_and_say_from_where() {
    let agent = Agent::start();
    let request =
        json!({"process": {"cmd": "sh", "args": ["-c", "echo one; read x; printf two; exit 3"]}, "tag": "t"});
    let mut first = agent.stream("Start", &[ROOT], &request);
    let pid = first.pid();
    first.stdout_until("one");
    let joined = |selector, headers: &[(&str, &str)]| {
        let mut events = agent.stream("Connect", headers, &json!({"process": selector}));
        (events.start(), events)
    };
    let (start, late) = joined(json!({"pid": pid}), &[]);
    assert_eq!(start, json!({"pid": pid, "outputFrom": {"stdout": 4, "stderr": 0}}));
    let (start, all) = joined(json!({"tag": "t"}), &[("drowse-replay", "1")]);
    assert_eq!(start, json!({"pid": pid, "outputFrom": {"stdout": 0, "stderr": 0}}));
    let input = json!({"process": {"tag": "t"}, "input": {"stdin": STANDARD.encode("\n")}});
    assert_eq!(agent.unary("process.Process/SendInput", &input).0, 200);
    for (events, text) in [(first, "two"), (late, "two"), (all, "one\ntwo")] {
        let outcome = events.outcome();
        assert_eq!((outcome.code(), outcome.text().as_str()), (3, text));
    }
}

#[test]
fn a_command_left_alone_is_joined_later_with_all_it_wrote() {
    let agent = Agent::start();
    let gate = agent.directory().join("gate");
    let wait = format!("while [ ! -e {} ]; do sleep 0.02; done", gate.display());
    let script = format!("echo up; {wait}; head -c 200000 /dev/zero; printf last >&2; exit 6");
    let mut starter = agent.shell(&script, &[]);
    let pid = starter.pid();
    starter.stdout_until("up");
    drop(starter);
    std::fs::write(&gate, "").unwrap();
    until("the end", || agent.unary("process.Process/List", &json!({})).1["processes"] == json!([]));
    let mut events = agent.join(&json!({"pid": pid}));
    assert_eq!(events.start()["outputFrom"], json!({"stdout": 3, "stderr": 0}));
    let outcome = events.outcome();
    assert_eq!((outcome.code(), outcome.stdout.len(), outcome.stderr.as_slice()), (6, 200_000, &b"last"[..]));
    assert_eq!(outcome.end["outputBytes"], json!({"stdout": 200_003, "stderr": 4}));
    assert!(outcome.end.get("droppedBytes").is_none());
}

#[test]
fn no_stdin_is_an_end_at_once() {
    let agent = Agent::start();
    let request = json!({"process": {"cmd": "cat"}, "stdin": false});
    let mut events = agent.stream("Start", &[ROOT], &request);
    let pid = events.pid();
    assert_eq!(events.outcome().code(), 0);
    let close = agent.unary("process.Process/CloseStdin", &json!({"process": {"pid": pid}}));
    assert_eq!(close.0, 404);
}

#[test]
fn input_is_streamed() {
    let agent = Agent::start();
    let mut events = agent.stream("Start", &[ROOT], &json!({"process": {"cmd": "cat"}}));
    let pid = events.pid();
    let stream = |messages: &[serde_json::Value]| {
        let body = messages.iter().flat_map(envelope).collect::<Vec<u8>>();
        let headers = [("content-type", "application/connect+json")];
        let mut answer = Events::of(agent.send("POST", "/process.Process/StreamInput", &headers, &body));
        let first = answer.message();
        if answer.over { first["error"]["code"].clone() } else { answer.message() }
    };
    let data = |text: &str| json!({"data": {"input": {"stdin": STANDARD.encode(text)}}});
    let start = json!({"start": {"process": {"pid": pid}}});
    let keepalive = json!({"keepalive": {}});
    assert_eq!(stream(&[start.clone(), data("a"), keepalive, data("b\n")]), json!({}));
    assert_eq!(events.stdout_until("\n"), "ab\n");
    assert_eq!(stream(&[data("a")]), "invalid_argument");
    assert_eq!(stream(&[json!({"start": {"process": {"pid": 1}}}), data("a")]), "not_found");
    let typed = json!({"data": {"input": {"pty": STANDARD.encode("x")}}});
    assert_eq!(stream(&[start.clone(), typed]), "failed_precondition");

    // One that stays open is told when the command ends.
    let mut open = agent.connect();
    let headers = [("content-type", "application/connect+json"), ("transfer-encoding", "chunked")];
    open.write_all(&head("POST", "/process.Process/StreamInput", &headers, None)).unwrap();
    for message in [envelope(&start), envelope(&data("more\n"))] {
        // In two pieces, so that an envelope is cut.
        for piece in message.chunks(message.len() - 3) {
            open.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).unwrap();
            open.write_all(piece).unwrap();
            open.write_all(b"\r\n").unwrap();
        }
    }
    assert_eq!(events.stdout_until("\n"), "more\n");
    let kill = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"});
    assert_eq!(agent.unary("process.Process/SendSignal", &kill).0, 200);
    assert_eq!(events.outcome().code(), 137);
    assert_eq!(Events::of(Answer::read(open)).message()["error"]["code"], "not_found");
}
