//! Which headers pass, and which are ours.

use drowse_shared::{
    api::headers::{
        CREATE, CREDENTIAL, EXPECT, Expect, FORWARDED, INTERNAL, PORT, REQUEST_ID, SPACE, TOKEN, strip_ours,
    },
    http::hop,
    id::{RequestId, Ticket},
    name::SpaceRef,
    seams::Caller,
};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// What every name may contain unencoded.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// What the gateway tells the node about the space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Belief {
    /// The node holds it.
    Existing(Expect),
    /// The node builds it, with its own permission.
    Create(Ticket),
}

/// Drops what only our own daemons may say.
pub(crate) fn strip_internal(headers: &mut HeaderMap) {
    for name in INTERNAL {
        headers.remove(name);
    }
}

/// Makes a caller's headers those of a forward.
pub(super) fn forwarded(
    headers: &mut HeaderMap,
    caller: Option<&Caller>,
    bearer: HeaderValue,
    request_id: &RequestId,
    space: &SpaceRef,
    belief: Belief,
) {
    hop::strip(headers);
    strip_internal(headers);
    // The body is framed anew, and a pending 100-continue is settled between the caller and us.
    headers.remove(header::CONTENT_LENGTH);
    headers.remove(header::EXPECT);
    let host = headers.remove(header::HOST);
    rebuild(headers, caller, host);
    headers.insert(header::AUTHORIZATION, bearer);
    headers.insert(FORWARDED, HeaderValue::from_static("1"));
    let mut set = |name: &'static str, text: String| {
        // Every one of these is plain ASCII by construction.
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.insert(name, value);
        }
    };
    set(REQUEST_ID, request_id.to_string());
    set(SPACE, utf8_percent_encode(&space.to_string(), PLAIN).to_string());
    match belief {
        Belief::Existing(expect) => set(EXPECT, expect.to_string()),
        Belief::Create(ticket) => set(CREATE, ticket.to_string()),
    }
}

/// Makes a caller's headers those of a request for a port: what the app is to see stays as it was.
pub(super) fn ported(
    headers: &mut HeaderMap,
    caller: Option<&Caller>,
    bearer: HeaderValue,
    request_id: &RequestId,
    found: (&SpaceRef, Expect),
    (host, port): (Option<&HeaderValue>, u16),
) {
    let upgrade = hop::upgrade(headers);
    // What is shown for a private port is the node's to judge; it goes no further.
    let shown = headers.get_all(TOKEN).iter().cloned().collect::<Vec<_>>();
    hop::strip_for_streams(headers);
    strip_ours(headers);
    for token in shown {
        headers.append(TOKEN, token);
    }
    // It says whom the request is for, whatever `Connection` says about it.
    if let Some(host) = host {
        headers.insert(header::HOST, host.clone());
    }
    headers.remove(header::CONTENT_LENGTH);
    headers.remove(header::EXPECT);
    rebuild(headers, caller, host.cloned());
    headers.insert(CREDENTIAL, bearer);
    headers.insert(FORWARDED, HeaderValue::from_static("1"));
    headers.insert(PORT, HeaderValue::from(port));
    let (space, expect) = found;
    let space = utf8_percent_encode(&space.to_string(), PLAIN).to_string();
    for (name, text) in [(REQUEST_ID, request_id.to_string()), (SPACE, space), (EXPECT, expect.to_string())] {
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.insert(name, value);
        }
    }
    if let Some(to) = upgrade {
        hop::set_upgrade(headers, to);
    }
}

