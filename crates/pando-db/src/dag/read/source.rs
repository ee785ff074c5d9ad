//! Merge sources: what one source (the points of a table, a layer or a leaf) says about
//! a range of keys, taken from both ends.
//!
//! Nothing is read before it is needed: the key of a page's first and last entry
//! stand in the header, so a page is read when one of its entries is taken, or
//! when only a part of it lies in the range. Holds at most a page for each end.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;

use crate::{
    dag::{
        layer::run::bounds,
        memtable::Memtable,
        read::{
            block::{Block, EntryRange, PageLens},
            readahead::ScanReadahead,
        },
    },
    error::Result,
    key::{Direction, Lens, Span, behind, compare_joined},
    node::{Body, Node, PageRef, Run, UpdateMsg, message::Msg, ranged::clip, stored::Stored, update_at},
    store::pager::Pager,
};

/// Points that are taken from a table at first.
const FIRST_POINTS: usize = 16;
/// Most points that are taken from a table at once.
const MAX_POINTS: usize = 512;

/// Pages among which the end of a range is looked for first.
const NEAR_PAGES: usize = 2;

/// What reading takes.
pub(crate) struct Io<'a> {
    pub pager: &'a Pager,
    pub readahead: &'a mut ScanReadahead,
}

/// A run of a node that is at hand.
#[derive(Clone)]
pub(crate) struct RunAt {
    pub node: Arc<Node>,
    pub home: Option<Arc<Stored>>,
    /// The edge and the layer on it; none for the pairs of a leaf.
    pub layer: Option<(usize, usize)>,
}

impl RunAt {
    pub fn run(&self) -> Option<&Run> {
        match (&self.node.body, self.layer) {
            (Body::Leaf(run), _) => Some(run),
            (Body::Interior(edges), Some((edge, layer))) => Some(&edges.get(edge)?.layers.get(layer)?.run),
            (Body::Interior(_), None) => None,
        }
    }

