//! What each verb takes and answers. The match has no wildcard: a verb that is not described does not compile.

use garde::Validate;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::{
    Error, JSON_BODY_BYTES_MAX, WRITE_FILES_BODY_BYTES_MAX,
    domains::{BindDomain, DomainBound, DomainList, DomainUnbound, ListDomains, UnbindDomain},
    exec,
    files::{self, FileContent, FileList, FilesWritten, ListFiles, ReadFile, WriteFile, WriteFiles},
    nodes::{
        CheckIn, CheckedIn, ListNodes, Lookup, LookupAnswer, Measure, Measured, NodeList, NodeReadmitted,
        NodeRemoved, OneNode, ReadmitNode, Report, SetAside, SetAsideBody,
    },
    parse,
    spaces::{
        AcquireSpace, Acquired, Destroyed, EventList, ListEvents, ListSpaces, OneSpace, SpaceAnswer,
        SpaceList, UpdateMetadata, UpdatePolicy, Waking,
    },
    upgrade::{Everybody, FleetUpgrade},
    verbs::Verb,
    watch::{WatchEvent, WatchFiles},
};

/// Writes a type down.
type Write = fn(&mut SchemaGenerator) -> Schema;

/// What is said of a verb.
pub(super) struct Described {
    /// Its request, as JSON.
    pub(super) request: Write,
    /// Reads a request with every rule the doors apply.
    pub(super) check: fn(&[u8]) -> Result<(), Error>,
    /// Its answers, by status.
    pub(super) answers: Vec<(u16, Write)>,
    /// Requests that work, one after another, on a fleet that has just begun.
    pub(super) examples: Vec<(&'static str, Value)>,
    /// Largest body, in bytes.
    pub(super) body_bytes_max: usize,
    /// Whether it may be refused for what the space is.
    pub(super) about_a_space: bool,
    /// Whether files and users of the space matter.
    pub(super) inside: bool,
    /// Whether it also streams, and in which direction.
    pub(super) streams: Option<Streams>,
}

/// Which side of a streaming verb is raw octets, or events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Streams {
    Request,
    Answer,
    /// Its answer is what a command says, a line of JSON each.
    Events,
    /// Its answer is what changes, a line of JSON each.
    Changes,
}

impl Streams {
    /// Whether an answer is lines of JSON, whatever was asked.
    pub(super) fn is_lines(self) -> bool {
        matches!(self, Self::Events | Self::Changes)
    }
}

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

fn verb<Q, A>() -> Described
where
    Q: JsonSchema + DeserializeOwned + Validate<Context = ()>,
    A: JsonSchema,
{
    Described {
        request: schema::<Q>,
        check: |body| parse::<Q>(body).map(drop),
        answers: vec![(200, schema::<A>)],
        examples: Vec::new(),
        body_bytes_max: JSON_BODY_BYTES_MAX,
        about_a_space: false,
        inside: false,
        streams: None,
    }
}

impl Described {
    fn of_a_space(self) -> Self {
        Self { about_a_space: true, ..self }
    }

    fn inside(self) -> Self {
        Self { about_a_space: true, inside: true, ..self }
    }

    fn example(mut self, says: &'static str, body: Value) -> Self {
        self.examples.push((says, body));
        self
    }

    fn or(mut self, status: u16, answer: fn(&mut SchemaGenerator) -> Schema) -> Self {
        self.answers.push((status, answer));
        self
    }

    fn streaming(self, streams: Streams) -> Self {
        Self { streams: Some(streams), ..self }
    }

    fn large(self) -> Self {
        Self { body_bytes_max: WRITE_FILES_BODY_BYTES_MAX, ..self }
    }
}

