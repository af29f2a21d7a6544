//! Domains that lead to spaces: bind, list, unbind.

use clap::Subcommand;
use drowse_shared::{
    api::domains::{
        BindDomain, BoundDomain, DomainBound, DomainList, DomainUnbound, Leads, ListDomains, UnbindDomain,
    },
    domain::Domain,
    name::SpaceRef,
    seams::Env,
};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Duration;

use crate::{
    args::Context,
    failure::{Exit, Outcome},
    output::{
        self,
        table::{Table, Tone},
        units::{count, span},
    },
};

/// What can be done with domains.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Have a domain lead to a space; its DNS must point to the fleet
    ///
    /// It leads to this very space for good: not to another one of its name after the space was destroyed.
    Bind {
        /// The domain
        domain: Domain,
        /// The space, by name or id
        space: SpaceRef,
        /// The port of the space; 8080 when not given
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
        port: Option<u16>,
    },
    /// List the domains that lead to spaces
    Ls {
        /// Only those of this space
        space: Option<SpaceRef>,
    },
    /// Have a domain lead to no space any longer
    Unbind {
        /// The domain
        domain: Domain,
    },
}

/// Does it.
pub(crate) async fn run(command: Command, context: &Context) -> Outcome<Exit> {
    match command {
        Command::Bind { domain, space, port } => bind(domain, space, port, context).await,
        Command::Ls { space } => list(space, context).await,
        Command::Unbind { domain } => unbind(domain, context).await,
    }
}

async fn bind(domain: Domain, name: SpaceRef, port: Option<u16>, context: &Context) -> Outcome<Exit> {
    let request = BindDomain { name: name.clone(), domain, port };
    let answer = context.client.answer("bindDomain", &request, Duration::ZERO).await?;
    if context.json {
        output::json(&answer.body)?;
        return Ok(Exit::OK);
    }
    let DomainBound { domain: BoundDomain { domain, space_id, port, .. }, existed } = answer.read()?;
    let how = if existed { "leads, as before, to" } else { "leads to" };
    output::line(&format!("{domain}  {how} port {port} of {name} ({space_id})"))?;
    Ok(Exit::OK)
}

async fn list(name: Option<SpaceRef>, context: &Context) -> Outcome<Exit> {
    let mut domains: Vec<Value> = Vec::new();
    let mut request = ListDomains { name, ..ListDomains::default() };
    loop {
        let answer = context.client.answer("listDomains", &request, Duration::ZERO).await?;
        let page: DomainList = answer.read()?;
        domains.extend(answer.body["domains"].as_array().into_iter().flatten().cloned());
        match page.next_cursor {
            Some(next) => request.cursor = Some(next),
            None => break,
        }
    }
    if context.json {
        output::json(&json!({ "domains": domains }))?;
        return Ok(Exit::OK);
    }
    let read = |value: &Value| serde::Deserialize::deserialize(value).ok();
    let domains: Vec<BoundDomain> = domains.iter().filter_map(read).collect();
    output::bytes(table(&domains, Env::real().clock.wall()).text().as_bytes())?;
    if output::on_terminal() {
        output::line(&count(domains.len(), "domain"))?;
    }
    Ok(Exit::OK)
}

fn table(domains: &[BoundDomain], now: Timestamp) -> Table {
    let mut table = Table::new(&["DOMAIN", "LEADS TO", "PORT", "SPACE", "BOUND"]);
    for BoundDomain { domain, space_id, port, bound_at, leads } in domains {
        let (leads, tone) = match leads {
            Leads::Space => ("the space", Tone::Green),
            Leads::Nowhere => ("nowhere: the space was destroyed", Tone::Red),
            Leads::Unknown => ("unknown: a node did not answer", Tone::Red),
        };
        let seconds = u64::try_from(now.as_second() - bound_at.as_second()).unwrap_or(0);
        table.row(vec![
            (domain.to_string(), Tone::Plain),
            (leads.to_owned(), tone),
            (port.to_string(), Tone::Plain),
            (space_id.to_string(), Tone::Plain),
            (format!("{} ago", span(seconds)), Tone::Plain),
        ]);
    }
    table
}

async fn unbind(domain: Domain, context: &Context) -> Outcome<Exit> {
    let request = UnbindDomain { domain: domain.clone() };
    let answer = context.client.answer("unbindDomain", &request, Duration::ZERO).await?;
    if context.json {
        output::json(&answer.body)?;
        return Ok(Exit::OK);
    }
    let DomainUnbound { unbound } = answer.read()?;
    if unbound {
        output::line(&format!("{domain}  unbound"))?;
    } else {
        eprintln!("note: {domain} leads to no space; `drowse domain ls` lists those that do");
    }
    Ok(Exit::OK)
}
