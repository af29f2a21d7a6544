use std::{marker::PhantomData, time::Duration};

use drowse_shared::api::{
    Code, Error,
    exec::ExecResult,
    files::{FileList, FilesWritten},
    nodes::{LookupAnswer, NodeList, NodeReadmitted, NodeRemoved},
    spaces::{Acquired, Destroyed, SpaceAnswer, SpaceList},
};
use http::HeaderMap;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// No request of a test outlives this.
const DEADLINE: Duration = Duration::from_secs(90);

/// The native door of a gateway or a node, as a client sees it.
#[derive(Clone)]
pub struct Door {
    /// `http://host:port`.
    pub endpoint: String,
    token: Option<String>,
    http: reqwest::Client,
}

/// What a door answered to a verb whose success reads as `T`.
pub struct Reply<T> {
    /// HTTP status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub bytes: Vec<u8>,
    asked: String,
    reads_as: PhantomData<fn() -> T>,
}

impl<T> Reply<T> {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// The body of a success, as bytes.
    ///
    /// # Panics
    /// When it was refused.
    #[track_caller]
    pub fn octets(self) -> Vec<u8> {
        assert!(self.status == 200, "{} answered {}: {}", self.asked, self.status, self.text());
        self.bytes
    }

    /// The error of a refusal, which must be this code, well formed and in words.
    ///
    /// # Panics
    /// When it is anything else.
    #[track_caller]
    pub fn refused(&self, code: &Code) -> Error {
        let error = self.error();
        assert!(error.code == *code, "{}: expected {code}, got {}", self.asked, self.text());
        error
    }

    /// The error of any refusal: its status is its code's, it says something, and a 503 says when to come back.
    ///
    /// # Panics
    /// When it is anything else.
    #[track_caller]
    pub fn error(&self) -> Error {
        let error: Error = serde_json::from_slice(&self.bytes).unwrap_or_else(|e| {
            panic!("{} answered {} without an error body ({e}): {}", self.asked, self.status, self.text())
        });
        assert_eq!(error.code.status().as_u16(), self.status, "{}: {}", self.asked, self.text());
        assert!(error.message.len() > 8, "{}: a refusal says why: {}", self.asked, self.text());
        let waits = self.headers.contains_key(http::header::RETRY_AFTER);
        assert!(waits || self.status != 503, "{}: a 503 says when to come back: {}", self.asked, self.text());
        error
    }
}

impl<T: DeserializeOwned> Reply<T> {
    /// The answer.
    ///
    /// # Panics
    /// When it was refused or cannot be read.
    #[track_caller]
    pub fn ok(self) -> T {
        assert!(self.status == 200, "{} answered {}: {}", self.asked, self.status, self.text());
        serde_json::from_slice(&self.bytes)
            .unwrap_or_else(|e| panic!("{}: cannot read the answer ({e}): {}", self.asked, self.text()))
    }
}

