use serde_json::json;

use crate::client::{Agent, NOBODY, ROOT, until};

#[test]
fn a_terminal_has_the_size_it_was_opened_with_and_is_resized() {
    let agent = Agent::start();
    let script = "trap 'stty size' WINCH; stty size; tty; echo $TERM; while :; do sleep 0.02; done";
    let mut events = agent.terminal(&["sh", "-c", script], (101, 33), &[]);
    let pid = events.pid();
    let first = events.stdout_until("xterm-256color");
    assert!(first.starts_with("33 101\r\n/dev/pts/"), "{first:?}");
    let resize = |size| agent.unary("process.Process/Update", &json!({"process": {"pid": pid}, "pty": size}));
    assert_eq!(resize(json!({"size": {"cols": 60, "rows": 20}})).0, 200);
    events.stdout_until("20 60\r\n");
    assert_eq!(resize(json!({})).1["code"], "invalid_argument");
    let kill = json!({"process": {"pid": pid}, "signal": 9});
    assert_eq!(agent.unary("process.Process/SendSignal", &kill).0, 200);
    assert_eq!(events.outcome().code(), 137);
    assert_eq!(resize(json!({"size": {"cols": 60, "rows": 20}})).1["code"], "not_found");
}

#[test]
fn keys_interrupt_and_end() {
    let agent = Agent::start();
    let script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.02; done";
    let mut events = agent.terminal(&["sh", "-c", script], (80, 24), &[]);
    let pid = events.pid();
    events.stdout_until("ready");
    agent.type_in(pid, b"\x03");
    let outcome = events.outcome();
    assert_eq!(outcome.code(), 9);
    assert!(String::from_utf8_lossy(&outcome.pty).contains("caught"));

    let mut events = agent.terminal(&["cat"], (80, 24), &[]);
    let pid = events.pid();
    agent.type_in(pid, b"hello\n");
    // Once as the terminal's echo, once from the program.
    assert_eq!(events.stdout_until("hello\r\nhello\r\n"), "hello\r\nhello\r\n");
    let close = agent.unary("process.Process/CloseStdin", &json!({"process": {"pid": pid}}));
    assert_eq!(close.1["code"], "failed_precondition");
    let stdin = json!({"process": {"pid": pid}, "input": {"stdin": "eA=="}});
    assert_eq!(agent.unary("process.Process/SendInput", &stdin).1["code"], "failed_precondition");
    agent.type_in(pid, b"\x04");
    assert_eq!(events.outcome().code(), 0);
}

#[test]
fn an_interactive_shell_interrupts_its_job_and_goes_on() {
    let agent = Agent::start();
    let mut events = agent.terminal(&["sh", "-i"], (80, 24), &[]);
    let pid = events.pid();
    agent.type_in(pid, b"sh -c 'echo $((40+2)); exec sleep 600'\n");
    events.stdout_until("42");
    agent.type_in(pid, b"\x03");
    agent.type_in(pid, b"echo $((50+3))\n");
    events.stdout_until("53");
    agent.type_in(pid, b"exit 5\n");
    assert_eq!(events.outcome().code(), 5);
}

#[test]
fn the_last_output_of_a_terminal_is_whole() {
    let agent = Agent::start();
    for _ in 0..5 {
        let script = "head -c 300000 /dev/zero | tr '\\0' x; printf end";
        let outcome = agent.terminal(&["sh", "-c", script], (80, 24), &[NOBODY]).outcome();
        assert_eq!((outcome.pty.len(), outcome.code()), (300_003, 0));
        assert!(outcome.pty.ends_with(b"end"));
        assert_eq!(outcome.end["outputBytes"]["pty"], 300_003);
    }
    // Its user may open it by name.
    let outcome = agent.terminal(&["sh", "-c", "echo named > /dev/stdout"], (80, 24), &[NOBODY]).outcome();
    assert_eq!(outcome.pty, b"named\r\n");
}

#[test]
fn a_terminal_outlives_its_client_and_is_joined() {
    let agent = Agent::start();
    let message = json!({"process": {"cmd": "cat"}, "pty": {}, "tag": "term"});
    let mut first = agent.stream("Start", &[ROOT], &message);
    let pid = first.pid();
    agent.type_in(pid, b"one\n");
    first.stdout_until("one\r\none\r\n");
    drop(first);
    agent.type_in(pid, b"two\n");
    let mut second = agent.join(&json!({"tag": "term"}));
    assert_eq!(second.start()["pid"], pid);
    second.stdout_until("one\r\none\r\ntwo\r\ntwo\r\n");
    agent.type_in(pid, b"\x04");
    assert_eq!(second.outcome().code(), 0);
}

#[test]
fn two_hundred_terminals_leave_nothing() {
    let agent = Agent::start();
    agent.run("true");
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap().count();
    let before = descriptors();
    for number in 0..200 {
        // Some leave a child that holds the terminal.
        let script = if number % 10 == 0 { "trap '' HUP; sleep 600 & exit 7" } else { "exit 7" };
        assert_eq!(agent.terminal(&["sh", "-c", script], (80, 24), &[]).outcome().code(), 7);
    }
    until("descriptors are closed", || descriptors() <= before);
}
