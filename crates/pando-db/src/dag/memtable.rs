//! The in-memory table in front of the root.
//!
//! A persistent map, so that a reader's or cursor's copy costs O(1). Its points
//! are newer than its ranges: taking in a range message removes the points it
//! covers and cuts the ranges below it, as turning into a layer expects.

use std::ops::Bound;

use bytes::Bytes;
use imbl::OrdMap;

use crate::{
    error::Result,
    format::{
        message::Msg,
        node::{HEADER_ITEM, Layer, PageRef, RangeMsg},
    },
    key::Span,
    merge::Merge,
    store::log::LogPos,
};

use super::{
    filter::{Filter, KeyHash},
    layer::cut,
    run::Writer,
};

/// Points from which on a table has a filter.
const FILTER_FROM: usize = 256;
/// Estimated bytes of memory per entry beyond key and content.
const ENTRY_BYTES: usize = 96;

/// Messages not yet in the DAG. Cloning is O(1).
#[derive(Clone)]
pub(crate) struct Memtable {
    pub points: OrdMap<Bytes, Msg>,
    filter: Option<Filter>,
    /// Disjoint, by lower bound.
    pub ranges: OrdMap<Bytes, RangeMsg>,
    bytes: usize,
    /// Newest batch in it, or in anything older.
    pub msn: u64,
    /// Oldest batch in it; above `msn` while empty.
    pub first_msn: u64,
    /// Where the log goes on behind its newest batch.
    pub log_end: LogPos,
}

impl Memtable {
    /// An empty table for what follows batch `msn`, which ends at `log_end`.
    pub fn new(msn: u64, log_end: LogPos) -> Self {
        Self {
            points: OrdMap::new(),
            filter: None,
            ranges: OrdMap::new(),
            bytes: 0,
            msn,
            first_msn: msn + 1,
            log_end,
        }
    }

    /// True if no batch is in it. Batches without effect count.
    pub fn is_empty(&self) -> bool {
        self.first_msn > self.msn
    }

    /// Estimated bytes of memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The message about `key`.
    pub fn point(&self, key: &[u8], hash: KeyHash) -> Option<&Msg> {
        if self.filter.as_ref().is_some_and(|filter| !filter.may_hold(hash)) {
            return None;
        }
        self.points.get(key)
    }

    fn note(&mut self, key: &[u8]) {
        match &self.filter {
            Some(filter) => filter.add(KeyHash::of(key)),
            None if self.points.len() >= FILTER_FROM => {
                let filter = Filter::default();
                self.points.keys().for_each(|key| filter.add(KeyHash::of(key)));
                filter.add(KeyHash::of(key));
                self.filter = Some(filter);
            }
            None => (),
        }
    }

    pub fn put(&mut self, key: Bytes, msg: Msg, merge: &dyn Merge) {
        self.note(&key);
        // What does not depend on the old message is put in its place in one walk.
        if msg.is_final() {
            self.bytes += entry_bytes(&key, &msg);
            let len = key.len();
            if let Some(old) = self.points.insert(key, msg) {
                self.bytes -= ENTRY_BYTES + len + old.len();
            }
            return;
        }
        let msg = match self.points.get(&key) {
            Some(old) => {
                self.bytes -= entry_bytes(&key, old);
                msg.over(old.clone(), merge)
            }
            // Nothing lies below a RangeDelete, so an upsert over one is known at once.
            None if self.range_at(&key).is_some_and(|r| r.target.is_none()) => {
                msg.resolve(None, merge).into()
            }
            None => msg,
        };
        self.bytes += entry_bytes(&key, &msg);
        self.points.insert(key, msg);
    }

    pub fn put_range(&mut self, range: RangeMsg) {
        let covered: Vec<Bytes> = self.points_in(&range.span).map(|(key, _)| key.clone()).collect();
        for key in covered {
            if let Some(msg) = self.points.remove(&key) {
                self.bytes -= entry_bytes(&key, &msg);
            }
        }
        for old in self.ranges_in(&range.span) {
            self.ranges.remove(&old.span.lo);
            self.bytes -= range_bytes(&old);
            for piece in cut(std::slice::from_ref(&old), std::slice::from_ref(&range)) {
                self.bytes += range_bytes(&piece);
                self.ranges.insert(piece.span.lo.clone(), piece);
            }
        }
        self.bytes += range_bytes(&range);
        self.ranges.insert(range.span.lo.clone(), range);
    }

    /// The range message that covers `key`.
    pub fn range_at(&self, key: &[u8]) -> Option<&RangeMsg> {
        if self.ranges.is_empty() {
            return None;
        }
        let (_, range) = self.ranges.range::<_, [u8]>(up_to(key)).next_back()?;
        range.span.is_above(key).then_some(range)
    }

    /// Range messages that overlap `span`, whole, ascending.
    pub fn ranges_in(&self, span: &Span) -> Vec<RangeMsg> {
        let before = self.range_at(&span.lo).filter(|r| r.span.lo < span.lo).cloned();
        let from = self.ranges.range::<_, [u8]>(from(span)).map(|(_, r)| r);
        before.into_iter().chain(from.take_while(|r| span.is_above(&r.span.lo)).cloned()).collect()
    }

    /// Points in `span`, ascending.
    pub fn points_in<'a>(&'a self, span: &'a Span) -> impl Iterator<Item = (&'a Bytes, &'a Msg)> {
        self.points.range::<_, [u8]>(from(span)).take_while(|(key, _)| span.is_above(key))
    }

    /// The `n`th point from the end of `span`, counting from 0.
    pub fn point_from_end(&self, span: &Span, n: usize) -> Option<&Bytes> {
        let hi = span.hi.as_ref().map_or(Bound::Unbounded, |hi| Bound::Excluded(&hi[..]));
        let points = self.points.range::<_, [u8]>((Bound::Included(&span.lo[..]), hi));
        points.rev().nth(n).map(|(key, _)| key)
    }

    /// The whole table as a layer. `page_at` may know of a page that holds just the next points.
    pub fn to_layer(
        &self,
        page_target: usize,
        page_at: impl Fn(&[(&Bytes, &Msg)]) -> Option<(PageRef, usize)>,
    ) -> Result<Layer> {
        let mut run = Writer::new(page_target);
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
        let ranges = self.ranges.iter().map(|(_, range)| range.clone()).collect();
        Ok(Layer { newest: self.msn, ranges, run: run.finish() })
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
    ENTRY_BYTES + key.len() + msg.len()
}

fn range_bytes(range: &RangeMsg) -> usize {
    ENTRY_BYTES + HEADER_ITEM + range.span.lo.len()
}
