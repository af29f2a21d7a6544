use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Agent, Events, NOBODY, ROOT, until};

fn call(agent: &Agent, method: &str, message: &Value) -> (u16, Value) {
    agent.unary_with(&format!("filesystem.Filesystem/{method}"), &[ROOT], message)
}

fn create(agent: &Agent, path: &Path, recursive: bool) -> String {
    let (status, made) = call(agent, "CreateWatcher", &json!({"path": path, "recursive": recursive}));
    assert_eq!(status, 200, "{made}");
    made["watcherId"].as_str().unwrap().to_owned()
}

/// What happened since the last call, as `KIND name`.
fn fetch(agent: &Agent, id: &str) -> Vec<String> {
    let (status, answer) = call(agent, "GetWatcherEvents", &json!({"watcherId": id}));
    assert_eq!(status, 200, "{answer}");
    answer["events"].as_array().unwrap().iter().map(words).collect()
}

fn words(event: &Value) -> String {
    let kind = event["type"].as_str().unwrap().strip_prefix("EVENT_TYPE_").unwrap();
    format!("{kind} {}", event["name"].as_str().unwrap())
}

fn upload(agent: &Agent, path: &Path, content: &[u8]) {
    let target = format!("/files?path={}&username=root", path.display());
    assert_eq!(agent.send("POST", &target, &[], content).status, 200);
}

fn watch(agent: &Agent, headers: &[(&str, &str)], message: &Value) -> Events {
    let mut events = agent.stream_of("filesystem.Filesystem/WatchDir", &[headers, &[ROOT]].concat(), message);
    assert_eq!(events.message(), json!({"start": {}}));
    events
}

fn descriptors(agent: &Agent) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap().count()
}

#[test]
fn an_upload_is_exactly_three_events_that_are_there_at_once() {
    let agent = Agent::start();
    let directory = agent.directory().join("d");
    std::fs::create_dir(&directory).unwrap();
    for recursive in [false, true] {
        let id = create(&agent, &directory, recursive);
        for round in 0..20 {
            let name = format!("f{recursive}{round}");
            upload(&agent, &directory.join(&name), b"content");
            let wanted = ["CREATE", "CHMOD", "WRITE"].map(|kind| format!("{kind} {name}"));
            assert_eq!(fetch(&agent, &id), wanted);
            upload(&agent, &directory.join(&name), b"other");
            assert_eq!(fetch(&agent, &id), [format!("WRITE {name}")], "an old file only has other content");
            assert!(fetch(&agent, &id).is_empty());
        }
        assert_eq!(call(&agent, "RemoveWatcher", &json!({"watcherId": id})).0, 200);
        assert_eq!(call(&agent, "RemoveWatcher", &json!({"watcherId": id})).1["code"], "not_found");
    }
}

#[test]
fn every_kind_of_change_is_told() {
    let agent = Agent::start();
    let directory = agent.directory().join("d");
    std::fs::create_dir(&directory).unwrap();
    let id = create(&agent, &directory, false);
    let told = |script: &str| {
        let script = format!("cd {}; {script}", directory.display());
        assert_eq!(agent.run(&script).code(), 0);
        fetch(&agent, &id)
    };
    assert_eq!(told("echo x > a"), ["CREATE a", "WRITE a"]);
    assert_eq!(told("chmod 600 a"), ["CHMOD a"]);
    assert_eq!(told("mv a b"), ["RENAME a", "CREATE b"]);
    assert_eq!(told("rm b"), ["REMOVE b"]);
    assert_eq!(told("mkdir sub; echo x > sub/f"), ["CREATE sub"], "not recursive");
    assert_eq!(told("touch '#1'; echo x > '#1'"), ["CREATE #1", "CHMOD #1", "WRITE #1"]);
    assert_eq!(told("mv ../d ../e; mv ../e ../d"), ["RENAME ."; 2]);
}

#[test]
fn what_happens_right_after_the_call_is_seen_by_the_stream() {
    let agent = Agent::start();
    let directory = agent.directory().join("d");
    std::fs::create_dir(&directory).unwrap();
    let mut events =
        watch(&agent, &[("keepalive-ping-interval", "1")], &json!({"path": directory, "includeEntry": true}));
    std::fs::write(directory.join("file"), "12345").unwrap();
    let created = events.message()["filesystem"].clone();
    assert_eq!(words(&created), "CREATE file");
    assert_eq!(created["entry"]["path"], json!(directory.join("file")));
    let written = events.message()["filesystem"].clone();
    assert_eq!((words(&written).as_str(), &written["entry"]["size"]), ("WRITE file", &json!("5")));
    assert_eq!(events.message(), json!({"keepalive": {}}));
    assert_eq!(events.message(), json!({"keepalive": {}}));

    let mut short = watch(&agent, &[("connect-timeout-ms", "100")], &json!({"path": directory}));
    assert_eq!(short.message()["error"]["code"], "deadline_exceeded");
}

#[test]
fn new_directories_are_complete_however_fast_they_fill() {
    let agent = Agent::start();
    let directory = agent.directory().join("d");
    std::fs::create_dir(&directory).unwrap();
    let id = create(&agent, &directory, true);
    for round in 0..30 {
        let script = format!("cd {}; mkdir -p a{round}/b/c && touch a{round}/b/c/f", directory.display());
        assert_eq!(agent.run(&script).code(), 0);
        let created: Vec<_> =
            fetch(&agent, &id).into_iter().filter(|event| event.starts_with("CREATE")).collect();
        let wanted = ["", "/b", "/b/c", "/b/c/f"].map(|path| format!("CREATE a{round}{path}"));
        assert_eq!(created, wanted, "each once, parents first");
    }
    std::fs::create_dir(directory.join("sub")).unwrap();
    upload(&agent, &directory.join("sub/f"), b"x");
    let events = fetch(&agent, &id);
    assert!(
        events.contains(&"CREATE sub".to_owned()) && events.contains(&"WRITE sub/f".to_owned()),
        "{events:?}"
    );
}

