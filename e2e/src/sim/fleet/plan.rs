//! What a run will do, drawn before it begins.
//!
//! A run is a function of its plan. Whatever else chance decides on the way comes from streams that do not disturb
//! each other, so a plan with an event less is very nearly the same run without it.
//!
//! A new trouble is a variant here, a weight in `draw`, and an arm in `chaos`.

use camino::Utf8Path;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{GATEWAYS, NODES, witness::BODY_FILE};
use crate::sim::{Fall, Weather};

/// Draws a plan from a seed.
mod draw;

pub use draw::Mix;

/// Everything that is decided about a run before it begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Plan {
    /// Where all further chance comes from.
    pub seed: u64,
    /// How many gateways there are, 1 or 2.
    pub gateways: usize,
    /// How many nodes there are at the start, 1 to 3.
    pub nodes: usize,
    /// How things go when nothing is broken on purpose.
    pub weather: Weather,
    /// One call into a runtime in so many fails; 0 = none.
    pub runtime_fails_one_in: u64,
    /// Who may lose a database.
    pub forgets: Forgets,
    /// What clients ask, in order of time.
    pub actions: Vec<Action>,
    /// What breaks, in order of time.
    pub troubles: Vec<Event>,
}

/// What neither a gateway nor any node remembers, nobody can know; so only one side forgets in one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Forgets {
    /// Gateways may lose their database.
    Gateways,
    /// Nodes may lose their ledger.
    Nodes,
}

/// Something a client asks. It waits for the answer to its last question first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Action {
    /// Not before so many milliseconds after trouble began.
    pub at_ms: u64,
    /// Who asks.
    pub client: String,
    /// Whom.
    pub gateway: String,
    /// What.
    pub verb: Verb,
    /// About which space.
    pub name: String,
    /// The client leaves after so long, answer or not.
    pub leaves_after_ms: Option<u64>,
}

/// What a client may ask about one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verb {
    /// `acquireSpace`.
    Acquire,
    /// `execCommand`.
    Exec,
    /// `destroySpace`.
    Destroy,
    /// `getSpace`.
    Get,
    /// `freezeSpace`.
    Freeze,
    /// `stopSpace`.
    Stop,
    /// `wakeSpace`.
    Wake,
    /// `listSpaces`, about no name.
    List,
    /// `execCommand` of something that takes some seconds.
    ExecLong,
    /// `execCommand` of something that goes on without its caller.
    ExecDetached,
    /// `readFile` of the file that says which body it is in.
    Read,
    /// `touchSpace`.
    Touch,
    /// `updateMetadata` with a note that nobody else writes.
    Note,
    /// `updatePolicy`, so that it sleeps after a few seconds.
    Doze,
}

impl Verb {
    /// The name of the verb and its body. `note` is unique among all actions.
    pub fn call(self, name: &str, note: &str) -> (&'static str, Value) {
        let one = json!({ "name": name });
        let exec = |command: &str, detach: bool| {
            let wish = json!({ "name": name, "command": command, "detach": detach, "timeoutSeconds": 20 });
            ("execCommand", wish)
        };
        match self {
            Self::Acquire => ("acquireSpace", one),
            // It prints the id of the body it runs in.
            Self::Exec => exec("hostname", false),
            Self::ExecLong => exec("sleep 5", false),
            Self::ExecDetached => exec("sleep 30", true),
            Self::Read => ("readFile", json!({ "name": name, "path": BODY_FILE })),
            Self::Touch => ("touchSpace", one),
            Self::Note => ("updateMetadata", json!({ "name": name, "metadata": { "note": note } })),
            Self::Doze => {
                let policy = json!({ "freezeAfterSeconds": 3, "stopAfterSeconds": 8 });
                ("updatePolicy", json!({ "name": name, "policy": policy }))
            }
            Self::Destroy => ("destroySpace", one),
            Self::Get => ("getSpace", one),
            Self::Freeze => ("freezeSpace", one),
            Self::Stop => ("stopSpace", one),
            Self::Wake => ("wakeSpace", one),
            Self::List => ("listSpaces", json!({})),
        }
    }
}

/// A trouble and when it begins, in milliseconds after the first client could ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Event {
    /// When.
    pub at_ms: u64,
    /// What.
    pub trouble: Trouble,
}

