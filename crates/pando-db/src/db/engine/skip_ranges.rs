//! Tombstone skip ranges: ranges of keys in which cursors have found nothing but deleted keys.
//!
//! A delete is a message. Until it has reached its leaf, a scan meets both the message and the pair that it deletes. A
//! consumer of a queue looks for the first key again and again, and would pass all deleted keys before it every time.
//! So a cursor that has passed many deleted keys before its first pair notes their range, and the next cursor begins
//! behind it.
//!
//! Guarantees: the skip ranges of a superversion are empty in that version, and so are those of its views. A batch
//! that puts something into one takes it out, as the batch is applied. A range that a reader has found empty is
//! accepted if no batch since its view has put something there; for that, the places of the last batches are
//! remembered. Costs nothing if no cursor has met many deletes, or begun behind them, for a while; otherwise two
//! searches among at most [`MAX_SKIP_RANGES`] ranges for each operation, and two copied keys for each batch, under the
//! superversion's lock. Nothing of it is stored. May use: spans, batches. No I/O.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;

use crate::{
    batch::Op,
    key::{Span, Spans, behind},
};

/// Fewer deleted keys than this are passed without a note.
pub(crate) const MIN_PASSED_KEYS: u64 = 64;
/// Skip ranges that are kept, a count. Beyond it all are forgotten; cursors find those that are needed again, and no
/// old one stays for ever.
const MAX_SKIP_RANGES: usize = 1024;
/// Batches that are remembered one by one, a count. For older ones only the range that contains all their keys is
/// known.
const RECENT_BATCHES: usize = 64;
/// Batches without a discovery, and without a cursor that began behind a skip range, after which all is
/// forgotten.
const IDLE_BATCHES: u32 = 10_000;

#[derive(Default)]
pub(crate) struct SkipRanges {
    known: Option<Arc<Spans>>,
    /// The last batches that put something, and between which keys; the first may be several, up to that one.
    recent: VecDeque<(u64, Span)>,
    /// Nothing is remembered of batches up to this one.
    since: u64,
    /// After so many batches all is forgotten; 0 if it is.
    patience: u32,
}

impl SkipRanges {
    /// The skip ranges of this version, for a view of it.
    pub fn known(&self) -> Option<Arc<Spans>> {
        self.known.clone()
    }

    /// Notes that a reader has found no pair in `span`, in the version after batch `seen`; the newest batch is `now`.
    /// Returns whether more is known than before.
    pub fn found(&mut self, seen: u64, now: u64, span: Span) -> bool {
        if self.patience == 0 {
            (self.since, self.known) = (self.since.max(now), None);
            self.recent.clear();
        }
        self.patience = IDLE_BATCHES;
        let put_since = |(msn, put): &(u64, Span)| *msn > seen && put.overlaps(&span);
        if seen < self.since || self.recent.iter().any(put_since) {
            return false;
        }
        let known = Arc::make_mut(self.known.get_or_insert_default());
        if known.covers(&span) {
            return false;
        }
        if known.len() >= MAX_SKIP_RANGES {
            *known = Spans::default();
        }
        known.insert(span);
        true
    }

    /// Notes batch `msn`, when it is applied. Keys are copied, because those of the batch would keep all of its memory.
    /// `used` says whether a cursor has begun behind a skip range since the last call of it.
    pub fn written(&mut self, ops: &[Op], msn: u64, used: impl FnOnce() -> bool) {
        match self.patience {
            0 => return,
            1 if used() => self.patience = IDLE_BATCHES,
            1 => {
                *self = SkipRanges::default();
                return;
            }
            _ => self.patience -= 1,
        }
        let mut put: Option<Span> = None;
        let mut keys: Option<(&Bytes, &Bytes)> = None;
        for op in ops {
            match op {
                Op::Put(key, _) | Op::Upsert(key, _) => {
                    keys = Some(keys.map_or((key, key), |(least, most)| (least.min(key), most.max(key))));
                    self.put(key);
                }
                Op::ClonePrefix(_, dst) | Op::RenamePrefix(_, dst) => {
                    let span = Span::prefix(Bytes::copy_from_slice(dst));
                    self.put_all(&span);
                    put = Some(hull(put, span));
                }
                // A key that was just taken out of a queue mostly lies beside a skip range.
                Op::Delete(key) => self.deleted(key),
                // These never give a value to a key without one.
                Op::DeleteRange(..) | Op::UpsertPrefix(..) => (),
            }
        }
        if let Some((least, most)) = keys {
            let keys = Span { lo: Bytes::copy_from_slice(least), hi: Some(behind(most)) };
            put = Some(hull(put, keys));
        }
        if let Some(put) = put {
            self.recent.push_back((msn, put));
            if self.recent.len() > RECENT_BATCHES
                && let Some((_, oldest)) = self.recent.pop_front()
                && let Some((_, next)) = self.recent.front_mut()
            {
                *next = hull(Some(oldest), next.clone());
            }
        }
    }

