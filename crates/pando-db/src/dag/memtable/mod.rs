//! The memtable in front of the root.
//!
//! A memtable is made of persistent maps (or a sorted list, see `points`), so that a reader's or cursor's copy costs
//! O(1). It keeps the rules of a layer: its updates are newer than its ranges, its points newer than both and
//! complete. So taking in a range message removes the points that it covers, and cuts ranges and updates; taking in
//! an update changes the points that it covers; and a point that is not final takes in the operations of updates.

use std::ops::Bound;

use bytes::Bytes;
use imbl::OrdMap;

use crate::{
    dag::{
        layer::run::RunBuilder,
        memtable::{
            filter::{Filter, Heads, KeyMark},
            points::Points,
            range::TableRange,
        },
    },
    error::Result,
    key::{Direction, Longest, Span},
    merge::Merge,
    node::{
        HEADER_ITEM_BYTES, Layer, PageRef, RangeMsg, Run, UpdateMsg,
        message::Msg,
        ranged::cut,
        update::{compose, without_deleted},
    },
    store::log::LogPos,
};

pub(crate) mod build;
pub(crate) mod filter;
pub(crate) mod points;
pub(crate) mod range;

/// A table with at least so many points has a filter.
const FILTER_FROM_POINTS: usize = 256;
/// A new filter has a capacity of so many times the points that the table has then. When it is full, a larger one is
/// made.
const FILTER_GROWTH_FACTOR: usize = 4;
/// The capacity of the largest filter, in points. With more points it has more false positives, but to make a larger
/// one takes too long.
const FILTER_MAX_POINTS: usize = 1 << 16;
/// Estimated bytes of memory per entry beyond key and content.
const POINT_BYTES: usize = 96;
/// A table with so many bytes of updates is full, because a node repeats each update for every edge that it covers, in
/// a header that is always read whole.
const MAX_UPDATE_BYTES: usize = 64 << 10;
/// A table with more clones than this is full, so that the edit that places them is bounded.
const MAX_CLONES: usize = 8192;
/// Of at most so many range messages the bounds of key lengths are read one by one; otherwise that of all clones is
/// used.
const MAX_ASKED_RANGES: usize = 64;
/// Of at most so many points the lengths are read one by one.
const MAX_ASKED_POINTS: usize = 1024;
/// A table is full if the batches that it may keep in memory have more bytes than so many times its limit, even if few
/// of these bytes are still needed.
const MAX_KEPT_FACTOR: usize = 4;

/// Messages not yet in the DAG. Cloning is O(1).
#[derive(Clone)]
pub(crate) struct Memtable {
    pub points: Points,
    /// Bounds of the keys of all points that the table has or has had.
    heads: Heads,
    filter: Option<Filter>,
    /// Range messages by their lower bound; they do not overlap.
    pub ranges: OrdMap<Bytes, TableRange>,
    /// How many of the ranges are clones.
    clones: usize,
    /// Updates by their lower bound. They do not overlap, and none lies over a RangeDelete.
    pub updates: OrdMap<Bytes, UpdateMsg>,
    /// Bound of the lengths of keys of all points that may give a key a value, removed ones included.
    longest: Longest,
    /// The same for clones.
    longest_clone: Longest,
    bytes: usize,
    /// How many of these bytes are those of updates.
    update_bytes: usize,
    /// Bytes of the batches whose memory the table may keep, because a key or value of each may still be in use.
    kept: usize,
    /// The newest batch in the table, or, if it is empty, in older ones.
    pub msn: u64,
    /// The oldest batch in the table; above `msn` while it is empty.
    pub first_msn: u64,
    /// The position in the log behind batch `msn`.
    pub log_end: LogPos,
}

impl Memtable {
    /// An empty table for the batches behind batch `msn`, which ends at `log_end`.
    pub fn new(msn: u64, log_end: LogPos) -> Self {
        Self {
            points: Points::new(),
            heads: Heads::NONE,
            filter: None,
            ranges: OrdMap::new(),
            clones: 0,
            updates: OrdMap::new(),
            longest: Longest::NONE,
            longest_clone: Longest::NONE,
            bytes: 0,
            update_bytes: 0,
            kept: 0,
            msn,
            first_msn: msn + 1,
            log_end,
        }
    }