#[test]
fn a_moved_directory_is_told_of_by_its_new_name_and_one_that_left_no_more() {
    let agent = Agent::start();
    let outside = agent.directory().join("outside");
    let directory = agent.directory().join("d");
    std::fs::create_dir_all(directory.join("a/deep")).unwrap();
    std::fs::create_dir(&outside).unwrap();
    let id = create(&agent, &directory, true);
    let told = |script: &str| {
        assert_eq!(agent.run(&format!("cd {}; {script}", directory.display())).code(), 0);
        fetch(&agent, &id)
    };
    assert_eq!(told("mv a b; mkdir b/deep/x"), ["RENAME a", "CREATE b", "CREATE b/deep/x"]);
    assert_eq!(told("mv b ../outside/b"), ["RENAME b"]);
    assert!(told("mkdir ../outside/b/deep/y").is_empty());
    assert_eq!(
        told("mv ../outside/b c"),
        ["CREATE c", "CREATE c/deep", "CREATE c/deep/x", "CREATE c/deep/y"]
    );
    assert_eq!(told("mkdir c/deep/y/z"), ["CREATE c/deep/y/z"]);
    assert_eq!(told("rm -r c/deep/x"), ["REMOVE c/deep/x"]);
}

#[test]
fn many_files_are_told_of_or_their_loss_is() {
    let agent = Agent::start();
    let directory = agent.directory().join("d");
    std::fs::create_dir(&directory).unwrap();
    let id = create(&agent, &directory, false);
    let mut stream = watch(&agent, &[], &json!({"path": directory}));
    // The deadline of a stream that is never told to be done: the last file's name ends it.
    let names: BTreeSet<String> = (0..20_000).map(|number| format!("CREATE {number}")).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..20_000 {
                std::fs::File::create(directory.join(number.to_string())).unwrap();
            }
        });
        let mut seen = BTreeSet::new();
        loop {
            let message = stream.message();
            if stream.over {
                assert_eq!(message["error"]["code"], "resource_exhausted");
                break;
            }
            seen.insert(words(&message["filesystem"]));
            if seen.len() == names.len() {
                assert_eq!(seen, names);
                break;
            }
        }
    });
    let (status, answer) = call(&agent, "GetWatcherEvents", &json!({"watcherId": id}));
    if status == 200 {
        let seen: BTreeSet<_> = answer["events"].as_array().unwrap().iter().map(words).collect();
        assert_eq!(seen, names);
    } else {
        assert_eq!(answer["code"], "resource_exhausted");
    }
}

#[test]
fn what_nobody_fetches_has_a_bound_and_its_loss_is_told_once() {
    let agent = Agent::start();
    let directory = agent.directory().join("d");
    std::fs::create_dir(&directory).unwrap();
    let id = create(&agent, &directory, false);
    // Each file is two events; nobody fetches.
    let script = format!("cd {}; seq 1 40000 | xargs touch; seq 1 40000 | xargs rm", directory.display());
    assert_eq!(agent.run(&script).code(), 0);
    let (status, answer) = call(&agent, "GetWatcherEvents", &json!({"watcherId": id}));
    assert_eq!((status, answer["code"].as_str()), (429, Some("resource_exhausted")), "{}", answer["message"]);
    assert!(answer["message"].as_str().unwrap().contains("events were lost"));
    assert_eq!(call(&agent, "GetWatcherEvents", &json!({"watcherId": id})).1["code"], "not_found");
}

#[test]
fn watchers_are_bounded_and_go_with_their_clients() {
    let agent = Agent::start();
    let directory = agent.directory().to_owned();
    agent.run("true");
    let before = descriptors(&agent);
    let streams: Vec<_> = (0..32).map(|_| watch(&agent, &[], &json!({"path": directory}))).collect();
    let ids: Vec<_> = (0..32).map(|_| create(&agent, &directory, false)).collect();
    let (status, refused) = call(&agent, "CreateWatcher", &json!({"path": directory}));
    assert_eq!((status, refused["code"].as_str()), (429, Some("resource_exhausted")));
    drop(streams);
    let started = Instant::now();
    until("places of clients that left", || {
        let (status, made) = call(&agent, "CreateWatcher", &json!({"path": directory}));
        status == 200 && call(&agent, "RemoveWatcher", &json!({"watcherId": made["watcherId"]})).0 == 200
    });
    assert!(started.elapsed() < Duration::from_secs(5));
    for id in ids {
        assert_eq!(call(&agent, "RemoveWatcher", &json!({"watcherId": id})).0, 200);
    }
    until("descriptors are closed", || descriptors(&agent) <= before);
}

#[test]
fn what_cannot_be_watched_is_named() {
    let agent = Agent::start();
    let directory = agent.directory().join("d");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("file"), "").unwrap();
    let code = |path: &Path| call(&agent, "CreateWatcher", &json!({"path": path})).1["code"].clone();
    assert_eq!(code(&directory.join("file")), "invalid_argument");
    assert_eq!(code(&directory.join("none")), "not_found");
    let mut stream =
        agent.stream_of("filesystem.Filesystem/WatchDir", &[ROOT], &json!({"path": directory.join("none")}));
    assert_eq!(stream.message()["error"]["code"], "not_found");
    std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let nobody =
        agent.unary_with("filesystem.Filesystem/CreateWatcher", &[NOBODY], &json!({"path": directory}));
    assert_eq!(nobody.1["code"], "permission_denied");
}