    /// Notes operations that were coalesced with batch `msn`: views of that batch may not show them.
    pub fn coalesced(&mut self, ops: &[Op], msn: u64, used: impl FnOnce() -> bool) {
        self.written(ops, msn + 1, used);
        self.since = self.since.max(msn + 1);
    }

    fn put(&mut self, key: &Bytes) {
        if self.known.as_ref().is_some_and(|known| known.contains(key)) {
            self.put_all(&Span::key(key));
        }
    }

    fn put_all(&mut self, span: &Span) {
        if let Some(known) = &mut self.known {
            let known = Arc::make_mut(known);
            known.remove(span);
            if known.len() > MAX_SKIP_RANGES {
                *known = Spans::default();
            }
        }
    }

    fn deleted(&mut self, key: &Bytes) {
        if let Some(known) = self.known.as_mut().filter(|known| known.is_beside(key)) {
            Arc::make_mut(known).insert(Span::key(key));
        }
    }
}

/// The least range that holds both.
fn hull(some: Option<Span>, more: Span) -> Span {
    let Some(some) = some else { return more };
    let hi = some.hi.zip(more.hi).map(|(a, b)| a.max(b));
    Span { lo: some.lo.min(more.lo), hi }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(lo: &str, hi: &str) -> Span {
        Span::new(lo.to_string(), Some(hi.to_string().into()))
    }

    fn put(key: &str) -> Op {
        Op::Put(key.to_string().into(), "v".into())
    }

    fn delete(key: &str) -> Op {
        Op::Delete(key.to_string().into())
    }

    /// What is left of `lo..hi` behind the skip ranges.
    fn left(skip_ranges: &SkipRanges, lo: &str, hi: &str) -> Option<Span> {
        match &skip_ranges.known {
            Some(known) => known.shorten(&span(lo, hi)),
            None => Some(span(lo, hi)),
        }
    }

    #[test]
    fn what_was_put_since_the_view_is_not_overlooked() {
        let mut skip_ranges = SkipRanges::default();
        // No batches were remembered before the first discovery, so only a view of this very version counts.
        assert!(!skip_ranges.found(9, 10, span("a", "m")));
        write(&mut skip_ranges, &[put("c")], 11);
        write(&mut skip_ranges, &[put("x")], 12);
        assert!(!skip_ranges.found(10, 12, span("a", "m")));
        assert!(skip_ranges.found(10, 12, span("d", "m")));
        assert!(skip_ranges.found(11, 12, span("a", "m")));
        assert_eq!(left(&skip_ranges, "a", "z"), Some(span("m", "z")));
        write(&mut skip_ranges, &[Op::RenamePrefix("q".into(), "b".into())], 13);
        assert_eq!(left(&skip_ranges, "a", "z"), Some(span("b", "z")));
    }

    #[test]
    fn what_was_cloned_or_moved_there_since_the_view_is_not_overlooked() {
        let mut skip_ranges = SkipRanges::default();
        assert!(skip_ranges.found(1, 1, span("x", "y")));
        write(&mut skip_ranges, &[Op::ClonePrefix("q".into(), "b".into())], 2);
        write(&mut skip_ranges, &[Op::RenamePrefix("r".into(), "d".into())], 3);
        assert!(!skip_ranges.found(1, 3, span("a", "c")), "a view from before the clone");
        assert!(!skip_ranges.found(2, 3, span("d", "e")), "a view from before the move");
        assert!(skip_ranges.found(2, 3, span("a", "c")));
        assert!(skip_ranges.found(1, 3, span("e", "m")));
    }

    #[test]
    fn what_was_coalesced_with_a_batch_is_not_overlooked_by_views_of_that_batch() {
        let mut skip_ranges = SkipRanges::default();
        // No batches were remembered: a view of batch 7 may be from before both were coalesced, one of batch 8 is not.
        skip_ranges.coalesced(&[put("c")], 7, || false);
        assert!(!skip_ranges.found(7, 7, span("a", "m")));
        assert!(skip_ranges.found(8, 8, span("d", "m")));
        // Batches are remembered.
        skip_ranges.coalesced(&[put("e")], 8, || false);
        assert_eq!(left(&skip_ranges, "a", "z"), Some(span("a", "z")), "it lies in what was known");
        assert!(!skip_ranges.found(8, 8, span("d", "m")));
        assert!(skip_ranges.found(9, 9, span("n", "q")));
    }

    fn write(skip_ranges: &mut SkipRanges, ops: &[Op], msn: u64) {
        skip_ranges.written(ops, msn, || false);
    }

    #[test]
    fn of_batches_long_ago_it_is_known_between_which_keys_they_put() {
        let mut skip_ranges = SkipRanges::default();
        assert!(skip_ranges.found(1, 1, span("x", "y")));
        write(&mut skip_ranges, &[put("c")], 2);
        (3..=3 * RECENT_BATCHES as u64)
            .for_each(|msn| write(&mut skip_ranges, &[put(if msn % 2 == 0 { "e" } else { "f" })], msn));
        assert!(!skip_ranges.found(1, 1000, span("a", "d")), "c was put by batch 2");
        assert!(skip_ranges.found(1, 1000, span("a", "c")));
        assert!(skip_ranges.found(1, 1000, span("g", "m")));
        assert!(
            !skip_ranges.found(2 * RECENT_BATCHES as u64, 1000, span("a", "d")),
            "with what was put by later ones"
        );
        assert!(skip_ranges.found(3 * RECENT_BATCHES as u64, 1000, span("a", "d")));
    }

    #[test]
    fn a_skip_range_grows_with_the_keys_that_a_consumer_deletes() {
        let mut skip_ranges = SkipRanges::default();
        assert!(skip_ranges.found(1, 1, span("a", "c")));
        write(&mut skip_ranges, &[put("b")], 2);
        assert_eq!(left(&skip_ranges, "a", "z"), Some(span("b", "z")));
        write(&mut skip_ranges, &[delete("b")], 3);
        write(&mut skip_ranges, &[delete("c"), delete("e")], 4);
        assert_eq!(left(&skip_ranges, "a", "z"), Some(span("c\0", "z")));
        write(&mut skip_ranges, &[delete("q"), put("q")], 5);
        for _ in 0..2 * IDLE_BATCHES {
            skip_ranges.written(&[put("y")], 6, || true);
        }
        assert_eq!(left(&skip_ranges, "a", "z"), Some(span("c\0", "z")), "cursors begin behind it");
        for _ in 0..IDLE_BATCHES {
            write(&mut skip_ranges, &[put("y")], 6);
        }
        assert_eq!(left(&skip_ranges, "a", "z"), Some(span("a", "z")), "no cursor begins behind it any more");
    }

    #[test]
    fn skip_ranges_are_few_and_never_keep_new_ones_out() {
        let mut skip_ranges = SkipRanges::default();
        assert!(skip_ranges.found(1, 1, span("a", "m")));
        let known = |skip_ranges: &SkipRanges| skip_ranges.known.as_ref().map_or(0, |known| known.len());
        (0..MAX_SKIP_RANGES as u64 - 1)
            .for_each(|i| write(&mut skip_ranges, &[put(&format!("k{i:04}"))], 2 + i));
        assert_eq!(known(&skip_ranges), MAX_SKIP_RANGES);
        assert!(skip_ranges.found(5000, 5000, span("n", "z")));
        assert_eq!((known(&skip_ranges), left(&skip_ranges, "n", "zz")), (1, Some(span("z", "zz"))));
        assert!(skip_ranges.found(5000, 5000, span("a", "m")));
        (0..MAX_SKIP_RANGES as u64)
            .for_each(|i| write(&mut skip_ranges, &[put(&format!("k{i:04}"))], 6000 + i));
        assert!(known(&skip_ranges) < MAX_SKIP_RANGES);
    }
}