/// Percent-encodes every byte that is not plainly safe in a query.
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::new();
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' => {
                out.push(char::from(*byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

impl Door {
    /// A door at `endpoint`, opened with `token`.
    pub fn new(endpoint: &str, token: &str) -> Self {
        // One process may open many doors; only the first install counts.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(DEADLINE)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .expect("a plain client");
        Self { endpoint: endpoint.to_owned(), token: Some(token.to_owned()), http }
    }

    /// The same door, knocked at with another token or none.
    #[must_use]
    pub fn with_token(&self, token: Option<&str>) -> Self {
        Self { token: token.map(str::to_owned), ..self.clone() }
    }

    /// The same door, over connections that nothing else uses.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self { token: self.token.clone(), ..Self::new(&self.endpoint, "") }
    }

    /// A request, not yet sent.
    pub fn request(&self, method: http::Method, target: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{target}", self.endpoint));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends a prepared request.
    ///
    /// # Errors
    /// When no whole answer came.
    pub async fn send<T>(
        &self,
        asked: &str,
        request: reqwest::RequestBuilder,
    ) -> Result<Reply<T>, reqwest::Error> {
        let response = request.send().await?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let bytes = response.bytes().await?.to_vec();
        let asked = format!("{asked} at {}", self.endpoint);
        Ok(Reply { status, headers, bytes, asked, reads_as: PhantomData })
    }

    /// A JSON verb whose connection may fail.
    ///
    /// # Errors
    /// When no whole answer came.
    pub async fn attempt<T>(&self, verb: &str, body: &impl Serialize) -> Result<Reply<T>, reqwest::Error> {
        self.send(verb, self.request(http::Method::POST, &format!("/{verb}")).json(body)).await
    }

    /// A JSON verb.
    ///
    /// # Panics
    /// When no whole answer came.
    pub async fn call<T>(&self, verb: &str, body: Value) -> Reply<T> {
        match self.attempt(verb, &body).await {
            Ok(reply) => reply,
            Err(e) => panic!("{verb} {body} at {}: no answer: {e:?}", self.endpoint),
        }
    }

    /// `acquireSpace` by name alone.
    pub async fn acquire(&self, name: &str) -> Reply<Acquired> {
        self.call("acquireSpace", json!({ "name": name })).await
    }

    /// `getSpace`.
    pub async fn get(&self, name: &str) -> Reply<SpaceAnswer> {
        self.call("getSpace", json!({ "name": name })).await
    }

    /// Any verb that takes a name and answers the space.
    pub async fn turn(&self, verb: &str, name: &str) -> Reply<SpaceAnswer> {
        self.call(verb, json!({ "name": name })).await
    }

    /// `listSpaces` with these filters.
    pub async fn list(&self, filters: Value) -> Reply<SpaceList> {
        self.call("listSpaces", filters).await
    }

    /// `execCommand` of one line.
    pub async fn exec(&self, name: &str, command: &str) -> Reply<ExecResult> {
        self.call("execCommand", json!({ "name": name, "command": command })).await
    }

    /// `execCommand`, detached.
    pub async fn detach(&self, name: &str, command: &str) -> Reply<ExecResult> {
        self.call("execCommand", json!({ "name": name, "command": command, "detach": true })).await
    }

    /// `destroySpace`.
    pub async fn destroy(&self, name: &str) -> Reply<Destroyed> {
        self.call("destroySpace", json!({ "name": name })).await
    }

    /// `listFiles` of one directory.
    pub async fn files(&self, name: &str, path: &str) -> Reply<FileList> {
        self.call("listFiles", json!({ "name": name, "path": path })).await
    }

    /// The target of a streaming file verb.
    pub fn stream_target(verb: &str, space: &str, path: &[u8]) -> String {
        format!("/{verb}?space={}&path={}", escape(space.as_bytes()), escape(path))
    }

    /// `writeFile`, streamed.
    pub async fn write(
        &self,
        space: &str,
        path: &[u8],
        content: impl Into<reqwest::Body>,
    ) -> Reply<FilesWritten> {
        let request =
            self.request(http::Method::POST, &Self::stream_target("writeFile", space, path)).body(content);
        self.send("writeFile", request).await.unwrap_or_else(|e| panic!("writeFile: no answer: {e:?}"))
    }

    /// `readFile`, streamed.
    pub async fn read(&self, space: &str, path: &[u8]) -> Reply<()> {
        let request = self.request(http::Method::POST, &Self::stream_target("readFile", space, path));
        self.send("readFile", request).await.unwrap_or_else(|e| panic!("readFile: no answer: {e:?}"))
    }

    /// Calls a verb whose answer is read, or not read, by whoever asked.
    ///
    /// # Panics
    /// When it does not begin to answer with 200.
    pub async fn stream(&self, verb: &str, body: &Value) -> reqwest::Response {
        let request = self.request(http::Method::POST, &format!("/{verb}")).json(body);
        let response = request.send().await.unwrap_or_else(|e| panic!("{verb}: no answer: {e:?}"));
        assert_eq!(response.status().as_u16(), 200, "{verb}");
        response
    }

    /// `lookup` at a node, to read.
    pub async fn lookup(&self, name: &str) -> Reply<LookupAnswer> {
        self.call("lookup", json!({ "space": name })).await
    }

    /// `listNodes`.
    pub async fn nodes(&self) -> Reply<NodeList> {
        self.call("listNodes", json!({})).await
    }

    /// `removeNode`.
    pub async fn remove_node(&self, node: &str) -> Reply<NodeRemoved> {
        self.call("removeNode", json!({ "nodeId": node })).await
    }

    /// `readmitNode`.
    pub async fn readmit_node(&self, node: &str) -> Reply<NodeReadmitted> {
        self.call("readmitNode", json!({ "nodeId": node })).await
    }

    /// `GET` of a page such as `/metrics`.
    pub async fn page(&self, target: &str) -> Reply<Value> {
        let request = self.request(http::Method::GET, target);
        self.send(target, request).await.unwrap_or_else(|e| panic!("{target}: no answer: {e:?}"))
    }
}
