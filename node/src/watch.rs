use std::sync::Arc;

use axum::body::Body;
use drowse_shared::{
    api::{
        Error,
        watch::{WatchEvent, WatchFiles, WatchOverflow, WatchStarted},
    },
    id::SpaceId,
};
use futures_util::stream::unfold;

use crate::{
    agent_client::{
        self, Kind,
        watch::{Told, Watching, watch},
    },
    door::error,
    exec::stream::line,
    lifecycle::{usage::Usage, wake},
    node::Node,
};

const VERB: &str = "watchFiles";

/// Puts a directory under watch and answers what happens there, one JSON document a line. It keeps its space awake only
/// while something happens. Dropping the body ends the watch.
///
/// # Errors
/// Why it cannot be watched.
pub async fn stream(node: &Arc<Node>, wish: &WatchFiles) -> Result<Body, Error> {
    let (mut row, mut resumed) = wake::used(node, &wish.name, VERB).await?;
    let watching = match watch(&node.place(row.id), wish).await {
        Err(agent_client::Error::Unreachable(why)) => {
            let revived = wake::revive(node, &row, &why, VERB).await?;
            (row, resumed) = (revived.0, revived.1.or(resumed));
            watch(&node.place(row.id), wish).await
        }
        begun => begun,
    };
    let watching = watching.map_err(|why| error::agent(&why))?;
    let started = WatchEvent::Started(WatchStarted { resumed });
    let usage = Usage::now(node, row.id);
    let state = Watched { node: node.clone(), id: row.id, watching, usage };
    let events = unfold((Some(started), Some(state)), |(first, state)| async move {
        if let Some(event) = first {
            return Some((line(&event), (None, state)));
        }
        let mut state = state?;
        let event = state.next().await;
        let over = matches!(event, WatchEvent::Overflow(_) | WatchEvent::Failed(_));
        Some((line(&event), (None, (!over).then_some(state))))
    });
    Ok(Body::from_stream(events))
}

struct Watched {
    node: Arc<Node>,
    id: SpaceId,
    watching: Watching,
    usage: Usage,
}

impl Watched {
    async fn next(&mut self) -> WatchEvent {
        match self.watching.next().await {
            Ok(Told::Changed(change)) => {
                self.usage.heard(&self.node, self.id);
                WatchEvent::Changed(change)
            }
            Ok(Told::Alive) => WatchEvent::Alive {},
            Err(agent_client::Error::Refused { kind: Kind::Lost, message }) => {
                WatchEvent::Overflow(WatchOverflow { message })
            }
            Err(why) => WatchEvent::Failed(error::agent(&why)),
        }
    }
}
