/// What is sent on one connection. `HOST` and `OTHER` stand for the hosts of two spaces, `/P` for a path of this payload's own.
#[derive(Debug)]
pub(super) struct Payload {
    /// Each is sent once the one before was answered.
    pub(super) steps: Vec<String>,
    /// The status of every answer.
    pub(super) answers: Vec<u16>,
    /// The first line and the body of every request the app gets.
    pub(super) reached: Vec<(String, String)>,
    /// Requests that the gateway counts for a port, and refuses.
    pub(super) own: usize,
}

/// What would be another request if it were read as one.
const STOLEN: &str = "GET /P/stolen HTTP/1.1\r\nHost: OTHER\r\n\r\n";
/// The last request of a connection.
const LAST: &str = "GET /P HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n";

/// Every payload.
pub(super) fn all() -> Vec<Payload> {
    [codings(), lengths(), lines(), chunks(), whose(), upgrades(), plain()].into_iter().flatten().collect()
}

fn refused(sent: impl Into<String>) -> Payload {
    Payload { steps: vec![sent.into()], answers: vec![400], reached: Vec::new(), own: 0 }
}

/// Refused only once it was on its way: the app gets no whole request.
fn cut(sent: impl Into<String>) -> Payload {
    Payload { own: 1, ..refused(sent) }
}

/// Every request is answered with 200 by the app, which gets them with these methods and bodies.
fn served(steps: &[&str], reached: &[(&str, &str)]) -> Payload {
    answered(steps, &vec![200; reached.len()], reached)
}

fn answered(steps: &[&str], answers: &[u16], reached: &[(&str, &str)]) -> Payload {
    let line = |method: &str| format!("{method} /P HTTP/1.1");
    Payload {
        steps: steps.iter().map(|step| (*step).to_owned()).collect(),
        answers: answers.to_vec(),
        reached: reached.iter().map(|(method, body)| (line(method), (*body).to_owned())).collect(),
        own: 0,
    }
}

fn request(method: &str, headers: &str, body: &str) -> String {
    format!("{method} /P HTTP/1.1\r\nHost: HOST\r\n{headers}\r\n{body}")
}

fn post(headers: &str, body: &str) -> String {
    request("POST", headers, body)
}

/// A body that is empty to who reads chunks, and holds a request to who reads a length.
fn hidden() -> String {
    format!("0\r\n\r\n{STOLEN}")
}

/// Transfer codings that one reader takes for `chunked` and another does not, alone and beside a length.
fn codings() -> Vec<Payload> {
    const CODINGS: [&str; 27] = [
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: cow",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunkedx",
        "Transfer-Encoding: chunked\u{b}",
        "Transfer-Encoding: \u{b}chunked",
        "Transfer-Encoding: chunked\u{c}",
        "Transfer-Encoding: chunked\0",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding: chunked;q=1",
        "Transfer-Encoding: chunked,",
        "Transfer-Encoding: ,chunked",
        "Transfer-Encoding: chunk",
        "Transfer-Encoding:",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding: identity\r\ntransfer-encoding: chunked",
        "Transfer-Encoding:\r\n chunked",
        "Transfer-Encoding\r\n : chunked",
        "Transfer-Encoding : chunked",
        "\u{feff}Transfer-Encoding: chunked",
        "X: y\nTransfer-Encoding: chunked",
        "X: y\rTransfer-Encoding: chunked",
    ];
    let both = CODINGS.iter().flat_map(|coding| {
        let long = format!("{coding}\r\nContent-Length: {}\r\n", hidden().len());
        [refused(post(&format!("{coding}\r\n"), &hidden())), refused(post(&long, &hidden()))]
    });
    let mut all: Vec<Payload> = both.collect();
    for headers in [
        "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n",
        "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        "content-length: 6\r\ntransfer-encoding: CHUNKED\r\n",
    ] {
        all.push(refused(post(headers, &hidden())));
    }
    all.push(refused(format!(
        "POST /P HTTP/1.0\r\nHost: HOST\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        hidden()
    )));
    // Names that only look like it are an app's own.
    for name in ["Transfer_Encoding", "X-Transfer-Encoding", "TransferEncoding", "Content_Length"] {
        let headers = format!("{name}: 999\r\nContent-Length: 3\r\nConnection: close\r\n");
        all.push(served(&[&post(&headers, "abc")], &[("POST", "abc")]));
    }
    all
}

