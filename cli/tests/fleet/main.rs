//! `drowse up` and the commands against it, as a person uses them.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use support::{Executor, Fleet};

/// `drowse doctor`.
mod doctor;
/// What the OpenAPI document promises.
mod document;
/// As much of JSON Schema as that document uses.
mod schema;
mod support;

#[test]
fn one_directory_is_all_a_command_needs() {
    let fleet = Fleet::start(Executor::Fake);
    let created = fleet.ok(&["space", "acquire", "hello", "--meta", "team=web", "--freeze-after", "1m"]);
    assert!(created.starts_with("hello  created on node-"), "{created}");
    let again = fleet.run(&["space", "acquire", "hello", "--cpus", "4"]);
    assert!(again.stderr.contains("its spec stayed as it was"), "{}", again.stderr);

    let list = fleet.ok(&["space", "ls", "--meta", "team=web"]);
    let mut lines = list.lines();
    assert_eq!(lines.next(), Some("NAME\tSTATE\tNODE\tAWAKE BECAUSE\tNEXT STEP\tLAST USED"));
    assert!(lines.next().is_some_and(|line| line.starts_with("hello\tactive\tnode-")), "{list}");
    let shown: serde_json::Value = serde_json::from_str(&fleet.ok(&["--json", "space", "show", "hello"]))
        .expect("JSON as the fleet sent it");
    assert_eq!(shown["space"]["policy"]["freezeAfterSeconds"], 60);

    assert!(fleet.ok(&["space", "freeze", "hello"]).starts_with("hello  frozen"));
    assert!(fleet.ok(&["space", "wake", "hello"]).starts_with("hello  thawed"));
    let events = fleet.ok(&["space", "events", "hello"]);
    let words: Vec<_> =
        events.lines().map(|line| line.split('\t').skip(1).take(2).collect::<Vec<_>>()).collect();
    let told = [
        ["WHAT", "BECAUSE"],
        ["thawed", "wakeSpace"],
        ["frozen", "freezeSpace"],
        ["created", "acquireSpace"],
    ];
    assert_eq!(words, told, "{events}");
    let json = fleet.run(&["--json", "space", "events", "hello", "--limit", "1"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert!(json["events"][0]["what"] == "thawed" && json["nextCursor"].is_string(), "{json}");
    let nodes = fleet.ok(&["node", "ls"]);
    assert_eq!(nodes.lines().filter(|line| line.contains("\tlive\t")).count(), 2, "{nodes}");
    assert_eq!(fleet.ok(&["space", "rm", "hello"]), "hello  destroyed\n");
}

#[test]
fn a_list_comes_in_any_order_and_ends_where_its_reader_does() {
    let fleet = Fleet::start(Executor::Fake);
    for name in ["b", "c", "a"] {
        fleet.ok(&["space", "acquire", name]);
    }
    let names = |flags: &[&str]| -> Vec<String> {
        let list = fleet.ok(&[&["space", "ls"], flags].concat());
        list.lines().skip(1).map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(names(&[]), ["a", "b", "c"]);
    assert_eq!(names(&["--sort", "createdAt"]), ["b", "c", "a"]);
    assert_eq!(names(&["--sort", "name", "--order", "desc", "--all"]), ["c", "b", "a"]);
    fleet.ok(&["space", "wake", "c"]);
    assert_eq!(names(&["--sort", "lastActiveAt", "--order", "desc", "--limit", "2"]), ["c", "a"]);

    let cut = fleet.run(&["space", "ls", "--limit", "1"]);
    assert!(cut.stderr.contains("--all lists every one"), "{}", cut.stderr);
    let json: serde_json::Value =
        serde_json::from_str(&fleet.ok(&["--json", "space", "ls", "--limit", "2"])).expect("JSON");
    assert!(
        json["nextCursor"].is_string() && json["spaces"].as_array().is_some_and(|s| s.len() == 2),
        "{json}"
    );
    for wrong in [&["--sort", "size"][..], &["--limit", "0"], &["--limit", "1", "--all"]] {
        assert_eq!(fleet.run(&[&["space", "ls"], wrong].concat()).code, 64, "{wrong:?}");
    }
    // A reader that has seen enough ends it without a word.
    let mut child = fleet.command(&["space", "ls", "--all"]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("drowse");
    drop(child.stdout.take());
    let ended = child.wait_with_output().expect("ours");
    assert_eq!((ended.status.code(), ended.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn a_shell_is_told_what_may_follow() {
    let drowse = env!("CARGO_BIN_EXE_drowse");
    let script = format!(
        "set -eu; source <({drowse} completions bash)\n\
         offered() {{ COMPREPLY=(); COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _drowse drowse \"${{@: -1}}\" \"${{@: -2:1}}\"; echo \"${{COMPREPLY[*]}}\"; }}\n\
         offered drowse sp; offered drowse space l; offered drowse space ls --sort ''"
    );
    let ran = std::process::Command::new("bash").args(["-c", &script]).output().expect("bash");
    let said = String::from_utf8(ran.stdout).expect("text");
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(said, "space\nls\nname createdAt lastActiveAt\n", "{stderr}");
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let ran = std::process::Command::new(drowse).args(["completions", shell]).output().expect("drowse");
        assert!(ran.status.success() && String::from_utf8_lossy(&ran.stdout).contains("acquire"), "{shell}");
    }
}

#[test]
fn mistakes_are_answered_with_the_next_step() {
    let fleet = Fleet::start(Executor::Fake);
    fleet.ok(&["space", "acquire", "shop"]);
    let missing = fleet.run(&["space", "show", "shpo"]);
    assert_eq!(
        (missing.code, missing.stderr.as_str()),
        (1, "error: no space named \"shpo\". Closest: shop. `drowse space acquire shpo` would create it.\n")
    );
    let missing = fleet.run(&["--json", "space", "show", "shpo"]);
    let error: serde_json::Value = serde_json::from_str(&missing.stderr).expect("one line of JSON");
    assert_eq!(error["code"], "space_not_found");
    let exec = fleet.run(&["space", "exec", "shpo", "-n", "--", "true"]);
    assert_eq!(exec.code, 125, "{}", exec.stderr);
    for wrong in
        [&["space", "acquire"][..], &["space", "exec", "shop"], &["space", "cp", "a", "b"], &["nope"]]
    {
        assert_eq!(fleet.run(wrong).code, 64, "{wrong:?}");
    }
    let live = fleet.run(&["node", "rm", "node-1"]);
    assert_eq!(live.code, 1);
    assert!(live.stderr.starts_with("error: "), "{}", live.stderr);
    let asked = fleet.at_terminal(&["node", "rm", "node-1"], b"n\n");
    assert!(asked.contains("node-1 for good?") && asked.contains("error: nothing was changed"), "{asked}");
    let sure = fleet.at_terminal(&["node", "rm", "--yes", "node-1"], b"");
    assert!(!sure.contains("for good?") && sure.contains("error: "), "{sure}");
    let bare =
        fleet.bare(&["space", "ls"]).env("DROWSE_ENDPOINT", "127.0.0.1:24677").output().expect("drowse");
    let said = String::from_utf8_lossy(&bare.stderr);
    assert!(said.contains("DROWSE_ENDPOINT=http://127.0.0.1:24677"), "{said}");

    let second = fleet.run(&["up"]);
    assert_eq!(second.code, 1);
    assert!(second.stderr.contains("already running"), "{}", second.stderr);
    let down = fleet.run(&["down"]);
    assert!(down.stderr.contains("already running"), "{}", down.stderr);
}

#[test]
fn a_first_start_that_fails_does_not_stand_in_the_way_of_the_next() {
    let mut fleet = Fleet::laid_out(Executor::Fake);
    let up = ["up", "--executor", "fake", "--listen", "127.0.0.1:0"];
    let wrong = fleet.run(&[&up[..], &["--domain", "Example.com"]].concat());
    assert!(wrong.code != 0 && wrong.stderr.contains("lower-case"), "{}", wrong.stderr);
    assert!(fleet.state().join("fleet.json").exists(), "it had begun");
    fleet.go(&up[1..]);
    fleet.ok(&["space", "acquire", "shop"]);
    // From now on it is a fleet: its gateway founds no other one.
    fleet.stop();
    fs::remove_dir_all(fleet.state().join("gateway")).expect("there");
    fleet.go(&[]);
    fleet.ok(&["space", "show", "shop"]);
}

#[test]
fn a_fleet_that_ends_says_so_to_whoever_asks_and_comes_back_as_it_was() {
    let mut fleet = Fleet::start(Executor::Fake);
    let token = fs::read_to_string(fleet.state().join("token")).expect("there");
    let kept = fs::read_to_string(fleet.state().join("fleet.json")).expect("there");
    assert_eq!(fleet.stop(), Some(0));
    let gone = fleet.run(&["space", "ls"]);
    assert_eq!(gone.code, 1);
    assert!(gone.stderr.contains("does not run") && gone.stderr.contains("drowse up"), "{}", gone.stderr);
    fleet.go(&[]);
    fleet.ok(&["node", "ls"]);
    assert_eq!(fs::read_to_string(fleet.state().join("token")).expect("there"), token);
    assert_eq!(fs::read_to_string(fleet.state().join("fleet.json")).expect("there"), kept, "ports are kept");
    fleet.stop();
    let fewer = fleet.run(&["up", "--nodes", "1"]);
    assert!(fewer.stderr.contains("2 nodes"), "{}", fewer.stderr);
    let other = fleet.run(&["up", "--executor", "oci"]);
    assert!(other.stderr.contains("--executor fake"), "{}", other.stderr);
}

#[test]
fn commands_and_files_pass_through_byte_for_byte() {
    let fleet = Fleet::start(Executor::Oci);
    fleet.ok(&["space", "acquire", "work"]);
    let all = fleet.run(&[
        "space",
        "exec",
        "work",
        "-n",
        "--",
        "sh",
        "-c",
        r"printf 'a\377\n'; echo e >&2; exit 7",
    ]);
    assert_eq!((all.code, all.stdout.as_slice(), all.stderr.as_str()), (7, &b"a\xff\n"[..], "e\n"));
    let sorted = fleet.fed(&["space", "exec", "work", "--", "sort"], b"b\n\xfe\na\n");
    assert_eq!(sorted.stdout, b"a\nb\n\xfe\n");
    let late = fleet.run(&["space", "exec", "work", "-n", "--timeout", "1s", "--", "sleep", "30"]);
    assert_eq!(late.code, 124, "{}", late.stderr);
    let unknown = fleet.run(&["space", "exec", "work", "-n", "--", "no-such-program"]);
    assert_eq!(unknown.code, 127, "{}", unknown.stderr);
    let much = fleet.run(&["space", "exec", "work", "-n", "--", "head", "-c", "3000000", "/dev/zero"]);
    assert_eq!((much.stdout.len(), much.stderr.as_str()), (3_000_000, ""));
    let kept = ["space", "exec", "work", "-n", "--key", "much", "--", "head", "-c", "3000000", "/dev/zero"];
    let kept = fleet.run(&kept);
    assert_eq!(kept.stdout.len(), 1 << 20);
    assert!(kept.stderr.contains("longer than 1 MiB"), "{}", kept.stderr);

    let here = fleet.place();
    let tree = here.join("tree");
    fs::create_dir_all(tree.join("a/b")).expect("our own folder");
    fs::create_dir_all(tree.join("empty")).expect("our own folder");
    fs::write(tree.join("a/b/odd name%+&?#ü"), [0, 255, 10]).expect("our own folder");
    let big: Vec<u8> = (0..5_000_000u32).map(|i| (i % 251) as u8).collect();
    fs::write(tree.join("big"), &big).expect("our own folder");
    fleet.ok(&["space", "cp", tree.as_str(), "work:"]);
    let back = here.join("back");
    fleet.ok(&["space", "cp", "work:tree", back.as_str()]);
    assert_eq!(fs::read(back.join("big")).expect("copied"), big);
    assert_eq!(fs::read(back.join("a/b/odd name%+&?#ü")).expect("copied"), [0, 255, 10]);
    assert!(back.join("empty").is_dir());
    let piped = fleet.run(&["space", "cp", "work:tree/a/b/odd name%+&?#ü", "-"]);
    assert_eq!(piped.stdout, [0, 255, 10]);
    let absent = fleet.run(&["space", "cp", "work:nowhere", here.as_str()]);
    assert_eq!((absent.code, absent.stderr.as_str()), (1, "error: there is no nowhere in work\n"));
}

#[test]
fn an_interrupted_command_ends_inside_too() {
    let fleet = Fleet::start(Executor::Oci);
    fleet.ok(&["space", "acquire", "work"]);
    let mut child =
        fleet.command(&["space", "exec", "work", "-n", "--", "sleep", "4711"]).spawn().expect("drowse");
    let running = |wanted: bool| {
        support::eventually(|| {
            let found =
                fleet.run(&["space", "exec", "work", "-n", "--", "pgrep", "-f", "sleep 4711"]).code == 0;
            found == wanted
        });
    };
    running(true);
    support::signal(&child, "INT");
    assert_eq!(child.wait().expect("ours").code(), Some(130));
    running(false);
}

#[test]
fn what_changes_is_printed_as_it_does_until_it_is_interrupted() {
    let fleet = Fleet::start(Executor::Oci);
    fleet.ok(&["space", "acquire", "work"]);
    let mut watch = fleet.command(&["space", "watch", "work", "--recursive"]);
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("drowse");
    let mut said = BufReader::new(watch.stderr.take().expect("piped")).lines();
    assert!(said.next().expect("a line").expect("text").contains("watching"));
    fleet.ok(&["space", "exec", "work", "-n", "--", "sh", "-c", "mkdir -p a/b && echo x > a/b/f"]);
    // Held to the end: a reader that leaves ends the command too, and not as an interrupt.
    let mut printed = BufReader::new(watch.stdout.take().expect("piped")).lines();
    let made = printed.by_ref().map(|line| line.expect("text")).filter(|line| line.starts_with("create\t"));
    assert_eq!(made.take(3).collect::<Vec<_>>(), ["create\ta", "create\ta/b", "create\ta/b/f"]);
    support::signal(&watch, "INT");
    assert_eq!(watch.wait().expect("ours").code(), Some(130));
    let refused = fleet.run(&["space", "watch", "work", "nowhere"]);
    assert!(refused.code == 1 && refused.stderr.contains("nowhere"), "{}", refused.stderr);
}

#[test]
fn what_a_killed_fleet_left_is_cleared_and_its_disks_stay() {
    let mut fleet = Fleet::start(Executor::Oci);
    fleet.ok(&["space", "acquire", "kept"]);
    fleet.ok(&["space", "exec", "kept", "-n", "--", "sh", "-c", "echo data > file"]);
    fleet.kill();
    assert!(!fleet.traces().is_empty(), "its space runs on");
    let down = fleet.ok(&["down"]);
    assert!(down.starts_with("1 space stopped"), "{down}");
    assert_eq!(fleet.traces(), Vec::<String>::new());
    fleet.go(&[]);
    let read = fleet.run(&["space", "exec", "kept", "-n", "--", "cat", "file"]);
    assert_eq!(read.stdout, b"data\n", "{}", read.stderr);
    assert_eq!(fleet.stop(), Some(0));
    assert_eq!(fleet.traces(), Vec::<String>::new(), "a fleet that ends leaves its directory only");
}

#[test]
fn every_example_of_the_documentation_works() {
    let fleet = Fleet::start(Executor::Oci);
    let endpoint = fs::read_to_string(fleet.state().join("endpoint")).expect("it runs");
    let here = fleet.place();
    let root =
        camino::Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize_utf8().expect("a clone");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_drowse"), here.join("drowse")).expect("our own folder");
    for shown in ["README.md", "docs"] {
        std::os::unix::fs::symlink(root.join(shown), here.join(shown)).expect("our own folder");
    }
    // The pages mean the fleet of the directory they are read in.
    std::os::unix::fs::symlink(fleet.state(), here.join(".drowse")).expect("our own folder");
    for name in ["README.md", "docs/guide.md", "docs/api.md"] {
        let text = fs::read_to_string(root.join(name)).expect("a page");
        for block in text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            let script =
                block.replace("http://127.0.0.1:4677", endpoint.trim()).replace("curl -s", "curl -fsS");
            let ran = std::process::Command::new("bash")
                .args(["-euo", "pipefail", "-c", &script])
                .current_dir(here)
                .envs(fleet.surroundings())
                .stdin(Stdio::null())
                .output()
                .expect("bash");
            assert!(
                ran.status.success(),
                "{name}:\n{script}\n{}\n{}",
                String::from_utf8_lossy(&ran.stdout),
                String::from_utf8_lossy(&ran.stderr)
            );
        }
    }
}
