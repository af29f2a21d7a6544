//! `acquireSpace`: the only verb that creates.
//!
//! A space that is known goes to its node at once. Otherwise one caller flies for all who want the name: in the name's
//! slot it asks every node with the intent to create, places the space, and has it built; whoever comes meanwhile waits,
//! and then goes where it landed with its own request, or shares its failure. The flight is a task of its own: a caller
//! that leaves stops nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

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
        spaces::{AcquireSpace, Acquired},
    },
    http::deadline::Deadline,
    id::{LedgerId, RequestId, Ticket},
    name::SpaceRef,
    slots,
};
use http::StatusCode;
use tokio::time::Instant;

use super::{
    body,
    spaces::{conflict, hinted, locate, moving, once, unsure},
};
use crate::{
    find::{Busy, cache::Hit, verdict::Verdict},
    fleet::{NoCapacity, NoPick, Peer, Pick, counts::Outcome, torn_down},
    forward::{
        Belief,
        http::{Captured, Forwarded, Head, capture, cut, forward, unreachable},
    },
    service::Gateway,
};
use flight::{Boarding, Landed, Lead, Untold};

/// Creates on their way.
pub(crate) mod flight;

/// What a node may take on top of what the caller waits.
const BUILD: Duration = Duration::from_secs(60);
/// How long a node that has just joined is waited for, rather than refusing.
const JOINING: Duration = Duration::from_secs(2);

/// Least wait for a turn among many who want one space: it passes quickly once that space is awake.
const TURN: Duration = Duration::from_secs(5);

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
    Extension(deadline): Extension<Deadline>,
    request: Request,
) -> Result<Response, Error> {
    let (parts, request_body) = request.into_parts();
    let bytes = body::read_in(&gateway.room, request_body, JSON_BODY_BYTES_MAX).await?;
    let wish: AcquireSpace = parse(&bytes)?;
    let patience = wish.patience();
    deadline.extend(patience);
    let head = Head::new(parts, request_id, wish.name).asking(patience);
    let wish = Wish { head, bytes, patience };
    // In boxes of their own: ten thousand may wait here, and most of what follows is not needed for that.
    match &wish.head.space {
        // An id is minted by us: it exists, or it never will.
        SpaceRef::Id(_) => Box::pin(by_id(&gateway, &wish)).await,
        SpaceRef::Name(_) => by_name(&gateway, &wish).await,
    }
}

/// What a caller asked for.
#[derive(Clone)]
struct Wish {
    head: Head,
    bytes: Bytes,
    /// How long it waits.
    patience: Duration,
}

impl Wish {
    /// Sends it where the space is. Nothing if it is not there after all.
    ///
    /// Of those who want one space a few go at a time: the first of them wakes it, and a node is not asked to keep a crowd.
    async fn send(&self, gateway: &Gateway, peer: &Peer, hit: &Hit) -> Result<Option<Response>, Error> {
        let turn = gateway.crowds.take(&hit.id, self.patience.max(TURN)).await;
        let _turn = turn.map_err(|error| crowded(&self.head.space, error))?;
        once(gateway, &self.head, peer, hit, Body::from(self.bytes.clone())).await
    }
}

async fn by_id(gateway: &Arc<Gateway>, wish: &Wish) -> Result<Response, Error> {
    for attempt in 0..2 {
        let (peer, hit) = locate(gateway, &wish.head.space, attempt == 0).await?;
        if let Some(response) = wish.send(gateway, &peer, &hit).await? {
            return Ok(response);
        }
    }
    Err(moving(&wish.head.space))
}

async fn by_name(gateway: &Arc<Gateway>, wish: &Wish) -> Result<Response, Error> {
    let space = &wish.head.space;
    let ends = Instant::now() + wish.patience;
    let mut misses = 0;
    while misses < 2 {
        let sent = match Box::pin(hinted(gateway, space)).await? {
            Some((peer, hit)) => Box::pin(wish.send(gateway, &peer, &hit)).await?,
            None => match gateway.creates.board(space) {
                Boarding::Full => return Err(Busy.into()),
                Boarding::Lead(lead) => {
                    let create = Create { gateway: gateway.clone(), wish: wish.clone() };
                    let flown = Box::pin(gateway.env.finish("create", create.fly(lead))).await;
                    flown.unwrap_or_else(|| Err(torn_down()))?
                }
                Boarding::Join(waiter) => {
                    match waiter.landed(ends.saturating_duration_since(Instant::now())).await {
                        Ok(Landed::At(place)) => Box::pin(wish.send(gateway, &place.0, &place.1)).await?,
                        Ok(Landed::Again) => continue,
                        Ok(Landed::Failed(error)) => return Err(Error::clone(&error)),
                        Ok(Landed::Refused { because, answer }) => {
                            if because.is_some_and(|because| because != wish.bytes) {
                                // What was wrong with that wish may be right with this one.
                                continue;
                            }
                            return Ok(answer.into_response());
                        }
                        Err(Untold::Late) => return Err(busy(space, slots::Error::Busy(wish.patience))),
                        Err(Untold::TornDown) => return Err(torn_down()),
                    }
                }
            },
        };
        match sent {
            Some(response) => return Ok(response),
            None => misses += 1,
        }
    }
    Err(moving(space))
}