    /// A table of `messages`, which are in order of time. `before` is the batch before them, and `last` the newest of
    /// their batches, each with its end in the log.
    pub fn of_points(
        before: (u64, LogPos),
        messages: Vec<(Bytes, Msg)>,
        last: (u64, LogPos),
        merge: &dyn Merge,
    ) -> Self {
        assert!(last.0 > before.0, "batches are numbered in order");
        let mut table = Self::new(before.0, before.1);
        let filter = (messages.len() >= FILTER_FROM_POINTS)
            .then(|| Filter::with_capacity(messages.len().min(FILTER_MAX_POINTS)));
        for (key, msg) in &messages {
            let mark = KeyMark::of(key);
            table.heads.add(mark);
            filter.iter().for_each(|filter| filter.add(mark));
            if msg.may_make_value() {
                table.longest = table.longest.max(Longest::of(key.len()));
            }
            table.keep(key.len() + msg.len());
        }
        table.filter = filter;
        table.points = Points::of(messages, merge);
        table.bytes = table.points.iter().map(|(key, msg)| entry_bytes(key, msg)).sum();
        (table.msn, table.log_end) = last;
        table
    }

    /// True if no batch was put into the table; one that has changed nothing counts too.
    pub fn is_empty(&self) -> bool {
        self.first_msn > self.msn
    }

    /// Estimated bytes of memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Notes that a batch of so many bytes was put in. Its keys and values may lie in one allocation, which stays until
    /// all of them are replaced.
    pub fn keep(&mut self, batch: usize) {
        self.kept += batch;
    }

    /// True if no more should be put into a table of which `limit` bytes may be in memory.
    pub fn is_full(&self, limit: usize) -> bool {
        self.bytes > limit
            || self.update_bytes > MAX_UPDATE_BYTES
            || self.kept > MAX_KEPT_FACTOR * limit
            || self.clones > MAX_CLONES
    }

    /// The message about `key`.
    pub fn point(&self, key: &[u8], mark: KeyMark) -> Option<&Msg> {
        if !self.heads.may_hold(mark) || self.filter.as_ref().is_some_and(|filter| !filter.may_hold(mark)) {
            return None;
        }
        self.points.get(key)
    }

    fn note(&mut self, key: &[u8]) {
        let mark = KeyMark::of(key);
        self.heads.add(mark);
        let capacity = self.filter.as_ref().map_or(FILTER_FROM_POINTS, Filter::capacity);
        if self.points.len() >= capacity && capacity < FILTER_MAX_POINTS {
            let filter = Filter::with_capacity(FILTER_GROWTH_FACTOR * capacity);
            self.points.keys().for_each(|key| filter.add(KeyMark::of(key)));
            self.filter = Some(filter);
        }
        if let Some(filter) = &self.filter {
            filter.add(mark);
        }
    }

    pub fn put(&mut self, key: Bytes, msg: Msg, merge: &dyn Merge) {
        self.note(&key);
        if msg.may_make_value() {
            self.longest = self.longest.max(Longest::of(key.len()));
        }
        // A final message does not depend on the old one, so one walk of the map replaces it.
        if msg.is_final() {
            self.bytes += entry_bytes(&key, &msg);
            let len = key.len();
            if let Some(old) = self.points.as_map().insert(key, msg) {
                self.bytes -= POINT_BYTES + len + old.len();
            }
            return;
        }
        // The message is changed in place, so that many operations on one key are not copied each time.
        if let Some(slot) = self.points.as_map().get_mut(&key) {
            let old = std::mem::replace(slot, Msg::Delete);
            self.bytes -= old.len();
            *slot = msg.over(old, merge);
            self.bytes += slot.len();
            return;
        }
        let msg = match self.update_at(&key) {
            // There is no value below a RangeDelete, so the value that an upsert makes is known.
            _ if self.range_at(&key).is_some_and(TableRange::is_delete) => msg.resolve(None, merge).into(),
            Some(update) => msg.over(update.msg(), merge),
            None => msg,
        };
        self.bytes += entry_bytes(&key, &msg);
        self.points.as_map().insert(key, msg);
    }

