//! The exam's own instruments, proved before anything is measured with them.

use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use drowse_e2e::{
    ground::Ground,
    relay::Relay,
    wait::{eventually, seconds},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Answers every piece with itself.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await
            });
        }
    });
    address
}

fn address(relay: &Relay) -> SocketAddr {
    relay.endpoint().trim_start_matches("http://").parse().expect("an address")
}

async fn says(stream: &mut TcpStream, what: &[u8]) -> Vec<u8> {
    stream.write_all(what).await.expect("it is open");
    let mut answer = vec![0; what.len()];
    stream.read_exact(&mut answer).await.expect("the echo answers");
    answer
}

#[tokio::test]
async fn a_relay_holds_what_it_is_told_to_even_for_a_client_that_left() {
    let relay = Relay::to(echo().await).await;
    let mut client = TcpStream::connect(address(&relay)).await.expect("it listens");
    assert_eq!(says(&mut client, b"hello").await, b"hello");
    relay.hold("create");
    client.write_all(b"create it").await.expect("it is open");
    relay.until_held().await;
    drop(client);
    let before = relay.answered();
    relay.release();
    eventually("what was held arrives", seconds(5), || async {
        (relay.answered() == before + 9).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_black_hole_answers_nothing_not_even_a_connect_until_it_is_lifted() {
    let relay = Relay::to(echo().await).await;
    let mut open = TcpStream::connect(address(&relay)).await.expect("it listens");
    assert_eq!(says(&mut open, b"hello").await, b"hello");
    relay.black_hole();
    let target = address(&relay);
    let connect = tokio::task::spawn_blocking(move || {
        std::net::TcpStream::connect_timeout(&target, Duration::from_millis(500)).map(drop)
    });
    assert_eq!(connect.await.expect("no panic").expect_err("no answer").kind(), ErrorKind::TimedOut);
    open.write_all(b"anybody?").await.expect("the kernel takes it");
    let mut answer = [0; 8];
    tokio::time::timeout(Duration::from_millis(300), open.read_exact(&mut answer))
        .await
        .expect_err("no answer");
    relay.forward();
    open.read_exact(&mut answer).await.expect("what was late arrives");
    assert_eq!(&answer, b"anybody?");
    let mut new = TcpStream::connect(address(&relay)).await.expect("it listens again");
    assert_eq!(says(&mut new, b"hello").await, b"hello");
}

#[tokio::test]
async fn a_cut_wire_ends_after_so_many_bytes() {
    let relay = Relay::to(echo().await).await;
    relay.cut_after(3);
    let mut client = TcpStream::connect(address(&relay)).await.expect("it listens");
    client.write_all(b"hello").await.expect("it is open");
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.expect("an end, not an error");
    assert_eq!(answer, b"hel");
}

#[tokio::test]
async fn what_lies_on_the_ground_is_seen_and_cleared() {
    let ground = Ground::take();
    let disk = ground.root.join("disk");
    ground.small_disk(&disk, 1 << 20);
    let image = ground.root.join("image");
    std::fs::write(&image, vec![0; 1 << 20]).expect("our own folder");
    let looped = std::process::Command::new("losetup").args(["-f", image.as_str()]).status();
    assert!(looped.expect("losetup is there").success());
    let mut child = std::process::Command::new("sh")
        .args(["-c", "while :; do sleep 0.1; done", ground.root.as_str()])
        .spawn()
        .expect("sh is there");
    eventually("all three kinds of leftovers are seen", seconds(5), || async {
        // A process shows its arguments a moment after it was started.
        let found = ground.leftovers().join("\n");
        ["process", "mount", "/dev/loop"].iter().all(|kind| found.contains(kind)).then_some(())
    })
    .await;
    ground.clear();
    child.wait().expect("our own child");
    assert_eq!(ground.leftovers(), Vec::<String>::new());
    assert!(!ground.root.exists());
}
