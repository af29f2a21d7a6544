//! Makes a failing plan small: what the failure does not need is left out.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{CLIENTS, GATEWAYS, NAMES, NODES, Plan};
use crate::sim::{Fall, Kind, Run, Weather, brief};

#[cfg(test)]
mod tests;

/// How long shrinking may go on.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Runs. This is what ends it, so that shrinking is as repeatable as a run.
    pub runs: u64,
    /// Real time, in case runs are slower than anybody thought.
    pub wall: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Self { runs: 400, wall: Duration::from_secs(60) }
    }
}

/// A failing plan from which nothing more could be left out.
#[derive(Debug)]
pub struct Shrunk {
    /// What it breaks, without names and numbers.
    pub law: String,
    /// The plan.
    pub plan: Plan,
    /// Its run.
    pub run: Run<()>,
    /// Runs it took.
    pub runs: u64,
    /// Why there may be more to leave out.
    pub ended_early: Option<&'static str>,
}

impl Shrunk {
    /// The failures, and the story in at most 30 lines.
    pub fn story(&self) -> Vec<String> {
        brief(&self.run.story)
    }
}

/// What a failure breaks, without names, ids and numbers: its law and its first words.
pub fn law(failure: &str) -> String {
    const WORDS: usize = 9;
    let is_name = |word: &str| {
        let hosts = GATEWAYS.iter().chain(&NODES).chain(&CLIENTS);
        let is_id = word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id
            || hosts.chain(&NAMES).any(|name| *name == word)
            || word.ends_with("Space")
            || word.ends_with("Command")
    };
    let masked = |word: &str| {
        let plain = word.trim_matches(|c: char| !c.is_alphanumeric());
        if is_name(plain) { word.replace(plain, "_") } else { word.to_owned() }
    };
    let words = failure.split_whitespace().take_while(|word| !word.starts_with('{')).take(WORDS);
    words.map(masked).collect::<Vec<_>>().join(" ")
}

/// Leaves out whatever the first failure of `plan` does not need, by trying. `None` when the plan does not fail.
pub fn shrink(plan: &Plan, run: impl Fn(&Plan) -> Run<()>, budget: Budget) -> Option<Shrunk> {
    let first = run(plan);
    let law = law(first.failures.first()?);
    let mut shrinker = Shrinker {
        run,
        budget,
        #[expect(clippy::disallowed_methods, reason = "the patience of whoever waits is real")]
        began: Instant::now(),
        best: Shrunk { law, plan: plan.clone(), run: first, runs: 1, ended_early: None },
    };
    shrinker.drop_what_never_was();
    loop {
        let before = shrinker.best.plan.clone();
        shrinker.pin();
        shrinker.calm();
        shrinker.without_some();
        shrinker.drop_parts(|plan| plan.troubles.len(), |plan, range| drop(plan.troubles.drain(range)));
        shrinker.drop_parts(|plan| plan.actions.len(), |plan, range| drop(plan.actions.drain(range)));
        shrinker.simplify();
        if shrinker.best.plan == before || shrinker.best.ended_early.is_some() {
            return Some(shrinker.best);
        }
    }
}

struct Shrinker<R> {
    run: R,
    budget: Budget,
    began: Instant,
    best: Shrunk,
}

impl<R: Fn(&Plan) -> Run<()>> Shrinker<R> {
    /// Keeps a plan if it is another one and breaks the same law.
    fn attempt(&mut self, plan: Plan) -> bool {
        let best = &mut self.best;
        if plan == best.plan || best.ended_early.is_some() {
            return false;
        }
        if best.runs >= self.budget.runs {
            best.ended_early = Some("the runs it may take are used up");
            return false;
        }
        if self.began.elapsed() > self.budget.wall {
            best.ended_early = Some("the time it may take is over");
            return false;
        }
        best.runs += 1;
        let run = (self.run)(&plan);
        let same = run.failures.first().is_some_and(|failure| law(failure) == best.law);
        if same {
            (best.plan, best.run) = (plan, run);
        }
        same
    }

    fn change(&mut self, change: impl FnOnce(&mut Plan)) -> bool {
        let mut plan = self.best.plan.clone();
        change(&mut plan);
        self.attempt(plan)
    }

    /// Nothing that comes after the failure has a part in it.
    fn drop_what_never_was(&mut self) {
        let Some(end) = self.best.run.story.last().map(|line| line.at_ms) else { return };
        let until_ms = end.saturating_sub(super::start_ms(&self.best.plan));
        self.change(|plan| {
            plan.troubles.retain(|event| event.at_ms <= until_ms);
            plan.actions.retain(|action| action.at_ms <= until_ms);
        });
    }