/// Lengths that two readers could take for different ones.
fn lengths() -> Vec<Payload> {
    let mut all = Vec::new();
    for headers in [
        "Content-Length: 3\r\nContent-Length: 50\r\n",
        "Content-Length: 50\r\nContent-Length: 3\r\n",
        "Content-Length: 3\r\nContent-Length: 3\r\n",
        "Content-Length: 3\r\ncontent-length: 0\r\n",
        "Content-Length: 3, 50\r\n",
        "Content-Length: 3,3\r\n",
        "Content-Length: +3\r\n",
        "Content-Length: -3\r\n",
        "Content-Length: 0x3\r\n",
        "Content-Length: 3 3\r\n",
        "Content-Length: 3.0\r\n",
        "Content-Length: \"3\"\r\n",
        "Content-Length: 3\u{b}\r\n",
        "Content-Length:\r\n 3\r\n",
        "Content-Length : 3\r\n",
        "Content-Length:\r\n",
        "Content-Length: 18446744073709551619\r\n",
        " Content-Length: 3\r\n",
    ] {
        all.push(refused(post(headers, &format!("abc{STOLEN}"))));
    }
    let body = "GET /stolen HTTP/1.1\r\n\r\n";
    let headers = format!("Content-Length: {}\r\n", body.len());
    all.push(served(&[&(post(&headers, body) + LAST)], &[("POST", body), ("GET", "")]));
    all.push(served(&[&(post("Content-Length:\t003 \r\n", "abc") + LAST)], &[("POST", "abc"), ("GET", "")]));
    all.push(served(&[&(post("Content-Length: 0\r\n", "") + LAST)], &[("POST", ""), ("GET", "")]));
    all.push(served(&[&(post("", "") + LAST)], &[("POST", ""), ("GET", "")]));
    all.push(served(
        &[&(request("GET", "Content-Length: 3\r\n", "abc") + LAST)],
        &[("GET", "abc"), ("GET", "")],
    ));
    all
}

/// Lines that end, break or are made otherwise than in the standard.
fn lines() -> Vec<Payload> {
    let mut all = Vec::new();
    for head in [
        "GET /P HTTP/1.1\nHost: HOST\n\n",
        "GET /P HTTP/1.1\r\nHost: HOST\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\n\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\nX: a\n\nGET /P/stolen HTTP/1.1\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\nX: a\rY: b\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\nX: a\r\r\n\r\n",
        "\nGET /P HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET /P HTTP/1.1\r\n Host: HOST\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\nX: a\r\n b\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\nX: a\r\n\tb: c\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost : HOST\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\nX\t: a\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\nX Y: a\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\n: a\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\nX\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\nX\0: a\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\nX: a\0b\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\nX: a\u{7f}\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\nX(y): a\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\n\u{e4}: a\r\n\r\n",
        "GET  /P HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET /P  HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET\t/P\tHTTP/1.1\r\nHost: HOST\r\n\r\n",
        " GET /P HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET /P HTTP/1.1 \r\nHost: HOST\r\n\r\n",
        "GET /P\u{b} HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET /P /P/stolen HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET /P#/stolen HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "G\0T /P HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET /P\r\n",
        "GET /P\r\nHost: HOST\r\n\r\n",
        "GET /P HTTP/0.9\r\nHost: HOST\r\n\r\n",
        "GET /P HTTP/1.2\r\nHost: HOST\r\n\r\n",
        "GET /P HTTP/1\r\nHost: HOST\r\n\r\n",
        "GET /P HTTP/01.1\r\nHost: HOST\r\n\r\n",
        "GET /P http/1.1\r\nHost: HOST\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        all.push(refused(format!("{head}{STOLEN}")));
    }
    // What came before such a line is a request of its own.
    let two = format!("{}GET /P HTTP/1.1\nHost: HOST\n\n", request("GET", "", ""));
    all.push(answered(&[&two], &[200, 400], &[("GET", "")]));
    all.push(served(&[&format!("\r\n\r\n{LAST}")], &[("GET", "")]));
    all
}