/// The slot was not given.
pub(super) fn busy(space: &SpaceRef, error: slots::Error) -> Error {
    let code = match error {
        slots::Error::Full(_) => Code::QueueFull,
        slots::Error::Busy(_) => Code::SpaceBusy,
    };
    Error::new(code, format!("\"{space}\" is being built or destroyed: {error}; try again"))
}

/// Too many want one space.
fn crowded(space: &SpaceRef, error: slots::Error) -> Error {
    let error = busy(space, error);
    let message =
        format!("many requests acquire \"{space}\" at once, and it takes its time to wake; try again");
    Error { message, ..error }
}

/// One create, for everybody who wants the name.
struct Create {
    gateway: Arc<Gateway>,
    wish: Wish,
}

/// What an attempt came to.
enum Attempt {
    /// It exists.
    Exists(Peer, Hit),
    /// The node's answer, and the space if it says which.
    Built(Captured, Option<(Peer, Hit)>),
}

impl Create {
    /// The answer to who began it, or nothing if a node that said yes does not hold the space after all.
    async fn fly(self, lead: Lead) -> Result<Option<Response>, Error> {
        let _running = self.gateway.shutdown.running();
        let space = &self.wish.head.space;
        let slot = match self.gateway.slots.take(space, self.wish.patience).await {
            Ok(slot) => slot,
            Err(error) => {
                // Others may be more patient.
                lead.land(Landed::Again);
                return Err(busy(space, error));
            }
        };
        // Everybody is told before the slot is free: who comes after it was given back has to look anew.
        match self.attempt().await {
            Ok(Attempt::Exists(peer, hit)) => {
                lead.land(Landed::At(Arc::new((peer.clone(), hit.clone()))));
                // No slot is needed to reach it, and waking may take long.
                drop(slot);
                self.wish.send(&self.gateway, &peer, &hit).await
            }
            Ok(Attempt::Built(answer, place)) => {
                lead.land(match place {
                    Some(place) => Landed::At(Arc::new(place)),
                    // Still being built: 202 shows no id yet.
                    None if answer.status.is_success() => Landed::Again,
                    None => Landed::Refused {
                        because: (answer.status == StatusCode::BAD_REQUEST).then(|| self.wish.bytes.clone()),
                        answer: answer.clone(),
                    },
                });
                Ok(Some(answer.into_response()))
            }
            Err(error) => {
                lead.land(Landed::Failed(Arc::new(error.clone())));
                Err(error)
            }
        }
    }

    async fn attempt(&self) -> Result<Attempt, Error> {
        let space = &self.wish.head.space;
        // Whoever held the slot before may have built it.
        if let Some((peer, hit)) = hinted(&self.gateway, space).await? {
            return Ok(Attempt::Exists(peer, hit));
        }
        let mut voids = 0;
        for _ in 0..ATTEMPTS {
            let (asked, tickets) = match self.gateway.finder.find_to_create(space).await? {
                Verdict::Holder { peer, held } => {
                    let hit = Hit::of(&peer, &held);
                    return Ok(Attempt::Exists(peer, hit));
                }
                Verdict::Conflict { nodes, one_endpoint } => {
                    return Err(conflict(&self.gateway, space, &nodes, one_endpoint.as_deref()));
                }
                Verdict::Unsure(silent) => return Err(unsure(&self.gateway, space, &silent)),
                Verdict::Contested => {
                    self.stand_aside().await;
                    continue;
                }
                Verdict::Nobody { asked, tickets } => (asked, tickets),
            };
            self.gateway.nodes.fleet.knows_its_nodes()?;
            let pick = match self.pick(&asked, &tickets).await {
                Ok(Some(pick)) => pick,
                Ok(None) => {
                    self.stand_aside().await;
                    continue;
                }
                Err(error) => {
                    self.gateway.metrics.placement("no_capacity");
                    return Err(error);
                }
            };
            if let Some(built) = self.build(pick).await? {
                return Ok(built);
            }
            voids += 1;
            if voids == VOIDS_MAX {
                break;
            }
        }
        Err(moving(space))
    }

