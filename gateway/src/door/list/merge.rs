//! One page out of the pages of many nodes, lazily: a node is asked for a share of the page first, and for more only when
//! all of its share went into the page. What is held is a small multiple of one page, however many nodes there are.

use std::{cmp::Ordering, collections::VecDeque};

use drowse_shared::api::{
    cursor::Cursor,
    nodes::Silent,
    spaces::{
        ListSpaces, Order, PAGE_DEFAULT, PAGE_METADATA_BYTES_MAX, Place, Sort, Space, SpaceList,
        metadata_bytes,
    },
};
use drowse_shared::id::NodeId;

/// A page that is to be asked for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wanted {
    /// Of which node.
    pub(super) node: usize,
    /// At most so many spaces.
    pub(super) limit: u32,
    /// From where on.
    pub(super) cursor: Option<Cursor>,
}

/// What is at hand of one node.
struct Source {
    node: NodeId,
    held: VecDeque<(Place, Space)>,
    /// Where it goes on; nothing when this was all.
    next: Next,
    /// How many of its spaces to ask for.
    share: u32,
}

#[derive(Debug, Clone, PartialEq)]
enum Next {
    /// From here on. At first that is where the caller's page begins.
    After(Option<Cursor>),
    /// It has no more, or does not answer.
    End,
}

/// A page that is being put together.
pub(super) struct Merge {
    sort: Sort,
    order: Order,
    limit: u32,
    sources: Vec<Source>,
    spaces: Vec<Space>,
    metadata_bytes: usize,
    last: Option<Place>,
    silent: Vec<Silent>,
}

impl Merge {
    /// One page of these wishes out of the lists of these nodes.
    pub(super) fn new(wish: &ListSpaces, nodes: impl ExactSizeIterator<Item = NodeId>) -> Self {
        let limit = wish.limit.unwrap_or(PAGE_DEFAULT);
        // A little more than an even share, since no list is spread evenly.
        let even = limit / u32::try_from(nodes.len().max(1)).unwrap_or(u32::MAX);
        let share = (even + even / 4 + 1).min(limit);
        let source =
            |node| Source { node, held: VecDeque::new(), next: Next::After(wish.cursor.clone()), share };
        Self {
            sort: wish.sort.unwrap_or_default(),
            order: wish.order.unwrap_or_default(),
            limit,
            sources: nodes.map(source).collect(),
            spaces: Vec::new(),
            metadata_bytes: 0,
            last: None,
            silent: Vec::new(),
        }
    }

    /// What must be asked before the page can go on; nothing once it is whole.
    pub(super) fn wants(&mut self) -> Option<Vec<Wanted>> {
        self.advance();
        if self.is_full() {
            return None;
        }
        let missing = self.limit - u32::try_from(self.spaces.len()).unwrap_or(self.limit);
        let mut wanted = Vec::new();
        for (node, source) in self.sources.iter_mut().enumerate() {
            if let (true, Next::After(cursor)) = (source.held.is_empty(), &source.next) {
                let limit = source.share.min(missing);
                wanted.push(Wanted { node, limit, cursor: cursor.clone() });
                // Whoever fills the page is asked for more each time, so that one full node costs few questions.
                source.share = source.share.saturating_mul(2);
            }
        }
        (!wanted.is_empty()).then_some(wanted)
    }

    /// What a node answered.
    pub(super) fn take(&mut self, node: usize, page: Result<SpaceList, Silent>) {
        let source = &mut self.sources[node];
        let Next::After(before) = std::mem::replace(&mut source.next, Next::End) else { return };
        let list = match page {
            Ok(list) => list,
            Err(who) => return self.silent.push(who),
        };
        let mut edge = before.map(|cursor| cursor.place().clone());
        for space in list.spaces {
            let place = self.sort.place(&space);
            if edge.as_ref().is_some_and(|edge| self.order.compare(edge, &place) != Ordering::Less) {
                let reason = format!("its list is not in order by {} {}", self.sort, self.order);
                return self.silent.push(Silent { node: source.node.clone(), reason });
            }
            edge = Some(place.clone());
            source.held.push_back((place, space));
        }
        // A node that says more follow its empty page would be asked for ever.
        if let (Some(cursor), false) = (list.next_cursor, source.held.is_empty()) {
            source.next = Next::After(Some(cursor));
        }
    }

    /// The page.
    pub(super) fn end(mut self) -> SpaceList {
        let more = self.sources.iter().any(|source| !source.held.is_empty() || source.next != Next::End);
        let next_cursor = self.last.filter(|_| more).map(|last| Cursor::after(self.order, last));
        self.silent.sort_by(|a, b| a.node.cmp(&b.node));
        SpaceList { spaces: self.spaces, next_cursor, silent: self.silent }
    }

    fn is_full(&self) -> bool {
        self.spaces.len() >= self.limit as usize || self.metadata_bytes >= PAGE_METADATA_BYTES_MAX
    }

    /// Takes what is certain to come next, as far as every node's next space is known.
    fn advance(&mut self) {
        while !self.is_full() {
            let known = |source: &Source| !source.held.is_empty() || source.next == Next::End;
            if !self.sources.iter().all(known) {
                return;
            }
            let heads = self.sources.iter_mut().filter(|source| !source.held.is_empty());
            let order = self.order;
            let first = heads.min_by(|a, b| match (a.held.front(), b.held.front()) {
                (Some((a, _)), Some((b, _))) => order.compare(a, b),
                _ => Ordering::Equal,
            });
            let Some((place, space)) = first.and_then(|source| source.held.pop_front()) else { return };
            self.metadata_bytes += metadata_bytes(&space.metadata);
            self.last = Some(place);
            self.spaces.push(space);
        }
    }
}

#[cfg(test)]
mod tests;
