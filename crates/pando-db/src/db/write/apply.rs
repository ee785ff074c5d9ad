//! Applies one operation to a memtable.
//!
//! Guarantees: in memory, no I/O; a clone copies what the table itself says of its source, and names what is below the
//! table. May use: the merge function, memtables. The caller holds the table, and the
//! superversion's lock where it is the active one.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{
    batch::Op,
    dag::memtable::{Memtable, range::TableRange},
    db::engine::Engine,
    error::{Error, Result},
    key::{Lens, Longest, Span},
    node::{UpdateMsg, message::Msg, ranged::Ranged},
};

/// Bytes that the clones of a batch may copy of what the batch itself has written before.
pub(super) const MAX_OWN_BYTES: usize = 64 << 20;
/// Source and destination of a clone or rename.
pub(super) fn clone_of(op: &Op) -> Option<(&Bytes, &Bytes)> {
    match op {
        Op::ClonePrefix(src, dst) | Op::RenamePrefix(src, dst) => Some((src, dst)),
        _ => None,
    }
}

/// What an operation on a single key says of it; `None` for others.
pub(super) fn point_of(op: Op) -> Option<(Bytes, Msg)> {
    match op {
        Op::Put(key, value) => Some((key, Msg::Put(value))),
        Op::Delete(key) => Some((key, Msg::Delete)),
        Op::Upsert(key, change) => Some((key, Msg::upsert(change))),
        _ => None,
    }
}

pub(super) fn apply_plain(active: &mut Memtable, op: &Op, engine: &Engine) {
    let merge = &*engine.merge;
    match op {
        Op::Put(key, value) => active.put(key.clone(), Msg::Put(value.clone()), merge),
        Op::Delete(key) => active.put(key.clone(), Msg::Delete, merge),
        Op::Upsert(key, change) => active.put(key.clone(), Msg::upsert(change.clone()), merge),
        Op::DeleteRange(lo, hi) => {
            let span = Span::new(lo.clone(), hi.clone());
            if !span.is_empty() {
                active.put_range(TableRange::deleted(span));
            }
        }
        Op::UpsertPrefix(prefix, change) => {
            let update =
                UpdateMsg { span: Span::prefix(prefix.clone()), ops: SmallVec::from_iter([change.clone()]) };
            active.put_update(update, merge, |_| false);
        }
        Op::ClonePrefix(..) | Op::RenamePrefix(..) => unreachable!("clones have an application of their own"),
    }
}

impl Engine {
    /// The clone of `src` as a deferred one, and over it what the table says of `src`, re-keyed.
    /// No key of it is longer than `bound` says. Gives the bytes that were copied; an error if these are more than
    /// `most`.
    pub(super) fn apply_clone(
        &self,
        active: &mut Memtable,
        src: &Bytes,
        dst: &Bytes,
        bound: Longest,
        most: usize,
    ) -> Result<usize> {
        let wanted = Span::prefix(src.clone());
        let bytes = active.bytes_in(&wanted, most);
        if bytes > most {
            let what = "copy of what a batch clones of its own changes";
            return Err(Error::TooLarge { what, len: bytes as u64, limit: most as u64 });
        }
        let mut ranges = active.ranges_in(&wanted);
        // A clone of this very table may be where the source begins.
        let covering = ranges.iter().find(|r| r.span.covers(&wanted)).cloned();
        let origin = match covering {
            Some(range) => {
                ranges.clear();
                range.origin.map(|origin| Lens::of_edge(&range.span, &origin).apply_shared(src))
            }
            None => Some(src.clone()),
        };
        let lens = Lens::new(src.clone(), dst.clone());
        let ranges: Vec<_> =
            ranges.iter().filter_map(|r| r.clipped(&wanted)).map(|r| r.through(&lens)).collect();
        let updates = active.updates_in(&wanted);
        let updates: Vec<_> =
            updates.iter().filter_map(|u| u.clipped(&wanted)).map(|u| u.through(&lens)).collect();
        let points: Vec<_> =
            active.points_in(&wanted).map(|(key, msg)| (lens.apply_shared(key), msg.clone())).collect();
        let looked_at = 1 + ranges.len() + updates.len() + points.len();
        self.counters.handled.fetch_add(looked_at as u64, Ordering::Relaxed);

        let longest = if origin.is_some() { bound } else { Longest::NONE };
        active.put_range(TableRange { span: Span::prefix(dst.clone()), origin, longest });
        ranges.into_iter().for_each(|range| active.put_range(range));
        // A point is newer than what is there by now, and includes what the updates that come with it
        // say of its key: so these come last, and pass it by.
        for (key, msg) in &points {
            active.put(key.clone(), msg.clone(), &*self.merge);
        }
        let is_own = |key: &[u8]| points.binary_search_by(|(own, _)| own[..].cmp(key)).is_ok();
        for update in updates {
            active.put_update(update, &*self.merge, is_own);
        }
        Ok(bytes)
    }
}
