//! What gateways tell nodes they are, as the wire shows it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::Value;

use super::wire::Half;
use crate::sim::Heard;

/// A node was told that it is a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Welcomed {
    /// Which.
    pub(super) node: String,
    /// By which gateway.
    pub(super) gateway: String,
    /// When its check-in was read.
    pub(super) asked: Duration,
    /// When it was told.
    pub(super) told: Duration,
    /// Whether somebody, or its own database, had told that gateway before that the node is removed.
    pub(super) against_better_knowledge: bool,
}

/// A check-in that is not answered yet.
#[derive(Debug)]
struct Open {
    node: String,
    ledger: String,
    /// The ledgers that the roster it brings has removed.
    removed: Vec<String>,
    at: Duration,
}

#[derive(Debug, Default)]
struct Connection {
    requests: Half,
    answers: Half,
    open: VecDeque<Option<Open>>,
}

#[derive(Debug, Default)]
struct Seen {
    connections: BTreeMap<u64, Connection>,
    /// The ledger of each node.
    ledgers: BTreeMap<String, String>,
    /// Removed ledgers a gateway must know of.
    known: BTreeMap<String, BTreeSet<String>>,
    /// Gateways that know their fleet, and so keep what they know; in which life each was last heard.
    settled: BTreeSet<String>,
    lives: BTreeMap<String, u64>,
    /// When a check-in of a node that was not removed was last taken, by gateway and node.
    taken: BTreeMap<(String, String), Duration>,
    /// When nodes were told that they are removed.
    shunned: BTreeMap<String, Vec<Duration>>,
    welcomed: Vec<Welcomed>,
}

/// The observer. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Standings(Arc<Mutex<Seen>>);

impl Standings {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A gateway's host read or wrote something.
    pub(super) fn hear(&self, heard: &Heard<'_>) {
        self.seen().hear(heard);
    }

    /// A gateway said that it removed a node.
    pub(super) fn removed(&self, gateway: &str, node: &str) {
        let mut seen = self.seen();
        if let Some(ledger) = seen.ledgers.get(node).cloned() {
            seen.known.entry(gateway.to_owned()).or_default().insert(ledger);
        }
    }

    /// A gateway lost its database.
    pub(super) fn forgot(&self, gateway: &str) {
        let mut seen = self.seen();
        seen.known.remove(gateway);
        seen.settled.remove(gateway);
    }

    /// Whether any gateway knows that a node was removed.
    pub(super) fn is_known_removed(&self, node: &str) -> bool {
        let seen = self.seen();
        seen.ledgers.get(node).is_some_and(|ledger| seen.known.values().any(|known| known.contains(ledger)))
    }

    /// When a gateway last took a check-in of a node.
    pub(super) fn taken(&self, gateway: &str, node: &str) -> Option<Duration> {
        self.seen().taken.get(&(gateway.to_owned(), node.to_owned())).copied()
    }

    /// When a node was first told after `back` that it is removed.
    pub(super) fn shunned_first(&self, node: &str, back: Duration) -> Option<Duration> {
        self.seen().shunned.get(node).into_iter().flatten().find(|told| **told >= back).copied()
    }

    /// Who was told that it is a member since this was last asked.
    pub(super) fn welcomed(&self) -> Vec<Welcomed> {
        std::mem::take(&mut self.seen().welcomed)
    }
}

impl Seen {
    fn hear(&mut self, heard: &Heard<'_>) {
        let connection = self.connections.entry(heard.connection).or_default();
        let half = if heard.asks { &mut connection.requests } else { &mut connection.answers };
        half.take(heard.bytes);
        let mut answered = Vec::new();
        while let Some((head, body)) = half.message() {
            if heard.asks {
                connection.open.push_back(check_in(&head, &body, heard.at));
            } else if let Some(Some(open)) = connection.open.pop_front()
                && head.split(' ').nth(1) == Some("200")
            {
                answered.extend(serde_json::from_slice::<Value>(&body).ok().map(|answer| (open, answer)));
            }
        }
        for (open, answer) in answered {
            self.answered(heard, open, &answer);
        }
    }

