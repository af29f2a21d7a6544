use std::{convert::Infallible, sync::Arc};

use axum::{
    extract::{FromRequestParts, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use drowse_shared::{
    api::{
        Code, Error,
        headers::{self, Expect},
    },
    id::{SpaceId, Ticket},
    name::SpaceRef,
};
use http::{HeaderMap, request::Parts};
use percent_encoding::percent_decode_str;

use super::{error, request::query};
use crate::{lifecycle::create::Licence, node::Node};

/// Answers 421 before the body is read when the sender expects a space that is not here.
pub(super) async fn check(State(node): State<Arc<Node>>, request: Request, next: Next) -> Response {
    let checked = match expected(request.headers(), request.uri().query()) {
        Ok(None) => Ok(()),
        Ok(Some((expect, space))) => held(&node, expect, space).await,
        Err(error) => Err(error),
    };
    match checked {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

fn expected(headers: &HeaderMap, uri_query: Option<&str>) -> Result<Option<(Expect, SpaceRef)>, Error> {
    let Some(expect) = read(headers)? else { return Ok(None) };
    let Some(space) = pointed(headers, uri_query)? else {
        let message = format!("{} needs the space, in `{}` or `?space=`", headers::EXPECT, headers::SPACE);
        return Err(Error::new(Code::InvalidRequest, message));
    };
    Ok(Some((expect, space)))
}

async fn held(node: &Node, expect: Expect, space: SpaceRef) -> Result<(), Error> {
    let row = node.ledger.find(&space).await.map_err(error::ledger)?;
    let mine = row.is_some_and(|row| {
        expect.id.is_none_or(|id| id == row.id) && expect.epoch.is_none_or(|least| row.epoch >= least)
    });
    if mine { Ok(()) } else { Err(not_mine(&space)) }
}

/// The space a request for a port is about, if this node holds it as the sender believes.
pub(super) async fn space_held(node: &Node, headers: &HeaderMap) -> Result<SpaceRef, Error> {
    let Some((expect, space)) = expected(headers, None)? else {
        let message = format!(
            "a request for a port names its space, in `{}` and `{}`",
            headers::SPACE,
            headers::EXPECT
        );
        return Err(Error::new(Code::InvalidRequest, message));
    };
    held(node, expect, space.clone()).await?;
    Ok(expect.id.map_or(space, SpaceRef::Id))
}

/// The sender was wrong about this node.
pub(super) fn not_mine(space: &SpaceRef) -> Error {
    Error::new(Code::NotMine, format!("this node does not hold the space {space} it was sent a request for"))
}

fn read(headers: &HeaderMap) -> Result<Option<Expect>, Error> {
    let Some(value) = headers.get(headers::EXPECT) else { return Ok(None) };
    let bad = |why: String| Error::new(Code::InvalidRequest, why);
    let text = value.to_str().map_err(|_| bad(headers::BadExpect.to_string()))?;
    text.parse().map(Some).map_err(|why: headers::BadExpect| bad(why.to_string()))
}

/// The space a request names outside its body.
pub(super) fn pointed(headers: &HeaderMap, uri_query: Option<&str>) -> Result<Option<SpaceRef>, Error> {
    let bad = |why: String| Error::new(Code::InvalidRequest, format!("space: {why}"));
    let text = match headers.get(headers::SPACE) {
        Some(value) => {
            let value = value.to_str().map_err(|_| bad("is not percent-encoded text".to_owned()))?;
            Some(percent_decode_str(value).decode_utf8().map_err(|why| bad(why.to_string()))?.into_owned())
        }
        None => match query(uri_query).find(|(key, _)| key == b"space") {
            Some((_, value)) => Some(String::from_utf8(value).map_err(|why| bad(why.to_string()))?),
            None => None,
        },
    };
    text.map(|text| text.parse().map_err(|why: drowse_shared::name::Error| bad(why.to_string()))).transpose()
}

/// How a request came here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sender {
    /// Whether it says the space exists here.
    pub(super) expects: bool,
    /// Which space it means, whoever else has the name by now.
    id: Option<SpaceId>,
    forwarded: bool,
    ticket: Option<Ticket>,
}

impl Sender {
    /// Whether it may create.
    pub(super) fn licence(self) -> Licence {
        match self {
            Self { expects: true, .. } => Licence::Existing,
            Self { forwarded: true, ticket, .. } => Licence::Forwarded(ticket),
            Self { .. } => Licence::Direct,
        }
    }

    /// The space it means. A request that was long on its way never reaches another space that was given the name since.
    pub(super) fn meant(self, space: &SpaceRef) -> SpaceRef {
        self.id.map_or_else(|| space.clone(), SpaceRef::Id)
    }

    /// A space that went since it was looked for is the sender's mistake, not the client's.
    pub(super) fn misled(self, space: &SpaceRef) -> impl FnOnce(Error) -> Error {
        move |error| if self.expects && error.code == Code::SpaceNotFound { not_mine(space) } else { error }
    }
}

impl<S: Sync> FromRequestParts<S> for Sender {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let headers = &parts.headers;
        // A ticket that cannot be read is no ticket: the create is refused as void, not as malformed.
        let ticket = headers.get(headers::CREATE).and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
        Ok(Self {
            expects: headers.contains_key(headers::EXPECT),
            // One that cannot be read was refused before.
            id: read(headers).ok().flatten().and_then(|expect| expect.id),
            forwarded: headers.contains_key(headers::FORWARDED),
            ticket,
        })
    }
}
