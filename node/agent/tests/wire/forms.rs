use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde_json::{Value, json};

use crate::client::{Agent, head, until};
use crate::files::{call, get, leftovers, put, target};

const FORM: (&str, &str) = ("content-type", "multipart/form-data; boundary=bound");

fn form(parts: &[(&str, &str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, file_name, content) in parts {
        write!(
            body,
            "--bound\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{file_name}\"\r\n"
        )
        .unwrap();
        body.extend(b"Content-Type: application/octet-stream\r\n\r\n");
        body.extend(*content);
        body.extend(b"\r\n");
    }
    body.extend(b"--bound--\r\n");
    body
}

fn send(agent: &Agent, query: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, Value) {
    let mut answer = agent.send("POST", &format!("/files?username=root{query}"), headers, body);
    (answer.status, answer.json())
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn noise(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn a_form_brings_several_files() {
    let agent = Agent::start();
    let directory = agent.directory();
    let content = noise(300_000);
    let (one, two) = (directory.join("deep/o ne"), directory.join("two"));
    let names = [&one, &two].map(|path| path.to_str().unwrap().to_owned());
    let body = form(&[
        ("file", &names[0], &content),
        ("other", "ignored", b"field"),
        ("file", &names[1], b"--bound\r\n"),
    ]);
    let (status, written) = send(&agent, "", &[FORM], &body);
    assert_eq!(status, 200, "{written}");
    let wanted = json!([
        {"path": names[0], "name": "o ne", "type": "file", "size": "300000"},
        {"path": names[1], "name": "two", "type": "file", "size": "9"},
    ]);
    assert_eq!(written, wanted);
    assert!(std::fs::read(&one).unwrap() == content);
    assert_eq!(std::fs::read(&two).unwrap(), b"--bound\r\n");

    // With a path in the query, that is where the one file goes.
    let here = directory.join("here");
    let query = format!("&path={}", here.display());
    assert_eq!(send(&agent, &query, &[FORM], &form(&[("file", "there", b"x")])).0, 200);
    assert_eq!(std::fs::read(&here).unwrap(), b"x");
    let twice = form(&[("file", "a", b"x"), ("file", "b", b"y")]);
    assert_eq!(send(&agent, &query, &[FORM], &twice).0, 400);
    assert_eq!(send(&agent, "", &[FORM], &form(&[("other", "x", b"x")])).0, 400);
    assert_eq!(send(&agent, "", &[FORM], &form(&[("file", "", b"x")])).0, 400);
    let no_boundary = ("content-type", "multipart/form-data");
    assert_eq!(send(&agent, "", &[no_boundary], &twice).0, 400);
    // A file that is not complete is not there.
    let cut = form(&[("file", &names[1], b"new")]);
    assert_eq!(send(&agent, "", &[FORM], &cut[..cut.len() - 12]).0, 400);
    assert_eq!(std::fs::read(&two).unwrap(), b"--bound\r\n");
    assert_eq!(leftovers(directory), 0);
}

#[test]
fn compression_is_undone_and_done() {
    let agent = Agent::start();
    let path = agent.directory().join("file");
    let content = [noise(700_000), vec![b'z'; 3_000_000]].concat();
    let query = format!("&path={}", path.display());
    let headers = [("content-encoding", "gzip"), ("content-type", "application/octet-stream")];
    let packed = gzip(&content);
    let (status, written) = send(&agent, &query, &headers, &packed);
    assert_eq!((status, &written[0]["size"]), (200, &json!("3700000")));
    assert!(std::fs::read(&path).unwrap() == content);
    for bad in [&packed[..packed.len() - 4], &packed[..100], b"no gzip at all, this one"] {
        assert_eq!(send(&agent, &query, &headers, bad).0, 400);
        assert!(std::fs::read(&path).unwrap() == content, "a bad upload changes nothing");
    }
    let body = gzip(&form(&[("file", path.to_str().unwrap(), b"small")]));
    assert_eq!(send(&agent, "", &[FORM, ("content-encoding", "gzip")], &body).0, 200);
    assert_eq!(std::fs::read(&path).unwrap(), b"small");
    assert_eq!(send(&agent, &query, &[("content-encoding", "br")], b"x").0, 415);

    put(&agent, &path, "root", &content);
    let mut answer = agent.send("GET", &target(&path, "root"), &[("accept-encoding", "gzip")], b"");
    assert_eq!((answer.status, answer.header("content-encoding")), (200, Some("gzip")));
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(answer.whole().as_slice()).read_to_end(&mut unpacked).unwrap();
    assert!(unpacked == content);
    let many = agent.send("GET", &target(&path, "root"), &[("accept-encoding", "gzip, br")], b"");
    assert_eq!((many.header("content-encoding"), many.header("content-length")), (None, Some("3700000")));
    let range = [("accept-encoding", "gzip"), ("range", "bytes=700000-700002")];
    let mut part = agent.send("GET", &target(&path, "root"), &range, b"");
    assert_eq!((part.status, part.whole()), (206, b"zzz".to_vec()));
    let none = [("accept-encoding", "br, identity;q=0")];
    assert_eq!(agent.send("GET", &target(&path, "root"), &none, b"").status, 406);
    std::fs::write(&path, "").unwrap();
    let empty = agent.send("GET", &target(&path, "root"), &[("accept-encoding", "gzip")], b"");
    assert_eq!((empty.status, empty.header("content-length")), (200, Some("0")));
}

#[test]
fn notes_are_kept_with_the_file() {
    let agent = Agent::start();
    let directory = agent.directory();
    let path = directory.join("file");
    let query = format!("&path={}", path.display());
    let stat = |path: &Path| call(&agent, "Stat", &json!({"path": path})).1["entry"]["metadata"].clone();
    let (status, written) = send(&agent, &query, &[("X-Metadata-Author", "me"), ("x-metadata-b", "2")], b"x");
    let noted = json!({"author": "me", "b": "2"});
    assert_eq!((status, &written[0]["metadata"]), (200, &noted));
    assert_eq!(stat(&path), noted);
    let listed = call(&agent, "ListDir", &json!({"path": directory})).1;
    let listed = listed["entries"].as_array().unwrap().iter().find(|entry| entry["name"] == "file");
    assert_eq!(listed.unwrap()["metadata"], noted);
    let moved = directory.join("moved");
    let answer = call(&agent, "Move", &json!({"source": path, "destination": moved})).1;
    assert_eq!(answer["entry"]["metadata"], noted);
    let query = format!("&path={}", moved.display());
    // The next upload replaces the whole set, also where the file itself stays.
    std::fs::hard_link(&moved, directory.join("link")).unwrap();
    assert_eq!(send(&agent, &query, &[("x-metadata-c", "3")], b"x").0, 200);
    assert_eq!(stat(&directory.join("link")), json!({"c": "3"}));
    assert_eq!(send(&agent, &query, &[], b"x").0, 200);
    assert_eq!(stat(&moved), Value::Null);
    assert_eq!(send(&agent, &query, &[("x-metadata-c", "\u{fc}")], b"x").0, 400);
}

#[test]
fn a_file_with_several_names_keeps_them() {
    let agent = Agent::start();
    let directory = agent.directory();
    let (file, link) = (directory.join("file"), directory.join("link"));
    std::fs::write(&file, "the old content, which is longer").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
    std::fs::hard_link(&file, &link).unwrap();
    let old = std::fs::metadata(&file).unwrap();
    assert_eq!(put(&agent, &link, "root", b"new").0, 200);
    let new = std::fs::metadata(&file).unwrap();
    assert_eq!((new.ino(), new.nlink(), new.mode(), new.uid()), (old.ino(), 2, old.mode(), 65534));
    assert_eq!(get(&agent, &file, "root"), (200, b"new".to_vec()));
    // Nothing of it is touched before all has arrived.
    let mut stream = agent.connect();
    stream.write_all(&head("POST", &target(&link, "root"), &[], Some(10_000_000))).unwrap();
    stream.write_all(&vec![b'n'; 900_000]).unwrap();
    drop(stream);
    until("the upload is given up", || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap();
        let links = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        !links.into_iter().any(|link| link.starts_with(directory))
    });
    assert_eq!(std::fs::read(&file).unwrap(), b"new");
    assert_eq!(std::fs::metadata(&link).unwrap().ino(), old.ino());
}