/// Only a proxy on this machine, which ends TLS for us, is believed about who called.
fn rebuild(headers: &mut HeaderMap, caller: Option<&Caller>, host: Option<HeaderValue>) {
    let address = caller.and_then(|caller| caller.address.rsplit_once(':'));
    let address = address.map_or("", |(host, _)| host.trim_matches(['[', ']']));
    let local = caller.is_some_and(|caller| caller.is_near);
    headers.remove(header::FORWARDED);
    if !local {
        headers.remove(X_FORWARDED_FOR);
        headers.remove(X_FORWARDED_HOST);
        headers.remove(X_FORWARDED_PROTO);
    }
    let chain = headers.get(&X_FORWARDED_FOR).and_then(|value| value.to_str().ok());
    let chain = chain.map_or_else(|| address.to_owned(), |chain| format!("{chain}, {address}"));
    if let Ok(value) = HeaderValue::from_str(&chain) {
        headers.insert(X_FORWARDED_FOR, value);
    }
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
    headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static("http"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use drowse_shared::seams::Env;

    fn map(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(k, v)| (HeaderName::from_static(k), v.parse().expect("a value"))).collect()
    }

    #[test]
    fn a_forward_carries_our_words_and_nobody_elses() {
        let mut headers = map(&[
            ("host", "fleet.example"),
            ("authorization", "Bearer the-callers"),
            ("connection", "close, x-secret"),
            ("x-secret", "1"),
            ("te", "trailers"),
            ("expect", "100-continue"),
            ("content-length", "5"),
            ("drowse-expect", "existing"),
            ("drowse-create", "forged"),
            ("drowse-forwarded", "1"),
            ("drowse-space", "forged"),
            ("x-forwarded-for", "6.6.6.6"),
            ("forwarded", "for=6.6.6.6"),
            ("cookie", "kept"),
        ]);
        let space: SpaceRef = "käse / 1".parse().expect("a name");
        let expect = Belief::Existing(Expect::default());
        let id = RequestId::mint(&Env::real());
        forwarded(
            &mut headers,
            Some(&Caller { address: "203.0.113.9:41000".to_owned(), is_near: false }),
            "Bearer ours".parse().expect("v"),
            &id,
            &space,
            expect,
        );
        let got = |name| headers.get(name).and_then(|v| v.to_str().ok());
        assert_eq!(got("authorization"), Some("Bearer ours"));
        assert_eq!(got("drowse-space"), Some("k%C3%A4se%20%2F%201"));
        assert_eq!(got("drowse-expect"), Some("existing"));
        assert_eq!(got("drowse-forwarded"), Some("1"));
        assert_eq!(got("drowse-request-id"), Some(&*id.to_string()));
        assert_eq!(got("x-forwarded-for"), Some("203.0.113.9"));
        assert_eq!(got("x-forwarded-host"), Some("fleet.example"));
        assert_eq!(got("cookie"), Some("kept"));
        for gone in
            ["host", "connection", "x-secret", "te", "expect", "content-length", "drowse-create", "forwarded"]
        {
            assert_eq!(got(gone), None, "{gone}");
        }
    }

    #[test]
    fn what_an_app_is_asked_keeps_its_host() {
        for pairs in [&[("host", "a"), ("connection", "host")][..], &[]] {
            let mut headers = map(pairs);
            let space: SpaceRef = "käse".parse().expect("a name");
            let host = HeaderValue::from_static("a");
            let bearer = HeaderValue::from_static("Bearer ours");
            let id = RequestId::mint(&Env::real());
            ported(&mut headers, None, bearer, &id, (&space, Expect::default()), (Some(&host), 8080));
            assert_eq!((&headers["host"], &headers["x-forwarded-host"]), (&host, &host), "{pairs:?}");
            assert_eq!(headers["drowse-space"], "k%C3%A4se", "a node that gave the name up notices");
        }
    }

    #[test]
    fn a_local_proxy_is_believed_about_its_caller() {
        let mut headers = map(&[("x-forwarded-for", "198.51.100.4"), ("x-forwarded-proto", "https")]);
        let caller = Caller { address: "[::1]:5000".to_owned(), is_near: true };
        rebuild(&mut headers, Some(&caller), None);
        assert_eq!(headers["x-forwarded-for"], "198.51.100.4, ::1");
        assert_eq!(headers["x-forwarded-proto"], "https");
    }
}
