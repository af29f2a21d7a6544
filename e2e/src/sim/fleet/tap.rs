//! Tickets as the wire shows them: an observer between gateways and nodes that knows nothing of either's code.
//!
//! It reads what arrives at a node and what the node writes. A body that is made must come from a create that quotes a
//! ticket the node gave for that name in this life, less than a minute before, once, and with no newer one given since.
//! Where the wire leaves open which of two came first, the node is believed.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::Value;

use super::wire::Half;
use crate::sim::Heard;

/// How long a ticket is good.
const LIFE: Duration = Duration::from_secs(60);
/// What a request asks, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Asked {
    /// A lookup of somebody who means to create and has no ticket yet.
    Intends { name: String },
    /// A create and what it quotes.
    Creates { name: String, ticket: Option<String> },
    /// Anything else.
    Other,
}

/// A create as it arrived.
#[derive(Debug)]
struct Create {
    host: String,
    life: u64,
    name: String,
    ticket: Option<String>,
    arrived: Duration,
    /// It has its answer, or its body: it makes no other.
    over: bool,
}

/// A ticket as it was given.
#[derive(Debug)]
struct Given {
    host: String,
    life: u64,
    name: String,
    ticket: String,
    /// When the lookup that got it was read.
    asked: Duration,
    /// When the answer with it was written.
    told: Duration,
    used: bool,
}

#[derive(Debug, Default)]
struct Connection {
    requests: Half,
    answers: Half,
    /// What was asked and when, and which create it was; not answered yet.
    open: VecDeque<(Asked, Duration, Option<usize>)>,
}

#[derive(Debug, Default)]
struct Seen {
    connections: BTreeMap<u64, Connection>,
    creates: Vec<Create>,
    given: Vec<Given>,
}

/// The observer. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Tap(Arc<Mutex<Seen>>);

impl Tap {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node's host read or wrote something.
    pub(super) fn hear(&self, heard: &Heard<'_>) {
        self.seen().hear(heard);
    }

    /// A body of `name` is made at `host` in its life `life`: whether some create there may have made it.
    ///
    /// # Errors
    /// Why none may, in words.
    pub(super) fn born(&self, host: &str, life: u64, name: &str, now: Duration) -> Result<(), String> {
        self.seen().born(host, life, name, now)
    }
}

impl Seen {
    fn hear(&mut self, heard: &Heard<'_>) {
        let connection = self.connections.entry(heard.connection).or_default();
        let half = if heard.asks { &mut connection.requests } else { &mut connection.answers };
        half.take(heard.bytes);
        while let Some((head, body)) = half.message() {
            if heard.asks {
                let asked = read(&head, &body);
                let create = match &asked {
                    Asked::Creates { name, ticket } => {
                        self.creates.push(Create {
                            host: heard.host.to_owned(),
                            life: heard.life,
                            name: name.clone(),
                            ticket: ticket.clone(),
                            arrived: heard.at,
                            over: false,
                        });
                        Some(self.creates.len() - 1)
                    }
                    _ => None,
                };
                connection.open.push_back((asked, heard.at, create));
                continue;
            }
            let status = head.split(' ').nth(1).and_then(|word| word.parse::<u16>().ok()).unwrap_or(0);
            let Some((asked, at, create)) = connection.open.pop_front() else { continue };
            // Who is told to come again may still get what was begun.
            if let Some(create) = create.filter(|_| status != 202) {
                self.creates[create].over = true;
            }
            let ticket = serde_json::from_slice::<Value>(&body).ok();
            let ticket = ticket.as_ref().and_then(|answer| answer["ticket"].as_str());
            if let (Asked::Intends { name }, 200, Some(ticket)) = (asked, status, ticket) {
                self.given.push(Given {
                    host: heard.host.to_owned(),
                    life: heard.life,
                    name,
                    ticket: ticket.to_owned(),
                    asked: at,
                    told: heard.at,
                    used: false,
                });
            }
        }
    }

    fn born(&mut self, host: &str, life: u64, name: &str, now: Duration) -> Result<(), String> {
        let mut why = Vec::new();
        for at in 0..self.creates.len() {
            let create = &self.creates[at];
            if create.over || create.host != host || create.name != name {
                continue;
            }
            match self.void(create, life, now) {
                None => {
                    if let Some(given) = self.of(&self.creates[at]) {
                        self.given[given].used = true;
                    }
                    self.creates[at].over = true;
                    return Ok(());
                }
                Some(void) => why.push(void),
            }
        }
        if why.is_empty() {
            why.push("no create for it has arrived there".to_owned());
        }
        Err(why.join("; "))
    }

    /// The ticket a create quotes.
    fn of(&self, create: &Create) -> Option<usize> {
        let ticket = create.ticket.as_ref()?;
        self.given.iter().position(|given| given.ticket == *ticket && given.host == create.host)
    }

    /// Why a create must not have made a body, if the wire says so.
    fn void(&self, create: &Create, life: u64, now: Duration) -> Option<String> {
        let Create { arrived, ticket, .. } = create;
        let Some(ticket) = ticket else { return Some(format!("the create of {arrived:?} quotes no ticket")) };
        let says = |why: String| Some(format!("the create of {arrived:?} quotes the ticket {ticket}, {why}"));
        if create.life != life {
            return says("and came to an earlier life".to_owned());
        }
        let Some(given) = self.of(create).map(|at| &self.given[at]) else {
            return says("which was never given there".to_owned());
        };
        if given.name != create.name {
            return says(format!("which was given for {}", given.name));
        }
        if given.life != life {
            return says("which an earlier life gave".to_owned());
        }
        if given.used {
            return says("which was used before".to_owned());
        }
        if *arrived >= given.told + LIFE {
            return says(format!("which was given at {:?}", given.told));
        }
        let newer = self.given.iter().find(|other| {
            other.host == given.host
                && other.life == given.life
                && other.name == given.name
                && other.asked > given.told
                && other.told <= now
        });
        newer.and_then(|newer| says(format!("and a newer one was given at {:?}", newer.told)))
    }
}

