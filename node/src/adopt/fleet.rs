use std::time::Duration;

use bytes::Bytes;
use drowse_shared::{
    api::nodes::{Node, NodeList, NodeState},
    http::{Limits, client, why},
    id::{LedgerId, NodeId},
    seams::Env,
    token::Token,
};
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full, Limited};

/// Longest wait for a gateway.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Largest list of nodes.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// What the gateways say of the node whose disks these are.
#[derive(Debug, Default)]
pub(super) struct View {
    /// Under which id it is known, and whether it is there.
    pub(super) old: Option<(NodeId, NodeState)>,
    /// Which gateway says that.
    pub(super) gateway: String,
    /// The others that may hold spaces.
    pub(super) others: Vec<NodeId>,
}

/// Asks each gateway in turn; the first answer counts, unless another one has heard the node. Those that did not answer come
/// with the reason.
pub(super) async fn ask(
    env: &Env,
    gateways: &[String],
    token: Option<&Token>,
    old: LedgerId,
    own: LedgerId,
) -> (Option<View>, Vec<String>) {
    let (mut view, mut silent): (Option<View>, Vec<String>) = (None, Vec::new());
    for gateway in gateways {
        match list(env, gateway, token).await {
            Ok(list) => {
                let heard = read(gateway, list.nodes, old, own);
                let live = matches!(heard.old, Some((_, NodeState::Live)));
                if live || view.is_none() {
                    view = Some(heard);
                }
            }
            Err(error) => silent.push(format!("{gateway}: {error}")),
        }
    }
    (view, silent)
}

fn read(gateway: &str, nodes: Vec<Node>, old: LedgerId, own: LedgerId) -> View {
    let mut view = View { gateway: gateway.to_owned(), ..View::default() };
    for node in nodes {
        if node.ledger_id == old {
            view.old = Some((node.id, node.state));
        } else if node.ledger_id != own && node.state != NodeState::Removed {
            view.others.push(node.id);
        }
    }
    view
}

async fn list(env: &Env, gateway: &str, token: Option<&Token>) -> Result<NodeList, String> {
    let client = client::<Full<Bytes>>(env, Limits::default());
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(format!("{gateway}/listNodes"))
        .body(Full::from("{}"))
        .map_err(|error| error.to_string())?;
    if let Some(token) = token {
        request.headers_mut().insert(header::AUTHORIZATION, token.bearer());
    }
    tokio::time::timeout(ANSWER_MAX, async {
        let response = client.request(request).await.map_err(|error| why(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| why(&*error))?.to_bytes();
        if !status.is_success() {
            let said = serde_json::from_slice::<drowse_shared::api::Error>(&body);
            return Err(said.map_or_else(|_| format!("it answered {status}"), |error| error.message));
        }
        serde_json::from_slice(&body).map_err(|error| format!("its answer cannot be read: {error}"))
    })
    .await
    .map_err(|_| format!("no answer within {ANSWER_MAX:?}"))?
}
