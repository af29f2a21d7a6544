//! `acquireSpace`: the only verb that creates.
//!
//! A space that is known goes to its node at once. Otherwise one caller at a time, in the name's slot, asks every node
//! with the intent to create, places the space, and has it built; whoever waited for the slot meanwhile finds it by
//! hint, and shares its answer if it failed. From the moment the slot is held the work runs in a task of its own: a caller that leaves stops nothing.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Extension, Request, State},
    response::Response,
};
use bytes::Bytes;
use drowse_shared::{
    api::{
        Code, Error, JSON_BODY_BYTES_MAX,
        nodes::{Held, Holding},
        parse,
        spaces::{AcquireSpace, Acquired, WAIT_SECONDS},
    },
    id::{LedgerId, RequestId, Ticket},
    name::SpaceRef,
    slots::{self, Slot},
};
use http::StatusCode;
use std::collections::BTreeMap;
use tokio::time::Instant;

use super::{
    body,
    spaces::{Load, hinted, locate, moving, once, send},
};
use crate::{
    find::verdict::{self, Verdict},
    fleet::{NoCapacity, Pick, counts::Outcome, torn_down},
    forward::{
        Belief,
        http::{Captured, Forwarded, Head, capture, cut, forward, unreachable},
    },
    service::Gateway,
};

/// What failed a moment ago, for those who waited for it.
pub(crate) mod failed;

/// What a node may take on top of what the caller waits.
const BUILD: Duration = Duration::from_secs(60);
/// How long a node that has just joined is waited for, rather than refusing.
const JOINING: Duration = Duration::from_secs(2);

/// How often a name is looked for before its caller is asked to come again.
const ATTEMPTS: u32 = 4;
/// How many creates may be refused for their ticket before that.
const VOIDS_MAX: u32 = 2;
/// Shortest pause for a gateway that finds another one building the same name, in milliseconds.
const STAND_ASIDE_MS_MIN: u64 = 20;

/// The handler.
pub(super) async fn acquire(
    State(gateway): State<Arc<Gateway>>,
    Extension(request_id): Extension<RequestId>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, request_body) = request.into_parts();
    let bytes = body::read(request_body, JSON_BODY_BYTES_MAX).await?;
    let wish: AcquireSpace = parse(&bytes)?;
    let head = Head::new(&parts, request_id, wish.name.clone());
    if let SpaceRef::Id(_) = &head.space {
        // An id is minted by us: it exists, or it never will.
        return send(&gateway, &head, Load::Kept(bytes)).await;
    }
    let patience = Duration::from_secs(wish.wait_seconds.unwrap_or(WAIT_SECONDS));
    let mut misses = 0;
    while misses < 2 {
        if let Some((peer, hit)) = hinted(&gateway, &head.space).await? {
            match once(&gateway, &head, &peer, &hit, Body::from(bytes.clone())).await? {
                Some(response) => return Ok(response),
                None => misses += 1,
            }
            continue;
        }
        let since = Instant::now();
        let slot =
            gateway.slots.take(&head.space, patience).await.map_err(|error| busy(&head.space, error))?;
        // Whoever held the slot before may have built it.
        if gateway.finder.hint(&head.space).is_some() {
            continue;
        }
        if let Some(error) = gateway.failed.of(&head.space, since) {
            return Err(error);
        }
        let create = Create { gateway: gateway.clone(), head: head.clone(), bytes: bytes.clone(), patience };
        match gateway.env.finish("create", create.run(slot)).await.unwrap_or_else(|| Err(torn_down()))? {
            Some(response) => return Ok(response),
            None => misses += 1,
        }
    }
    Err(moving(&head.space))
}

/// The slot was not given.
pub(super) fn busy(space: &SpaceRef, error: slots::Error) -> Error {
    let code = match error {
        slots::Error::Full(_) => Code::QueueFull,
        slots::Error::Busy(_) => Code::SpaceBusy,
    };
    Error::new(code, format!("\"{space}\" is being built or destroyed: {error}; try again"))
}

/// One create, in its slot.
struct Create {
    gateway: Arc<Gateway>,
    head: Head,
    bytes: Bytes,
    patience: Duration,
}

impl Create {
    /// The answer, or nothing if a node that said yes does not hold the space after all.
    async fn run(self, slot: Slot<SpaceRef>) -> Result<Option<Response>, Error> {
        let _running = self.gateway.shutdown.running();
        let mut slot = Some(slot);
        let answer = self.attempt(&mut slot).await;
        if let (Some(_held), Err(error)) = (&slot, &answer) {
            // Before the slot is given on: whoever waits for it looks here first.
            self.gateway.failed.record(&self.head.space, error, Instant::now());
        }
        answer
    }

