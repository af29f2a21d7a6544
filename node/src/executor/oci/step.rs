use std::sync::Arc;

use crate::milestone::{Milestone, Milestones, Progress, listed};

listed! {
    /// One change of the machine. What it is cut after, the next life must be able to take up.
    pub enum Step {
        /// This node has its number.
        TakeInstance = "take an instance number",
        /// The agent lies where spaces run it.
        InstallAgent = "install the agent",

        /// What a new disk begins with lies ready.
        LaySeed = "lay out the seed",
        /// The image is there, empty.
        MakeImage = "make the image",
        /// The image is durable.
        SyncImage = "sync the image",
        /// The card is there and durable.
        WriteCard = "write the card",
        /// The name of the disk is durable.
        SyncNames = "sync the directory of disks",

        /// The body has a directory.
        MakeBody = "make the body",
        /// The uid range is written down.
        LeaseRange = "lease the range",
        /// The mount points are there.
        MakeMountPoints = "make the mount points",
        /// The image is bound to a loop device.
        BindImage = "bind a loop device",
        /// The disk is mounted.
        MountDisk = "mount the disk",
        /// The template is mounted.
        MountTemplate = "mount the template",
        /// The root is mounted.
        MountRoot = "mount the root",
        /// The agents are mounted.
        MountAgents = "show the agent",
        /// The cgroups are there, with their limits.
        MakeCgroups = "make the cgroups",
        /// The socket of the agent listens.
        Listen = "listen for the agent",
        /// The bundle is written.
        WriteBundle = "write the bundle",
        /// The first process is out of the workload.
        MoveAgent = "move the agent",
        /// One mount is the container's alone, or gone.
        Detach = "detach a mount",
        /// The body is marked as started.
        MarkStarted = "mark the body",

        /// The first process is another agent.
        RenewAgent = "replace the agent",
        /// An agent of another build is gone from the disk.
        RemoveAgent = "remove an old agent",

        /// The freezer was told.
        TellFreezer = "tell the freezer",
        /// The workload is suspended.
        Freeze = "freeze the space",
        /// The workload runs.
        Thaw = "thaw the space",

        /// The first process was asked to end.
        Terminate = "ask the space to end",
        /// The first process was killed.
        Kill = "kill the space",
        /// No process is left.
        KillRest = "kill what is left of the space",
        /// A record that the runtime could not read is removed.
        RemoveRecord = "remove the record",
        /// The cgroups are gone.
        RemoveCgroups = "remove the cgroups",
        /// The files of the body are gone.
        RemoveBody = "remove the body",

        /// The disk is no disk any more.
        TrashDisk = "put the disk aside",
        /// The card is gone.
        RemoveCard = "remove the card",
        /// Image and directory are gone.
        RemoveDisk = "remove the disk",
    }
}

listed! {
    /// A program that the executor runs.
    pub enum Program {
        /// It only says that it is there.
        Check = "answer at all",
        /// `mkfs.ext4`.
        MakeFileSystem = "make a file system",
        /// The runtime makes and starts a container.
        RunContainer = "start the container",
        /// The runtime forgets a container.
        DeleteContainer = "delete the container",
    }
}

/// Leave to change the machine. Only a step has it, so whatever changes the machine is a step.
pub(super) struct Leave(());

/// Takes steps, and says of each that it was taken.
#[derive(Debug, Clone)]
pub(super) struct Steps(Arc<dyn Milestones>);

impl Steps {
    pub(super) fn new(milestones: Arc<dyn Milestones>) -> Self {
        Self(milestones)
    }

    /// One change, whole. A failed one may be half done: what cleans up after it takes steps of its own.
    pub(super) fn take<T, E>(&self, step: Step, change: impl FnOnce(&Leave) -> Result<T, E>) -> Result<T, E> {
        let done = change(&Leave(()))?;
        self.0.reached(Milestone::Step(step));
        Ok(done)
    }

    /// How far a program is.
    pub(super) fn program(&self, program: Program, progress: Progress) {
        self.0.reached(Milestone::Program(program, progress));
    }
}
