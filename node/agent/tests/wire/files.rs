use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::client::{Agent, Answer, ROOT, head, until};

fn encode(path: &Path) -> String {
    path.as_os_str().as_bytes().iter().map(|byte| format!("%{byte:02X}")).collect()
}

pub(crate) fn target(path: &Path, user: &str) -> String {
    format!("/files?path={}&username={user}", encode(path))
}

pub(crate) fn put(agent: &Agent, path: &Path, user: &str, bytes: &[u8]) -> (u16, Value) {
    let mut answer =
        agent.send("POST", &target(path, user), &[("content-type", "application/octet-stream")], bytes);
    (answer.status, answer.json())
}

pub(crate) fn get(agent: &Agent, path: &Path, user: &str) -> (u16, Vec<u8>) {
    let mut answer = agent.send("GET", &target(path, user), &[], b"");
    (answer.status, answer.whole())
}

pub(crate) fn call(agent: &Agent, method: &str, message: &Value) -> (u16, Value) {
    agent.unary_with(&format!("filesystem.Filesystem/{method}"), &[ROOT], message)
}

pub(crate) fn leftovers(directory: &Path) -> usize {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.as_bytes().starts_with(b".drowse")).count()
}

#[test]
fn small_files_round_trip_with_owner_and_mode() {
    let agent = Agent::start();
    let directory = agent.directory();
    let path = directory.join("deep/er/file");
    let (status, written) = put(&agent, &path, "nobody", b"hello");
    assert_eq!(status, 200);
    assert_eq!(written, json!([{"path": path, "name": "file", "type": "file", "size": "5"}]));
    assert_eq!(get(&agent, &path, "nobody"), (200, b"hello".to_vec()));
    let owner = std::fs::metadata(&path).unwrap();
    assert_eq!((owner.uid(), owner.mode() & 0o7777), (65534, 0o644));
    assert_eq!(std::fs::metadata(directory.join("deep")).unwrap().mode() & 0o7777, 0o755);

    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    put(&agent, &path, "nobody", b"");
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o700, "an old file keeps its mode");
    let mut empty = agent.send("GET", &target(&path, "nobody"), &[], b"");
    assert_eq!(empty.header("content-length"), Some("0"));
    assert_eq!(empty.whole().len(), 0);
    let octets = [("content-type", "application/octet-stream")];
    agent.send("POST", &format!("{}&mode=600", target(&path, "nobody")), &octets, b"x");
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    let (status, _) = get(&agent, Path::new("/proc/self/status"), "root");
    assert_eq!(status, 200);
    assert!(
        !get(&agent, Path::new("/proc/version"), "nobody").1.is_empty(),
        "files without a size have content"
    );
    assert_eq!(leftovers(path.parent().unwrap()), 0);
}

#[test]
fn names_are_bytes() {
    let agent = Agent::start();
    let directory = agent.directory();
    let names: [&[u8]; 6] = [
        b"a b",
        b"quote'\"\\",
        b"new\nline",
        b"not utf-8 \xff\xfe",
        "\u{fc}ml\u{e4}ut".as_bytes(),
        b"+%41&=",
    ];
    for name in names {
        let path = directory.join("odd").join(OsStr::from_bytes(name));
        assert_eq!(put(&agent, &path, "nobody", name).0, 200);
        assert_eq!(std::fs::read(&path).unwrap(), name);
        assert_eq!(get(&agent, &path, "nobody"), (200, name.to_vec()));
    }
    let (status, list) = call(&agent, "ListDir", &json!({"path": directory.join("odd")}));
    assert_eq!(status, 200);
    let entries = list["entries"].as_array().unwrap();
    let mut listed: Vec<Vec<u8>> = entries
        .iter()
        .map(|entry| match entry.get("nameBase64") {
            Some(exact) => STANDARD.decode(exact.as_str().unwrap()).unwrap(),
            None => entry["name"].as_str().unwrap().as_bytes().to_vec(),
        })
        .collect();
    assert!(listed.is_sorted());
    let mut wanted: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
    wanted.sort();
    listed.sort();
    assert_eq!(listed, wanted);
    let odd = entries.iter().find(|entry| entry.get("pathBase64").is_some()).unwrap();
    assert_eq!(call(&agent, "Remove", &json!({"pathBase64": odd["pathBase64"]})).0, 200);
    assert!(!directory.join("odd").join(OsStr::from_bytes(names[3])).exists());
}

