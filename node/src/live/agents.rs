use drowse_shared::id::SpaceId;

use super::Live;

/// An agent of another build, under a space that runs or is frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldAgent {
    /// It is to be replaced.
    Due,
    /// It could not be, and is asked again.
    Busy,
    /// Its space sleeps: it follows when that is woken.
    Asleep,
    /// It goes on until its space stops.
    Refused,
}

impl Live {
    /// The agent of the space, if it is of another build.
    pub fn old_agent(&self, id: SpaceId) -> Option<OldAgent> {
        self.table().entries.get(&id)?.old_agent
    }

    /// Notes what the agent of the space is; `None` = this daemon's own.
    pub fn set_old_agent(&self, id: SpaceId, is: Option<OldAgent>) {
        self.table().change(id, |entry| entry.old_agent = is);
    }

    /// Spaces whose agent is of another build.
    pub fn old_agents(&self) -> Vec<SpaceId> {
        let table = self.table();
        table.entries.iter().filter(|(_, entry)| entry.old_agent.is_some()).map(|(id, _)| *id).collect()
    }

    /// Those of them that are to be replaced.
    pub fn replaceable_agents(&self) -> Vec<SpaceId> {
        let table = self.table();
        let due = |entry: &super::Entry| matches!(entry.old_agent, Some(OldAgent::Due | OldAgent::Busy));
        table.entries.iter().filter(|(_, entry)| due(entry)).map(|(id, _)| *id).collect()
    }

    /// The agent of the space, if it is of another build, waits until that is woken.
    pub fn falls_asleep_with_its_agent(&self, id: SpaceId) {
        self.table().change_known(id, |entry| {
            entry.old_agent = entry.old_agent.map(|_| OldAgent::Asleep);
        });
    }
}
