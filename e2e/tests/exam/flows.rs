//! Files and output through gateway and node: of any size, at any pace, and whoever leaves or falls silent meanwhile.

use std::{fs, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use drowse_e2e::{
    door::Door,
    fleet::Fleet,
    wait::{eventually, seconds, timed},
};
use drowse_shared::api::{Code, exec::ExecEvent};
use futures_util::{StreamExt, stream};
use http::{Method, header};
use reqwest::Response;
use rustix::process::Signal;
use serde_json::{Value, json};

const PIECE_BYTES: usize = 1 << 20;
/// A daemon through which a file of any size flows may grow by this much.
const FLAT_BYTES: u64 = 32 << 20;

/// A piece of a large file, different from all others.
pub(super) fn piece(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; PIECE_BYTES];
    blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// Hashes what comes; answers that and how much it was.
async fn hashed(response: Response) -> (blake3::Hash, u64) {
    assert_eq!(response.status(), 200);
    let (mut received, mut length) = (blake3::Hasher::new(), 0);
    let mut content = response.bytes_stream();
    while let Some(bytes) = content.next().await {
        let bytes = bytes.expect("not cut");
        length += bytes.len() as u64;
        received.update(&bytes);
    }
    (received.finalize(), length)
}

async fn download(door: &Door, path: &str) -> Response {
    let request = door.request(Method::POST, &Door::stream_target("readFile", "a", path.as_bytes()));
    request.send().await.expect("an answer")
}

/// Sends a file of so many MiB to a space and reads it back, while the daemons stay as small as they are.
async fn flows_both_ways(pieces: u64) {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    fleet.write("a", "small", "warm").await;
    let daemons = [&fleet.gateway, &fleet.node("n1").daemon];
    daemons.iter().for_each(|d| d.forget_peak());
    let before: Vec<u64> = daemons.iter().map(|d| d.peak_bytes()).collect();

    let mut sent = blake3::Hasher::new();
    for number in 0..pieces {
        sent.update(&piece(number));
    }
    let body = stream::iter((0..pieces).map(|n| Ok::<_, std::io::Error>(piece(n))));
    let up = fleet.door.write("a", b"large", reqwest::Body::wrap_stream(body));
    let (written, up) = timed(up).await;
    assert_eq!(written.ok().files[0].size_bytes, pieces * PIECE_BYTES as u64);
    let (received, down) = timed(async { hashed(download(&fleet.door, "large").await).await }).await;
    assert_eq!(received, (sent.finalize(), pieces * PIECE_BYTES as u64));
    for (daemon, before) in daemons.iter().zip(before) {
        let grown = daemon.peak_bytes().saturating_sub(before);
        assert!(grown < FLAT_BYTES, "{} grew by {grown} bytes", daemon.name);
    }
    let rate = |took: Duration| pieces as f64 / took.as_secs_f64();
    println!("{pieces} MiB: up {:.0} MiB/s, hashing included, down {:.0} MiB/s", rate(up), rate(down));
    fleet.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_200_mb_flows_both_ways_through_daemons_that_stay_small() {
    flows_both_ways(200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "soak: 3 GB through gateway and node, both ways"]
async fn soak_a_file_of_3_gb_flows_both_ways_through_daemons_that_stay_small() {
    flows_both_ways(3 << 10).await;
}

#[tokio::test]
async fn a_part_of_a_file_is_sent_alone_and_a_file_compressed_for_whoever_asks() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    fleet.write("a", "file", "0123456789".repeat(1000)).await;
    let asked = async |name: header::HeaderName, value: &str| {
        let request = fleet.door.request(Method::POST, &Door::stream_target("readFile", "a", b"file"));
        request.header(name, value).send().await.expect("an answer")
    };
    for (range, part, text) in [
        ("bytes=3-5", "bytes 3-5/10000", "345"),
        ("bytes=9998-", "bytes 9998-9999/10000", "89"),
        ("bytes=-4", "bytes 9996-9999/10000", "6789"),
    ] {
        let answer = asked(header::RANGE, range).await;
        assert_eq!(answer.status(), 206, "{range}");
        assert_eq!(answer.headers()[header::CONTENT_RANGE], part);
        assert_eq!(answer.text().await.expect("whole"), text);
    }
    let beyond = asked(header::RANGE, "bytes=10000-").await;
    assert_eq!(beyond.status(), 416);
    let said: Value = beyond.json().await.expect("JSON");
    assert_eq!(said["code"], json!(Code::RangeBeyond), "{said}");

    let request = fleet.door.request(Method::POST, &Door::stream_target("readFile", "a", b"file"));
    let resumed = request.header(header::RANGE, "bytes=3-5").header(header::IF_RANGE, "\"old\"").send().await;
    assert_eq!(resumed.expect("an answer").status(), 200, "nobody can say that the rest still fits");

    let packed = asked(header::ACCEPT_ENCODING, "gzip").await;
    assert_eq!(
        (packed.status().as_u16(), &packed.headers()[header::CONTENT_ENCODING]),
        (200, &"gzip".parse().expect("a value"))
    );
    let packed = packed.bytes().await.expect("whole");
    assert!(packed.starts_with(&[0x1f, 0x8b]) && packed.len() < 1000, "{} bytes", packed.len());
    fleet.door.write("a", b"file.gz", packed).await.ok();
    assert_eq!(fleet.exec("a", "gzip -dc file.gz | cmp - file && echo same").await, "same");
    let plain = asked(header::ACCEPT_ENCODING, "gzip, deflate, br").await;
    assert_eq!((plain.headers().get(header::CONTENT_ENCODING), plain.content_length()), (None, Some(10_000)));
    fleet.end().await;
}

#[tokio::test]
async fn a_slow_command_and_a_slow_reader_lose_no_byte() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    fleet.exec("a", "head -c 20971520 /dev/urandom > slow").await;
    let sum = fleet.exec("a", "sha256sum < slow | cut -c1-64").await;
    let matches = async |path: &'static str, bytes: Vec<u8>| {
        assert_eq!(bytes.len(), 20 << 20, "{path}");
        fleet.door.write("a", path.as_bytes(), bytes).await.ok();
        assert_eq!(fleet.exec("a", &format!("sha256sum < {path} | cut -c1-64")).await, sum, "{path}");
    };
    let written = async {
        let command = "for n in $(seq 0 19); do dd if=slow bs=1M skip=$n count=1 status=none; sleep 1; done";
        let said = fleet.door.call::<Value>("execStream", json!({ "name": "a", "command": command })).await;
        let mut bytes = Vec::new();
        for line in said.text().lines() {
            match serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")) {
                ExecEvent::Stdout(base64) => bytes.extend(STANDARD.decode(base64).expect("base64")),
                ExecEvent::Ended(ended) => assert_eq!(ended.exit_code, 0),
                ExecEvent::Started(_) | ExecEvent::Alive {} => {}
                other => panic!("{other:?}"),
            }
        }
        matches("written", bytes).await;
    };
    let read = async {
        let mut reading = download(&fleet.door, "slow").await;
        let (mut bytes, mut due) = (Vec::new(), PIECE_BYTES);
        while let Some(chunk) = reading.chunk().await.expect("not cut") {
            bytes.extend_from_slice(&chunk);
            // The pace is what is tried here.
            if bytes.len() >= due {
                due += PIECE_BYTES;
                tokio::time::sleep(seconds(1)).await;
            }
        }
        matches("read", bytes).await;
    };
    futures_util::join!(written, read);
    fleet.end().await;
}