    /// Adds a range message, and removes what it covers. Cost: in proportion to what it covers in this table.
    pub fn put_range(&mut self, range: TableRange) {
        assert!(!range.span.is_empty(), "a message about no keys");
        let covered: Vec<Bytes> = self.points_in(&range.span).map(|(key, _)| key.clone()).collect();
        for key in covered {
            if let Some(msg) = self.points.as_map().remove(&key) {
                self.bytes -= entry_bytes(&key, &msg);
            }
        }
        for old in self.ranges_in(&range.span) {
            self.remove_range(&old);
            for piece in cut(std::slice::from_ref(&old), std::slice::from_ref(&range)) {
                self.insert_range(piece);
            }
        }
        for old in self.updates_in(&range.span) {
            self.remove_update(&old);
            for piece in cut(std::slice::from_ref(&old), std::slice::from_ref(&range)) {
                self.insert_update(piece);
            }
        }
        // The rest of each older message was inserted again, and lies beside the range.
        assert!(self.ranges_in(&range.span).is_empty(), "a range message under a newer one");
        assert!(self.updates_in(&range.span).is_empty(), "an update under a newer range message");
        self.insert_range(range);
    }

    fn insert_range(&mut self, range: TableRange) {
        self.bytes += range_bytes(&range);
        self.clones += usize::from(!range.is_delete());
        self.longest_clone = self.longest_clone.max(range.longest);
        let over = self.ranges.insert(range.span.lo.clone(), range);
        assert!(over.is_none(), "two range messages begin at one key");
    }

    fn remove_range(&mut self, range: &TableRange) {
        let counted = self.bytes >= range_bytes(range) && (range.is_delete() || self.clones > 0);
        assert!(counted, "a range message goes that was not counted");
        self.bytes -= range_bytes(range);
        self.clones -= usize::from(!range.is_delete());
        let removed = self.ranges.remove(&range.span.lo);
        assert!(removed.is_some(), "a range message that is not there is taken out");
    }

    /// The clones of the table, ascending by destination.
    pub fn clones(&self) -> impl Iterator<Item = &TableRange> {
        let ranges = (self.clones > 0).then(|| self.ranges.values());
        ranges.into_iter().flatten().filter(|range| !range.is_delete())
    }

    /// True if the table has a clone.
    pub fn has_clones(&self) -> bool {
        self.clones > 0
    }

    /// Bytes of the messages about `span`. Points are counted only until there are more than `most` bytes.
    pub fn bytes_in(&self, span: &Span, most: usize) -> usize {
        let ranges = self.ranges_in(span).iter().map(range_bytes).sum::<usize>();
        let updates = self.updates_in(span).iter().map(|u| POINT_BYTES + u.bytes()).sum::<usize>();
        let mut bytes = ranges + updates;
        for (key, msg) in self.points_in(span) {
            if bytes > most {
                break;
            }
            bytes += entry_bytes(key, msg);
        }
        bytes
    }

