use drowse_shared::id::SpaceId;

use super::Live;

/// An agent of another build, under a space that runs or is frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldAgent {
    /// It is to be replaced.
    Due,
    /// It could not be, and is asked again.
    Busy,
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
}
