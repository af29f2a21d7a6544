use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::spaces::{Key, Order, Place, Sort};

/// Where the next page of a list begins: after this place, in this order. On the wire an opaque word, the same at the
/// gateway and at a node, so that a gateway can ask every node to go on at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    order: Order,
    after: Place,
}

impl Cursor {
    /// The page after this place.
    pub fn after(order: Order, after: Place) -> Self {
        Self { order, after }
    }

    /// Where the page before ended.
    pub fn place(&self) -> &Place {
        &self.after
    }

    /// What its list is sorted by.
    pub fn sort(&self) -> Sort {
        self.after.key.sort()
    }

    /// Which end of its list comes first.
    pub fn order(&self) -> Order {
        self.order
    }

    fn read(text: &str) -> Option<Self> {
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
        let [sort, order, id, key] = text.splitn(4, '\n').collect::<Vec<_>>().try_into().ok()?;
        let key = match Sort::read(sort)? {
            Sort::Name => Key::Name(key.parse().ok()?),
            Sort::CreatedAt => Key::CreatedAt(key.parse().ok()?),
            Sort::LastActiveAt => Key::LastActiveAt(key.parse().ok()?),
        };
        Some(Self { order: Order::read(order)?, after: Place { key, id: id.parse().ok()? } })
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { key, id } = &self.after;
        let text = format!("{}\n{}\n{id}\n{key}", key.sort(), self.order);
        f.write_str(&URL_SAFE_NO_PAD.encode(text))
    }
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cursor {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::read(&text).ok_or_else(|| {
            serde::de::Error::custom("cursor is not the `nextCursor` of an earlier answer to this list")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{parse, spaces::ListSpaces};

    const ID: &str = "0190f0c2a4b87c3d9e0f112233445566";

    fn cursors() -> Vec<Cursor> {
        let at: jiff::Timestamp = "2026-01-02T03:04:05.000000006Z".parse().expect("a time");
        let keys = [
            Key::Name("Ünïcode ✓".parse().expect("a name")),
            Key::CreatedAt(at),
            Key::LastActiveAt("2026-01-02T03:04:05Z".parse().expect("a time")),
        ];
        let place = |key| Place { key, id: ID.parse().expect("an id") };
        let both = |key: Key| Order::ALL.map(|order| Cursor::after(order, place(key.clone())));
        keys.into_iter().flat_map(both).collect()
    }

    #[test]
    fn a_cursor_is_one_of_ours_or_refused() {
        for cursor in cursors() {
            let wire = serde_json::to_string(&cursor).expect("plain");
            assert_eq!(serde_json::from_str::<Cursor>(&wire).expect("ours"), cursor);
        }
        let other = |text: &str| URL_SAFE_NO_PAD.encode(text);
        for bad in [
            String::new(),
            "!".to_owned(),
            "AAAA".to_owned(),
            "shop".to_owned(),
            URL_SAFE_NO_PAD.encode([0xff, 0xfe]),
            other(&format!("size\nasc\n{ID}\nshop")),
            other(&format!("name\nup\n{ID}\nshop")),
            other("name\nasc\n1\nshop"),
            other(&format!("createdAt\nasc\n{ID}\nshop")),
            other(&format!("name\nasc\n{ID}")),
        ] {
            let error = serde_json::from_value::<Cursor>(bad.clone().into()).expect_err(&bad);
            assert!(error.to_string().contains("nextCursor"), "{bad:?}: {error}");
        }
    }

    #[test]
    fn a_cursor_goes_on_with_its_own_list_only() {
        for cursor in cursors() {
            for sort in Sort::ALL {
                for order in Order::ALL {
                    let body =
                        serde_json::json!({ "sort": sort, "order": order, "cursor": cursor }).to_string();
                    let same = (sort, order) == (cursor.sort(), cursor.order());
                    match parse::<ListSpaces>(body.as_bytes()) {
                        Ok(_) => assert!(same, "{body}"),
                        Err(error) => {
                            assert!(!same, "{body}: {error}");
                            let says =
                                format!("cursor: is of a list by {} {}", cursor.sort(), cursor.order());
                            assert!(error.message.starts_with(&says), "{error}");
                        }
                    }
                }
            }
        }
        let by_name = serde_json::json!({ "cursor": cursors()[0] }).to_string();
        assert!(parse::<ListSpaces>(by_name.as_bytes()).is_ok(), "by name, ascending, unless said otherwise");
    }
}