    /// The updates of its layer in `local`, as `lens` shows them.
    pub fn updates(&self, lens: &Lens, local: &Span) -> Vec<UpdateMsg> {
        let Some((edge, layer)) = self.layer else { return Vec::new() };
        match self.node.edges().get(edge).and_then(|edge| edge.layers.get(layer)) {
            Some(layer) if !layer.updates.is_empty() => {
                let back = lens.inverse();
                clip(&layer.updates, local).iter().map(|update| update.through(&back)).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// What of a run may hold keys of `local`.
pub(crate) fn pages_in(run: &Run, local: &Span) -> Range<usize> {
    let from = run.page_from(&local.lo);
    let Some(hi) = &local.hi else { return from..run.pages.len() };
    let below = |page: &PageRef| compare_joined(&page.prefix, &page.first, hi).is_lt();
    let rest = run.pages.get(from..).unwrap_or_default();
    // A short range ends soon.
    let near = rest.iter().take(NEAR_PAGES).take_while(|page| below(page)).count();
    let count = if near == NEAR_PAGES { near + rest[near..].partition_point(below) } else { near };
    from..from + count
}

/// Where a source takes more from.
enum Supply {
    Run {
        at: RunAt,
        lens: Lens,
        /// The range, in the keys of the run.
        local: Span,
        /// Pages of which nothing was taken.
        unread: Range<usize>,
    },
    Table {
        table: Arc<Memtable>,
        /// From the keys that are asked for to those of the table.
        lens: Lens,
        /// What was not taken, in the keys of the table.
        rest: Option<Span>,
        at_once: usize,
    },
}

/// The next key from an end.
#[derive(Default)]
struct NextKey {
    known: bool,
    key: Vec<u8>,
}

pub(crate) struct MergeSource {
    supply: Supply,
    /// What the source says about keys of which it has no point. Rare.
    updates: Vec<UpdateMsg>,
    /// What was taken from the supply, by end.
    parts: [Option<EntryRange>; 2],
    next: [NextKey; 2],
}

impl MergeSource {
    /// The points of `table` in `local`, seen through `lens`.
    pub fn of_table(table: Arc<Memtable>, lens: Lens, local: Span) -> Self {
        let back = lens.inverse();
        let updates = clip(&table.updates_in(&local), &local).iter().map(|u| u.through(&back)).collect();
        Self::new(Supply::Table { table, lens, rest: Some(local), at_once: FIRST_POINTS }, updates)
    }

    /// The points of a run in `local`, seen through `lens`, and the updates of its layer; `None` if there can
    /// be none.
    pub fn of_run(at: RunAt, lens: Lens, local: Span) -> Option<Self> {
        let unread = pages_in(at.run()?, &local);
        let updates = at.updates(&lens, &local);
        if unread.is_empty() && updates.is_empty() {
            return None;
        }
        Some(Self::new(Supply::Run { at, lens, local, unread }, updates))
    }

    /// The points that some of the pages of a run, side by side, have in `local`, without updates.
    pub fn of_pages(at: RunAt, lens: Lens, local: Span, pages: Range<usize>) -> Self {
        Self::new(Supply::Run { at, lens, local, unread: pages }, Vec::new())
    }

    /// The points of a table in `local`, without updates.
    pub fn of_points(table: Arc<Memtable>, lens: Lens, local: Span) -> Self {
        Self::new(Supply::Table { table, lens, rest: Some(local), at_once: FIRST_POINTS }, Vec::new())
    }

    /// True if it says something about keys of which it has no point.
    pub fn has_updates(&self) -> bool {
        !self.updates.is_empty()
    }

    /// What it says about a key of which it has no point.
    pub fn update_at(&self, key: &[u8]) -> Option<Msg> {
        update_at(&self.updates, key).map(UpdateMsg::msg)
    }

    fn new(supply: Supply, updates: Vec<UpdateMsg>) -> Self {
        Self { supply, updates, parts: [None, None], next: Default::default() }
    }

    /// Whether there is a next entry at this end; [`MergeSource::key`] then has its key.
    pub fn peek(&mut self, direction: Direction, io: &mut Io<'_>) -> Result<bool> {
        let near = direction as usize;
        if self.next[near].known {
            return Ok(true);
        }
        if self.part(direction).is_none() && self.peek_page(direction)? {
            return Ok(true);
        }
        if !self.fill(direction, io)? {
            return Ok(false);
        }
        if let Some(part) = &self.parts[near]
            && let Some(i) = part.next(direction)
        {
            part.block.key_into(i, &mut self.next[near].key);
            self.next[near].known = true;
        }
        Ok(self.next[near].known)
    }

    /// The key that [`MergeSource::peek`] has found.
    pub fn key(&self, direction: Direction) -> &[u8] {
        &self.next[direction as usize].key
    }

    /// Takes the memory of that key out, and later back.
    pub fn lend_key(&mut self, direction: Direction) -> Vec<u8> {
        std::mem::take(&mut self.next[direction as usize].key)
    }

    pub fn return_key(&mut self, direction: Direction, key: Vec<u8>) {
        self.next[direction as usize].key = key;
    }

    /// Takes the next entries up to `bound`, as far as they are in memory. Empty only at the end.
    pub fn take_part(
        &mut self,
        direction: Direction,
        bound: Option<&[u8]>,
        io: &mut Io<'_>,
    ) -> Result<Option<EntryRange>> {
        if !self.fill(direction, io)? {
            return Ok(None);
        }
        self.forget_next();
        Ok(self.parts[direction as usize].as_mut().map(|part| part.split_off(direction, bound)))
    }

    /// Takes the next entry.
    pub fn take_one(&mut self, direction: Direction, io: &mut Io<'_>) -> Result<Option<Msg>> {
        if !self.fill(direction, io)? {
            return Ok(None);
        }
        self.forget_next();
        let Some(part) = &mut self.parts[direction as usize] else { return Ok(None) };
        let Some(i) = part.next(direction) else { return Ok(None) };
        part.step(direction);
        Ok(Some(part.block.msg(i)))
    }

    /// An entry that was the next one from both ends is so no longer.
    fn forget_next(&mut self) {
        self.next.iter_mut().for_each(|next| next.known = false);
    }

    fn part(&self, direction: Direction) -> Option<&EntryRange> {
        self.parts[direction as usize].as_ref().filter(|part| !part.left.is_empty())
    }

    /// Makes sure that the next entry is at hand; `false` if there is none.
    fn fill(&mut self, direction: Direction, io: &mut Io<'_>) -> Result<bool> {
        while self.part(direction).is_none() {
            let part = match self.supply.more(direction, io)? {
                Some(part) => part,
                // The ends have met: what the other one has at hand is left.
                None => match self.parts[direction.other() as usize].take() {
                    Some(part) if !part.left.is_empty() => part,
                    _ => return Ok(false),
                },
            };
            self.parts[direction as usize] = Some(part);
        }
        Ok(true)
    }

    /// Finds the next key in the header, if it is that of a page of which nothing was read.
    fn peek_page(&mut self, direction: Direction) -> Result<bool> {
        let Supply::Run { at, lens, local, unread } = &self.supply else { return Ok(false) };
        let Some(run) = at.run() else { return Ok(false) };
        let Some(page) = next_of(unread, direction).and_then(|i| run.pages.get(i)) else { return Ok(false) };
        let suffix = match direction {
            Direction::Forward => &page.first,
            Direction::Backward => &page.last,
        };
        let above = compare_joined(&page.prefix, suffix, &local.lo).is_ge();
        let below = local.hi.as_ref().is_none_or(|hi| compare_joined(&page.prefix, suffix, hi).is_lt());
        if above && below {
            let next = &mut self.next[direction as usize];
            PageLens::through(lens, page)?.key_into(suffix, &mut next.key);
            next.known = true;
        }
        Ok(above && below)
    }
}

fn next_of(range: &Range<usize>, direction: Direction) -> Option<usize> {
    match direction {
        _ if range.is_empty() => None,
        Direction::Forward => Some(range.start),
        Direction::Backward => Some(range.end - 1),
    }
}

impl Supply {
    /// The next entries from an end: a page, or some points. May be empty.
    fn more(&mut self, direction: Direction, io: &mut Io<'_>) -> Result<Option<EntryRange>> {
        match self {
            Supply::Run { at, lens, local, unread } => {
                let Some(run) = at.run() else { return Ok(None) };
                let Some(i) = next_of(unread, direction) else { return Ok(None) };
                let Some(page) = run.pages.get(i) else { return Ok(None) };
                let home = at.home.as_ref();
                let loaded = match direction {
                    Direction::Forward => {
                        if at.layer.is_none() && io.readahead.is_new() {
                            io.pager.follow(home, run, i);
                        }
                        let follow = run.pages.get(i..unread.end).unwrap_or_default();
                        io.readahead.load(home, page, at.layer.is_none(), follow.iter(), io.pager)
                    }
                    Direction::Backward => {
                        io.readahead.load(home, page, at.layer.is_none(), std::iter::once(page), io.pager)
                    }
                };
                let loaded = loaded.inspect_err(|_| {
                    let held = Span { lo: page.first_key(), hi: Some(behind(&page.last_key())) };
                    io.readahead.unread =
                        held.intersect(local).map(|held| Box::new(lens.inverse().apply_span(&held)));
                })?;
                match direction {
                    Direction::Forward => unread.start += 1,
                    Direction::Backward => unread.end -= 1,
                }
                let left = match page.is_inside(local) {
                    true => 0..loaded.len(),
                    false => {
                        let (from, to) = bounds(page, &loaded, local);
                        from..to
                    }
                };
                let block = Block::Page { page: loaded, seen: PageLens::through(lens, page)? };
                Ok(Some(EntryRange { block, left }))
            }
            Supply::Table { table, lens, rest, at_once } => {
                let Some(span) = rest.take() else { return Ok(None) };
                let points = take_points(table, lens, span, direction, *at_once, rest);
                *at_once = (*at_once * 4).min(MAX_POINTS);
                let left = 0..points.len();
                Ok(Some(EntryRange { block: Block::Points(Arc::new(points)), left }))
            }
        }
    }
}

/// The next `at_once` points of `span` from an end, seen through `lens`; what is left goes to `rest`.
fn take_points(
    table: &Memtable,
    lens: &Lens,
    span: Span,
    direction: Direction,
    at_once: usize,
    rest: &mut Option<Span>,
) -> Vec<(Bytes, Msg)> {
    let owned = |(key, msg): (&Bytes, &Msg)| (lens.invert_shared(key), msg.clone());
    match direction {
        Direction::Forward => {
            let mut points = table.points_in(&span);
            let taken = points.by_ref().take(at_once).map(owned).collect();
            let next = points.next().map(|(key, _)| key.clone());
            *rest = next.map(|lo| Span { lo, hi: span.hi.clone() });
            taken
        }
        Direction::Backward => {
            let first = table.point_from_end(&span, at_once - 1).filter(|key| **key > span.lo).cloned();
            let Some(first) = first else { return table.points_in(&span).map(owned).collect() };
            let taken = Span { lo: first.clone(), hi: span.hi.clone() };
            *rest = Some(Span { lo: span.lo, hi: Some(first) });
            table.points_in(&taken).map(owned).collect()
        }
    }
}
