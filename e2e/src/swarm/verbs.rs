use std::sync::atomic::Ordering::Relaxed;

use drowse_shared::{
    api::{
        Code, Error,
        headers::{CREATE, EXPECT},
        nodes::{Intent, Lookup, LookupAnswer, Report},
    },
    id::{SpaceId, Ticket},
    name::SpaceRef,
};
use serde_json::{Value, json, value::RawValue};

use super::{holder_of, id_of, ledger_of, name_of, node::Node, wire::Message};

impl Node {
    pub(super) fn answer(&self, request: &Message) -> (u16, Vec<u8>) {
        let path = request.first.split(' ').nth(1).unwrap_or("");
        let verb = path.trim_start_matches('/').split('?').next().unwrap_or("");
        let counts = &self.common.counts;
        let answered = match verb {
            "lookup" => {
                counts.lookups.fetch_add(1, Relaxed);
                self.memory().asked = request.raw();
                read(request).and_then(|ask: Lookup| self.lookup(&ask)).map(|answer| written(&answer))
            }
            "report" => {
                counts.reports.fetch_add(1, Relaxed);
                counts.report_bytes.fetch_add(request.bytes, Relaxed);
                read(request).map(|shown: Report<Box<RawValue>>| {
                    if let Some(roster) = &shown.roster {
                        self.keep(roster.get());
                    }
                    written(&self.says(shown.want_roster))
                })
            }
            "listSpaces" => {
                let memory = self.memory();
                let spaces: Vec<Value> =
                    memory.built.iter().map(|(name, id)| self.space(name, *id)).collect();
                Ok(written(&json!({ "spaces": spaces, "silent": [] })))
            }
            "acquireSpace" => self.acquire(request).map(|answer| written(&answer)),
            "getSpace" => self.get(request).map(|answer| written(&answer)),
            _ => Err(Error::new(Code::InvalidRequest, format!("the swarm has no {verb}"))),
        };
        answered.map_or_else(|error| (error.code.status().as_u16(), written(&error)), |body| (200, body))
    }

    fn find(&self, space: &SpaceRef) -> Option<(String, SpaceId)> {
        let names = self.common.plan.names_each;
        let here = |(n, k): (usize, usize)| (n == self.n && k < names).then(|| (name_of(n, k), id_of(n, k)));
        match space {
            SpaceRef::Name(name) => holder_of(name.as_str())
                .and_then(here)
                .or_else(|| self.memory().built.get(name.as_str()).map(|id| (name.as_str().to_owned(), *id))),
            SpaceRef::Id(id) => {
                let text = id.to_string();
                let part = |part: &str| usize::from_str_radix(part, 16).ok();
                let first = part(&text[..16]).zip(part(&text[16..])).and_then(here);
                first.or_else(|| {
                    let memory = self.memory();
                    memory.built.iter().find(|(_, built)| *built == id).map(|(name, id)| (name.clone(), *id))
                })
            }
        }
    }

    fn lookup(&self, ask: &Lookup) -> Result<LookupAnswer, Error> {
        if let Some((name, id)) = self.find(&ask.space) {
            let held = json!({ "id": id, "name": name, "state": "active", "epoch": 1, "holding": "home" });
            return Ok(LookupAnswer::Yes(serde_json::from_value(held).expect("well formed")));
        }
        if ask.ledger_id.is_some_and(|asked| asked != ledger_of(self.n)) {
            return Err(Error::new(Code::NodeTwin, "another ledger has this address now"));
        }
        let name = ask.space.to_string();
        let mut memory = self.memory();
        if let Some(ticket) = ask.ticket {
            let newest = memory.tickets.get(&name) == Some(&ticket);
            return Ok(LookupAnswer::No { ticket: newest.then_some(ticket) });
        }
        let ticket = (ask.intent == Intent::Create).then(|| Ticket::mint(&self.common.env));
        if let Some(ticket) = ticket {
            memory.tickets.insert(name, ticket);
        }
        Ok(LookupAnswer::No { ticket })
    }

    fn acquire(&self, request: &Message) -> Result<Value, Error> {
        let space = asked(request)?;
        if let Some((name, id)) = self.find(&space) {
            return Ok(json!({ "space": self.space(&name, id), "created": false }));
        }
        if request.header(EXPECT).is_some() {
            return Err(Error::new(Code::NotMine, "it is not here"));
        }
        let name = space.to_string();
        let quoted = request.header(CREATE).map(str::to_owned);
        let mut memory = self.memory();
        let ticket = memory.tickets.remove(&name).map(|ticket| ticket.to_string());
        if quoted.is_none() || quoted != ticket {
            return Err(Error::new(Code::TicketVoid, "somebody asked since"));
        }
        let id = SpaceId::mint(&self.common.env);
        memory.built.insert(name.clone(), id);
        self.common.counts.built.fetch_add(1, Relaxed);
        Ok(json!({ "space": self.space(&name, id), "created": true }))
    }

    fn get(&self, request: &Message) -> Result<Value, Error> {
        let space = asked(request)?;
        match self.find(&space) {
            Some((name, id)) => Ok(json!({ "space": self.space(&name, id) })),
            None => Err(Error::new(Code::NotMine, "it is not here")),
        }
    }

    fn space(&self, name: &str, id: SpaceId) -> Value {
        json!({ "id": id, "name": name, "state": "active", "node": self.id(), "epoch": 1,
            "createdAt": "2026-01-01T00:00:00Z", "lastActiveAt": "2026-01-01T00:00:00Z",
            "policy": { "freezeAfterSeconds": 1, "stopAfterSeconds": 2, "hibernateAfterSeconds": 3 },
            "spec": { "cpus": 1.0, "memoryBytes": 1, "diskBytes": 1, "pids": 1 },
            "template": { "name": "base", "digest": "d" }, "metadata": {} })
    }
}

fn read<T: serde::de::DeserializeOwned>(request: &Message) -> Result<T, Error> {
    serde_json::from_slice(&request.body).map_err(|e| Error::new(Code::InvalidRequest, e.to_string()))
}

/// The space that a JSON verb is about.
fn asked(request: &Message) -> Result<SpaceRef, Error> {
    let body: Value = read(request)?;
    let name = body["name"].as_str().unwrap_or("");
    name.parse().map_err(|_| Error::new(Code::InvalidRequest, "no space is named"))
}

fn written(answer: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(answer).expect("plain data")
}
