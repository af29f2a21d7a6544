//! Nodes that were removed from the fleet, and their way back.

use drowse_shared::api::{nodes::Conflict, spaces::State};

use super::*;

/// Two check-in intervals, and less than any removal takes after them.
const SILENT_FOR_AT_LEAST: Duration = Duration::from_secs(9);

/// A time in which a node was not of the fleet, or may not have been.
#[derive(Debug, Clone, Copy)]
pub(super) struct Out {
    /// Its removal was asked for.
    asked: Duration,
    /// It was acknowledged.
    since: Option<Duration>,
    /// Its readmission was asked for, and may happen.
    returns: Option<Duration>,
    /// It is back, or never went.
    until: Option<Duration>,
    /// Questions for its removal that are not answered.
    open: u32,
    /// Nobody who was there knew that it was removed. Somebody who comes back may.
    unknowable: bool,
    /// An operator was told then that it is a member all the same, and asks no more unless somebody knows better after that.
    settled: Option<Duration>,
}

impl Record {
    /// Whether a node may have been out of the fleet at some moment between two.
    pub(super) fn may_be_out(&self, host: &str, from: Duration, to: Duration) -> bool {
        let outs = self.outs.get(host).into_iter().flatten();
        outs.clone().any(|out| out.asked <= to && out.until.is_none_or(|until| until >= from))
    }

    /// Whether a node was out of the fleet from one moment to another.
    pub(super) fn is_surely_out(&self, host: &str, from: Duration, to: Duration) -> bool {
        let mut outs = self.outs.get(host).into_iter().flatten();
        outs.any(|out| {
            !out.unknowable
                && out.since.is_some_and(|since| since <= from)
                && out.returns.is_none_or(|returns| returns > to)
                && out.until.is_none_or(|until| until > to)
        })
    }

    fn out(&mut self, host: &str) -> Option<&mut Out> {
        self.outs.get_mut(host)?.last_mut().filter(|out| out.until.is_none())
    }
}

impl Laws {
    /// An operator asks a gateway to remove a node.
    pub fn removal_asked(&self, host: &str) {
        let asked = self.world.elapsed();
        let mut record = self.record();
        if record.out(host).is_none() {
            let (since, returns, until, settled) = (None, None, None, None);
            let out = Out { asked, since, returns, until, open: 0, unknowable: false, settled };
            record.outs.entry(host.to_owned()).or_default().push(out);
        }
        if let Some(out) = record.out(host) {
            out.open += 1;
        }
    }

    /// The gateway says that it is removed. Law 5: it does not remove one that it hears.
    pub fn removal_told(&self, gateway: &str, host: &str, by_this: bool) {
        let now = self.world.elapsed();
        let mut record = self.record();
        let Some(out) = record.out(host) else { return };
        out.open = out.open.saturating_sub(1);
        out.since.get_or_insert(now);
        self.standings.removed(gateway, host);
        let heard = self.standings.taken(gateway, host).filter(|_| by_this);
        if let Some(heard) = heard.filter(|heard| now.saturating_sub(*heard) < SILENT_FOR_AT_LEAST) {
            self.world.fail(&format!("law 5: {gateway} removed {host}, which it heard at {heard:?}"));
        }
    }

    /// The gateway refused to remove it. Where no other question of that kind is open it never was out.
    pub fn removal_refused(&self, host: &str) {
        let now = self.world.elapsed();
        if let Some(out) = self.record().out(host).filter(|out| out.since.is_none()) {
            out.open = out.open.saturating_sub(1);
            out.until = (out.open == 0).then_some(now);
        }
    }

    /// An operator asks a gateway to take a node back.
    pub fn readmission_asked(&self, host: &str) {
        let now = self.world.elapsed();
        if let Some(out) = self.record().out(host) {
            out.returns.get_or_insert(now);
        }
    }

