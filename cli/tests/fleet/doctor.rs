//! `drowse doctor`, on the machine that runs this test.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::{Executor, Fleet, Ran};

/// What was said of each check.
fn verdicts(ran: &Ran) -> BTreeMap<String, String> {
    let said: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    let word = |finding: &Value, key: &str| finding[key].as_str().expect("a word").to_owned();
    let findings = said["findings"].as_array().expect("a list");
    assert_eq!(said["ok"] == true, ran.code == 0, "{said}");
    for finding in findings {
        assert_eq!(
            finding["fix"].is_string(),
            ["bad", "poor"].contains(&&*word(finding, "verdict")),
            "{finding}"
        );
    }
    findings.iter().map(|finding| (word(finding, "check"), word(finding, "verdict"))).collect()
}

#[test]
fn a_machine_that_runs_spaces_is_found_fit_and_what_is_broken_is_named() {
    let fleet = Fleet::start(Executor::Oci);
    // Where its spaces are kept follows from the fleet that it is asked about.
    let sound = fleet.run(&["--json", "doctor"]);
    let said = verdicts(&sound);
    for check in
        ["kernel", "root", "overlay", "loop devices", "cgroups", "runtime", "templates", "disk", "a space"]
    {
        assert_eq!(said.get(check).map(String::as_str), Some("good"), "{check}: {said:?}");
    }
    assert!(!said.values().any(|verdict| verdict == "bad"), "{said:?}");
    assert_eq!(fleet.ok(&["space", "ls"]).lines().count(), 1, "nothing is left of it");

    let nowhere = fleet.run(&["--json", "doctor", "--offline", "--node-state", "/no/such/directory"]);
    assert_eq!(nowhere.code, 1);
    let said = verdicts(&nowhere);
    let is = |check: &str| said.get(check).map(String::as_str);
    assert_eq!((is("disk"), is("a space")), (Some("bad"), Some("skipped")), "{said:?}");
    let table = fleet.run(&["doctor", "--offline", "--node-state", "/no/such/directory"]);
    let table = String::from_utf8(table.stdout).expect("text");
    assert!(table.starts_with("CHECK\tIS\tFOUND\n") && table.contains("\ndisk\tbad\t"), "{table}");
    assert!(table.contains("\ndisk: start the node once"), "each with what mends it: {table}");
}

#[test]
fn without_a_fleet_the_space_is_what_is_missing() {
    let mut fleet = Fleet::start(Executor::Fake);
    fleet.stop();
    let ran = fleet.run(&["--json", "doctor", "--node-state", "/"]);
    assert_eq!((ran.code, verdicts(&ran)["a space"].as_str()), (1, "bad"));
}
