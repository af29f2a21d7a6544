use super::*;
use proptest::prelude::*;

fn read(bytes: &[u8]) -> Result<State, (usize, Fault)> {
    let mut framing = Framing::new();
    framing.read(bytes).map(|()| framing.state)
}

fn get(headers: &str) -> String {
    format!("GET /a HTTP/1.1\r\nHost: a\r\n{headers}\r\n")
}

fn chunked(body: &str) -> String {
    get(&format!("Transfer-Encoding: chunked\r\n\r\n{body}"))
        .strip_suffix("\r\n")
        .map(str::to_owned)
        .unwrap_or_default()
}

#[test]
fn what_has_one_reading_passes() {
    for (bytes, state) in [
        (get(""), State::Between),
        (
            "\r\n\r\nOPTIONS /?a=b%20&\u{e4} HTTP/1.1\r\nhost:\ta \r\nx_y: \u{e4}\r\n\r\n".to_owned(),
            State::Between,
        ),
        ("GET / HTTP/1.0\r\n\r\n".to_owned(), State::Between),
        ("GET HTTP://a/b HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), State::Between),
        (get("Content-Length: 5\r\n") + "12", State::Body(3)),
        (get("Content-Length: 005\r\n") + "12345", State::Between),
        (get("Content-Length: 0\r\n") + &get(""), State::Between),
        (get("") + "GET", State::Between),
        (get("Transfer-Encoding: Chunked\r\n"), State::ChunkSize),
        (chunked("a\r\n12"), State::Chunk(8)),
        (chunked("2;a=\"b\"\r\n12"), State::ChunkEnd),
        (chunked("002\r\n12\r\n0\r\n"), State::Trailers),
        (chunked("0\r\nX-Sum: 1\r\n\r\n"), State::Between),
        (chunked("0\r\n\r\n") + "GET / HT", State::Between),
        (get("Upgrade: x\r\n"), State::Held),
        (get("Upgrade: x\r\nContent-Length: 2\r\n") + "1", State::Body(1)),
    ] {
        assert_eq!(read(bytes.as_bytes()), Ok(state), "{bytes:?}");
    }
}

#[test]
fn what_could_be_read_in_two_ways_does_not() {
    let both = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n";
    let other = "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n";
    let cases: Vec<(String, Fault)> = vec![
        (get(both), Fault::Both),
        (get(other), Fault::Both),
        (get("Content-Length: 5\r\nContent-Length: 6\r\n"), Fault::Lengths),
        (get("Content-Length: 5\r\nContent-Length: 5\r\n"), Fault::Lengths),
        (get("Content-Length: +5\r\n"), Fault::Length),
        (get("Content-Length: -5\r\n"), Fault::Length),
        (get("Content-Length: 5, 5\r\n"), Fault::Length),
        (get("Content-Length: 0x5\r\n"), Fault::Length),
        (get("Content-Length: \r\n"), Fault::Length),
        (get("Content-Length: 18446744073709551616\r\n"), Fault::Length),
        (get("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), Fault::Coding),
        (get("Transfer-Encoding: gzip, chunked\r\n"), Fault::Coding),
        (get("Transfer-Encoding: identity\r\n"), Fault::Coding),
        (get("Transfer-Encoding:\r\n"), Fault::Coding),
        (get("Transfer-Encoding: chunked\u{b}\r\n"), Fault::Field),
        (get("Transfer-Encoding: chunked\u{c}\r\n"), Fault::Field),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(), Fault::Coding),
        (get("Host: b\r\n"), Fault::Hosts),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), Fault::NoHost),
        (get("A: b\r\n c\r\n"), Fault::Field),
        (get("A : b\r\n"), Fault::Field),
        (get(" A: b\r\n"), Fault::Field),
        (get(": b\r\n"), Fault::Field),
        (get("A\r\n"), Fault::Field),
        (get("A\0: b\r\n"), Fault::Field),
        (get("A: b\0\r\n"), Fault::Field),
        (get("A: b\n"), Fault::Line),
        (get("A: b\rC: d\r\n"), Fault::Line),
        ("GET / HTTP/1.1\nHost: a\n\n".to_owned(), Fault::Line),
        ("GET /\r\n".to_owned(), Fault::Begin),
        ("GET / HTTP/2.0\r\n".to_owned(), Fault::Begin),
        ("GET / HTTP/1.1 \r\n".to_owned(), Fault::Begin),
        ("GET  / HTTP/1.1\r\n".to_owned(), Fault::Begin),
        ("GET\t/ HTTP/1.1\r\n".to_owned(), Fault::Begin),
        ("GET /#a HTTP/1.1\r\n".to_owned(), Fault::Begin),
        ("GET a HTTP/1.1\r\n".to_owned(), Fault::Begin),
        ("OPTIONS * HTTP/1.1\r\n".to_owned(), Fault::Begin),
        ("CONNECT a:80 HTTP/1.1\r\n".to_owned(), Fault::Connect),
        (chunked("+2\r\n12\r\n"), Fault::Chunk),
        (chunked("0x2\r\n12\r\n"), Fault::Chunk),
        (chunked("2 \r\n12\r\n"), Fault::Chunk),
        (chunked(" 2\r\n12\r\n"), Fault::Chunk),
        (chunked("\r\n"), Fault::Chunk),
        (chunked("00000000000000002\r\n"), Fault::Chunk),
        (chunked("2;a\n\r\n12\r\n"), Fault::Line),
        (chunked("2;a\rb\r\n12\r\n"), Fault::Line),
        (chunked("2;a\0\r\n12\r\n"), Fault::Chunk),
        (chunked("2\n12\n"), Fault::Line),
        (chunked("2\r\n123\r\n"), Fault::Chunk),
        (chunked("2\r\n12\n0\r\n"), Fault::Line),
        (chunked("0\r\nHost: b\r\n"), Fault::Trailer),
        (chunked("0\r\nContent-Length: 3\r\n"), Fault::Trailer),
        (chunked("0\r\nTransfer-Encoding: x\r\n"), Fault::Trailer),
        (chunked("0\r\nX : 3\r\n"), Fault::Field),
        (get("Upgrade: x\r\n") + "1", Fault::Early),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;".to_owned()
                + &"a".repeat(LINE_BYTES_MAX),
            Fault::Long,
        ),
    ];
    for (bytes, fault) in cases {
        assert_eq!(read(bytes.as_bytes()).map_err(|(_, fault)| fault), Err(fault), "{bytes:?}");
    }
}