#[test]
fn large_files_pass_in_little_memory() {
    const SIZE: usize = 200 << 20;
    let agent = Agent::start();
    let path = agent.directory().join("large");
    let pattern: Vec<u8> =
        (0..1 << 20).map(|index: u32| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut stream = agent.connect();
    stream.write_all(&head("POST", &target(&path, "nobody"), &[], Some(SIZE))).unwrap();
    for _ in 0..SIZE / pattern.len() {
        stream.write_all(&pattern).unwrap();
    }
    let mut answer = Answer::read(stream);
    assert_eq!((answer.status, &answer.json()[0]["size"]), (200, &json!(SIZE.to_string())));
    let mut answer = agent.send("GET", &target(&path, "nobody"), &[], b"");
    assert_eq!(answer.header("content-length"), Some(SIZE.to_string().as_str()));
    let mut piece = vec![0; pattern.len()];
    for _ in 0..SIZE / pattern.len() {
        answer.read_exact(&mut piece).unwrap();
        assert!(piece == pattern);
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    let peak: u64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(peak < 24 * 1024, "peak of {peak} KiB");
    let mut part = agent.send("GET", &target(&path, "nobody"), &[("range", "bytes=1048575-1048577")], b"");
    assert_eq!((part.status, part.header("content-range")), (206, Some("bytes 1048575-1048577/209715200")));
    assert_eq!(part.whole(), [pattern[pattern.len() - 1], pattern[0], pattern[1]]);
    let beyond = agent.send("GET", &target(&path, "nobody"), &[("range", "bytes=209715200-")], b"");
    assert_eq!(beyond.status, 416);
}

#[test]
fn a_cut_upload_leaves_the_old_file() {
    let agent = Agent::start();
    let directory = agent.directory();
    let path = directory.join("file");
    std::fs::write(&path, "old").unwrap();
    for chunked in [false, true] {
        let mut stream = agent.connect();
        if chunked {
            let headers = [("transfer-encoding", "chunked")];
            stream.write_all(&head("POST", &target(&path, "root"), &headers, None)).unwrap();
            stream.write_all(b"100000\r\n").unwrap();
        } else {
            stream.write_all(&head("POST", &target(&path, "root"), &[], Some(10_000_000))).unwrap();
        }
        stream.write_all(&vec![b'n'; 900_000]).unwrap();
        drop(stream);
        // The agent answers others in order of arrival, so by now it may or may not have noticed.
        until("the upload is given up", || {
            let open = std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap();
            let links = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
            !links.into_iter().any(|link| link.starts_with(directory))
        });
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), 2, "the socket and the file");
    }
}

#[test]
fn writing_goes_through_links_and_refuses_what_is_no_file() {
    let agent = Agent::start();
    let directory = agent.directory();
    let (real, link, dangling) = (directory.join("real"), directory.join("link"), directory.join("dangling"));
    std::fs::write(&real, "old").unwrap();
    std::os::unix::fs::symlink("real", &link).unwrap();
    std::os::unix::fs::symlink(directory.join("to/be/made"), &dangling).unwrap();
    assert_eq!(put(&agent, &link, "root", b"new").0, 200);
    assert_eq!(put(&agent, &dangling, "root", b"made").0, 200);
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(
        (std::fs::read(&real).unwrap(), std::fs::read(directory.join("to/be/made")).unwrap()),
        (b"new".to_vec(), b"made".to_vec())
    );
    let looping = directory.join("loop");
    std::os::unix::fs::symlink("loop", &looping).unwrap();
    assert_eq!(put(&agent, &looping, "root", b"").0, 400);

    let fifo = directory.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
    for path in [directory, fifo.as_path(), Path::new("/dev/zero"), Path::new("/")] {
        assert_eq!(get(&agent, path, "root").0, 400, "{}", path.display());
        assert_eq!(put(&agent, path, "root", b"x").0, 400, "{}", path.display());
    }
}

#[test]
fn refusals_have_the_status_that_fits() {
    let agent = Agent::start();
    let directory = agent.directory();
    let secret = directory.join("secret");
    std::fs::write(&secret, "secret").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let closed = directory.join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(get(&agent, &directory.join("none"), "root").0, 404);
    assert_eq!(get(&agent, &secret, "nobody").0, 403);
    assert_eq!(get(&agent, &secret, "root").0, 200, "the thread's identity is its own again");
    assert_eq!(put(&agent, &closed.join("file"), "nobody", b"x").0, 403);
    assert_eq!(put(&agent, &closed.join("sub/file"), "nobody", b"x").0, 403);
    assert_eq!(get(&agent, &secret, "no-one").0, 401);
    let mut answer = agent.send("GET", "/files?path=%00&username=root", &[], b"");
    assert_eq!((answer.status, &answer.json()["code"]), (400, &json!(400)));
    assert_eq!(agent.send("POST", "/files?username=root", &[], b"x").status, 400);
    let text = [("content-type", "text/plain")];
    assert_eq!(agent.send("POST", &target(&secret, "root"), &text, b"x").status, 415);
}

#[test]
fn a_full_disk_is_507_and_leaves_the_old_file() {
    let agent = Agent::start();
    let mount = agent.directory().join("small");
    std::fs::create_dir(&mount).unwrap();
    rustix::mount::mount("tmpfs", &mount, "tmpfs", rustix::mount::MountFlags::empty(), Some(c"size=1m"))
        .unwrap();
    let path = mount.join("file");
    let first = put(&agent, &path, "root", b"old");
    let mut stream = agent.connect();
    stream.write_all(&head("POST", &target(&path, "root"), &[], Some(4 << 20))).unwrap();
    // The agent may answer and hang up before all is sent.
    drop(stream.write_all(&vec![0; 4 << 20]));
    let mut answer = Answer::read(stream);
    let (status, error) = (answer.status, answer.json());
    let left = (std::fs::read(&path).unwrap(), leftovers(&mount));
    rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!((first.0, status, &error["code"]), (200, 507, &json!(507)));
    assert_eq!(left, (b"old".to_vec(), 0));
}

