use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::{Agent, Answer, head, until};

fn connect(agent: &Agent, target: &str, headers: &[(&str, &str)]) -> (u16, UnixStream, Value) {
    let mut stream = agent.connect();
    stream.write_all(&head("CONNECT", target, headers, None)).unwrap();
    // Byte by byte, so that nothing of what follows is taken.
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    let text = String::from_utf8(answer).unwrap();
    let status: u16 = text.split(' ').nth(1).unwrap().parse().unwrap();
    let length = text
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).unwrap();
    (status, stream, serde_json::from_slice(&body).unwrap_or_default())
}

fn unused_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn bytes_pass_both_ways_with_half_closes() {
    let agent = Agent::start();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(address).unwrap();
        let port = listener.local_addr().unwrap().port();
        let content: Vec<u8> =
            (0..3_000_000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut app, _) = listener.accept().unwrap();
                let mut heard = Vec::new();
                app.read_to_end(&mut heard).unwrap();
                // The client has ended; the answer still goes through.
                heard.reverse();
                app.write_all(&heard).unwrap();
            });
            let (status, mut stream, _) = connect(&agent, &format!("localhost:{port}"), &[]);
            assert_eq!(status, 200);
            stream.write_all(&content).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            answer.reverse();
            assert!(answer == content, "{} bytes", answer.len());
        });
    }
}

#[test]
fn what_was_sent_with_the_request_arrives_and_a_closed_app_closes() {
    let agent = Agent::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut stream = agent.connect();
    let request = [head("CONNECT", &format!("127.0.0.1:{port}"), &[], None), b"early".to_vec()].concat();
    stream.write_all(&request).unwrap();
    let (mut app, _) = listener.accept().unwrap();
    let mut early = [0; 5];
    app.read_exact(&mut early).unwrap();
    assert_eq!(&early, b"early");
    app.write_all(b"late").unwrap();
    drop(app);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.starts_with("HTTP/1.1 200 ") && rest.ends_with("\r\n\r\nlate"), "{rest:?}");
}

#[test]
fn a_port_that_is_not_open_is_said_to_be_and_waited_for_if_asked() {
    let agent = Agent::start();
    let port = unused_port();
    let target = format!("localhost:{port}");
    let (status, _, error) = connect(&agent, &target, &[]);
    assert_eq!((status, error["code"].as_str()), (502, Some("port_closed")));
    assert_eq!(error["message"], format!("port {port} is not open: nothing listens on it"));
    let started = Instant::now();
    let (status, _, error) = connect(&agent, &target, &[("drowse-wait-ms", "400")]);
    assert_eq!((status, error["code"].as_str()), (502, Some("port_closed")));
    assert!((400..5000).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
    std::thread::scope(|scope| {
        let late = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
            listener.accept().unwrap().0.write_all(b"up").unwrap();
        });
        let (status, mut stream, _) = connect(&agent, &target, &[("drowse-wait-ms", "20000")]);
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        assert_eq!((status, said.as_str()), (200, "up"));
        late.join().unwrap();
    });
    for bad in ["10.0.0.1:80", "localhost:0"] {
        let mut stream = agent.connect();
        stream.write_all(&head("CONNECT", bad, &[], None)).unwrap();
        assert_eq!(Answer::read(stream).status, 400, "{bad}");
    }
}

#[test]
fn relays_leave_nothing_and_commands_go_on_beside_them() {
    let agent = Agent::start();
    agent.run("true");
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap().count();
    let before = descriptors();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("localhost:{}", listener.local_addr().unwrap().port());
    let mut open: Vec<_> =
        (0..384).map(|_| (connect(&agent, &target, &[]), listener.accept().unwrap())).collect();
    assert!(open.iter().all(|(client, _)| client.0 == 200));
    let (status, _, error) = connect(&agent, &target, &[]);
    assert_eq!((status, error["code"].as_str()), (503, Some("resource_exhausted")));
    assert_eq!(agent.run("exit 7").code(), 7);
    // Either side may be the one that leaves.
    for ((client, app), number) in open.drain(..).zip(0..) {
        if number % 2 == 0 { drop((client, app)) } else { drop((app, client)) }
    }
    until("descriptors are closed", || descriptors() <= before);
    assert_eq!(connect(&agent, &target, &[]).0, 200);
}

#[test]
fn a_client_that_is_gone_pins_no_quiet_app() {
    let agent = Agent::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("localhost:{}", listener.local_addr().unwrap().port());
    agent.run("true");
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap().count();
    let before = descriptors();
    let (_, client, _) = connect(&agent, &target, &[]);
    // It ends first and listens on, then leaves for good.
    let (_, other, _) = connect(&agent, &target, &[]);
    other.shutdown(Shutdown::Write).unwrap();
    let apps: Vec<_> = (0..2).map(|_| listener.accept().unwrap().0).collect();
    std::thread::sleep(Duration::from_millis(700));
    assert!(descriptors() > before, "one that listens is not gone");
    drop((client, other));
    until("descriptors are closed", || descriptors() <= before);
    for mut app in apps {
        assert_eq!(app.read(&mut [0]).unwrap(), 0);
    }
}
