//! Keys that batches ask something about without a lock: what they expect of them, or how long they are at most.
//!
//! Guarantees: an operation that may change the answer marks the watch, in the step in which it is applied, whatever
//! becomes of the table that it is applied to. Costs two comparisons where nothing is watched. May use: batches, ranges
//! of keys, the active table. No I/O.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use bytes::Bytes;

use crate::{
    batch::{Expected, Op},
    dag::{longest::Within, memtable::Memtable},
    key::Span,
};

/// The watches of batches that are being checked at this moment.
#[derive(Default)]
pub(crate) struct Watched {
    expected: Vec<Arc<Watch>>,
    lengths: Vec<Arc<LengthWatch>>,
}

/// Ranges in which a batch has found no key that is too long for it.
pub(crate) struct LengthWatch {
    within: Vec<Within>,
    /// Whether a longer one may have come. Read and written under the superversion's lock.
    exceeded: AtomicBool,
}

impl LengthWatch {
    /// A watch of these ranges, into which nothing has come yet.
    pub fn new(within: Vec<Within>) -> Self {
        Self { within, exceeded: AtomicBool::new(false) }
    }

    /// Whether a longer key may have come since the watch began. Asked under the superversion's lock.
    pub fn is_exceeded(&self) -> bool {
        self.exceeded.load(Relaxed)
    }

    /// Whether `op`, which has been applied to the `active` table, may be why there is a longer key.
    fn is_exceeded_by(&self, op: &Op, active: &Memtable) -> bool {
        self.within.iter().any(|Within { span, most }| match op {
            Op::Put(key, _) | Op::Upsert(key, _) => key.len() > *most && span.contains(key),
            // What the table says of keys there comes from the clone: it has replaced all else.
            Op::ClonePrefix(_, dst) | Op::RenamePrefix(_, dst) => {
                let copy = Span::prefix(dst.clone()).intersect(span);
                copy.is_some_and(|copy| active.may_exceed(&copy, *most))
            }
            // These change only existing values.
            Op::Delete(_) | Op::DeleteRange(..) | Op::UpsertPrefix(..) => false,
        })
    }
}

/// Keys that a batch expects something of.
pub(crate) struct Watch {
    /// Sorted.
    keys: Vec<Bytes>,
    /// Below which there is to be no key.
    prefixes: Vec<Bytes>,
    /// Whether one of them was changed. Read and written under the superversion's lock.
    changed: AtomicBool,
}

impl Watch {
    /// A watch of all keys in `expected`, which nothing has changed yet.
    pub fn new(expected: &Expected) -> Self {
        let mut keys: Vec<Bytes> = expected.values.iter().map(|(key, _)| key.clone()).collect();
        keys.sort_unstable();
        Self { keys, prefixes: expected.empty.clone(), changed: AtomicBool::new(false) }
    }

    /// Whether a watched key was changed since the watch began. Asked under the superversion's lock.
    pub fn is_changed(&self) -> bool {
        self.changed.load(Relaxed)
    }

    /// Whether `op` may change the value of a watched key.
    fn is_changed_by(&self, op: &Op) -> bool {
        let any_in = |span: &Span| self.keys.iter().any(|key| span.contains(key));
        let meet =
            |watched: &Bytes, prefix: &Bytes| watched.starts_with(prefix) || prefix.starts_with(watched);
        let any_under = |prefix: &Bytes| {
            self.keys.iter().any(|key| key.starts_with(prefix))
                || self.prefixes.iter().any(|watched| meet(watched, prefix))
        };
        let any_around = |key: &Bytes| self.prefixes.iter().any(|watched| key.starts_with(watched));
        match op {
            // Deletes only make emptier what is to be empty.
            Op::Put(key, _) | Op::Upsert(key, _) if any_around(key) => true,
            Op::Put(key, _) | Op::Delete(key) | Op::Upsert(key, _) => self.keys.binary_search(key).is_ok(),
            Op::UpsertPrefix(prefix, _) | Op::ClonePrefix(_, prefix) => any_under(prefix),
            Op::RenamePrefix(src, dst) => any_under(src) || any_under(dst),
            Op::DeleteRange(lo, hi) => any_in(&Span::new(lo.clone(), hi.clone())),
        }
    }
}

impl Watched {
    /// Takes in a batch, as it is applied; the `active` table has it.
    pub fn note(&mut self, ops: &[Op], active: &Memtable) {
        for watch in &self.expected {
            if !watch.changed.load(Relaxed) && ops.iter().any(|op| watch.is_changed_by(op)) {
                watch.changed.store(true, Relaxed);
            }
        }
        for watch in &self.lengths {
            if !watch.is_exceeded() && ops.iter().any(|op| watch.is_exceeded_by(op, active)) {
                watch.exceeded.store(true, Relaxed);
            }
        }
    }

    /// Begins a watch of lengths: the caller takes a view under the same lock.
    pub fn begin_lengths(&mut self, watch: &Arc<LengthWatch>) {
        self.lengths.push(watch.clone());
    }

    /// Ends a watch of lengths.
    pub fn end_lengths(&mut self, watch: &Arc<LengthWatch>) {
        self.lengths.retain(|other| !Arc::ptr_eq(other, watch));
    }

    /// Begins a watch, or begins it anew: the caller takes a view under the same lock.
    pub fn begin(&mut self, watch: &Arc<Watch>) {
        watch.changed.store(false, Relaxed);
        if !self.expected.iter().any(|other| Arc::ptr_eq(other, watch)) {
            self.expected.push(watch.clone());
        }
    }

    /// Ends a watch.
    pub fn end(&mut self, watch: &Arc<Watch>) {
        self.expected.retain(|other| !Arc::ptr_eq(other, watch));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_notes_what_changes_its_keys_and_nothing_else() {
        let values = vec![("b/2".into(), None), ("b/1".into(), Some("x".into()))];
        let watch = Watch::new(&Expected { values, empty: vec!["m/n".into()] });
        let key = || Bytes::from_static(b"b/1");
        let changes = [
            Op::Put(key(), "v".into()),
            Op::Delete(key()),
            Op::Upsert(key(), "op".into()),
            Op::UpsertPrefix("b/".into(), "op".into()),
            Op::DeleteRange("b/2".into(), None),
            Op::DeleteRange("a".into(), Some("b/10".into())),
            Op::ClonePrefix("z".into(), "b".into()),
            Op::RenamePrefix("b".into(), "z".into()),
            Op::RenamePrefix("z".into(), Bytes::new()),
            Op::Put("m/n".into(), "v".into()),
            Op::Upsert("m/no".into(), "op".into()),
            Op::ClonePrefix("z".into(), "m".into()),
            Op::ClonePrefix("z".into(), "m/n/o".into()),
            Op::RenamePrefix("z".into(), "m/nn".into()),
        ];
        for op in changes {
            assert!(watch.is_changed_by(&op), "{op:?}");
        }
        let others = [
            Op::Put("b/".into(), "v".into()),
            Op::Delete("b/11".into()),
            Op::UpsertPrefix("b/11".into(), "op".into()),
            Op::DeleteRange("a".into(), Some("b/1".into())),
            Op::DeleteRange("b/20".into(), None),
            Op::ClonePrefix("b".into(), "z".into()),
            Op::RenamePrefix("a".into(), "c".into()),
            Op::Put("m/".into(), "v".into()),
            Op::Delete("m/no".into()),
            Op::DeleteRange("m".into(), None),
            Op::ClonePrefix("m/n".into(), "z".into()),
        ];
        for op in others {
            assert!(!watch.is_changed_by(&op), "{op:?}");
        }
    }
}
