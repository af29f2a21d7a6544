//! `listSpaces` over all nodes: each is asked for the same page, the pages are merged, and who did not answer is named.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Request, State},
};
use drowse_shared::api::{
    Error, JSON_BODY_BYTES_MAX,
    cursor::Cursor,
    nodes::Silent,
    parse,
    spaces::{ListSpaces, PAGE_DEFAULT, Space, SpaceList},
};
use futures_util::{StreamExt as _, stream};

use super::body;
use crate::{fleet::Peer, forward::peer::LIST_BYTES_MAX, service::Gateway};

/// Longest wait for a live node's page.
const LIVE: Duration = Duration::from_secs(10);
/// Longest wait for a node that does not check in.
const OTHERS: Duration = Duration::from_secs(2);
/// Most nodes asked at once.
const AT_ONCE: usize = 64;

/// The handler.
pub(super) async fn list(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Json<SpaceList>, Error> {
    let bytes = body::read(request.into_body(), JSON_BODY_BYTES_MAX).await?;
    let mut wish: ListSpaces = parse(&bytes)?;
    let limit = wish.limit.unwrap_or(PAGE_DEFAULT);
    wish.limit = Some(limit);
    let answers: Vec<_> = stream::iter(gateway.nodes.fleet.asked())
        .map(|peer| page(&gateway, peer, &wish))
        .buffered(AT_ONCE)
        .collect()
        .await;
    Ok(Json(merge(answers, limit as usize)))
}

async fn page(gateway: &Gateway, peer: Peer, wish: &ListSpaces) -> Result<SpaceList, Silent> {
    let deadline = if peer.live { LIVE } else { OTHERS };
    let answer = gateway.nodes.peers.call(&peer.endpoint, "listSpaces", wish, deadline, LIST_BYTES_MAX).await;
    answer.map_err(|failure| Silent { node: peer.id, reason: failure.to_string() })
}

/// One page in order of name and id. The cursor is the last name: nodes go on after it.
fn merge(answers: Vec<Result<SpaceList, Silent>>, limit: usize) -> SpaceList {
    let (mut spaces, mut silent): (Vec<Space>, Vec<Silent>) = (Vec::new(), Vec::new());
    // Nothing beyond the end of an unfinished page may be shown: that node may have more before it.
    let mut end: Option<String> = None;
    for answer in answers {
        match answer {
            Ok(list) => {
                if list.next_cursor.is_some() {
                    let last = list.spaces.last().map(|space| space.name.to_string());
                    end = match (end, last) {
                        (Some(end), Some(last)) => Some(end.min(last)),
                        (end, last) => end.or(last),
                    };
                }
                spaces.extend(list.spaces);
                silent.extend(list.silent);
            }
            Err(who) => silent.push(who),
        }
    }
    spaces.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    let found = spaces.len();
    if let Some(end) = &end {
        spaces.retain(|space| space.name.as_str() <= end.as_str());
    }
    if spaces.len() > limit {
        // A name that is held twice stays on one page: the next one begins after the name.
        let last = spaces[limit - 1].name.clone();
        spaces.retain(|space| space.name <= last);
    }
    silent.sort_by(|a, b| a.node.cmp(&b.node));
    let more = end.is_some() || spaces.len() < found;
    let next_cursor = more.then(|| spaces.last().map(|space| Cursor::after(space.name.clone()))).flatten();
    SpaceList { spaces, next_cursor, silent }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn list(names: &[(&str, u8)], more: bool) -> SpaceList {
        let space = |(name, id): &(&str, u8)| {
            json!({ "id": format!("{id:032x}"), "name": name, "state": "active", "node": "a", "epoch": 1,
                "createdAt": "2026-01-01T00:00:00Z", "lastActiveAt": "2026-01-01T00:00:00Z",
                "policy": { "freezeAfterSeconds": 1, "stopAfterSeconds": 2, "hibernateAfterSeconds": 3 },
                "spec": { "cpus": 1.0, "memoryBytes": 1, "diskBytes": 1, "pids": 1 },
                "template": { "name": "base", "digest": "d" }, "metadata": {} })
        };
        let spaces: Vec<_> = names.iter().map(space).collect();
        let cursor = more.then(|| names.last().and_then(|(name, _)| name.parse().ok()).map(Cursor::after));
        serde_json::from_value(json!({ "spaces": spaces, "nextCursor": cursor, "silent": [] }))
            .expect("a list")
    }

    fn next(list: &SpaceList) -> Option<&str> {
        list.next_cursor.as_ref().map(|cursor| cursor.name().as_str())
    }

    fn names(list: &SpaceList) -> Vec<&str> {
        list.spaces.iter().map(|space| space.name.as_str()).collect()
    }

    #[test]
    fn pages_are_merged_in_order_and_cut_where_all_are_complete() {
        let merged =
            merge(vec![Ok(list(&[("b", 1), ("d", 2)], false)), Ok(list(&[("a", 3), ("c", 4)], false))], 10);
        assert_eq!((names(&merged), next(&merged)), (vec!["a", "b", "c", "d"], None));

        let merged =
            merge(vec![Ok(list(&[("b", 1), ("d", 2)], false)), Ok(list(&[("a", 3), ("c", 4)], false))], 3);
        assert_eq!((names(&merged), next(&merged)), (vec!["a", "b", "c"], Some("c")));

        // The second node has more after c, which may be before d.
        let merged =
            merge(vec![Ok(list(&[("b", 1), ("d", 2)], false)), Ok(list(&[("a", 3), ("c", 4)], true))], 10);
        assert_eq!((names(&merged), next(&merged)), (vec!["a", "b", "c"], Some("c")));

        // Both copies of a name that two nodes hold stay together.
        let merged = merge(vec![Ok(list(&[("a", 1), ("b", 2)], false)), Ok(list(&[("a", 3)], false))], 1);
        assert_eq!((names(&merged), next(&merged)), (vec!["a", "a"], Some("a")));

        let silent = Silent { node: "z".parse().expect("an id"), reason: "timed out".into() };
        let merged = merge(vec![Err(silent.clone()), Ok(list(&[("a", 1)], false))], 1);
        assert_eq!((names(&merged), next(&merged)), (vec!["a"], None));
        assert_eq!(merged.silent, [silent]);
    }
}
