use std::collections::BTreeMap;

use drowse_shared::{
    api::{
        cursor::Cursor,
        spaces::{
            Key, ListSpaces, Order, PAGE_DEFAULT, PAGE_MAX, PAGE_METADATA_BYTES_MAX, Place, Sort,
            metadata_bytes,
        },
    },
    id::SpaceId,
};
use jiff::Timestamp;
use rusqlite::{Connection, Row, params_from_iter, types::Value};

use super::{
    Error, Ledger,
    spaces::{COLUMNS, instant, read},
};
use crate::space::Space;

/// One page: the spaces, and the cursor of the next one.
pub type Page = (Vec<Space>, Option<Cursor>);

/// When spaces were last used, where that is not written down yet.
pub type Used = BTreeMap<SpaceId, Timestamp>;

impl Ledger {
    /// One page of the spaces that pass every filter, in the order that was asked for. `used` is later than what is
    /// written, and holds.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn list(&self, wish: &ListSpaces, used: Used) -> Result<Page, Error> {
        let wish = wish.clone();
        self.read(move |connection| page(connection, &wish, &used)).await
    }
}

fn page(connection: &Connection, wish: &ListSpaces, used: &Used) -> Result<Page, rusqlite::Error> {
    let limit = wish.limit.unwrap_or(PAGE_DEFAULT).min(PAGE_MAX) as usize;
    let (sort, order) = (wish.sort.unwrap_or_default(), wish.order.unwrap_or_default());
    // Both questions see one state of the ledger.
    let connection = connection.unchecked_transaction()?;
    let mut found = Found { limit, ..Found::default() };
    if sort == Sort::LastActiveAt && !used.is_empty() {
        let fresh = Query::fresh(wish, used)?;
        let mut spaces = fresh.run(&connection, limit, |row| {
            let space = read(row)?;
            let at = used.get(&space.id).copied().unwrap_or(space.last_active_at);
            Ok(Space { last_active_at: at.max(space.last_active_at), ..space })
        })?;
        spaces.append(&mut Query::written(wish, Some(used))?.run(&connection, limit, read)?);
        spaces.sort_by(|a, b| order.compare(&place(sort, a), &place(sort, b)));
        spaces.into_iter().for_each(|space| found.take(space));
    } else {
        for space in Query::written(wish, None)?.run(&connection, limit, read)? {
            found.take(space);
        }
    }
    let next = found.spaces.last().filter(|_| found.more).map(|last| Cursor::after(order, place(sort, last)));
    Ok((found.spaces, next))
}

/// A page that grows until it is full.
#[derive(Default)]
struct Found {
    limit: usize,
    spaces: Vec<Space>,
    metadata_bytes: usize,
    more: bool,
}

impl Found {
    fn take(&mut self, space: Space) {
        self.more |= self.spaces.len() >= self.limit || self.metadata_bytes >= PAGE_METADATA_BYTES_MAX;
        if !self.more {
            self.metadata_bytes += metadata_bytes(&space.metadata);
            self.spaces.push(space);
        }
    }
}

fn place(sort: Sort, space: &Space) -> Place {
    let key = match sort {
        Sort::Name => Key::Name(space.name.clone()),
        Sort::CreatedAt => Key::CreatedAt(space.created_at),
        Sort::LastActiveAt => Key::LastActiveAt(space.last_active_at),
    };
    Place { key, id: space.id }
}

/// One question to the table of spaces.
struct Query {
    /// What it is asked of.
    from: &'static str,
    /// What comes first.
    by: &'static str,
    order: Order,
    conditions: Vec<String>,
    values: Vec<Value>,
}

impl Query {
    /// Of spaces as they are written down, but for those that were used since.
    fn written(wish: &ListSpaces, but: Option<&Used>) -> Result<Self, rusqlite::Error> {
        let by = match wish.sort.unwrap_or_default() {
            Sort::Name => "name",
            Sort::CreatedAt => "created_at",
            Sort::LastActiveAt => "last_active_at",
        };
        let mut query = Self::of("spaces", by, wish);
        if let Some(but) = but {
            query.is("id not in (select key from json_each(?))", [json(but)?]);
        }
        query.filter(wish);
        Ok(query)
    }

    /// Of spaces whose last use is not written down yet, by that.
    fn fresh(wish: &ListSpaces, used: &Used) -> Result<Self, rusqlite::Error> {
        let from =
            "(select key as used_id, value as used_at from json_each(?)) cross join spaces on id = used_id";
        let mut query = Self::of(from, "max(used_at, last_active_at)", wish);
        query.values.push(json(used)?);
        query.filter(wish);
        Ok(query)
    }

    fn of(from: &'static str, by: &'static str, wish: &ListSpaces) -> Self {
        let order = wish.order.unwrap_or_default();
        Self { from, by, order, conditions: Vec::new(), values: Vec::new() }
    }

    fn is(&mut self, condition: &str, values: impl IntoIterator<Item = Value>) {
        self.conditions.push(condition.to_owned());
        self.values.extend(values);
    }

    fn filter(&mut self, wish: &ListSpaces) {
        if let Some(states) = &wish.states {
            let words = states.iter().map(|state| Value::from(state.as_str().to_owned()));
            self.is(&format!("state in ({})", vec!["?"; states.len()].join(", ")), words);
        }
        for (key, value) in wish.metadata.iter().flatten() {
            self.is(
                "exists (select 1 from json_each(spaces.metadata) as m where m.key = ? and m.value = ?)",
                [key.clone().into(), value.clone().into()],
            );
        }
        if let Some(prefix) = wish.name_prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
            self.is("name >= ?", [prefix.to_owned().into()]);
            if let Some(end) = after_prefix(prefix) {
                self.is("name < ?", [end.into()]);
            }
        }
        if let Some(Place { key, id }) = wish.cursor.as_ref().map(Cursor::place) {
            let key = match key {
                Key::Name(name) => name.to_string(),
                Key::CreatedAt(at) | Key::LastActiveAt(at) => instant(*at),
            };
            let sign = if self.order == Order::Asc { '>' } else { '<' };
            let by = self.by;
            self.is(&format!("({by}, id) {sign} (?, ?)"), [key.into(), id.to_string().into()]);
        }
    }

    /// At most one space more than `limit`: that one says whether more follow.
    fn run(
        mut self,
        connection: &Connection,
        limit: usize,
        read: impl Fn(&Row<'_>) -> Result<Space, rusqlite::Error>,
    ) -> Result<Vec<Space>, rusqlite::Error> {
        let text = self.text(limit);
        connection.prepare_cached(&text)?.query_map(params_from_iter(self.values), read)?.collect()
    }

    fn text(&mut self, limit: usize) -> String {
        self.values.push(i64::try_from(limit).map_or(i64::MAX, |limit| limit + 1).into());
        let Self { from, by, order, .. } = self;
        let conditions =
            if self.conditions.is_empty() { "true".to_owned() } else { self.conditions.join(" and ") };
        format!("select {COLUMNS} from {from} where {conditions} order by {by} {order}, id {order} limit ?")
    }
}

fn json(used: &Used) -> Result<Value, rusqlite::Error> {
    let used: BTreeMap<String, String> = used.iter().map(|(id, at)| (id.to_string(), instant(*at))).collect();
    let text = serde_json::to_string(&used);
    text.map(Value::from).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
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
mod tests;