    async fn attempt(&self, slot: &mut Option<Slot<SpaceRef>>) -> Result<Option<Response>, Error> {
        let space = &self.head.space;
        let mut voids = 0;
        for _ in 0..ATTEMPTS {
            let tickets = match self.gateway.finder.find_to_create(space).await {
                Verdict::Holder { .. } => {
                    // It exists: no slot is needed to reach it, and waking may take long.
                    drop(slot.take());
                    return self.existing().await;
                }
                Verdict::Conflict { nodes, one_endpoint } => {
                    return Err(verdict::conflict(space, &nodes, one_endpoint.as_deref()));
                }
                Verdict::Unsure(silent) => return Err(verdict::unsure(space, &silent)),
                Verdict::Contested => {
                    // Two gateways that stand aside for each other part by chance.
                    let pause_ms = STAND_ASIDE_MS_MIN + self.gateway.env.random_u64() % STAND_ASIDE_MS_MIN;
                    tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                    continue;
                }
                Verdict::Nobody { tickets } => tickets,
            };
            self.gateway.nodes.fleet.knows_its_nodes()?;
            let pick = match self.pick(&tickets).await {
                Ok(pick) => pick,
                Err(error) => {
                    self.gateway.metrics.placement("no_capacity");
                    return Err(error);
                }
            };
            if let Some(response) = self.build(pick).await? {
                return Ok(Some(response));
            }
            voids += 1;
            if voids == VOIDS_MAX {
                break;
            }
        }
        Err(moving(space))
    }

    async fn existing(&self) -> Result<Option<Response>, Error> {
        let (peer, hit) = locate(&self.gateway, &self.head.space, true).await?;
        once(&self.gateway, &self.head, &peer, &hit, Body::from(self.bytes.clone())).await
    }

    /// A node that joined a moment ago is about to be known elsewhere; that is waited for.
    async fn pick(&self, tickets: &BTreeMap<LedgerId, Ticket>) -> Result<Pick, Error> {
        let ends = Instant::now() + JOINING;
        loop {
            match self.gateway.nodes.fleet.pick(tickets) {
                Ok(pick) => return Ok(pick),
                Err(NoCapacity { passing: true, .. }) if Instant::now() < ends => {
                    self.gateway.nodes.fleet.news(Duration::from_millis(50)).await;
                }
                Err(refused) => return Err(refused.error),
            }
        }
    }

    /// Has it built. Nothing if the permission was void: somebody asked meanwhile, so it must be looked up again.
    async fn build(&self, pick: Pick) -> Result<Option<Response>, Error> {
        let Pick { peer, ticket } = pick;
        let (gateway, head) = (&self.gateway, &self.head);
        let sent = async {
            let body = Body::from(self.bytes.clone());
            match forward(&gateway.nodes, &peer, head, Belief::Create(ticket), body).await {
                Forwarded::Answer(response) => {
                    capture(response).await.map_err(|why| cut(&head.space, &peer, &why))
                }
                Forwarded::NotMine => Err(cut(&head.space, &peer, "it says that the space is not its own")),
                Forwarded::Unreached(why) => Err(unreached(head, &peer, &why)),
                Forwarded::Cut(why) => Err(cut(&head.space, &peer, &why)),
            }
        };
        let deadline = self.patience + BUILD;
        let answer = tokio::time::timeout(deadline, sent).await;
        let answer = answer.unwrap_or_else(|_| {
            Err(cut(&head.space, &peer, &format!("nothing in {} s", deadline.as_secs())))
        });
        let (outcome, word) = match &answer {
            Ok(captured) if captured.status.is_success() => (self.built(&peer, captured), "built"),
            Ok(captured) if is_unsettled(captured.status) => (Outcome::Unknown, "unknown"),
            Ok(_) => (Outcome::Refused, "refused"),
            Err(_) => (Outcome::Unknown, "unknown"),
        };
        gateway.nodes.fleet.settle(&peer.ledger, outcome);
        gateway.metrics.placement(word);
        let captured = answer?;
        if captured.error().is_some_and(|error| error.code == Code::TicketVoid) {
            return Ok(None);
        }
        Ok(Some(captured.into_response()))
    }

    /// Remembers what the node built.
    fn built(&self, peer: &crate::fleet::Peer, captured: &Captured) -> Outcome {
        match serde_json::from_slice::<Acquired>(&captured.body) {
            Ok(acquired) => {
                let space = acquired.space;
                let held = Held {
                    id: space.id,
                    name: space.name,
                    state: space.state,
                    epoch: space.epoch,
                    holding: Holding::Home,
                };
                self.gateway.finder.learn(peer, &held);
                Outcome::Built(held.id)
            }
            // Still being built: 202 shows no id yet.
            Err(_) => Outcome::Unknown,
        }
    }
}

/// Answers after which the space may be there all the same.
fn is_unsettled(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT)
}

fn unreached(head: &Head, peer: &crate::fleet::Peer, why: &str) -> Error {
    let known = unreachable(&head.space, peer, why);
    let message = format!(
        "node {} was to build \"{}\" and cannot be reached: {why}; nothing was built",
        peer.id, head.space
    );
    Error { message, ..known }
}