/// Chunks whose sizes two readers could take for different ones, and what stands behind the last.
fn chunks() -> Vec<Payload> {
    let chunked = |body: &str| post("Transfer-Encoding: chunked\r\n", body);
    let mut all = Vec::new();
    for body in [
        "+3\r\nabc\r\n0\r\n\r\n",
        "-3\r\nabc\r\n0\r\n\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        "3h\r\nabc\r\n0\r\n\r\n",
        "3 \r\nabc\r\n0\r\n\r\n",
        " 3\r\nabc\r\n0\r\n\r\n",
        "3\t;a\r\nabc\r\n0\r\n\r\n",
        "\r\nabc\r\n0\r\n\r\n",
        ";a\r\nabc\r\n0\r\n\r\n",
        "3\nabc\n0\n\n",
        "3\r\nabc\n0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "3\r\nabc0\r\n\r\n",
        "3;a\nb\r\nabc\r\n0\r\n\r\n",
        "3;a\rb\r\nabc\r\n0\r\n\r\n",
        "3;a\0\r\nabc\r\n0\r\n\r\n",
        "10000000000000003\r\nabc\r\n0\r\n\r\n",
        "00000000000000003\r\nabc\r\n0\r\n\r\n",
        "0\r\nX : a\r\n\r\n",
        "0\r\nX: a\n\r\n",
        "0\r\nContent-Length: 3\r\n\r\n",
        "0\r\nHost: OTHER\r\n\r\n",
        "0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "0\r\nGET /P/stolen HTTP/1.1\r\n\r\n",
    ] {
        all.push(cut(chunked(&format!("{body}{STOLEN}"))));
    }
    for (body, read) in [
        ("3\r\nabc\r\n0\r\n\r\n", "abc"),
        ("3;a=b;c=\"d\"\r\nabc\r\n00\r\n\r\n", "abc"),
        ("0003\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n", "abc"),
        ("5\r\n0\r\n\r\n\r\n0\r\n\r\n", "0\r\n\r\n"),
        ("0\r\n\r\n", ""),
    ] {
        all.push(served(&[&(chunked(body) + LAST)], &[("POST", read), ("GET", "")]));
        // A method that seldom has a body has one all the same.
        let get = request("GET", "transfer-encoding:chunked\r\n", body);
        all.push(served(&[&(get + LAST)], &[("GET", read), ("GET", "")]));
    }
    all
}

/// Whose a request is.
fn whose() -> Vec<Payload> {
    let mut all = Vec::new();
    for sent in [
        "GET /P HTTP/1.1\r\nHost: HOST\r\nHost: OTHER\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\nhost: HOST\r\n\r\n",
        "GET /P HTTP/1.1\r\n\r\n",
        "GET http://HOST/P\u{b} HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET HOST HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET P HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET ftp://HOST/P HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "CONNECT HOST:80 HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "CONNECT /P HTTP/1.1\r\nHost: HOST\r\n\r\n",
    ] {
        all.push(refused(format!("{sent}{STOLEN}")));
    }
    for sent in [
        "GET http://HOST/P HTTP/1.1\r\nHost: OTHER\r\nConnection: close\r\n\r\n",
        "GET http://OTHER/P HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n",
        "GET http://x@HOST/P HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n",
        "GET http://HOST:1/P HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n",
    ] {
        all.push(refused(sent));
    }
    for sent in [
        "GET http://HOST/P HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n",
        "GET HTTP://HOST/P HTTP/1.0\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\nConnection: close, host, content-length, transfer-encoding\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\nX-Forwarded-Host: OTHER\r\nForwarded: host=OTHER\r\nConnection: close\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\nDrowse-Space: OTHER\r\nDrowse-Port: 22\r\nDrowse_Port: 22\r\nConnection: close\r\n\r\n",
        "GET /P HTTP/1.1\r\nHost: HOST\r\nX-Original-URL: /stolen\r\nX-HTTP-Method-Override: PUT\r\nConnection: close\r\n\r\n",
    ] {
        all.push(served(&[sent], &[("GET", "")]));
    }
    all
}

