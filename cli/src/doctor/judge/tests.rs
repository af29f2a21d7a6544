use super::*;
use crate::doctor::facts::Disk;

const GIB: u64 = 1 << 30;

/// A gateway's machine on which nothing is wrong.
fn sound() -> Facts {
    let words = |all: &[&str]| all.iter().map(|word| (*word).to_owned()).collect();
    let unit =
        |name: &str| Unit { name: name.to_owned(), state: "active".to_owned(), words: "serves".to_owned() };
    Facts {
        gateway: true,
        node: true,
        root: true,
        kernel: Some((6, 1)),
        file_systems: words(&["ext4", "overlay"]),
        loop_control: true,
        user_namespaces_max: Some(65_536),
        seccomp: true,
        controllers: words(&["cpu", "memory", "pids", "io"]),
        runtime: Found::Runs("runc version 1.1.5".to_owned()),
        mkfs: Found::Runs("mke2fs 1.47.0".to_owned()),
        caddy: Some(Found::Runs("v2.6.2".to_owned())),
        templates: 1,
        disk: Some(Disk {
            path: "/var/lib/drowse/node".into(),
            kind: "ext4".to_owned(),
            total_bytes: 100 * GIB,
            available_bytes: 50 * GIB,
            files_total: 1000,
            files_available: 900,
            read_only: false,
        }),
        disk_floor_bytes: 10 * GIB,
        swap_bytes: 8 * GIB,
        inotify_instances: Some(8192),
        inotify_watches: Some(1 << 20),
        pid_max: Some(4 << 20),
        open_files: 1 << 20,
        clock: Clock::Kept,
        units: vec![unit("drowse-gateway.service"), unit("drowse-node.service"), unit("caddy.service")],
    }
}

fn found(facts: &Facts, verdict: Verdict) -> Vec<String> {
    judge(facts)
        .into_iter()
        .filter(|finding| finding.verdict == verdict)
        .map(|finding| finding.check)
        .collect()
}

#[test]
fn nothing_is_said_against_a_sound_machine() {
    let findings = judge(&sound());
    assert!(
        findings.iter().all(|finding| finding.verdict == Verdict::Good && finding.fix.is_none()),
        "{findings:#?}"
    );
    assert!(findings.len() > 20, "everything is looked at: {}", findings.len());
}

/// What is broken, and what is said then.
type Broken = (fn(&mut Facts), Verdict, &'static str);

#[test]
fn each_thing_that_is_broken_is_named_alone_and_with_what_mends_it() {
    use Verdict::{Bad, Poor, Skipped};
    let cases: &[Broken] = &[
        (|f| f.kernel = Some((5, 15)), Bad, "kernel"),
        (|f| f.kernel = None, Bad, "kernel"),
        (|f| f.root = false, Bad, "root"),
        (|f| f.file_systems.retain(|name| name != "overlay"), Bad, "overlay"),
        (|f| f.file_systems.retain(|name| name != "ext4"), Bad, "ext4"),
        (|f| f.loop_control = false, Bad, "loop devices"),
        (|f| f.user_namespaces_max = Some(0), Bad, "user namespaces"),
        (|f| f.user_namespaces_max = None, Bad, "user namespaces"),
        (|f| f.seccomp = false, Bad, "seccomp"),
        (|f| f.controllers.retain(|name| name != "memory"), Bad, "cgroups"),
        (|f| f.runtime = Found::Fails("no such program".to_owned()), Bad, "runtime"),
        (|f| f.mkfs = Found::Fails("no such program".to_owned()), Bad, "mkfs.ext4"),
        (|f| f.templates = 0, Bad, "templates"),
        (|f| f.disk = None, Bad, "disk"),
        (|f| f.disk.as_mut().expect("a disk").available_bytes = GIB, Bad, "disk"),
        (|f| f.disk.as_mut().expect("a disk").files_available = 1, Bad, "disk"),
        (|f| f.disk.as_mut().expect("a disk").kind = "tmpfs".to_owned(), Bad, "disk"),
        (|f| f.disk.as_mut().expect("a disk").read_only = true, Bad, "disk"),
        (|f| f.swap_bytes = 0, Poor, "swap"),
        (|f| f.inotify_instances = Some(128), Poor, "inotify instances"),
        (|f| f.inotify_instances = Some(16), Bad, "inotify instances"),
        (|f| f.inotify_instances = None, Skipped, "inotify instances"),
        (|f| f.inotify_watches = Some(100), Bad, "inotify watches"),
        (|f| f.pid_max = Some(32_768), Poor, "process ids"),
        (|f| f.pid_max = Some(1000), Bad, "process ids"),
        (|f| f.open_files = 1024, Bad, "open files"),
        (|f| f.open_files = 4096, Poor, "open files"),
        (|f| f.clock = Clock::Free, Poor, "clock"),
        (|f| f.clock = Clock::Past, Bad, "clock"),
        (|f| f.clock = Clock::Unknown, Skipped, "clock"),
        (|f| f.caddy = Some(Found::Fails("no such program".to_owned())), Bad, "caddy"),
        (|f| f.units[0].state = "failed".to_owned(), Bad, "drowse-gateway.service"),
        (|f| f.units[1].state = "activating".to_owned(), Bad, "drowse-node.service"),
        (|f| f.units[2].state = "inactive".to_owned(), Bad, "caddy.service"),
    ];
    for (number, (breaks, verdict, check)) in cases.iter().enumerate() {
        let mut facts = sound();
        breaks(&mut facts);
        let findings = judge(&facts);
        let wrong: Vec<_> = findings.iter().filter(|finding| finding.verdict != Verdict::Good).collect();
        assert_eq!(wrong.len(), 1, "case {number}: {wrong:#?}");
        assert_eq!((wrong[0].check.as_str(), wrong[0].verdict), (*check, *verdict), "case {number}");
        assert_eq!(wrong[0].fix.is_some(), *verdict != Skipped, "case {number}: {wrong:?}");
    }
}

#[test]
fn a_large_disk_needs_no_more_room_than_the_fleet_asks_for() {
    for (total, available, floor, expected) in [
        (100, 6, 10, Verdict::Good),
        (100, 4, 10, Verdict::Bad),
        (1000, 11, 10, Verdict::Good),
        (1000, 9, 10, Verdict::Bad),
        (1000, 11, 20, Verdict::Bad),
    ] {
        let mut facts = sound();
        facts.disk_floor_bytes = floor * GIB;
        let of = facts.disk.as_mut().expect("a disk");
        (of.total_bytes, of.available_bytes) = (total * GIB, available * GIB);
        assert_eq!(disk(&facts).verdict, expected, "{available} of {total} GiB, at least {floor}");
    }
}

#[test]
fn what_a_machine_does_not_do_is_not_asked_of_it() {
    let mut facts = sound();
    facts.caddy = None;
    assert_eq!(found(&facts, Verdict::Bad), [] as [&str; 0], "without a domain nobody needs Caddy");
    let mut facts = sound();
    facts.node = false;
    (facts.runtime, facts.templates) = (Found::Fails("no such program".to_owned()), 0);
    assert_eq!(found(&facts, Verdict::Bad), [] as [&str; 0], "a gateway alone runs no spaces");
    (facts.gateway, facts.units) = (false, vec![]);
    assert_eq!(
        found(&facts, Verdict::Bad),
        ["runtime", "templates"],
        "a machine without a role could be a node"
    );
}
