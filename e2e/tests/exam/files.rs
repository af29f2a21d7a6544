use base64::{Engine, engine::general_purpose::STANDARD};
use drowse_e2e::{
    door::Door,
    fleet::Fleet,
    wait::{eventually, seconds},
};
use drowse_shared::api::{
    Code,
    files::{FileContent, FileKind, FilesWritten},
};
use futures_util::{StreamExt, stream};
use serde_json::json;

use super::flows::piece;

#[tokio::test]
async fn an_upload_that_is_cut_leaves_the_old_file_and_nothing_else() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    fleet.write("a", "dir/file", "old").await;
    for pieces in [0, 1, 8] {
        let broken = stream::iter(0..pieces)
            .map(|n| Ok(piece(n)))
            .chain(stream::once(async { Err(std::io::Error::other("the client's disk broke")) }));
        let target = Door::stream_target("writeFile", "a", b"dir/file");
        let request =
            fleet.door.apart().request(http::Method::POST, &target).body(reqwest::Body::wrap_stream(broken));
        request.send().await.expect_err("a body that breaks is no success");
        assert_eq!(fleet.read("a", "dir/file").await, b"old");
    }
    eventually("no half of a file stays", seconds(10), || async {
        let names = fleet.exec("a", "ls -A dir").await;
        (names == "file").then_some(())
    })
    .await;
    fleet.write("a", "dir/file", "new").await;
    assert_eq!(fleet.exec("a", "cat dir/file").await, "new");
    fleet.end().await;
}

#[tokio::test]
async fn odd_names_are_kept_byte_for_byte() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    let long = "x".repeat(255);
    let names: [&[u8]; 11] = [
        b"with space ",
        "ünïcode ✓".as_bytes(),
        "e\u{301} decomposed".as_bytes(),
        b"quote'\"`$(x)",
        b"new\nline\ttab",
        b"-rf",
        b"*?[a]",
        b"%41%2F",
        b"a&b=c#d?e+f;g",
        b"\xff\xfe not utf-8 \x80",
        long.as_bytes(),
    ];
    for name in names {
        let path = [b"odd/", name].concat();
        fleet.door.write("a", &path, name.to_vec()).await.ok();
        assert_eq!(fleet.door.read("a", &path).await.octets(), name, "{:?}", String::from_utf8_lossy(name));
    }
    let inside = fleet
        .exec("a", "python3 -c 'import os; [print(n.hex()) for n in sorted(os.listdir(b\"odd\"))]'")
        .await;
    let mut expected: Vec<&[u8]> = names.to_vec();
    expected.sort_unstable();
    let expected: Vec<String> =
        expected.iter().map(|n| n.iter().map(|b| format!("{b:02x}")).collect()).collect();
    assert_eq!(inside.lines().collect::<Vec<_>>(), expected);

    let entries = fleet.door.files("a", "odd").await.ok().entries;
    assert_eq!(entries.len(), names.len());
    let exact: Vec<Vec<u8>> = entries
        .iter()
        .map(|e| {
            e.path_base64
                .as_ref()
                .map_or(e.path.clone().into_bytes(), |p| STANDARD.decode(p).expect("base64"))
        })
        .collect();
    for name in names {
        let path = [b"/home/user/odd/", name].concat();
        assert!(exact.contains(&path), "{:?} is listed exactly", String::from_utf8_lossy(name));
    }
    fleet.end().await;
}

#[tokio::test]
async fn small_files_travel_in_json_and_what_cannot_be_read_or_written_is_said() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    let wish = json!({ "name": "a", "files": [
        { "path": "bin/run", "content": "#!/bin/sh\necho ran\n", "mode": "755" },
        { "path": "/home/user/raw", "contentBase64": STANDARD.encode([0, 255]) },
    ]});
    let written: FilesWritten = fleet.door.call("writeFiles", wish).await.ok();
    let sizes: Vec<_> = written.files.iter().map(|f| (f.path.as_str(), f.size_bytes)).collect();
    assert_eq!(sizes, [("/home/user/bin/run", 19), ("/home/user/raw", 2)]);
    assert_eq!(fleet.exec("a", "bin/run; stat -c %U:%a raw").await, "ran\nuser:644");
    let content: FileContent = fleet.door.call("readFile", json!({ "name": "a", "path": "raw" })).await.ok();
    assert_eq!((content.content_base64, content.size_bytes), (STANDARD.encode([0, 255]), 2));
    let one = json!({ "name": "a", "path": "/root/secret", "content": "x", "user": "root" });
    fleet.door.call::<FilesWritten>("writeFile", one).await.ok();

    for (path, code) in [
        ("missing", Code::FileNotFound),
        ("bin", Code::NotAFile),
        ("/dev/zero", Code::NotAFile),
        ("/root/secret", Code::PermissionDenied),
    ] {
        fleet.door.read("a", path.as_bytes()).await.refused(&code);
        let body = json!({ "name": "a", "path": path });
        fleet.door.call::<FileContent>("readFile", body).await.refused(&code);
    }
    fleet.door.write("a", b"/etc/passwd", "x").await.refused(&Code::PermissionDenied);
    fleet.door.write("a", b"bin", "x").await.refused(&Code::NotAFile);
    fleet.door.files("a", "missing").await.refused(&Code::FileNotFound);

    fleet.exec("a", "ln -s nowhere dangling; ln -s bin linked; mkfifo pipe").await;
    let entries = fleet.door.files("a", "/home/user").await.ok().entries;
    let kind = |name: &str| entries.iter().find(|e| e.name == name).map(|e| e.kind);
    assert_eq!(kind("bin"), Some(FileKind::Directory));
    assert_eq!(kind("raw"), Some(FileKind::File));
    assert_eq!(kind("dangling"), Some(FileKind::Symlink));
    assert_eq!(kind("linked"), Some(FileKind::Directory));
    assert_eq!(kind("pipe"), Some(FileKind::Other));
    fleet.door.read("a", b"pipe").await.refused(&Code::NotAFile);
    fleet.end().await;
}

#[tokio::test]
async fn no_link_leads_out_of_a_space() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    let secret = fleet.ground.root.join("outside");
    std::fs::write(&secret, "of the host").expect("our own folder");
    fleet.exec("a", &format!("ln -s {secret} link; ln -s / root; ln -s ../../../../../../../../ up")).await;
    for path in
        ["link".to_owned(), format!("root{secret}"), format!("up{secret}"), format!("../../../../..{secret}")]
    {
        fleet.door.read("a", path.as_bytes()).await.refused(&Code::FileNotFound);
    }
    fleet.write("a", "root/home/user/mine", "inside").await;
    assert_eq!(fleet.exec("a", "cat mine").await, "inside");
    fleet.end().await;
}
