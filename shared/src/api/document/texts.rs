use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{
    api::{Code, cursor::Cursor, spaces::EventCursor},
    domain::Domain,
    id::{BootId, FleetId, LedgerId, NodeId, SpaceId, Ticket},
    name::{CHARACTERS_MAX, SpaceName, SpaceRef},
};

/// An instant, in RFC 3339.
pub(crate) struct Moment;

macro_rules! text {
    ($($name:ident { $($schema:tt)* })*) => {$(
        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", $($schema)* })
            }
        }
    )*};
}

const HEX: &str = "^[0-9a-f]{32}$";

text! {
    Moment { "format": "date-time", "description": "An instant, in RFC 3339." }
    SpaceId { "pattern": HEX, "description": "The id of a space: minted once, never used again." }
    LedgerId { "pattern": HEX, "description": "What a node really is, whatever it is called." }
    FleetId { "pattern": HEX, "description": "The id of a fleet." }
    BootId { "pattern": HEX, "description": "One life of a daemon." }
    Ticket { "pattern": HEX, "description": "Permission to build one name on one node, good once and for a minute." }
    NodeId { "pattern": "^[a-z0-9][a-z0-9-]{0,62}$", "description": "What an operator calls a node." }
    SpaceName {
        "minLength": 1, "maxLength": CHARACTERS_MAX,
        "description": "The caller's name of a space: in Unicode normalisation form C, without control characters and \
                        without white space at its ends, not shaped like an id. Compared byte for byte."
    }
    SpaceRef { "minLength": 1, "maxLength": CHARACTERS_MAX, "description": "A space, by its name or by its id." }
    Domain {
        "examples": ["shop.example.com"],
        "description": "A domain name of up to 253 characters: at least two labels of letters, digits and hyphens, without port or wildcard. Upper case is \
                        read as lower case."
    }
    Cursor { "description": "Opaque: where the next page of one list begins." }
    EventCursor { "description": "Opaque: where the next events of a space begin." }
    Code {
        "examples": Code::ALL.iter().map(Code::as_str).collect::<Vec<_>>(),
        "description": "A stable word for programs. A word you do not know means what the status means."
    }
}
