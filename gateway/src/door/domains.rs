//! Domains that lead to spaces: `bindDomain listDomains unbindDomain`.

use std::{ops::Bound, sync::Arc};

use axum::{
    Json,
    extract::{Request, State},
};
use drowse_shared::{
    api::{
        Code, Error, JSON_BODY_BYTES_MAX,
        domains::{
            BindDomain, Binding, BoundDomain, DEFAULT_PORT, DomainBound, DomainList, DomainUnbound, Leads,
            ListDomains, PAGE_MAX, UnbindDomain,
        },
        parse,
    },
    domain::Domain,
    id::SpaceId,
    name::SpaceRef,
};
use futures_util::{StreamExt as _, stream};

use super::{body, host, ports, spaces};
use crate::{find::verdict::Verdict, service::Gateway};

/// How many spaces of a list are looked for at a time.
const LOOKUPS: usize = 16;

/// `bindDomain`.
pub(super) async fn bind(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Json<DomainBound>, Error> {
    let asked = ports::authority(&request)?.map(host::plain);
    let bytes = body::read(request.into_body(), JSON_BODY_BYTES_MAX).await?;
    let BindDomain { name, domain, port } = parse(&bytes)?;
    judge(&domain, gateway.domain.as_deref(), asked.as_deref())?;
    let (_, hit) = spaces::confirmed(&gateway, &name).await?;
    let binding =
        Binding { space_id: hit.id, port: port.unwrap_or(DEFAULT_PORT), bound_at: gateway.env.clock.wall() };
    let (binding, existed) = gateway.nodes.fleet.bind(domain.clone(), binding).await?;
    Ok(Json(DomainBound { domain: BoundDomain::of(domain, &binding, Leads::Space), existed }))
}

/// Names that this gateway needs for itself lead to no space.
fn judge(domain: &Domain, ours: Option<&str>, asked: Option<&str>) -> Result<(), Error> {
    if let Some(ours) = ours.filter(|ours| domain.is_within(ours)) {
        return Err(Error::new(
            Code::InvalidRequest,
            format!(
                "domain: {domain} lies within {ours}, where spaces have their hosts already; bind another one"
            ),
        ));
    }
    if asked == Some(domain.as_str()) {
        return Err(Error::new(
            Code::InvalidRequest,
            format!(
                "domain: this request came by {domain}; bound to a space, it would no longer reach the gateway"
            ),
        ));
    }
    Ok(())
}

/// `listDomains`.
pub(super) async fn list(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Json<DomainList>, Error> {
    let bytes = body::read(request.into_body(), JSON_BODY_BYTES_MAX).await?;
    let ListDomains { name, limit, cursor } = parse(&bytes)?;
    let only = match name {
        None => None,
        Some(SpaceRef::Id(id)) => Some(id),
        Some(name) => Some(spaces::locate(&gateway, &name, true).await?.1.id),
    };
    let domains = gateway.nodes.fleet.domains()?;
    let begin = cursor.map_or(Bound::Unbounded, Bound::Excluded);
    let mut rest = domains
        .range::<Domain, _>((begin, Bound::Unbounded))
        .filter(|(_, binding)| only.is_none_or(|only| only == binding.space_id));
    let page: Vec<_> = rest.by_ref().take(limit.unwrap_or(PAGE_MAX) as usize).collect();
    let more = rest.next().is_some();
    let next_cursor = page.last().filter(|_| more).map(|(domain, _)| (*domain).clone());
    let shown = page.into_iter().map(|(domain, binding)| {
        let (gateway, domain, binding) = (gateway.clone(), domain.clone(), *binding);
        async move {
            let leads = leads(&gateway, binding.space_id).await;
            BoundDomain::of(domain, &binding, leads)
        }
    });
    let domains = stream::iter(shown.collect::<Vec<_>>()).buffered(LOOKUPS).collect().await;
    Ok(Json(DomainList { domains, next_cursor }))
}

/// What is at the end of a domain. Looking wakes nothing.
async fn leads(gateway: &Arc<Gateway>, id: SpaceId) -> Leads {
    let space = SpaceRef::Id(id);
    if gateway.finder.hint(&space).is_some() {
        return Leads::Space;
    }
    match gateway.finder.find(&space).await {
        Ok(Verdict::Holder { .. } | Verdict::Conflict { .. }) => Leads::Space,
        Ok(Verdict::Nobody { .. }) if gateway.nodes.fleet.knows_its_nodes().is_ok() => Leads::Nowhere,
        _ => Leads::Unknown,
    }
}

/// `unbindDomain`.
pub(super) async fn unbind(
    State(gateway): State<Arc<Gateway>>,
    request: Request,
) -> Result<Json<DomainUnbound>, Error> {
    let bytes = body::read(request.into_body(), JSON_BODY_BYTES_MAX).await?;
    let UnbindDomain { domain } = parse(&bytes)?;
    let unbound = gateway.nodes.fleet.unbind(domain).await?;
    Ok(Json(DomainUnbound { unbound }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_the_gateway_needs_is_bound_to_nothing() {
        for (domain, ours, asked, says) in [
            ("shop.customer.net", Some("example.com"), Some("example.com"), None),
            ("shop.customer.net", None, Some("127.0.0.1"), None),
            ("notexample.com", Some("example.com"), None, None),
            ("example.com", Some("example.com"), None, Some("lies within")),
            ("shop.example.com", Some("example.com"), None, Some("lies within")),
            ("fleet.customer.net", Some("example.com"), Some("fleet.customer.net"), Some("came by")),
        ] {
            let judged =
                judge(&domain.parse().expect("a domain"), ours, asked).err().map(|error| error.message);
            assert_eq!(judged.is_some(), says.is_some(), "{domain}: {judged:?}");
            assert!(says.is_none_or(|says| judged.is_some_and(|words| words.contains(says))), "{domain}");
        }
    }
}