    /// Clients that were held up asked later than planned. Planned for when they did ask, they still do so then when what
    /// held them up is left out.
    fn pin(&mut self) {
        let start_ms = super::start_ms(&self.best.plan);
        let asked: Vec<(u64, String)> = (self.best.run.story.iter())
            .filter(|line| line.kind == Kind::Asked)
            .filter_map(|line| {
                Some((line.at_ms.checked_sub(start_ms)?, line.text.split(' ').next()?.to_owned()))
            })
            .collect();
        self.change(|plan| {
            for client in CLIENTS {
                let mut times = asked.iter().filter(|(_, who)| who == client).map(|(at_ms, _)| *at_ms);
                plan.actions.retain_mut(|action| {
                    if action.client != client {
                        return true;
                    }
                    let asked = times.next();
                    action.at_ms = asked.unwrap_or(action.at_ms);
                    asked.is_some()
                });
            }
            plan.actions.sort_by_key(|action| action.at_ms);
        });
    }

    /// Good weather, one gateway, runtimes that work.
    fn calm(&mut self) {
        self.change(|plan| {
            plan.weather = Weather { lag_ms: plan.weather.lag_ms, ..Weather::CALM };
            plan.runtime_fails_one_in = 0;
        });
        self.change(|plan| plan.runtime_fails_one_in = 0);
        self.change(|plan| plan.weather.slow_one_in = 0);
        self.change(|plan| plan.weather.duplicate_one_in = 0);
        self.change(|plan| plan.weather.defer_one_in = 0);
        self.change(|plan| plan.weather.clock_off_ms_max = 0);
        self.change(|plan| plan.weather.lag_ms = Weather::USUAL.lag_ms);
        self.change(|plan| plan.weather.lag_ms = Weather::CALM.lag_ms);
        self.change(|plan| {
            plan.gateways = 1;
            plan.troubles.retain(|event| !event.mentions(GATEWAYS[1]));
            for action in &mut plan.actions {
                GATEWAYS[0].clone_into(&mut action.gateway);
            }
        });
    }

    /// Without one of the clients, names or nodes, or without any trouble.
    fn without_some(&mut self) {
        self.change(|plan| plan.troubles.clear());
        for client in CLIENTS {
            self.change(|plan| plan.actions.retain(|action| action.client != client));
        }
        for name in self.best.plan.names() {
            self.change(|plan| plan.actions.retain(|action| action.name != name));
        }
        for nodes in 1..self.best.plan.nodes {
            let gone = &NODES[nodes..];
            self.change(|plan| {
                plan.nodes = nodes;
                plan.troubles.retain(|event| !gone.iter().any(|node| event.mentions(node)));
            });
        }
    }

    /// Drops ever smaller runs of neighbours until no single one can go.
    fn drop_parts(&mut self, len: impl Fn(&Plan) -> usize, remove: impl Fn(&mut Plan, Range<usize>)) {
        let mut size = len(&self.best.plan).div_ceil(2);
        while size > 0 {
            let mut dropped = false;
            // From the end: what comes late disturbs less.
            let mut end = len(&self.best.plan);
            while end > 0 {
                let start = end.saturating_sub(size);
                dropped |= self.change(|plan| remove(plan, start..end));
                end = start;
            }
            size = if size > 1 { size.div_ceil(2) } else { usize::from(dropped) };
        }
    }

    /// Makes what is left plainer: shorter, sooner, without extras.
    fn simplify(&mut self) {
        for at in 0..self.best.plan.troubles.len() {
            let Ok(Value::Object(trouble)) = serde_json::to_value(&self.best.plan.troubles[at].trouble)
            else {
                continue;
            };
            let fields = trouble.values().filter_map(Value::as_object).flat_map(|fields| fields.keys());
            for field in fields.cloned().collect::<Vec<_>>() {
                while self.plainer(at, &field) {}
            }
        }
        for at in 0..self.best.plan.actions.len() {
            self.change(|plan| plan.actions[at].leaves_after_ms = None);
        }
    }

    /// One step with one field of one trouble.
    fn plainer(&mut self, at: usize, field: &str) -> bool {
        let Ok(mut trouble) = serde_json::to_value(&self.best.plan.troubles[at].trouble) else {
            return false;
        };
        let Some(value) = trouble
            .as_object_mut()
            .and_then(|it| it.values_mut().next())
            .and_then(|fields| fields.get_mut(field))
        else {
            return false;
        };
        let plainer: Vec<Value> = match &*value {
            Value::Bool(true) => vec![false.into()],
            Value::Number(number) => {
                let number = number.as_u64().unwrap_or(0);
                let less = [0, number / 2].into_iter().filter(|less| *less < number);
                std::iter::once(Value::Null).chain(less.map(Value::from)).collect()
            }
            Value::String(fall) if *fall == serde_json::json!(Fall::Power) => {
                vec![serde_json::json!(Fall::Process)]
            }
            _ => return false,
        };
        for less in plainer {
            *trouble
                .as_object_mut()
                .and_then(|it| it.values_mut().next())
                .and_then(|fields| fields.get_mut(field))
                .expect("it was there") = less;
            let Ok(trouble) = serde_json::from_value(trouble.clone()) else { continue };
            if self.change(|plan| plan.troubles[at].trouble = trouble) {
                return true;
            }
        }
        false
    }
}
