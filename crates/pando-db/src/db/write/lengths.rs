//! No key becomes longer than [`MAX_KEY`]: what a clone or rename to a longer prefix has to show first.
//!
//! Under the superversion's lock only bounds are looked at, which are in memory: of the root, and of the in-memory
//! tables where they speak of the source. That admits nearly every clone. Where it does not, the batch is tried on a
//! view, beside all writers, with a search for a longer key that has a value (`dag/longest.rs`): one refuses the batch,
//! as of that view. If there is none, the batch goes back to the lock with a [`Proof`], which stands as long as no
//! batch since the view may have put a longer key under its sources. Replay never asks.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    batch::Op,
    dag::{
        longest::{Within, below_table, longer_key},
        memtable::{Memtable, range::TableRange},
        read::view::View,
    },
    db::{
        engine::{Engine, superversion::Superversion},
        write::apply::{MAX_OWN_BYTES, apply_plain, clone_of},
    },
    error::{Error, Result},
    key::{Longest, Span},
    limits::MAX_KEY,
};

/// That the clones of a batch made no key too long, had it come right behind batch `msn`.
pub(super) struct Proof {
    msn: u64,
    /// What must not have got longer keys since.
    within: Vec<Within>,
}

/// How the length of the keys that clones make is judged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lengths {
    /// By bounds.
    Bounded,
    /// They were shown to be short enough.
    Proven,
    /// They were let in once.
    Replayed,
}

impl Lengths {
    /// The bound of a clone, given that of the keys under its source; `None` if these may become too long.
    pub fn of_clone(self, source: Longest, src: &Bytes, dst: &Bytes) -> Option<Longest> {
        let copy = source.through(src.len(), dst.len());
        // A shorter copy of what an older version has let become too long is welcome.
        if dst.len() <= src.len() || !copy.exceeds(MAX_KEY) {
            return Some(copy);
        }
        match self {
            Lengths::Bounded => None,
            Lengths::Proven => Some(Longest::of(MAX_KEY)),
            Lengths::Replayed => Some(copy),
        }
    }
}

/// That a key of so many bytes is too long.
pub(super) fn too_long(len: usize) -> Error {
    Error::TooLarge { what: "key", len: len as u64, limit: MAX_KEY as u64 }
}

impl Superversion {
    /// Bound of the keys under `prefix`, over what is below the active table, which `active` stands for. In memory.
    pub(super) fn longest_under(&self, active: &Memtable, prefix: &Bytes) -> Longest {
        let span = Span::prefix(prefix.clone());
        let mut longest = Longest::NONE;
        for table in std::iter::once(active).chain(self.sealed.iter().rev().map(|table| &**table)) {
            let (bound, covers) = table.longest_in(&span);
            longest = longest.max(bound);
            if covers {
                return longest;
            }
        }
        longest.max(self.tree.table.get(self.tree.root).map_or(Longest::UNKNOWN, |root| root.longest))
    }

    /// True if what was proven still is so.
    pub(super) fn upholds(&self, proof: &Proof) -> bool {
        let newer = std::iter::once(&self.active).chain(self.sealed.iter().rev().map(|table| &**table));
        let mut newer = newer.take_while(|table| table.msn > proof.msn);
        newer.all(|table| proof.within.iter().all(|within| !table.may_exceed(&within.span, within.most)))
    }
}

impl Engine {
    /// Shows that no clone of a batch with these operations makes a key too long, as of now; an error if one does.
    /// I/O: see [`crate::dag::longest`].
    pub(super) fn prove_lengths(&self, ops: &[Op]) -> Result<Proof> {
        let view = {
            let mut superversion = self.superversion.write();
            // What comes after this view has a number of its own.
            superversion.joint = None;
            superversion.view()
        };
        let mut own = Memtable::new(view.msn, view.tree.log_end);
        let mut within = Vec::new();
        for op in ops {
            let Some((src, dst)) = clone_of(op) else {
                apply_plain(&mut own, op, self);
                continue;
            };
            let mut bound = Longest::UNKNOWN;
            if let Some(more) = dst.len().checked_sub(src.len()).filter(|more| *more > 0) {
                // Both are keys, so this is no less than the length of the source.
                let most = MAX_KEY.saturating_sub(more);
                let tables = std::iter::once(Arc::new(own.clone())).chain(view.tables.iter().cloned());
                let with_own = View::new(tables.collect(), view.tree.clone(), view.msn, None);
                if let Some(len) = longer_key(&with_own, src, most, &self.pager, &*self.merge)? {
                    return Err(too_long(len + more));
                }
                within.extend(below_table(&own, &Within { span: Span::prefix(src.clone()), most }));
                bound = Longest::of(MAX_KEY);
            }
            self.apply_clone(&mut own, src, dst, bound, MAX_OWN_BYTES)?;
            if let Op::RenamePrefix(..) = op {
                own.put_range(TableRange::deleted(Span::prefix(src.clone())));
            }
        }
        Ok(Proof { msn: view.msn, within })
    }
}