/// What a request asks.
fn read(head: &str, body: &[u8]) -> Asked {
    let header = |name: &str| {
        let of = |line: &str| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        };
        head.lines().skip(1).find_map(of)
    };
    let path = head.split(' ').nth(1).unwrap_or_default();
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return Asked::Other };
    let text = |key: &str| body[key].as_str().map(str::to_owned);
    match path {
        "/lookup" if body["intent"] == "create" && body["ticket"].is_null() => {
            text("space").map_or(Asked::Other, |name| Asked::Intends { name })
        }
        "/acquireSpace" => {
            text("name").map_or(Asked::Other, |name| Asked::Creates { name, ticket: header("drowse-create") })
        }
        _ => Asked::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "ada";

    fn seconds(at: u64) -> Duration {
        Duration::from_secs(at)
    }

    fn heard<'a>(at: u64, connection: u64, life: u64, asks: bool, bytes: &'a [u8]) -> Heard<'a> {
        Heard { at: seconds(at), connection, host: "n0", life, asks, bytes }
    }

    /// One message on a connection of its own, in two pieces.
    fn says(tap: &Tap, at: u64, connection: u64, life: u64, asks: bool, first: &str, more: &str, body: &str) {
        let text = format!("{first}\r\n{more}content-length: {}\r\n\r\n{body}", body.len());
        let (one, other) = text.as_bytes().split_at(text.len() / 2);
        tap.hear(&heard(at, connection, life, asks, one));
        tap.hear(&heard(at, connection, life, asks, other));
    }

    fn gives(tap: &Tap, at: u64, life: u64, ticket: &str) {
        let ask = format!(r#"{{"space":"{NAME}","intent":"create"}}"#);
        says(tap, at, at, life, true, "POST /lookup HTTP/1.1", "", &ask);
        let no = format!(r#"{{"answer":"no","ticket":"{ticket}"}}"#);
        says(tap, at, at, life, false, "HTTP/1.1 200 OK", "", &no);
    }

    fn creates(tap: &Tap, at: u64, life: u64, quotes: &str) {
        let body = format!(r#"{{"name":"{NAME}"}}"#);
        says(tap, at, 1000 + at, life, true, "POST /acquireSpace HTTP/1.1", quotes, &body);
    }

    fn answers(tap: &Tap, at: u64, connection: u64, life: u64, first: &str) {
        says(tap, at, connection, life, false, first, "", "{}");
    }

    #[test]
    fn a_body_needs_the_newest_ticket_of_its_name_once() {
        let tap = Tap::default();
        let born = |at| tap.born("n0", 1, NAME, seconds(at));
        assert!(born(1).expect_err("nobody asked").contains("no create"));
        gives(&tap, 1, 1, "t1");
        creates(&tap, 2, 1, "Drowse-Create: t1\r\n");
        assert_eq!(born(3), Ok(()));
        creates(&tap, 4, 1, "drowse-create: t1\r\n");
        assert!(born(5).expect_err("used").contains("used before"));
        creates(&tap, 6, 1, "");
        assert!(born(7).expect_err("none").contains("no ticket"));
        creates(&tap, 8, 1, "drowse-create: t9\r\n");
        assert!(born(9).expect_err("unknown").contains("never given"));
    }

    #[test]
    fn a_newer_lookup_a_minute_and_a_restart_void_it() {
        let tap = Tap::default();
        gives(&tap, 1, 1, "t1");
        gives(&tap, 2, 1, "t2");
        creates(&tap, 3, 1, "drowse-create: t1\r\n");
        assert!(tap.born("n0", 1, NAME, seconds(4)).expect_err("older").contains("newer one"));
        creates(&tap, 5, 1, "drowse-create: t2\r\n");
        assert_eq!(tap.born("n0", 1, NAME, seconds(6)), Ok(()));

        let tap = Tap::default();
        gives(&tap, 1, 1, "t1");
        creates(&tap, 61, 1, "drowse-create: t1\r\n");
        assert!(tap.born("n0", 1, NAME, seconds(62)).expect_err("too old").contains("given at"));

        let tap = Tap::default();
        gives(&tap, 1, 1, "t1");
        creates(&tap, 3, 2, "drowse-create: t1\r\n");
        assert!(tap.born("n0", 2, NAME, seconds(4)).expect_err("restarted").contains("earlier life"));
    }

    #[test]
    fn a_create_that_was_refused_made_nothing_and_one_that_takes_long_may() {
        let tap = Tap::default();
        gives(&tap, 1, 1, "t1");
        creates(&tap, 2, 1, "drowse-create: t1\r\n");
        answers(&tap, 3, 1002, 1, "HTTP/1.1 409 Conflict");
        assert!(tap.born("n0", 1, NAME, seconds(4)).is_err());
        gives(&tap, 5, 1, "t2");
        creates(&tap, 6, 1, "drowse-create: t2\r\n");
        answers(&tap, 7, 1006, 1, "HTTP/1.1 202 Accepted");
        assert_eq!(tap.born("n0", 1, NAME, seconds(8)), Ok(()));
    }
}