    /// Adds an update. `is_done` says which points include it already. Cost: in proportion to the points and updates
    /// that it covers in this table.
    pub fn put_update(&mut self, update: UpdateMsg, merge: &dyn Merge, is_done: impl Fn(&[u8]) -> bool) {
        let open = self.points_in(&update.span).filter(|(key, msg)| **msg != Msg::Delete && !is_done(key));
        for key in open.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            if let Some(msg) = self.points.as_map().get_mut(&key) {
                let before = std::mem::replace(msg, Msg::Delete);
                self.bytes -= before.len();
                *msg = update.msg().over(before, merge);
                self.bytes += msg.len();
            }
        }
        let deletes = self.deletes_in(&update.span);
        assert!(!update.span.is_empty() && !update.ops.is_empty(), "an update that changes nothing");
        for piece in without_deleted(vec![update], &deletes) {
            let older = self.updates_in(&piece.span);
            older.iter().for_each(|old| self.remove_update(old));
            for update in compose(&older, &[piece], merge) {
                self.insert_update(update);
            }
        }
    }

    fn insert_update(&mut self, update: UpdateMsg) {
        self.bytes += POINT_BYTES + update.bytes();
        self.update_bytes += update.bytes();
        let over = self.updates.insert(update.span.lo.clone(), update);
        assert!(over.is_none(), "two updates begin at one key");
    }

    fn remove_update(&mut self, update: &UpdateMsg) {
        assert!(self.update_bytes >= update.bytes(), "an update goes that was not counted");
        self.bytes -= POINT_BYTES + update.bytes();
        self.update_bytes -= update.bytes();
        let removed = self.updates.remove(&update.span.lo);
        assert!(removed.is_some(), "an update that is not there is taken out");
    }

    /// The update that covers `key`. It applies only if the table has no point of that key.
    pub fn update_at(&self, key: &[u8]) -> Option<&UpdateMsg> {
        if self.updates.is_empty() {
            return None;
        }
        let (_, update) = self.updates.range::<_, [u8]>(up_to(key)).next_back()?;
        update.span.is_above(key).then_some(update)
    }

    /// Updates that overlap `span`, whole, ascending.
    pub fn updates_in(&self, span: &Span) -> Vec<UpdateMsg> {
        if self.updates.is_empty() {
            return Vec::new();
        }
        let before = self.update_at(&span.lo).filter(|u| u.span.lo < span.lo).cloned();
        let from = self.updates.range::<_, [u8]>(from(span)).map(|(_, u)| u);
        before.into_iter().chain(from.take_while(|u| span.is_above(&u.span.lo)).cloned()).collect()
    }

    /// The range message that covers `key`.
    pub fn range_at(&self, key: &[u8]) -> Option<&TableRange> {
        if self.ranges.is_empty() {
            return None;
        }
        let (_, range) = self.ranges.range::<_, [u8]>(up_to(key)).next_back()?;
        range.span.is_above(key).then_some(range)
    }

    /// Bound of its points that may make a value.
    pub fn longest(&self) -> Longest {
        self.longest
    }

    /// Bound of the lengths of keys in `span` that this table gives values, and whether one range message covers
    /// `span`, so that older tables do not matter.
    pub fn longest_in(&self, span: &Span) -> (Longest, bool) {
        if let Some(range) = self.range_at(&span.lo)
            && range.span.covers(span)
        {
            return (self.longest.max(range.longest), true);
        }
        (self.longest.max(self.longest_clone_in(span)), false)
    }

    fn longest_clone_in(&self, span: &Span) -> Longest {
        let mut ranges = self.ranges_meeting(span);
        let some = ranges.by_ref().take(MAX_ASKED_RANGES).map(|range| range.longest).max();
        if ranges.next().is_some() { self.longest_clone } else { some.unwrap_or(Longest::NONE) }
    }

    /// True if this table may give a value to a key in `span` of more than `most` bytes.
    pub fn may_exceed(&self, span: &Span, most: usize) -> bool {
        let longer = |(i, (key, msg)): (usize, (&Bytes, &Msg))| {
            i >= MAX_ASKED_POINTS || key.len() > most && msg.may_make_value()
        };
        self.longest_clone_in(span).exceeds(most)
            || self.longest.exceeds(most) && self.points_in(span).enumerate().any(longer)
    }

    /// Range messages that overlap `span`, whole, ascending.
    pub fn ranges_meeting<'a>(&'a self, span: &'a Span) -> impl Iterator<Item = &'a TableRange> {
        let ranges = (!self.ranges.is_empty()).then(|| {
            let before = self.range_at(&span.lo).filter(|r| r.span.lo < span.lo);
            let from = self.ranges.range::<_, [u8]>(from(span)).map(|(_, r)| r);
            before.into_iter().chain(from.take_while(|r| span.is_above(&r.span.lo)))
        });
        ranges.into_iter().flatten()
    }

    /// The first range message that overlaps `span`, or backwards the last one, whole. Cost: O(log n).
    pub fn outermost_range(&self, span: &Span, direction: Direction) -> Option<&TableRange> {
        match direction {
            Direction::Forward => self.range_at(&span.lo).or_else(|| {
                let (_, first) = self.ranges.range::<_, [u8]>(from(span)).next()?;
                span.is_above(&first.span.lo).then_some(first)
            }),
            Direction::Backward => {
                let below = match &span.hi {
                    Some(hi) => (Bound::Unbounded, Bound::Excluded(&hi[..])),
                    None => (Bound::Unbounded, Bound::Unbounded),
                };
                let (_, last) = self.ranges.range::<_, [u8]>(below).next_back()?;
                last.span.is_above(&span.lo).then_some(last)
            }
        }
    }

    /// All of [`Self::ranges_meeting`], as copies.
    pub fn ranges_in(&self, span: &Span) -> Vec<TableRange> {
        self.ranges_meeting(span).cloned().collect()
    }

    /// The deletes among the range messages that overlap `span`, in the form that nodes have.
    fn deletes_in(&self, span: &Span) -> Vec<RangeMsg> {
        self.ranges_in(span).iter().filter_map(TableRange::delete).collect()
    }

    /// Points in `span`, ascending.
    pub fn points_in<'a>(&'a self, span: &'a Span) -> impl Iterator<Item = (&'a Bytes, &'a Msg)> {
        self.points.range(from(span)).take_while(|(key, _)| span.is_above(key))
    }

    /// True if `span` has more than `n` points.
    pub fn has_points(&self, span: &Span, n: usize) -> bool {
        self.points_in(span).nth(n).is_some()
    }

    /// The `n`th point from the end of `span`, counting from 0.
    pub fn point_from_end(&self, span: &Span, n: usize) -> Option<&Bytes> {
        let hi = span.hi.as_ref().map_or(Bound::Unbounded, |hi| Bound::Excluded(&hi[..]));
        let points = self.points.range((Bound::Included(&span.lo[..]), hi));
        points.rev().nth(n).map(|(key, _)| key)
    }

    /// The table as a layer, without its clones, which have to be placed first. `page_at` may return a page that holds
    /// exactly the next points.
    pub fn to_layer(
        &self,
        page_target: usize,
        page_at: impl Fn(&[(&Bytes, &Msg)]) -> Option<(PageRef, usize)>,
    ) -> Result<Layer> {
        let mut run = RunBuilder::new(page_target);
        let points: Vec<_> = self.points.iter().collect();
        let mut rest = &points[..];
        while let Some(((key, msg), more)) = rest.split_first() {
            rest = match page_at(rest) {
                Some((page, points)) => {
                    run.push_page(page)?;
                    &rest[points..]
                }
                None => {
                    run.push((*key).clone(), (*msg).clone());
                    more
                }
            };
        }
        Ok(self.layer_of(run.finish()))
    }

    /// The same, given the points of the table as a run.
    pub(crate) fn layer_of(&self, run: Run) -> Layer {
        let ranges = self.ranges.values().filter_map(TableRange::delete).collect();
        let updates = self.updates.iter().map(|(_, update)| update.clone()).collect();
        Layer { newest: self.msn, ranges, updates, run }
    }
}

type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

fn from(span: &Span) -> Bounds<'_> {
    (Bound::Included(&span.lo), Bound::Unbounded)
}

fn up_to(key: &[u8]) -> Bounds<'_> {
    (Bound::Unbounded, Bound::Included(key))
}

fn entry_bytes(key: &Bytes, msg: &Msg) -> usize {
    POINT_BYTES + key.len() + msg.len()
}

fn range_bytes(range: &TableRange) -> usize {
    POINT_BYTES + HEADER_ITEM_BYTES + range.span.lo.len() + range.origin.as_ref().map_or(0, Bytes::len)
}
