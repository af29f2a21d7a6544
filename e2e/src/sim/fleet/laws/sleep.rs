//! Who wakes spaces, and who puts them to sleep.

use super::*;

/// Verbs that wake what they are about.
const WAKE: [&str; 6] = ["acquireSpace", "execCommand", "wakeSpace", "touchSpace", "readFile", "writeFile"];
/// How long a question whose answer nobody heard may still be on its way.
const ON_ITS_WAY: Duration = Duration::from_secs(400);

impl Record {
    /// Whether somebody's wish of one of these verbs may act on `name` now.
    fn may_be_wished(&self, name: &str, verbs: &[&str], now: Duration) -> bool {
        self.wishes.values().any(|wish| {
            wish.name == name
                && verbs.contains(&wish.verb)
                && wish.may_act(now, now)
                && (wish.over.is_some() || now - wish.sent <= ON_ITS_WAY)
        })
    }
}

impl Laws {
    /// A machine starts or thaws a body. Law 7: somebody uses it; looking never wakes.
    pub fn woken(&self, host: &str, id: SpaceId) {
        let (now, record) = (self.world.elapsed(), self.record());
        let Some(body) = record.bodies.get(&id) else { return };
        if !record.may_be_wished(&body.name, &WAKE, now) {
            self.world.fail(&format!("law 7: {host} wakes {id} of {} and nobody uses it", body.name));
        }
    }

    /// A machine froze a body in which so many commands run. Only a person does that, or a fleet that removes the node.
    pub fn frozen(&self, host: &str, id: SpaceId, commands: usize) {
        let (now, record) = (self.world.elapsed(), self.record());
        let Some(body) = record.bodies.get(&id) else { return };
        let wished = record.may_be_wished(&body.name, &["freezeSpace"], now);
        if commands > 0 && !wished && !record.may_be_out(host, Duration::ZERO, now) {
            self.world.fail(&format!(
                "law 7: {host} froze {id} of {} in which {commands} commands run, and nobody asked for it",
                body.name
            ));
        }
    }

    /// A machine reached into a body for somebody: it is there, and it is awake unless somebody froze it just then.
    pub fn reached(&self, host: &str, id: SpaceId, asleep: bool) {
        let (now, record) = (self.world.elapsed(), self.record());
        let body = record.bodies.get(&id).filter(|body| body.host == host && body.gone.is_none());
        let Some(body) = body else {
            return self.world.fail(&format!("law 1: {host} reached into body {id}, which is not there"));
        };
        let wished = record.may_be_wished(&body.name, &["freezeSpace"], now);
        if asleep && !wished && !record.may_be_out(host, Duration::ZERO, now) {
            self.world.fail(&format!("law 7: {host} reached into {id} of {}, which is frozen", body.name));
        }
    }
}
