//! What callers note about spaces: once acknowledged, no later answer shows an older note.

use drowse_shared::api::spaces::Space;

use super::*;

/// The key under which clients note something unique.
pub(super) const NOTE: &str = "note";

impl Laws {
    /// A node lost its ledger, and takes its notes from the cards beside its disks.
    pub fn forgot(&self, host: &str) {
        self.record().forgetful.insert(host.to_owned());
    }

    /// Law 2: an answer to a question of `sent` shows what was acknowledged before, or something newer.
    pub(super) fn noted(&self, record: &Record, space: &Space, sent: Duration) {
        let Some(body) = record.bodies.get(&space.id) else { return };
        if record.forgetful.contains(&body.host) {
            return;
        }
        let notes = || record.wishes.values().filter(|wish| wish.note.is_some() && wish.name == body.name);
        let shown = space.metadata.get(NOTE);
        let written = shown.and_then(|shown| notes().find(|wish| wish.note.as_ref() == Some(shown)));
        if let (Some(shown), None) = (shown, written) {
            return self
                .world
                .fail(&format!("law 2: {} carries the note {shown}, which nobody wrote", body.name));
        }
        // The one that is shown was over before that was asked for.
        let older = |than: &Wish| written.is_none_or(|it| it.over.is_some_and(|over| over < than.sent));
        let known =
            notes().filter(|wish| wish.noted == Some(space.id) && wish.over.is_some_and(|over| over < sent));
        if let Some(lost) = known.rev().find(|wish| older(wish)) {
            self.world.fail(&format!(
                "law 2: {} shows the note {shown:?}, and {:?} was acknowledged",
                body.name, lost.note
            ));
        }
    }
}