pub(super) fn described(which: Verb) -> Described {
    let one = || verb::<OneSpace, SpaceAnswer>().of_a_space().example("by name", json!({ "name": "demo" }));
    match which {
        Verb::AcquireSpace => verb::<AcquireSpace, Acquired>()
            .of_a_space()
            .or(202, schema::<Waking>)
            .example("with the defaults of the fleet", json!({ "name": "demo" }))
            .example(
                "with wishes",
                json!({
                    "name": "shop", "template": "base", "spec": { "cpus": 0.5, "memoryBytes": 536_870_912 },
                    "policy": { "freezeAfterSeconds": 60, "hibernateAfterSeconds": null },
                    "metadata": { "team": "web" }, "waitSeconds": 10
                }),
            ),
        Verb::GetSpace => one(),
        Verb::ListSpaces => verb::<ListSpaces, SpaceList>().example("the first page", json!({})).example(
            "the last used of a team",
            json!({
                "states": ["active", "frozen"], "metadata": { "team": "web" }, "namePrefix": "s",
                "sort": "lastActiveAt", "order": "desc", "limit": 10
            }),
        ),
        Verb::ListEvents => verb::<ListEvents, EventList>()
            .of_a_space()
            .example("the newest", json!({ "name": "demo", "limit": 10 })),
        Verb::FreezeSpace | Verb::StopSpace | Verb::WakeSpace | Verb::TouchSpace => one(),
        Verb::UpdatePolicy => verb::<UpdatePolicy, SpaceAnswer>()
            .of_a_space()
            .example("sooner", json!({ "name": "demo", "policy": { "freezeAfterSeconds": 120 } })),
        Verb::UpdateMetadata => verb::<UpdateMetadata, SpaceAnswer>()
            .of_a_space()
            .example("other notes", json!({ "name": "demo", "metadata": { "team": "data" } })),
        Verb::DestroySpace => verb::<OneSpace, Destroyed>()
            .of_a_space()
            .example("for good", json!({ "name": "shop" }))
            .example("what is not there is no error", json!({ "name": "shop" })),
        Verb::ExecCommand => verb::<exec::ExecCommand, exec::ExecResult>()
            .inside()
            .example("a line", json!({ "name": "demo", "command": "echo hello" }))
            .example(
                "a program",
                json!({ "name": "demo", "argv": ["cat"], "stdin": "b\na\n", "env": { "LC_ALL": "C" },
                        "user": "user", "timeoutSeconds": 10, "outputEncoding": "base64" }),
            )
            .example("once", json!({ "name": "demo", "command": "echo paid", "idempotencyKey": "order-1" })),
        Verb::ExecStream => verb::<exec::ExecCommand, exec::ExecEvent>()
            .inside()
            .streaming(Streams::Events)
            .example("a line", json!({ "name": "demo", "command": "echo hello" })),
        Verb::WriteFile => {
            verb::<WriteFile, FilesWritten>().inside().large().streaming(Streams::Request).example(
                "text",
                json!({ "name": "demo", "path": "hello.txt", "content": "hello\n", "mode": "644" }),
            )
        }
        Verb::WriteFiles => verb::<WriteFiles, FilesWritten>().inside().large().example(
            "two",
            json!({ "name": "demo", "files": [
                { "path": "app/run.sh", "content": "echo run\n", "mode": "755" },
                { "path": "app/data", "contentBase64": "AAEC" }
            ] }),
        ),
        Verb::ReadFile => verb::<ReadFile, FileContent>()
            .inside()
            .streaming(Streams::Answer)
            .example("as JSON", json!({ "name": "demo", "path": "hello.txt" })),
        Verb::ListFiles => verb::<ListFiles, FileList>().inside().example(
            "two levels",
            json!({ "name": "demo", "path": "/home/user", "depth": 2, "user": "user" }),
        ),
        Verb::WatchFiles => verb::<WatchFiles, WatchEvent>().inside().streaming(Streams::Changes),
        Verb::BindDomain => verb::<BindDomain, DomainBound>()
            .of_a_space()
            .example(
                "to the port apps have by default",
                json!({ "name": "demo", "domain": "demo.customer.example" }),
            )
            .example(
                "to another one",
                json!({ "name": "demo", "domain": "demo.customer.example", "port": 3000 }),
            ),
        Verb::ListDomains => verb::<ListDomains, DomainList>()
            .example("the first page", json!({}))
            .example("of one space", json!({ "name": "demo", "limit": 10 })),
        Verb::UnbindDomain => verb::<UnbindDomain, DomainUnbound>()
            .example("for good", json!({ "domain": "demo.customer.example" })),
        Verb::ListNodes => verb::<ListNodes, NodeList>().example("all", json!({})),
        Verb::RemoveNode => {
            verb::<OneNode, NodeRemoved>().example("none of that name", json!({ "nodeId": "gone" }))
        }
        Verb::ReadmitNode => verb::<ReadmitNode, NodeReadmitted>()
            .example("none of that name", json!({ "nodeId": "gone" }))
            .example(
                "with choices",
                json!({ "nodeId": "gone", "keep": { "shop": "gone" }, "keepAll": "member" }),
            ),
        Verb::UpgradeFleet | Verb::StopUpgrade => verb::<Everybody, FleetUpgrade>(),
        Verb::GetUpgrade => verb::<Everybody, FleetUpgrade>().example("how far it is", json!({})),
        Verb::RetryUpgrade => verb::<OneNode, FleetUpgrade>(),
        Verb::CheckIn => verb::<CheckIn, CheckedIn>().large(),
        Verb::Report => verb::<Report, CheckIn>().example("without a roster", json!({})),
        Verb::Lookup => verb::<Lookup, LookupAnswer>()
            .example("to read", json!({ "space": "demo" }))
            .example("to create", json!({ "space": "another", "intent": "create" })),
        Verb::Measure => verb::<Measure, Measured>(),
        Verb::SetAside => verb::<SetAside, SetAsideBody>(),
    }
}

/// The limit of `readFile` as JSON, for its description.
pub(super) const JSON_FILE_BYTES_MAX: u64 = files::JSON_FILE_BYTES_MAX;