    /// The gateway took it back. Law 1: no name of it has another body.
    pub fn readmitted(&self, host: &str) {
        self.hear();
        let now = self.world.elapsed();
        let mut record = self.record();
        let Some(out) = record.out(host) else { return };
        if out.unknowable || out.open > 0 {
            // Whoever knows better ends that, or a question that is open does, without a word to the operator.
            out.settled = Some(now);
            return;
        }
        out.until = Some(now);
        for (id, body) in record.bodies.iter().filter(|(_, body)| body.host == host && body.gone.is_none()) {
            let others = record.bodies.iter().filter(|(_, other)| {
                other.host != host
                    && other.name == body.name
                    && other.gone.is_none()
                    && !record.may_be_out(&other.host, now, now)
            });
            for (other, there) in others {
                self.world.fail(&format!(
                    "law 1: {host} was readmitted with {id} of {}, and {} has {other}",
                    body.name, there.host
                ));
            }
        }
    }

    /// The gateway did not take it back, for these reasons. Each must be one.
    pub fn readmission_refused(&self, host: &str, asked: Duration, conflicts: &[Conflict]) {
        let now = self.world.elapsed();
        let mut record = self.record();
        if let Some(out) = record.out(host) {
            out.returns = None;
        }
        for conflict in conflicts {
            let held = |of_it: bool| {
                record.bodies.values().any(|body| {
                    (body.host == host) == of_it
                        && body.name == conflict.name.as_str()
                        && body.lived_within(asked, now)
                })
            };
            // A row comes before its body and stays until after it; the other one may never have got one.
            let comes_or_goes = conflict.bodies.iter().any(|body| {
                body.node.as_str() == host && matches!(body.state, State::Creating | State::Destroying)
            });
            if !held(true) && !comes_or_goes {
                self.world.fail(&format!("readmission of {host}: it does not hold {}", conflict.name));
            }
        }
    }

    /// Names of which a node that is out holds a body, and another node does too.
    pub fn doubled(&self, host: &str) -> Vec<String> {
        let record = self.record();
        let there = |at: bool| {
            record.bodies.values().filter(move |body| (body.host == host) == at && body.gone.is_none())
        };
        let mut names: Vec<String> = there(true)
            .filter(|body| there(false).any(|other| other.name == body.name))
            .map(|body| body.name.clone())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Nodes that are out of the fleet, or may be.
    pub fn outs(&self) -> Vec<String> {
        let record = self.record();
        let out = |(host, outs): (&String, &Vec<Out>)| {
            let last = outs.last().filter(|out| out.until.is_none())?;
            let is_out = |settled| self.standings.shunned_first(host, settled).is_some();
            last.settled.is_none_or(is_out).then(|| host.clone())
        };
        record.outs.iter().filter_map(out).collect()
    }

    /// Since when a node that is surely out of the fleet knows it, if it was told after `back`.
    pub fn shunned_since(&self, host: &str, back: Duration) -> Option<Duration> {
        let now = self.world.elapsed();
        let out = self.record().is_surely_out(host, now, now);
        self.standings.shunned_first(host, back).filter(|_| out)
    }

    /// A gateway lost its database.
    pub fn gateway_forgot(&self, gateway: &str) {
        self.standings.forgot(gateway);
    }

    /// Takes in what the wire has shown. Law 1: no removed node is welcomed by a gateway that knows of its removal.
    pub(super) fn hear(&self) {
        for welcomed in self.standings.welcomed() {
            let mut record = self.record();
            if !record.is_surely_out(&welcomed.node, welcomed.asked, welcomed.told) {
                continue;
            }
            if welcomed.against_better_knowledge {
                self.world.fail(&format!(
                    "law 1: {} told {} at {:?} that it is a member, and it is removed",
                    welcomed.gateway, welcomed.node, welcomed.told
                ));
            }
            if let Some(out) = record.out(&welcomed.node) {
                self.world.note(&format!("{} is back, and nobody can know better", welcomed.node));
                out.unknowable = true;
            }
        }
    }
}
