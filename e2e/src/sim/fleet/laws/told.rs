//! What answers say, against what is there.

use drowse_shared::api::{
    self, Code,
    exec::ExecResult,
    files::FileContent,
    spaces::{Acquired, Destroyed, Space, SpaceAnswer, SpaceList, State},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::de::DeserializeOwned;

use super::*;

/// An answer, and the question it answers.
struct Told<'a> {
    wish: u64,
    verb: &'static str,
    name: String,
    sent: Duration,
    now: Duration,
    answer: &'a Answer,
}

impl Laws {
    /// A client was told something.
    pub fn told(&self, wish: u64, answer: &Answer) {
        self.hear();
        let now = self.world.elapsed();
        let mut record = self.record();
        let Some(asked) = record.wishes.get_mut(&wish) else { return };
        // What was begun may go on.
        asked.over = Some(if matches!(answer.status, 202 | 503) { now + LINGERS } else { now });
        let told = Told { wish, verb: asked.verb, name: asked.name.clone(), sent: asked.sent, now, answer };
        *record.told.entry(format!("{} {}", told.verb, answer.status)).or_default() += 1;
        let word = &answer.body["code"];
        match (told.verb, answer.status) {
            ("acquireSpace", 200) => self.acquired(&mut record, &told),
            ("acquireSpace", 202) => {}
            ("destroySpace", 200) => self.destroyed(&record, &told),
            ("execCommand", 200) => self.ran(&record, &told),
            ("readFile", 200) => self.read(&record, &told),
            ("listSpaces", 200) => self.listed(&record, &told),
            // Asked of a stopped space, which has nothing to freeze.
            ("freezeSpace", 409) if word == "wrong_state" => {}
            (_, 200) => match told.as_::<SpaceAnswer>() {
                Some(shown) => {
                    self.shown(&record, &shown.space, &told);
                    if told.verb == "updateMetadata"
                        && let Some(asked) = record.wishes.get_mut(&wish)
                    {
                        asked.noted = Some(shown.space.id);
                    }
                }
                None => self.odd(&told),
            },
            ("acquireSpace" | "destroySpace" | "listSpaces", 404) => self.odd(&told),
            (_, 404) => self.missing(&record, &told),
            (_, 503) => self.waits(&told),
            _ => self.odd(&told),
        }
    }

    fn odd(&self, told: &Told<'_>) {
        let Told { verb, name, answer, .. } = told;
        self.world.fail(&format!("{verb} {name} was answered {} {}", answer.status, answer.body));
    }

    /// Law 1 and 2: the answer names the one body of that name, and from now on it stays.
    fn acquired(&self, record: &mut Record, told: &Told<'_>) {
        let Some(acquired) = told.as_::<Acquired>() else { return self.odd(told) };
        let (id, Told { name, sent, now, .. }) = (acquired.space.id, told);
        self.shown(record, &acquired.space, told);
        let Some(body) = record.bodies.get_mut(&id) else { return };
        let known = body.acknowledged.is_some_and(|at| at < *sent);
        if acquired.created && body.gone.is_none() && body.born < *sent && known {
            self.world.fail(&format!("{name}: {id} is called created, and was there before"));
        }
        body.acknowledged.get_or_insert(*now);
    }

    /// An answer shows a space.
    fn shown(&self, record: &Record, space: &Space, told: &Told<'_>) {
        // A row comes before its body and stays until after it.
        if !matches!(space.state, State::Creating | State::Destroying) {
            self.named(record, space.id, &told.name, told);
            self.noted(record, space, told.sent);
        }
    }

    /// Law 1: an answer comes from a body of that name that was there while the question was open, on a node of the fleet.
    fn named(&self, record: &Record, id: SpaceId, name: &str, told: &Told<'_>) {
        let Told { verb, sent, now, .. } = told;
        match record.bodies.get(&id) {
            Some(body) if body.name != name => {
                self.world.fail(&format!("law 1: asked for {name}, got {id} of {}", body.name));
            }
            Some(body) if body.lived_within(*sent, *now) => {
                let gone = body.gone.unwrap_or(*now);
                if body.gone.is_some() && !record.may_be_destroyed(name, body.born, gone) {
                    self.world.fail(&format!(
                        "law 2: {id} of {name} is acknowledged and gone, nobody asked for it"
                    ));
                }
                // Of a gateway that lost its database only those know of a removal who were told before.
                if record.is_surely_out(&body.host, *sent, *now)
                    && self.standings.is_known_removed(&body.host)
                {
                    self.world.fail(&format!(
                        "law 1: {verb} {name} was answered from {}, which is removed from the fleet",
                        body.host
                    ));
                }
            }
            _ => self
                .world
                .fail(&format!("law 1: asked for {name}, got {id}, which was not there at the time")),
        }
    }

