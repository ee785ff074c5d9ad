//! Gaps: ranges of keys in which nothing is to be seen, found by who looked for something there.
//!
//! A delete is a message, and until that has sunk to its leaf, a scan meets the message and what it deletes. Who
//! takes things out of a queue looks for the first key there is, and would pass all that were before it, every
//! time. So a cursor that has passed many before it came to its first pair tells of it, and the next one
//! begins behind them.
//!
//! Guarantees: the gaps of a front are empty in that version, and so are those of its views. A batch that puts
//! something into one takes it out, as the batch is applied. What a reader has found empty is believed if no batch since
//! its view has put something there: the last ones are remembered. Costs nothing where nobody has met many deletes for a
//! while; else a search among [`MOST`] ranges for each operation. Nothing of it is stored. May use: spans, batches. No I/O.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;

use super::engine::Engine;
use crate::{
    batch::Op,
    key::{Span, Spans, behind},
};

/// Deleted keys that a cursor passes silently.
pub(super) const MANY: u64 = 64;
/// Gaps that are kept. Beyond that, the one with the highest keys goes: queues are emptied from the low end.
const MOST: usize = 64;
/// Batches that are remembered. A reader's view is rarely older.
const RECENT: usize = 64;
/// Batches after the last discovery at which all is forgotten, as if nobody wanted it any more. Finding it again
/// costs what they have deleted, once.
const PATIENCE: u32 = 10_000;

#[derive(Default)]
pub(crate) struct Gaps {
    known: Option<Arc<Spans>>,
    /// The last batches that put something, and between which keys.
    recent: VecDeque<(u64, Span)>,
    /// Of what came up to this batch nothing is remembered.
    since: u64,
    /// Batches before all is forgotten; 0: it is.
    patience: u32,
}

impl Gaps {
    /// The gaps of this version, for a view of it.
    pub fn known(&self) -> Option<Arc<Spans>> {
        self.known.clone()
    }

    /// Takes in that nothing was to be seen in `span` in the version after batch `seen`; the newest batch is
    /// `now`. Whether more is known than before.
    fn found(&mut self, seen: u64, now: u64, span: Span) -> bool {
        if self.patience == 0 {
            (self.since, self.known) = (now, None);
            self.recent.clear();
        }
        self.patience = PATIENCE;
        let put_since = |(msn, put): &(u64, Span)| *msn > seen && put.overlaps(&span);
        if seen < self.since || self.recent.iter().any(put_since) {
            return false;
        }
        let known = Arc::make_mut(self.known.get_or_insert_default());
        let before = known.clone();
        known.insert(span);
        keep_few(known);
        *known != before
    }

    /// Takes in batch `msn`, as it is applied. What is kept of it is copied: its keys lie in memory that holds all
    /// of the batch.
    pub fn written(&mut self, ops: &[Op], msn: u64) {
        if self.patience == 0 {
            return;
        }
        self.patience -= 1;
        if self.patience == 0 {
            *self = Gaps::default();
            return;
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
                // Beside a gap lies, as a rule, what was taken out of a queue just now.
                Op::Delete(key) => self.deleted(key),
                // These put nothing where nothing was.
                Op::DeleteRange(..) | Op::UpsertPrefix(..) => (),
            }
        }
        if let Some((least, most)) = keys {
            let keys = Span { lo: Bytes::copy_from_slice(least), hi: Some(behind(most)) };
            put = Some(hull(put, keys));
        }
        if let Some(put) = put {
            self.recent.push_back((msn, put));
            if self.recent.len() > RECENT
                && let Some((forgotten, _)) = self.recent.pop_front()
            {
                self.since = forgotten;
            }
        }
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
            keep_few(known);
        }
    }

    fn deleted(&mut self, key: &Bytes) {
        if let Some(known) = self.known.as_mut().filter(|known| known.is_beside(key)) {
            Arc::make_mut(known).insert(Span::key(key));
        }
    }
}

fn keep_few(known: &mut Spans) {
    while known.len() > MOST {
        known.pop();
    }
}

/// The least range that holds both.
fn hull(some: Option<Span>, more: Span) -> Span {
    let Some(some) = some else { return more };
    let hi = some.hi.zip(more.hi).map(|(a, b)| a.max(b));
    Span { lo: some.lo.min(more.lo), hi }
}

impl Engine {
    /// Notes that in the version after batch `seen` nothing was to be seen in `span`. A hint: where a writer is
    /// at work, nobody waits, and the next one who passes says it again.
    pub fn found_empty(&self, seen: u64, span: Span) {
        let Some(mut front) = self.front.try_write() else { return };
        let now = front.active.msn;
        let more = front.gaps.found(seen, now, span);
        // The next reader shall know.
        let old = more.then(|| self.views.withdraw());
        drop(front);
        drop(old);
    }
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

    /// What is left of `lo..hi` behind the gaps.
    fn left(gaps: &Gaps, lo: &str, hi: &str) -> Option<Span> {
        match &gaps.known {
            Some(known) => known.shorten(&span(lo, hi)),
            None => Some(span(lo, hi)),
        }
    }

    #[test]
    fn what_was_put_since_the_view_is_not_overlooked() {
        let mut gaps = Gaps::default();
        // Nobody watched before the first discovery, so only a view of this very version counts.
        assert!(!gaps.found(9, 10, span("a", "m")));
        gaps.written(&[put("c")], 11);
        gaps.written(&[put("x")], 12);
        assert!(!gaps.found(10, 12, span("a", "m")));
        assert!(gaps.found(10, 12, span("d", "m")));
        assert!(gaps.found(11, 12, span("a", "m")));
        assert_eq!(left(&gaps, "a", "z"), Some(span("m", "z")));
        gaps.written(&[Op::RenamePrefix("q".into(), "b".into())], 13);
        assert_eq!(left(&gaps, "a", "z"), Some(span("b", "z")));
    }

    #[test]
    fn batches_that_were_forgotten_are_not_vouched_for() {
        let mut gaps = Gaps::default();
        assert!(gaps.found(1, 1, span("x", "y")));
        (2..=RECENT as u64 + 2).for_each(|msn| gaps.written(&[put(if msn == 2 { "c" } else { "z" })], msn));
        assert!(!gaps.found(1, 100, span("a", "m")), "batch 2 is forgotten");
        assert!(gaps.found(2, 100, span("a", "m")));
    }

    #[test]
    fn a_gap_follows_who_takes_out_what_is_next() {
        let mut gaps = Gaps::default();
        assert!(gaps.found(1, 1, span("a", "c")));
        gaps.written(&[put("b")], 2);
        assert_eq!(left(&gaps, "a", "z"), Some(span("b", "z")));
        gaps.written(&[delete("b")], 3);
        gaps.written(&[delete("c"), delete("e")], 4);
        assert_eq!(left(&gaps, "a", "z"), Some(span("c\0", "z")));
        gaps.written(&[delete("q"), put("q")], 5);
        for _ in 0..PATIENCE {
            gaps.written(&[put("y")], 6);
        }
        assert_eq!(left(&gaps, "a", "z"), Some(span("a", "z")), "nobody asks any more");
    }

    #[test]
    fn gaps_are_few() {
        let mut gaps = Gaps::default();
        assert!(gaps.found(1, 1, span("a", "z")));
        (0..10 * MOST).for_each(|i| gaps.written(&[put(&format!("k{i:04}"))], 2 + i as u64));
        assert_eq!(gaps.known.as_ref().map(|known| known.len()), Some(MOST));
        assert_eq!(left(&gaps, "a", "z"), Some(span("k0000", "z")));
    }
}
