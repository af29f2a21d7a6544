//! Domains of their own for spaces: a host that leads to a port of one space.

use std::collections::BTreeMap;

use garde::Validate;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

#[cfg(test)]
use crate::api::document::Moment;
use crate::{domain::Domain, id::SpaceId, name::SpaceRef};

/// Most domains of a fleet: every node keeps a copy of all of them.
pub const DOMAINS_MAX: usize = 10_000;
/// Most domains on a page, and how many there are if nobody says.
pub const PAGE_MAX: u32 = 100;
/// The port of a space that is named without one.
pub const DEFAULT_PORT: u16 = 8080;

/// Where each domain leads.
pub type Domains = BTreeMap<Domain, Binding>;

/// Where a domain leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Binding {
    /// To which space; to no other one of its name, once it is destroyed.
    pub space_id: SpaceId,
    /// To which of its ports.
    pub port: u16,
    /// Since when.
    #[cfg_attr(test, schemars(with = "Moment"))]
    pub bound_at: Timestamp,
}

/// `bindDomain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct BindDomain {
    /// The space, by name or id.
    pub name: SpaceRef,
    /// The domain.
    pub domain: Domain,
    /// The port of the space it leads to; 8080 when absent.
    #[garde(range(min = 1))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// `listDomains`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct ListDomains {
    /// Only domains of this space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<SpaceRef>,
    /// Most domains in the answer; 100 when absent.
    #[garde(range(min = 1, max = PAGE_MAX))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `nextCursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Domain>,
}

/// `unbindDomain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct UnbindDomain {
    /// The domain.
    pub domain: Domain,
}

/// A domain and where it leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BoundDomain {
    /// The domain.
    pub domain: Domain,
    /// To which space it leads; to no other one of its name, once it is destroyed.
    pub space_id: SpaceId,
    /// To which of its ports.
    pub port: u16,
    /// Since when.
    #[cfg_attr(test, schemars(with = "Moment"))]
    pub bound_at: Timestamp,
    /// What is at its end.
    pub leads: Leads,
}

impl BoundDomain {
    /// As it is shown.
    pub fn of(domain: Domain, binding: &Binding, leads: Leads) -> Self {
        let Binding { space_id, port, bound_at } = *binding;
        Self { domain, space_id, port, bound_at, leads }
    }
}

/// What is at the end of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Leads {
    /// The space.
    Space,
    /// Nothing: the space was destroyed, and the domain answers 404.
    Nowhere,
    /// It is not known now: a node that may hold the space did not answer.
    Unknown,
}

/// What `bindDomain` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DomainBound {
    /// As it is bound now.
    pub domain: BoundDomain,
    /// Whether it was bound to this space before, to whatever port.
    pub existed: bool,
}

/// What `listDomains` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DomainList {
    /// In their order.
    pub domains: Vec<BoundDomain>,
    /// Absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<Domain>,
}

/// What `unbindDomain` answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DomainUnbound {
    /// Whether it was bound.
    pub unbound: bool,
}
