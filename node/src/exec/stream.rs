use std::{convert::Infallible, pin::Pin, sync::Arc};

use axum::body::Body;
use bytes::Bytes;
use drowse_shared::{
    api::{
        Code, Error,
        exec::{ExecCommand, ExecEnded, ExecEvent, ExecStarted},
    },
    select_biased,
};
use futures_util::stream::unfold;
use serde::Serialize;
use tokio::time::{Sleep, sleep};

use super::{Begun, Failed, begun, tag};
use crate::{
    agent_client::process::{Channel, Ended, Running, Said},
    door::error,
    live::RunGuard,
    node::Node,
    space::Space,
};

const VERB: &str = "execStream";

/// Starts a command and answers its events, one JSON document a line. Nothing is read ahead: who does not read, holds the
/// command back. Dropping the body kills the command, unless it is detached.
///
/// # Errors
/// Why it did not run, or that it is not known whether it did.
pub async fn stream(node: &Arc<Node>, wish: &ExecCommand) -> Result<Body, Error> {
    if wish.idempotency_key.is_some() {
        let message = "idempotencyKey: execStream runs a command each time; execCommand keeps answers by key";
        return Err(Error::new(Code::InvalidRequest, message));
    }
    let begun = begun(node, &wish.name, wish, &tag(node), VERB).await.map_err(Failed::error)?;
    let Begun { mut running, space, resumed, guard } = begun;
    let feeding = Box::pin(running.feed(&node.place(space.id)));
    let started = ExecEvent::Started(ExecStarted { pid: running.pid, resumed });
    let limit = running.limit().map(|limit| Box::pin(sleep(limit)));
    let state = Streamed { node: node.clone(), space, running, feeding: Some(feeding), limit, _guard: guard };
    let events = unfold((Some(started), Some(state)), |(first, state)| async move {
        if let Some(event) = first {
            return Some((line(&event), (None, state)));
        }
        let mut state = state?;
        let (event, over) = state.next().await;
        Some((line(&event), (None, (!over).then_some(state))))
    });
    Ok(Body::from_stream(events))
}

struct Streamed {
    node: Arc<Node>,
    space: Space,
    running: Running,
    feeding: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    limit: Option<Pin<Box<Sleep>>>,
    _guard: RunGuard,
}

impl Streamed {
    /// The next event, and whether it is the last.
    async fn next(&mut self) -> (ExecEvent, bool) {
        let said = loop {
            let feeding = async {
                match &mut self.feeding {
                    Some(feeding) => feeding.await,
                    None => std::future::pending().await,
                }
            };
            let late = async {
                match &mut self.limit {
                    Some(limit) => limit.await,
                    None => std::future::pending().await,
                }
            };
            select_biased! {
                said = self.running.next() => break said,
                () = feeding => self.feeding = None,
                () = late => {
                    let message = "the command was to be killed by now, and its space does not say that it was";
                    return (ExecEvent::Failed(Error::new(Code::RuntimeTimeout, message)), true);
                }
            }
        };
        match said {
            Ok(Said::Output(channel, base64)) => {
                self.node.touch(&self.space, VERB);
                let event = match channel {
                    Channel::Stderr => ExecEvent::Stderr(base64),
                    Channel::Stdout | Channel::Terminal => ExecEvent::Stdout(base64),
                };
                (event, false)
            }
            Ok(Said::Alive) => (ExecEvent::Alive {}, false),
            Ok(Said::Ended(Ended { exit_code, timed_out, .. })) => {
                self.node.touch(&self.space, VERB);
                let duration_ms = u64::try_from(self.running.took().as_millis()).unwrap_or(u64::MAX);
                (ExecEvent::Ended(ExecEnded { exit_code, timed_out, duration_ms }), true)
            }
            Err(why) => (ExecEvent::Failed(error::agent(&why)), true),
        }
    }
}

/// An event as one line.
pub(crate) fn line(event: &impl Serialize) -> Result<Bytes, Infallible> {
    // Every one of these is plain JSON by construction.
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    Ok(line.into())
}
