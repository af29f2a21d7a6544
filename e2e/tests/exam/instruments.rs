//! The exam's own instruments, proved before anything is measured with them.

use std::{io::ErrorKind, net::SocketAddr, time::Duration};

use drowse_e2e::{
    ground::Ground,
    relay::{Fault, Relay, Then, Way},
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

async fn nothing_comes(stream: &mut TcpStream) {
    let mut byte = [0; 1];
    let heard = tokio::time::timeout(Duration::from_millis(200), stream.read(&mut byte)).await;
    assert!(heard.is_err(), "nothing may come: {heard:?}");
}

#[tokio::test]
async fn a_relay_holds_what_it_is_told_to_even_for_a_client_that_left() {
    let relay = Relay::to(echo().await).await;
    let mut client = TcpStream::connect(address(&relay)).await.expect("it listens");
    assert_eq!(says(&mut client, b"hello").await, b"hello");
    relay.arm("create", Fault::at_once(Way::Request, Then::Hold));
    client.write_all(b"create it").await.expect("it is open");
    relay.until_met(1).await;
    drop(client);
    let before = relay.answered();
    relay.release();
    relay.until_late(1).await;
    assert_eq!(relay.answered(), before + 9);
}

#[tokio::test]
async fn what_a_relay_holds_reaches_a_server_that_was_started_anew() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let relay = Relay::to(listener.local_addr().expect("it is bound")).await;
    relay.arm("create", Fault::at_once(Way::Request, Then::Hold));
    let mut client = TcpStream::connect(address(&relay)).await.expect("it listens");
    client.write_all(b"create it").await.expect("it is open");
    relay.until_met(1).await;
    let (old, _) = listener.accept().await.expect("the relay connects");
    drop(old);
    assert_eq!(client.read(&mut [0; 8]).await.expect("an end"), 0, "the client sees that its server went");
    relay.release();
    let (mut new, _) = listener.accept().await.expect("the relay connects again");
    let mut heard = [0; 9];
    new.read_exact(&mut heard).await.expect("what was held");
    assert_eq!(&heard, b"create it");
}

#[tokio::test]
async fn a_relay_holds_an_answer_and_lets_it_go() {
    let relay = Relay::to(echo().await).await;
    relay.arm("ask", Fault::after(Way::Answer, 2, Then::Hold));
    let mut client = TcpStream::connect(address(&relay)).await.expect("it listens");
    client.write_all(b"asked").await.expect("it is open");
    relay.until_met(1).await;
    let mut answer = [0; 5];
    client.read_exact(&mut answer[..2]).await.expect("two bytes pass");
    nothing_comes(&mut client).await;
    relay.release();
    client.read_exact(&mut answer[2..]).await.expect("the rest, late");
    assert_eq!(&answer, b"asked");
    assert_eq!(says(&mut client, b"again").await, b"again", "the connection is as before");
}

#[tokio::test]
async fn a_request_that_is_cut_or_reset_ends_both_ends_its_own_way() {
    for (then, expected) in [(Then::Cut, None), (Then::Reset, Some(ErrorKind::ConnectionReset))] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let relay = Relay::to(listener.local_addr().expect("it is bound")).await;
        relay.arm("create", Fault::after(Way::Request, 7, then));
        let mut client = TcpStream::connect(address(&relay)).await.expect("it listens");
        client.write_all(b"create it").await.expect("it is open");
        let (mut server, _) = listener.accept().await.expect("the relay connects");
        let mut heard = [0; 7];
        server.read_exact(&mut heard).await.expect("seven bytes pass");
        assert_eq!(&heard, b"create ");
        for end in [&mut client, &mut server] {
            assert_eq!(end.read(&mut heard).await.err().map(|e| e.kind()), expected, "{then:?}");
        }
    }
}

#[tokio::test]
async fn a_wire_that_loses_one_way_carries_the_other_and_is_reset_when_it_is_whole_again() {
    let relay = Relay::to(echo().await).await;
    let mut open = TcpStream::connect(address(&relay)).await.expect("it listens");
    assert_eq!(says(&mut open, b"hello").await, b"hello");
    relay.lose(&[Way::Answer]);
    let before = relay.answered();
    let mut new = TcpStream::connect(address(&relay)).await.expect("a connect succeeds");
    new.write_all(b"anybody?").await.expect("it is open");
    eventually("the request is answered", seconds(5), || async {
        (relay.answered() == before + 8).then_some(())
    })
    .await;
    nothing_comes(&mut new).await;
    relay.forward();
    assert_eq!(
        new.read(&mut [0; 8]).await.expect_err("its answer is lost").kind(),
        ErrorKind::ConnectionReset
    );
    assert_eq!(says(&mut open, b"hello").await, b"hello", "one that lost nothing goes on");
}

#[tokio::test]
async fn a_stalled_wire_fills_the_windows_of_its_sender() {
    let relay = Relay::to(echo().await).await;
    relay.stall(&[Way::Request]);
    let mut client = TcpStream::connect(address(&relay)).await.expect("a connect succeeds");
    let piece = vec![b'x'; 1 << 20];
    let flood = async {
        for sent in 0..64 {
            if tokio::time::timeout(Duration::from_millis(300), client.write_all(&piece)).await.is_err() {
                return sent;
            }
        }
        64
    };
    let sent = flood.await;
    assert!(sent < 64, "a sender is stopped before 64 MiB: {sent} MiB");
}

#[tokio::test]
async fn a_loss_of_one_request_leaves_its_connection_open_and_silent_until_it_is_let_go() {
    let relay = Relay::to(echo().await).await;
    relay.arm("ask", Fault::after(Way::Request, 3, Then::Lose));
    let mut client = TcpStream::connect(address(&relay)).await.expect("it listens");
    client.write_all(b"asked").await.expect("it is open");
    let mut answer = [0; 3];
    client.read_exact(&mut answer).await.expect("what passed is answered");
    // Far more than any window: it is taken, so its sender never waits.
    client.write_all(&vec![b'x'; 32 << 20]).await.expect("it is taken");
    nothing_comes(&mut client).await;
    relay.release();
    assert!(client.read(&mut answer).await.is_err(), "its connection cannot go on");
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
    nothing_comes(&mut open).await;
    let mut answer = [0; 8];
    relay.forward();
    open.read_exact(&mut answer).await.expect("what was late arrives");
    assert_eq!(&answer, b"anybody?");
    let mut new = TcpStream::connect(address(&relay)).await.expect("it listens again");
    assert_eq!(says(&mut new, b"hello").await, b"hello");
}

#[tokio::test]
async fn a_cut_wire_ends_after_so_many_bytes() {
    let relay = Relay::to(echo().await).await;
    relay.arm("hello", Fault::after(Way::Answer, 3, Then::Cut));
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
