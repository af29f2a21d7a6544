//! `GET /attach`: the websocket of a terminal, or of a command that runs.

use std::{borrow::Cow, sync::Arc};

use axum::{
    extract::{
        FromRequestParts as _, Query, Request, State,
        ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code},
    },
    response::Response,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use drowse_shared::{
    api::{
        Code, Error,
        attach::{AttachEvent, AttachOrder, AttachQuery, MESSAGE_BYTES_MAX},
        parse,
    },
    select_biased,
};
use futures_util::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use garde::Validate as _;

use super::expect::{Sender, pointed};
use crate::{
    attach::{self, Attached, Hears, Next, Tells},
    node::Node,
};

/// "Service restart": the client may come back at once.
const RESTART: u16 = close_code::RESTART;

pub(super) async fn attach(
    State(node): State<Arc<Node>>,
    sender: Sender,
    request: Request,
) -> Result<Response, Error> {
    let bad = |why: String| Error::new(Code::InvalidRequest, why);
    let (mut parts, _) = request.into_parts();
    let wish = Query::<AttachQuery>::try_from_uri(&parts.uri).map_err(|why| bad(why.body_text()))?.0;
    wish.validate().map_err(|why| bad(why.to_string().trim_end().to_owned()))?;
    let space = pointed(&parts.headers, parts.uri.query())?.ok_or_else(|| {
        bad("space: attach names its space: ?space=… or the header Drowse-Space".to_owned())
    })?;
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &())
        .await
        .map_err(|why| bad(format!("attach speaks websocket: {}", why.body_text())))?;
    let attached =
        attach::attach(&node, &sender.meant(&space), &wish).await.map_err(sender.misled(&space))?;
    let running = node.shutdown.running();
    Ok(upgrade.max_message_size(MESSAGE_BYTES_MAX).on_upgrade(async move |socket| {
        let _running = running;
        serve(&node, socket, attached).await;
    }))
}

/// Until either side ends, or the daemon is told to: nothing is gained by waiting, and whoever is told comes back at once.
async fn serve(node: &Node, socket: WebSocket, Attached { started, hears, tells }: Attached) {
    let (sink, stream) = socket.split();
    let sink = tokio::sync::Mutex::new(sink);
    if say(&sink, &started).await.is_err() {
        return;
    }
    let goodbye = select_biased! {
        goodbye = hear(&sink, hears) => goodbye,
        goodbye = tell(&sink, stream, tells) => goodbye,
        () = node.shutdown.stopping() => Some((RESTART, Cow::Borrowed("the node restarts; what runs goes on"))),
    };
    if let Some((code, reason)) = goodbye {
        let reason = Utf8Bytes::from(reason.as_ref());
        // Whoever is gone already needs no goodbye.
        let _ = sink.lock().await.send(Message::Close(Some(CloseFrame { code, reason }))).await;
    }
}

type Sink = tokio::sync::Mutex<SplitSink<WebSocket, Message>>;
type Goodbye = Option<(u16, Cow<'static, str>)>;

async fn say(sink: &Sink, event: &AttachEvent) -> Result<(), axum::Error> {
    // Every one of these is plain JSON by construction.
    let text = serde_json::to_string(event).unwrap_or_default();
    sink.lock().await.send(Message::text(text)).await
}

/// Hands on what the command says. A client that does not take it holds the command back.
async fn hear(sink: &Sink, mut hears: Hears) -> Goodbye {
    loop {
        let sent = match hears.next().await {
            Next::Bytes(base64) if base64.is_empty() => {
                sink.lock().await.send(Message::Ping("".into())).await
            }
            Next::Bytes(base64) => match STANDARD.decode(base64) {
                Ok(bytes) => sink.lock().await.send(Message::binary(bytes)).await,
                Err(_) => return Some((close_code::ERROR, "the agent of the space sent nonsense".into())),
            },
            Next::Event(event) => say(sink, &event).await,
            Next::Last(event) => {
                say(sink, &event).await.ok()?;
                let code = if matches!(event, AttachEvent::Ended(_)) {
                    close_code::NORMAL
                } else {
                    close_code::ERROR
                };
                return Some((code, Cow::Borrowed("")));
            }
        };
        sent.ok()?;
    }
}

/// Hands on what the client says; an order that is refused is answered in words and changes nothing.
async fn tell(sink: &Sink, mut stream: SplitStream<WebSocket>, mut tells: Tells) -> Goodbye {
    loop {
        let told = match stream.next().await? {
            Ok(Message::Binary(bytes)) => tells.bytes(&bytes).await,
            Ok(Message::Text(text)) => match parse::<AttachOrder>(text.as_bytes()) {
                Ok(order) => tells.order(order).await,
                Err(why) => Err(why),
            },
            Ok(Message::Ping(_) | Message::Pong(_)) => Ok(()),
            Ok(Message::Close(_)) | Err(_) => return None,
        };
        if let Err(why) = told {
            say(sink, &AttachEvent::Failed(why)).await.ok()?;
        }
    }
}
