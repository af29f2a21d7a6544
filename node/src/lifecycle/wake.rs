use std::{borrow::Cow, sync::Arc, time::Duration};

use drowse_shared::{
    api::{
        Code, Error,
        spaces::{Resumed, State as Word, WAIT_SECONDS},
    },
    name::SpaceRef,
};
use tokio::time::Instant;

use super::{LOOK, refused, told::Told};
use crate::{
    door::error,
    executor::Vitality,
    node::{Node, Slot, not_found},
    space::{
        Space, State,
        state::{Event, Refusal},
    },
};

/// How a space that is used came back.
pub fn resumed(before: Word) -> Option<Resumed> {
    match before {
        Word::Frozen => Some(Resumed::Thawed),
        Word::Stopped | Word::Waking => Some(Resumed::Restarted),
        _ => None,
    }
}

/// Who uses a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// Whoever sent this verb.
    Verb(&'static str),
    /// Whoever asked for this port.
    Port(u16),
}

impl User {
    /// The word where spaces say why they are awake.
    fn word(self) -> &'static str {
        match self {
            Self::Verb(verb) => verb,
            Self::Port(_) => "port",
        }
    }
}

impl From<&'static str> for User {
    fn from(verb: &'static str) -> Self {
        Self::Verb(verb)
    }
}

impl From<User> for Cow<'static, str> {
    fn from(user: User) -> Self {
        match user {
            User::Verb(verb) => verb.into(),
            User::Port(port) => format!("request for port {port}").into(),
        }
    }
}

/// Why a space is shown to whoever may refuse its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// It may be used as it is, or queued for.
    First,
    /// Its turn has come, and it is woken next.
    ToWake,
}

/// Makes a space usable for `user` and moves its idle clock; waits at most [`WAIT_SECONDS`].
///
/// An active space is not queued for: its slot is only taken when something must be done.
///
/// # Errors
/// `space_not_found`, `space_broken`, or that it takes longer.
pub async fn used(
    node: &Arc<Node>,
    space: &SpaceRef,
    user: impl Into<User>,
) -> Result<(Space, Option<Resumed>), Error> {
    used_if(node, space, user, |_, _| Ok(())).await
}

/// The same, unless `may` refuses it.
///
/// # Errors
/// As [`used`], and what `may` says.
pub async fn used_if(
    node: &Arc<Node>,
    space: &SpaceRef,
    user: impl Into<User>,
    may: impl Fn(&Space, Look) -> Result<(), Error>,
) -> Result<(Space, Option<Resumed>), Error> {
    if let Some(refusal) = node.fleet.refuses_use() {
        return Err(refusal);
    }
    let user = user.into();
    let row = node.known(space).await?;
    may(&row, Look::First)?;
    // Touched before the slot is looked at, as the idle step takes the slot before it looks at the touch: one of the two
    // sees the other. A verb that holds the slot may be putting it to sleep: then this one waits behind it.
    if row.state == State::Active {
        node.touch(&row, user.word());
        if !node.slots.is_busy(&row.name) {
            return Ok((row, None));
        }
    }
    let started = Instant::now();
    let patience = Duration::from_secs(WAIT_SECONDS);
    let (slot, row) = node.hold(space, patience).await?;
    if row.state != State::Active {
        may(&row, Look::ToWake)?;
    }
    let left = patience.saturating_sub(started.elapsed());
    let (woken, how) = wake(node, slot, row, user, left).await?.ok_or_else(|| {
        Error::new(
            Code::SpaceBusy,
            format!("{space} takes longer than {WAIT_SECONDS} s to wake; it goes on waking"),
        )
    })?;
    node.touch(&woken, user.word());
    Ok((woken, how))
}

/// Brings a space whose slot is held to `active`. `None` when that takes longer than `patience`: it goes on.
///
/// # Errors
/// As [`Node::drive`].
pub async fn wake(
    node: &Arc<Node>,
    slot: Slot,
    row: Space,
    user: User,
    patience: Duration,
) -> Result<Option<(Space, Option<Resumed>)>, Error> {
    if let Some(refusal) = node.fleet.refuses_use() {
        return Err(refusal);
    }
    match &row.state {
        State::Active => return Ok(Some((row, None))),
        State::Broken(_) => return Err(refused(&row, Refusal::Broken)),
        _ => {}
    }
    let before = row.state.word();
    let missing = not_found(&SpaceRef::Id(row.id));
    let worker = node.clone();
    let work = node.finish("wake", async move {
        let _slot = slot;
        worker.drive(row, Event::Use, user).await?.ok_or(missing)
    });
    match tokio::time::timeout(patience, work).await {
        Ok(woken) => woken.map(|space| Some((space, resumed(before)))),
        Err(_) => Ok(None),
    }
}

/// The agent of an active space could not be reached: asks the kernel what its body does, and wakes it again if it died.
///
/// # Errors
/// `runtime_failed` when the body lives and only its agent is mute, else as [`used`].
pub async fn revive(
    node: &Arc<Node>,
    space: &Space,
    why: &std::io::Error,
    user: impl Into<User>,
) -> Result<(Space, Option<Resumed>), Error> {
    revive_if(node, space, why, user, |_, _| Ok(())).await
}

/// The same, unless `may` refuses to wake what died.
///
/// # Errors
/// As [`revive`], and what `may` says.
pub async fn revive_if(
    node: &Arc<Node>,
    space: &Space,
    why: &std::io::Error,
    user: impl Into<User>,
    may: impl Fn(&Space, Look) -> Result<(), Error>,
) -> Result<(Space, Option<Resumed>), Error> {
    let user = user.into();
    let reference = SpaceRef::Id(space.id);
    let (slot, row) = node.hold(&reference, Duration::from_secs(WAIT_SECONDS)).await?;
    let vitality = match tokio::time::timeout(LOOK, node.executor.vitality(row.id)).await {
        Ok(Ok(vitality)) => vitality,
        Ok(Err(failed)) => return Err(error::executor(&failed)),
        Err(_) => {
            return Err(Error::new(
                Code::RuntimeTimeout,
                format!("the runtime did not answer within {LOOK:?}"),
            ));
        }
    };
    if vitality == Vitality::Running && row.state == State::Active {
        tracing::warn!(space = %row.id, %why, "the body runs but its agent cannot be reached");
        return Err(Error::new(
            Code::RuntimeFailed,
            "the agent of the space cannot be reached; stop it to start anew",
        ));
    }
    let (worker, missing) = (node.clone(), not_found(&reference));
    let settled = node.finish("revive", async move {
        let _slot = slot;
        let found = worker.found(&row, vitality, &Told::of(user.into())).await;
        worker.drive(row, Event::Found(vitality), found.because()).await?.ok_or(missing)
    });
    let is = settled.await?.state.word();
    tracing::warn!(space = %space.id, %is, "the body of a space ended by itself");
    used_if(node, &reference, user, may).await
}