impl Event {
    /// Whether it is about this host.
    pub fn mentions(&self, host: &str) -> bool {
        serde_json::to_string(&self.trouble).is_ok_and(|text| text.contains(&format!("\"{host}\"")))
    }
}

/// What may go wrong.
#[expect(missing_docs, reason = "fields say on which host or link, and for how many milliseconds")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Trouble {
    /// A node falls and comes back.
    NodeFalls { node: String, fall: Fall, down_ms: u64 },
    /// A node falls at one of its next effects, if that comes within two seconds.
    NodeFallsAtStep { node: String, step: u64, down_ms: u64 },
    /// A gateway falls, now or at one of its next effects, perhaps with its database lost.
    GatewayFalls { gateway: String, fall: Fall, at_step: Option<u64>, loses_database: bool, down_ms: u64 },
    /// Nothing gets through between a gateway and a node, in one direction or both.
    Cut { gateway: String, node: String, there: bool, back: bool, lasts_ms: u64 },
    /// Open connections between a gateway and a node break.
    Reset { gateway: String, node: String },
    /// Open connections carry nothing any more in one direction.
    Silence { from: String, to: String },
    /// One message is held on the wire, then delivered late or destroyed.
    Hold { from: String, to: String, message: Message, reset: bool, lasts_ms: u64 },
    /// A node falls and finds its ledger gone; its disks and `node.json` are there.
    LedgerLost { node: String, fall: Fall, down_ms: u64 },
    /// A create is held on the wire, its gateway vanishes, and it arrives after others have asked for the name.
    LateCreate { gateway: String, node: String, down_ms: u64, lasts_ms: u64 },
    /// Connections of clients break.
    ClientsReset { gateway: String },
    /// A node that the fleet did not have comes up.
    NodeJoins { node: String },
    /// A node falls, an operator removes it, it comes back and is removed still, and an operator readmits it.
    NodeRemoved {
        gateway: String,
        node: String,
        fall: Fall,
        down_ms: u64,
        out_ms: u64,
        gateway_forgets: bool,
    },
    /// An operator asks for the removal of a node that may well be there.
    RemovalAsked { gateway: String, node: String },
}

/// What a hold waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Message {
    /// A forwarded `acquireSpace`.
    Acquire,
    /// A forwarded `destroySpace`.
    Destroy,
    /// A lookup.
    Lookup,
    /// Any request.
    Request,
    /// An answer that all is well.
    Answer,
}

impl Message {
    /// How it begins on the wire.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Acquire => "POST /acquireSpace",
            Self::Destroy => "POST /destroySpace",
            Self::Lookup => "POST /lookup",
            Self::Request => "POST /",
            Self::Answer => "HTTP/1.1 200",
        }
    }
}

impl Plan {
    /// The plan of a seed.
    pub fn draw(seed: u64) -> Self {
        draw::draw(seed, None)
    }

    /// The plan of a seed for so many gateways.
    pub fn draw_with(seed: u64, gateways: usize) -> Self {
        draw::draw(seed, Some(gateways))
    }

    /// The hosts of its gateways.
    pub fn gateways(&self) -> &'static [&'static str] {
        &GATEWAYS[..self.gateways.clamp(1, GATEWAYS.len())]
    }

    /// The hosts of its nodes.
    pub fn nodes(&self) -> &'static [&'static str] {
        &NODES[..self.nodes.clamp(1, NODES.len())]
    }

    /// The names its clients use, in order and each once.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.actions.iter().map(|action| action.name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// As it is kept in a file.
    ///
    /// # Panics
    /// Never: a plan is plain data.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a plan is plain data")
    }

    /// Reads one from a file.
    ///
    /// # Errors
    /// The file cannot be read, or is no plan.
    pub fn read(path: &Utf8Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        serde_json::from_str(&text).map_err(|error| format!("{path} is no plan: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_the_same_again_and_after_a_file() {
        for seed in 0..50 {
            let plan = Plan::draw(seed);
            assert_eq!(plan, Plan::draw(seed));
            assert_eq!(plan, serde_json::from_str(&plan.json()).expect("what was written is read"));
            assert!(plan.actions.is_sorted_by_key(|action| action.at_ms), "seed {seed}");
            assert!(plan.troubles.is_sorted_by_key(|event| event.at_ms), "seed {seed}");
        }
    }
}
