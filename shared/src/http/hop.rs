//! What concerns one connection only, and must not pass a hop.

use http::{HeaderMap, HeaderName, HeaderValue, header};

const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("proxy-connection"),
];

/// The words of a comma-separated header, over all its lines.
fn words<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

/// Drops what concerns one connection only.
pub fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> =
        words(headers, &header::CONNECTION).filter_map(|name| name.parse().ok()).collect();
    for name in HOP_BY_HOP.iter().chain(&named) {
        headers.remove(name);
    }
}

/// The same, for a hop that passes trailers on: whoever can take them still says so.
pub fn strip_for_streams(headers: &mut HeaderMap) {
    let takes_trailers = words(headers, &header::TE).any(|word| word.eq_ignore_ascii_case("trailers"));
    let trailers: Vec<HeaderValue> = headers.get_all(header::TRAILER).iter().cloned().collect();
    strip(headers);
    if takes_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    for trailer in trailers {
        headers.append(header::TRAILER, trailer);
    }
}

/// The protocol a message changes to, if it asks for or grants one.
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asks = words(headers, &header::CONNECTION).any(|word| word.eq_ignore_ascii_case("upgrade"));
    headers.get(header::UPGRADE).filter(|_| asks).cloned()
}

/// Makes a message ask for, or grant, a change of protocol.
pub fn set_upgrade(headers: &mut HeaderMap, to: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, to);
}

/// Lets a body of unknown length pass whatever the method: a client leaves it out of a `GET` that does not say so.
pub fn set_framing(headers: &mut HeaderMap, body: &impl http_body::Body) {
    if !body.is_end_stream() && body.size_hint().exact().is_none() {
        headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn what_a_connection_names_goes_and_trailers_stay_where_they_can_pass() {
        let all = map(&[
            ("connection", "close, X-Secret"),
            ("connection", "x-other"),
            ("x-secret", "1"),
            ("x-other", "1"),
            ("te", "gzip, Trailers"),
            ("trailer", "a"),
            ("trailer", "b"),
            ("transfer-encoding", "chunked"),
            ("cookie", "kept"),
        ]);
        let mut plain = all.clone();
        strip(&mut plain);
        assert_eq!(plain, map(&[("cookie", "kept")]));
        let mut stream = all;
        strip_for_streams(&mut stream);
        assert_eq!(
            stream,
            map(&[("cookie", "kept"), ("te", "trailers"), ("trailer", "a"), ("trailer", "b")])
        );
    }

    #[test]
    fn an_upgrade_is_asked_for_by_both_headers() {
        for (pairs, expected) in [
            (&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")][..], Some("websocket")),
            (&[("connection", "keep-alive"), ("upgrade", "websocket")], None),
            (&[("upgrade", "websocket")], None),
            (&[("connection", "upgrade")], None),
        ] {
            assert_eq!(upgrade(&map(pairs)).as_ref().and_then(|v| v.to_str().ok()), expected, "{pairs:?}");
        }
    }
}
