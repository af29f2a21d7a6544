use std::fs::File;

use serde_json::{Value, json};

use crate::client::{Agent, binary};

fn metrics(agent: &Agent) -> (u16, Value) {
    let mut answer = agent.send("GET", "/metrics", &[], b"");
    (answer.status, serde_json::from_slice(&answer.whole()).unwrap())
}

#[test]
fn it_tells_what_the_space_uses_also_after_a_replacement() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("memory", "600000000\n");
    write("kinds", "cache 5\ntotal_cache 100000000\ntotal_rss 1\n");
    write("cpu", "1000000000\n");
    let files = ["memory", "kinds", "cpu"].map(|name| File::open(directory.path().join(name)).unwrap());
    let agent = Agent::measured(&files);
    let (status, first) = metrics(&agent);
    assert_eq!(status, 200, "{first}");
    for (name, value) in [
        ("cpu_count", 1),
        ("mem_total", 1 << 30),
        ("mem_total_mib", 1024),
        ("mem_used", 500_000_000),
        ("mem_used_mib", 476),
        ("mem_cache", 100_000_000),
    ] {
        assert_eq!(first[name], value, "{name}: {first}");
    }
    assert_eq!(first["cpu_used_pct"], 0.0, "it used nothing since it began: {first}");
    let number = |name: &str| first[name].as_u64().unwrap();
    assert!(number("disk_total") >= number("disk_used") && number("disk_used") > 0, "{first}");
    assert!(number("ts") > 1_700_000_000, "{first}");

    // More than there was: all of it.
    write("cpu", "usage_usec 9000000000\nuser_usec 1\n");
    assert_eq!(metrics(&agent).1["cpu_used_pct"], 100.0);
    let (status, answer) = agent.unary("replace", &json!({"path": binary()}));
    assert_eq!(status, 200, "{answer}");
    write("memory", "1\n");
    let (status, after) = metrics(&agent);
    assert_eq!(
        (status, &after["mem_used"], &after["mem_total"]),
        (200, &json!(0), &json!(1 << 30)),
        "{after}"
    );
}

#[test]
fn one_that_was_not_told_says_so() {
    let agent = Agent::start();
    let (status, answer) = metrics(&agent);
    assert_eq!((status, &answer["code"]), (501, &json!(501)), "{answer}");
}