/// Requests for another protocol.
fn upgrades() -> Vec<Payload> {
    let asks = |status: &str| {
        request("GET", &format!("Connection: upgrade\r\nUpgrade: echo\r\nX-Status: {status}\r\n"), "")
    };
    let mut all = Vec::new();
    // Refused: what follows is a request like any other, or the end of the connection.
    for status in [200, 400, 403, 404, 426, 503] {
        let first = asks(&status.to_string());
        all.push(answered(&[&first, LAST], &[status, 200], &[("GET", ""), ("GET", "")]));
        all.push(answered(&[&first, "GET /P HTTP/1.1\nHost: HOST\n\n"], &[status], &[("GET", "")]));
        all.push(answered(&[&first, "\u{1}\u{2}tunnel\r\n\r\n"], &[status], &[("GET", "")]));
    }
    // What does not wait for the answer is refused with it, whatever it would have been.
    for status in ["101", "200", "403"] {
        for early in [LAST, STOLEN, "\u{1}\u{2}tunnel"] {
            all.push(refused(asks(status) + early));
        }
        let posted = "Connection: upgrade\r\nUpgrade: echo\r\nContent-Length: 3\r\n";
        all.push(refused(post(&format!("{posted}X-Status: {status}\r\n"), &format!("abc{STOLEN}"))));
    }
    // Granted: what follows is nobody's request.
    all.push(answered(&[&asks("101"), STOLEN], &[101], &[("GET", "")]));
    // HTTP/1.0 has no other protocol, and nobody is given one who did not ask.
    let old = "GET /P HTTP/1.0\r\nHost: HOST\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    all.push(served(&[old], &[("GET", "")]));
    for headers in [
        "X-Status: 101\r\n",
        "Upgrade: echo\r\nX-Status: 101\r\n",
        "Connection: upgrade\r\nX-Status: 101\r\n",
    ] {
        let unasked = request("GET", &format!("{headers}X: y\r\n"), "");
        all.push(answered(&[&unasked, LAST], &[502, 200], &[("GET", ""), ("GET", "")]));
    }
    all
}

/// Nothing unusual, or nothing that a client could not mean; and answers that hold more than one.
fn plain() -> Vec<Payload> {
    let get = request("GET", "", "");
    let old = "GET /P HTTP/1.0\r\nHost: HOST\r\nConnection: keep-alive\r\n\r\n";
    let expects = post("Expect: 100-continue\r\nContent-Length: 3\r\nConnection: close\r\n", "");
    let last = |method: &str| LAST.replace("GET", method);
    let mut all = vec![
        served(&[LAST], &[("GET", "")]),
        served(&[&(get.repeat(3) + LAST)], &[("GET", ""); 4]),
        served(&[&get, &get, LAST], &[("GET", ""); 3]),
        served(&[&format!("{old}{old}{LAST}")], &[("GET", ""); 3]),
        // The first of them closes: the rest is not read.
        served(&[&(LAST.replace("1.1", "1.0") + LAST)], &[("GET", "")]),
        served(&[&(LAST.to_owned() + LAST)], &[("GET", "")]),
        answered(&[&expects, "abc"], &[100, 200], &[("POST", "abc")]),
        answered(&[&(expects.clone() + "abc")], &[100, 200], &[("POST", "abc")]),
        served(&[&LAST.replace("Connection", "Expect: a miracle\r\nConnection")], &[("GET", "")]),
        served(&[&last("OPTIONS")], &[("OPTIONS", "")]),
        served(&[&last("TRACE")], &[("TRACE", "")]),
        served(&[&last("get")], &[("get", "")]),
        served(&[&last("X!#$%&'*+-.^_`|~")], &[("X!#$%&'*+-.^_`|~", "")]),
        served(&[&(request("HEAD", "", "") + LAST)], &[("HEAD", ""), ("GET", "")]),
    ];
    let twice = request("GET", "X-Status: twice\r\n", "");
    all.push(served(&[&twice, LAST], &[("GET", ""), ("GET", "")]));
    all.push(served(&[&(twice + LAST)], &[("GET", ""), ("GET", "")]));
    all
}