    fn answered(&mut self, heard: &Heard<'_>, open: Open, answer: &Value) {
        let Open { node, ledger, removed, at } = open;
        // Nothing of this one was taken: the node is to come again with its roster.
        if answer["wantRoster"] == true {
            return;
        }
        let gateway = heard.host.to_owned();
        // One that is still learning keeps nothing, and learns anew when it has fallen.
        let before = self.lives.insert(gateway.clone(), heard.life);
        if before != Some(heard.life) && !self.settled.contains(&gateway) {
            self.known.remove(&gateway);
        }
        if answer["standing"] != "removed" {
            self.taken.insert((gateway.clone(), node.clone()), heard.at);
        }
        self.ledgers.insert(node.clone(), ledger.clone());
        let known = self.known.entry(gateway.clone()).or_default();
        let against_better_knowledge = known.contains(&ledger);
        known.extend(removed);
        match answer["standing"].as_str() {
            Some("removed") => self.shunned.entry(node).or_default().push(heard.at),
            Some("member") => {
                self.settled.insert(gateway.clone());
                self.welcomed.push(Welcomed {
                    node,
                    gateway,
                    asked: at,
                    told: heard.at,
                    against_better_knowledge,
                });
            }
            _ => {}
        }
    }
}

fn check_in(head: &str, body: &[u8], at: Duration) -> Option<Open> {
    if head.split(' ').nth(1) != Some("/checkIn") {
        return None;
    }
    let said: Value = serde_json::from_slice(body).ok()?;
    let removed = said["rosterCopy"]["removed"].as_array().into_iter().flatten();
    Some(Open {
        node: said["nodeId"].as_str()?.to_owned(),
        ledger: said["ledgerId"].as_str()?.to_owned(),
        removed: removed.filter_map(Value::as_str).map(str::to_owned).collect(),
        at,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(standings: &Standings, at: u64, connection: u64, asks: bool, first: &str, body: &str) {
        let text = format!("{first}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let at = Duration::from_secs(at);
        standings.hear(&Heard { at, connection, host: "g", life: 1, asks, bytes: text.as_bytes() });
    }

    fn checks_in(standings: &Standings, at: u64, node: &str, removed: &str, standing: &str) {
        let said =
            format!(r#"{{"nodeId":"{node}","ledgerId":"l-{node}","rosterCopy":{{"removed":[{removed}]}}}}"#);
        says(standings, at, at, true, "POST /checkIn HTTP/1.1", &said);
        let answer = format!(r#"{{"standing":"{standing}"}}"#);
        says(standings, at, at, false, "HTTP/1.1 200 OK", &answer);
    }

    #[test]
    fn a_gateway_knows_what_it_did_and_what_it_was_told_until_it_forgets() {
        let standings = Standings::default();
        let against = |standings: &Standings| -> Vec<bool> {
            standings.welcomed().iter().map(|welcomed| welcomed.against_better_knowledge).collect()
        };
        checks_in(&standings, 1, "n0", "", "member");
        assert_eq!(against(&standings), [false]);
        standings.removed("g", "n0");
        checks_in(&standings, 2, "n0", "", "member");
        assert_eq!(against(&standings), [true]);
        standings.forgot("g");
        checks_in(&standings, 3, "n0", "", "member");
        assert_eq!(against(&standings), [false], "nobody has told it yet");
        checks_in(&standings, 4, "n1", r#""l-n0""#, "waiting");
        checks_in(&standings, 5, "n0", "", "member");
        assert_eq!(against(&standings), [true]);
        assert_eq!(standings.taken("g", "n1"), Some(Duration::from_secs(4)));
        checks_in(&standings, 6, "n0", "", "removed");
        assert_eq!(standings.shunned_first("n0", Duration::ZERO), Some(Duration::from_secs(6)));
    }
}