    /// Two gateways that stand aside for each other part by chance.
    async fn stand_aside(&self) {
        let pause_ms = STAND_ASIDE_MS_MIN + self.gateway.env.random_u64() % STAND_ASIDE_MS_MIN;
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
    }

    /// A node that joined a moment ago is about to be known elsewhere; that is waited for. Nothing if somebody who was
    /// not asked may hold the space: it must be looked up again.
    async fn pick(
        &self,
        asked: &BTreeSet<LedgerId>,
        tickets: &BTreeMap<LedgerId, Ticket>,
    ) -> Result<Option<Pick>, Error> {
        let ends = Instant::now() + JOINING;
        loop {
            match self.gateway.nodes.fleet.pick(asked, tickets) {
                Ok(pick) => return Ok(Some(pick)),
                Err(NoPick::NotAsked) => return Ok(None),
                Err(NoPick::NoCapacity(NoCapacity { passing: true, .. })) if Instant::now() < ends => {
                    self.gateway.nodes.fleet.news(Duration::from_millis(50)).await;
                }
                Err(NoPick::NoCapacity(refused)) => return Err(refused.error),
            }
        }
    }

    /// Has it built. Nothing if the permission was void: somebody asked meanwhile, so it must be looked up again.
    async fn build(&self, pick: Pick) -> Result<Option<Attempt>, Error> {
        let Pick { peer, ticket } = pick;
        let (gateway, head) = (&self.gateway, &self.wish.head);
        let sent = async {
            let body = Body::from(self.wish.bytes.clone());
            match forward(&gateway.nodes, &peer, head, Belief::Create(ticket), body).await {
                Forwarded::Answer(response) => {
                    capture(response).await.map_err(|why| cut(&head.space, &peer, &why))
                }
                Forwarded::NotMine => Err(cut(&head.space, &peer, "it says that the space is not its own")),
                Forwarded::Unreached(why) => Err(unreached(head, &peer, &why)),
                Forwarded::Cut(why) => Err(cut(&head.space, &peer, &why)),
                Forwarded::Busy => Err(Busy.into()),
            }
        };
        let deadline = self.wish.patience + BUILD;
        let answer = tokio::time::timeout(deadline, sent).await;
        let answer = answer.unwrap_or_else(|_| {
            Err(cut(&head.space, &peer, &format!("nothing in {} s", deadline.as_secs())))
        });
        let hit = answer.as_ref().ok().and_then(|answer| self.built(&peer, answer));
        let (outcome, word) = match (&answer, &hit) {
            (_, Some(hit)) => (Outcome::Built(hit.id), "built"),
            (Ok(captured), None) if captured.status.is_success() => (Outcome::Unknown, "built"),
            (Ok(captured), None) if is_unsettled(captured.status) => (Outcome::Unknown, "unknown"),
            (Ok(_), None) => (Outcome::Refused, "refused"),
            (Err(_), None) => (Outcome::Unknown, "unknown"),
        };
        gateway.nodes.fleet.settle(&peer.ledger, outcome);
        gateway.metrics.placement(word);
        let captured = answer?;
        if captured.error().is_some_and(|error| error.code == Code::TicketVoid) {
            return Ok(None);
        }
        Ok(Some(Attempt::Built(captured, hit.map(|hit| (peer, hit)))))
    }

    /// Remembers what the node built.
    fn built(&self, peer: &Peer, captured: &Captured) -> Option<Hit> {
        if !captured.status.is_success() {
            return None;
        }
        let space = serde_json::from_slice::<Acquired>(&captured.body).ok()?.space;
        let held = Held {
            id: space.id,
            name: space.name,
            state: space.state,
            epoch: space.epoch,
            holding: Holding::Home,
        };
        self.gateway.finder.learn(peer, &held);
        Some(Hit::of(peer, &held))
    }
}

/// Answers after which the space may be there all the same.
fn is_unsettled(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT)
}

fn unreached(head: &Head, peer: &Peer, why: &str) -> Error {
    let known = unreachable(&head.space, peer, why);
    let message = format!(
        "node {} was to build \"{}\" and cannot be reached: {why}; nothing was built",
        peer.id, head.space
    );
    Error { message, ..known }
}