#[test]
fn entries_are_described_as_the_protocol_says() {
    let agent = Agent::start();
    let directory = agent.directory();
    std::fs::create_dir_all(directory.join("tree/b/c")).unwrap();
    std::fs::write(directory.join("tree/a"), "12345").unwrap();
    std::fs::write(directory.join("tree/b/c/d"), "").unwrap();
    std::os::unix::fs::symlink("a", directory.join("tree/link")).unwrap();
    std::os::unix::fs::symlink("nowhere", directory.join("tree/zbroken")).unwrap();
    let (_, stat) = call(&agent, "Stat", &json!({"path": directory.join("tree/a")}));
    let entry = &stat["entry"];
    assert_eq!(
        json!([
            entry["name"],
            entry["type"],
            entry["path"],
            entry["size"],
            entry["mode"],
            entry["permissions"],
            entry["owner"],
            entry["group"]
        ]),
        json!(["a", "FILE_TYPE_FILE", directory.join("tree/a"), "5", 420, "-rw-r--r--", "root", "root"])
    );
    assert!(entry["modifiedTime"].as_str().unwrap().ends_with('Z') && entry.get("symlinkTarget").is_none());
    let (_, stat) = call(&agent, "Stat", &json!({"path": directory.join("tree/link")}));
    assert_eq!(stat["entry"]["type"], "FILE_TYPE_FILE");
    assert_eq!(stat["entry"]["symlinkTarget"], json!(directory.join("tree/a")));
    let names = |depth: u32| {
        let (_, list) = call(&agent, "ListDir", &json!({"path": directory.join("tree/"), "depth": depth}));
        let entries = list["entries"].as_array().unwrap().clone();
        entries.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(0), ["a", "b", "link", "zbroken"]);
    assert_eq!(names(2), ["a", "b", "c", "link", "zbroken"]);
    assert_eq!(names(9), ["a", "b", "c", "d", "link", "zbroken"]);
    assert_eq!(call(&agent, "Stat", &json!({"path": directory.join("none")})).1["code"], "not_found");
    assert_eq!(call(&agent, "ListDir", &json!({"path": directory.join("none")})).1["code"], "not_found");
    assert_eq!(
        call(&agent, "ListDir", &json!({"path": directory.join("tree/a")})).1["code"],
        "invalid_argument"
    );
}

#[test]
fn a_list_of_long_paths_is_refused_before_it_fills_the_memory() {
    let agent = Agent::start();
    let mut directory = agent.directory().to_owned();
    while directory.as_os_str().len() < 3_600 {
        directory.push("d".repeat(200));
    }
    std::fs::create_dir_all(&directory).unwrap();
    for number in 0..9_000 {
        std::fs::write(directory.join(format!("{number:0200}")), "").unwrap();
    }
    let (status, list) = call(&agent, "ListDir", &json!({"path": directory}));
    assert_eq!((status, list["code"].as_str()), (429, Some("resource_exhausted")), "{}", list["message"]);
}

#[test]
fn entries_are_made_moved_and_removed() {
    let agent = Agent::start();
    let directory = agent.directory();
    let made = directory.join("x/y");
    assert_eq!(call(&agent, "MakeDir", &json!({"path": made})).1["entry"]["type"], "FILE_TYPE_DIRECTORY");
    let (status, again) = call(&agent, "MakeDir", &json!({"path": made}));
    assert_eq!((status, again["code"].as_str()), (409, Some("already_exists")));
    std::fs::write(made.join("file"), "content").unwrap();
    let moved = json!({"source": directory.join("x"), "destination": directory.join("z/x")});
    assert_eq!(call(&agent, "Move", &moved).1["entry"]["path"], json!(directory.join("z/x")));
    assert_eq!(call(&agent, "Move", &moved).1["code"], "not_found");
    // Another file system, as a space's home is.
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    std::os::unix::fs::symlink("file", directory.join("z/x/y/link")).unwrap();
    let far = json!({"source": directory.join("z/x"), "destination": elsewhere.path().join("x")});
    assert_eq!(call(&agent, "Move", &far).0, 200);
    assert_eq!(std::fs::read(elsewhere.path().join("x/y/link")).unwrap(), b"content");
    assert!(!directory.join("z/x").exists());
    assert_eq!(call(&agent, "Remove", &json!({"path": elsewhere.path().join("x")})).0, 200);
    assert_eq!(
        call(&agent, "Remove", &json!({"path": elsewhere.path().join("x")})).0,
        200,
        "missing is as good"
    );
    assert!(!elsewhere.path().join("x").exists());
    assert_eq!(call(&agent, "Remove", &json!({"path": "/"})).0, 400);
}