#[test]
fn only_what_comes_before_the_fault_is_handed_on() {
    let first = get("");
    assert_eq!(read((first.clone() + "GET / HTTP/1.1\n").as_bytes()), Err((first.len(), Fault::Line)));
    let body = chunked("2\r\n12\r\n");
    assert_eq!(read((body.clone() + "x\r\n").as_bytes()), Err((body.len(), Fault::Chunk)));
    let early = first.clone() + &get("Upgrade: x\r\n") + "1";
    assert_eq!(read(early.as_bytes()), Err((first.len(), Fault::Early)), "nor the request it follows");
}

#[test]
fn behind_a_refused_upgrade_comes_a_request_and_behind_a_granted_one_anything() {
    for (granted, expected) in [(true, Ok(())), (false, Err((0, Fault::Begin)))] {
        let mut framing = Framing::new();
        framing.read(get("Upgrade: x\r\n").as_bytes()).expect("a request");
        framing.settle(granted);
        assert_eq!(framing.read(b"anything\r\n"), expected);
    }
    // Its body may still be on its way then.
    let mut framing = Framing::new();
    framing.read((get("Upgrade: x\r\nContent-Length: 2\r\n") + "1").as_bytes()).expect("half a request");
    framing.settle(false);
    framing.read(b"2GET / HTTP/1.1\r\n").expect("the other half, and more");
}

#[test]
fn a_fault_is_found_wherever_it_was_wrapped() {
    let io = std::io::Error::new(std::io::ErrorKind::InvalidData, Fault::Chunk);
    assert_eq!(Fault::caused(&axum::Error::new(io)), Some(Fault::Chunk));
    assert_eq!(Fault::caused(&std::io::Error::other("else")), None);
}

proptest! {
    #[test]
    fn how_the_bytes_are_cut_makes_no_difference(
        pick in 0..6usize,
        noise in "[ -~\r\n\t\0]{0,20}",
        place in 0..400usize,
        cuts in proptest::collection::vec(0..400usize, 0..6),
    ) {
        let mut bytes = [
            get("Content-Length: 3\r\n") + "123" + &get(""),
            chunked("3\r\n123\r\n0\r\nA: b\r\n\r\n") + &get(""),
            get("Upgrade: x\r\n"),
            get("Content-Length: 3\r\nUpgrade: x\r\n") + "123",
            get(""),
            get("") + &chunked("3\r\n123"),
        ][pick].clone();
        bytes.insert_str(place.min(bytes.len()), &noise);
        let whole = read(bytes.as_bytes());
        let mut framing = Framing::new();
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let parts = cuts.windows(2).map(|cut| &bytes.as_bytes()[cut[0]..cut[1]]);
        let read = parts.into_iter().try_for_each(|part| framing.read(part));
        prop_assert_eq!(read.map(|()| framing.state).map_err(|(_, fault)| fault), whole.map_err(|(_, fault)| fault));
    }
}

#[test]
fn a_head_that_is_too_long_is_the_servers_to_refuse() {
    let long = "GET / HTTP/1.1\r\nA: ".to_owned() + &"a".repeat(LINE_BYTES_MAX);
    let mut framing = Framing::new();
    assert_eq!(framing.read(long.as_bytes()), Ok(()));
    assert!(!framing.is_in_body());
    assert_eq!(framing.read(b"\r\n\r\n\nanything"), Ok(()), "nothing behind it is ever served");
}