/// Whether any process of this machine has such a file open.
fn is_open(name: &str) -> bool {
    let mut fds = fs::read_dir("/proc")
        .expect("mounted")
        .flatten()
        .filter_map(|process| fs::read_dir(process.path().join("fd")).ok());
    fds.any(|fds| {
        fds.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().ends_with(name)))
    })
}

#[tokio::test]
async fn a_reader_that_pauses_costs_no_memory_and_one_that_leaves_is_not_read_for() {
    let fleet = Fleet::real(1).start().await;
    fleet.acquire("a").await;
    let name = format!("paused-{}", drowse_e2e::ground::random_hex(8));
    fleet.exec("a", &format!("head -c 200M /dev/urandom > {name}")).await;
    let daemons = [&fleet.gateway, &fleet.node("n1").daemon];
    daemons.iter().for_each(|d| d.forget_peak());
    let before: Vec<u64> = daemons.iter().map(|d| d.peak_bytes()).collect();
    let mut reading = download(&fleet.door.apart(), &name).await;
    let first = reading.chunk().await.expect("not cut").expect("there is more");
    let grown =
        || daemons.iter().zip(&before).map(|(daemon, before)| daemon.peak_bytes().saturating_sub(*before));
    tokio::time::sleep(seconds(2)).await;
    let soon: Vec<u64> = grown().collect();
    tokio::time::sleep(seconds(8)).await;
    for (late, soon) in grown().zip(soon) {
        assert!(
            late < soon + (1 << 20) && late < FLAT_BYTES,
            "after 2 s {soon} bytes more, after 10 s {late}"
        );
    }
    let mut length = first.len();
    while let Some(chunk) = reading.chunk().await.expect("it goes on where it was") {
        length += chunk.len();
    }
    assert_eq!(length, 200 << 20);

    let mut leaving = download(&fleet.door.apart(), &name).await;
    leaving.chunk().await.expect("not cut").expect("there is more");
    assert!(is_open(&name), "somebody reads it");
    drop(leaving);
    eventually("nobody reads on for a caller who left", seconds(10), || async {
        (!is_open(&name)).then_some(())
    })
    .await;
    fleet.end().await;
}

#[tokio::test]
async fn a_stream_at_a_node_that_falls_silent_ends_and_does_not_pass_for_whole() {
    let mut fleet = Fleet::real(1).check_in_seconds(1.0).start().await;
    fleet.acquire("a").await;
    let command = "while sleep 0.1; do echo tick; done";
    let mut ticking =
        fleet.door.apart().stream("execStream", &json!({ "name": "a", "command": command })).await;
    while !String::from_utf8_lossy(&ticking.chunk().await.expect("not cut").expect("it goes on"))
        .contains("stdout")
    {}
    fleet.node_mut("n1").daemon.signal(Signal::STOP);
    let ends = async {
        loop {
            match ticking.chunk().await {
                Ok(Some(_)) => {}
                ended => return ended,
            }
        }
    };
    // Two missed check-ins, then two questions of two seconds, each with a pause of two before it.
    let (ended, took) = timed(tokio::time::timeout(seconds(60), ends)).await;
    fleet.node_mut("n1").daemon.signal(Signal::CONT);
    let ended = ended.expect("it ends by itself");
    assert!(ended.is_err(), "what was cut is not taken for the end");
    assert!(took < seconds(30), "{took:?}");
    fleet.until_live("n1").await;
    eventually("what nobody listens to is ended", seconds(20), || async {
        (fleet.exec("a", "pgrep -fc '[s]leep 0.1; do' || true").await == "0").then_some(())
    })
    .await;
    fleet.end().await;
}