    /// Law 1: a command says in which body it ran.
    fn ran(&self, record: &Record, told: &Told<'_>) {
        let Some(result) = told.as_::<ExecResult>() else { return self.odd(told) };
        if let Ok(id) = result.stdout.trim().parse::<SpaceId>() {
            self.named(record, id, &told.name, told);
        }
    }

    /// Law 1: a file says in which body it lies.
    fn read(&self, record: &Record, told: &Told<'_>) {
        let Some(file) = told.as_::<FileContent>() else { return self.odd(told) };
        let content = STANDARD.decode(&file.content_base64).unwrap_or_default();
        match std::str::from_utf8(&content).unwrap_or_default().parse::<SpaceId>() {
            Ok(id) => self.named(record, id, &told.name, told),
            Err(_) => {
                self.world.fail(&format!("law 2: readFile {} found another file: {content:?}", told.name));
            }
        }
    }

    /// Laws 1, 2 and 5: a list has what is there, or says who is silent.
    fn listed(&self, record: &Record, told: &Told<'_>) {
        let Some(list) = told.as_::<SpaceList>() else { return self.odd(told) };
        for space in &list.spaces {
            if !matches!(space.state, State::Creating | State::Destroying) {
                self.named(record, space.id, space.name.as_str(), told);
                self.noted(record, space, told.sent);
            }
        }
        if list.next_cursor.is_some() {
            return;
        }
        let Told { sent, now, .. } = told;
        for (id, body) in &record.bodies {
            let known = body.acknowledged.is_some_and(|at| at < *sent) && body.gone.is_none();
            let excused = list.silent.iter().any(|silent| silent.node.as_str() == body.host)
                || record.may_be_out(&body.host, *sent, *now)
                || record.may_be_destroyed(&body.name, *sent, *now);
            if known && !excused && !list.spaces.iter().any(|space| space.id == *id) {
                self.world.fail(&format!(
                    "law 5: a list is without {} of {}, and {} is not called silent",
                    id, body.name, body.host
                ));
            }
        }
    }

    fn destroyed(&self, record: &Record, told: &Told<'_>) {
        let Some(said) = told.as_::<Destroyed>() else { return self.odd(told) };
        let Told { wish, name, sent, now, .. } = told;
        for (id, body) in record.here(name, *sent, *now) {
            if body.acknowledged.is_some_and(|at| at < *sent) {
                self.world.fail(&format!(
                    "law 2: destroy of {name} says {}, and {id} is still there",
                    said.destroyed
                ));
            }
        }
        let others = record.wishes.iter().any(|(number, other)| {
            number != wish
                && other.verb == "destroySpace"
                && other.name == *name
                && other.may_act(*sent, *now)
        });
        let was_there = record.bodies.values().any(|b| {
            b.name == *name
                && b.acknowledged.is_some_and(|at| at < *sent)
                && b.gone.is_none_or(|at| at >= *sent)
                && !record.may_be_out(&b.host, *sent, *now)
        });
        if !said.destroyed && was_there && !others {
            self.world.fail(&format!("law 2: destroy of {name} found nothing, and it was there"));
        }
    }

    /// Laws 2 and 5: "there is no such space" is said only when that is so.
    fn missing(&self, record: &Record, told: &Told<'_>) {
        let Told { verb, name, sent, now, .. } = told;
        for (id, body) in record.here(name, *sent, *now) {
            let known = body.acknowledged.is_some_and(|at| at < *sent);
            if known && !record.may_be_destroyed(name, *sent, *now) {
                self.world
                    .fail(&format!("law 2: {verb} {name} was answered 404, and {} has {id}", body.host));
            }
        }
    }

    /// Laws 5 and 8: who must wait is told when to come back, and who is silent.
    fn waits(&self, told: &Told<'_>) {
        let Told { verb, name, answer, .. } = told;
        match told.as_::<api::Error>() {
            Some(error) if !answer.says_when => {
                self.world.fail(&format!("law 8: {verb} {name} was told to wait and not how long: {error}"));
            }
            Some(error) if matches!(error.code, Code::NodeSilent | Code::NodeUnreachable) => {
                let text = answer.body.to_string();
                if !crate::sim::fleet::NODES.iter().any(|node| text.contains(node)) {
                    self.world.fail(&format!("law 5: {verb} {name}: nobody is named: {text}"));
                }
            }
            Some(_) => {}
            None => self.world.fail(&format!("law 8: {verb} {name} was answered 503 {}", answer.body)),
        }
    }
}

impl Told<'_> {
    fn as_<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_value(self.answer.body.clone()).ok()
    }
}
