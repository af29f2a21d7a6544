use drowse_shared::{
    api::{
        cursor::Cursor,
        spaces::{ListSpaces, PAGE_DEFAULT, PAGE_MAX},
    },
    name::SpaceName,
};
use rusqlite::{params_from_iter, types::Value};

use super::{
    Error, Ledger,
    spaces::{COLUMNS, read},
};
use crate::space::Space;

/// One page: the spaces, and the cursor of the next one.
pub type Page = (Vec<Space>, Option<Cursor>);

impl Ledger {
    /// One page of the spaces that pass every filter, in byte order of the name.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn list(&self, wish: &ListSpaces) -> Result<Page, Error> {
        let limit = wish.limit.unwrap_or(PAGE_DEFAULT).min(PAGE_MAX);
        let (filter, mut values) = filters(wish, wish.cursor.as_ref().map(Cursor::name));
        values.push(i64::from(limit + 1).into());
        let query = format!("select {COLUMNS} from spaces where {filter} order by name limit ?");
        let mut spaces: Vec<Space> = self
            .read(move |c| c.prepare_cached(&query)?.query_map(params_from_iter(values), read)?.collect())
            .await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let more = spaces.len() > limit;
        spaces.truncate(limit);
        let cursor = spaces.last().filter(|_| more).map(|last| Cursor::after(last.name.clone()));
        Ok((spaces, cursor))
    }
}

fn filters(wish: &ListSpaces, after: Option<&SpaceName>) -> (String, Vec<Value>) {
    let mut parts = vec!["true".to_owned()];
    let mut values: Vec<Value> = Vec::new();
    if let Some(states) = &wish.states {
        parts.push(format!("state in ({})", vec!["?"; states.len()].join(", ")));
        values.extend(states.iter().map(|state| Value::from(state.as_str().to_owned())));
    }
    for (key, value) in wish.metadata.iter().flatten() {
        parts.push(
            "exists (select 1 from json_each(spaces.metadata) as m where m.key = ? and m.value = ?)"
                .to_owned(),
        );
        values.extend([Value::from(key.clone()), Value::from(value.clone())]);
    }
    if let Some(prefix) = wish.name_prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
        parts.push("name >= ?".to_owned());
        values.push(prefix.to_owned().into());
        if let Some(end) = after_prefix(prefix) {
            parts.push("name < ?".to_owned());
            values.push(end.into());
        }
    }
    if let Some(after) = after {
        parts.push("name > ?".to_owned());
        values.push(after.to_string().into());
    }
    (parts.join(" and "), values)
}

/// The first text after everything that begins with `prefix`, in byte order. `None`: nothing comes after.
fn after_prefix(prefix: &str) -> Option<String> {
    let mut head = prefix.to_owned();
    while let Some(last) = head.pop() {
        // The order of UTF-8 is the order of code points; the gap in them belongs to no text.
        let next = if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(u32::from(last) + 1) };
        if let Some(next) = next {
            head.push(next);
            return Some(head);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_with_a_prefix_ends_before_the_next_text() {
        let cases = [
            ("a", Some("b")),
            ("a%", Some("a&")),
            ("a_", Some("a`")),
            ("\u{d7ff}", Some("\u{e000}")),
            ("a\u{10ffff}", Some("b")),
            ("\u{10ffff}", None),
        ];
        for (prefix, end) in cases {
            assert_eq!(after_prefix(prefix).as_deref(), end, "{prefix:?}");
        }
    }
}
