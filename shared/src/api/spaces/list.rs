use garde::Validate;
use serde::{Deserialize, Serialize};

use super::{Metadata, Order, Sort, Space, State, optional_metadata_fits};
use crate::api::{cursor::Cursor, nodes::Silent};

/// Most spaces in one page of a list.
pub const PAGE_MAX: u32 = 1000;
/// Spaces in one page when the caller does not say.
pub const PAGE_DEFAULT: u32 = 100;
/// Bytes of metadata after which a page ends, however few spaces it has.
pub const PAGE_METADATA_BYTES_MAX: usize = 8 << 20;

/// `listSpaces`. Filters are joined by "and".
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, Validate)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct ListSpaces {
    /// Only spaces in one of these states.
    #[garde(length(max = State::ALL.len()))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub states: Option<Vec<State>>,
    /// Only spaces whose metadata holds all of these.
    #[garde(custom(optional_metadata_fits))]
    #[cfg_attr(test, schemars(transform = super::metadata::limits))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// Only spaces whose name begins so.
    #[garde(length(chars, max = 128))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_prefix: Option<String>,
    /// What the list is in order of; the name when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort: Option<Sort>,
    /// Which end comes first; `asc` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// Most spaces in the answer; it may be fewer although more follow.
    #[garde(range(min = 1, max = PAGE_MAX))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `nextCursor` of the page before, with the same `sort` and `order`.
    #[garde(custom(of_this_list(&self.sort, &self.order)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
}

fn of_this_list<'a>(
    sort: &'a Option<Sort>,
    order: &'a Option<Order>,
) -> impl FnOnce(&Option<Cursor>, &()) -> garde::Result + 'a {
    move |cursor, &()| {
        let Some(cursor) = cursor else { return Ok(()) };
        let asked = (sort.unwrap_or_default(), order.unwrap_or_default());
        if asked == (cursor.sort(), cursor.order()) {
            return Ok(());
        }
        Err(garde::Error::new(format!(
            "is of a list by {} {}, and this one is by {} {}; go on with the same `sort` and `order`, or begin anew \
             without a cursor",
            cursor.sort(),
            cursor.order(),
            asked.0,
            asked.1
        )))
    }
}

/// What `listSpaces` answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SpaceList {
    /// One page.
    pub spaces: Vec<Space>,
    /// Absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<Cursor>,
    /// Nodes that did not answer; their spaces are missing here, not gone.
    #[serde(default)]
    pub silent: Vec<Silent>,
}
