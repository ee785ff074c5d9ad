//! The proof that a clone or rename to a longer prefix makes no key longer than [`MAX_KEY`].
//!
//! Under the superversion's lock only bounds are looked at, which are in memory: of the root, and of the memtables
//! that have messages for the source. That admits nearly every clone. Where it does not, the batch is tried on a
//! view, beside all writers, with a search for a longer key that has a value (`dag/longest.rs`): one refuses the
//! batch, as of that view. If there is none, the batch goes back to the lock with a [`Proof`], which stands as long
//! as no batch since the view may have put a longer key under its sources. Each batch says so when it is applied,
//! since the table that it went into may be flushed by the time that the proof is asked for. Replay never asks.

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
        engine::{Engine, superversion::Superversion, watch::LengthWatch},
        write::apply::{MAX_OWN_BYTES, apply_plain, clone_of},
    },
    error::{Error, Result},
    key::{Longest, Span},
    limits::MAX_KEY,
    store::log::LogPos,
};

/// The proof that the clones of a batch made no key too long as of a view, with a watch of their sources since.
pub(super) struct Proof<'a> {
    engine: &'a Engine,
    watch: Arc<LengthWatch>,
}

impl Proof<'_> {
    /// True if what was proven still is so. Asked under the superversion's lock.
    pub fn stands(&self) -> bool {
        !self.watch.is_exceeded()
    }
}

impl Drop for Proof<'_> {
    fn drop(&mut self) {
        self.engine.superversion.write().watched.end_lengths(&self.watch);
    }
}

/// A clone of a batch that is to be shown to make no key too long.
struct Lengthened {
    /// What the batch says before it.
    own: Arc<Memtable>,
    src: Bytes,
    /// By how much the destination is longer than the source.
    more: usize,
    /// Most bytes that a key under the source may have.
    most: usize,
}

/// How the length of the keys that clones make is judged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lengths {
    /// By bounds.
    Bounded,
    /// A search has shown that all keys are short enough.
    Proven,
    /// The batch was admitted before, and is being replayed.
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

/// The error for a key of `len` bytes, which is too long.
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
}

impl Engine {
    /// Shows that no clone of a batch with these operations makes a key too long, as of now; an error if one does.
    /// I/O: see [`crate::dag::longest`].
    pub(super) fn prove_lengths(&self, ops: &[Op]) -> Result<Proof<'_>> {
        let (clones, within) = self.lengthened(ops)?;
        let watch = Arc::new(LengthWatch::new(within));
        let view = {
            let mut superversion = self.superversion.write();
            superversion.watched.begin_lengths(&watch);
            superversion.view()
        };
        let proof = Proof { engine: self, watch };
        for Lengthened { own, src, more, most } in clones {
            let tables = std::iter::once(own).chain(view.tables.iter().cloned());
            let with_own = View::new(tables.collect(), view.tree.clone(), view.msn, None);
            if let Some(len) = longer_key(&with_own, &src, most, &self.pager, &*self.merge)? {
                return Err(too_long(len + more));
            }
        }
        Ok(proof)
    }

    /// The clones among these operations to a longer prefix, and what must have no longer keys in any state in which
    /// they are to be applied. In memory, and without a lock.
    fn lengthened(&self, ops: &[Op]) -> Result<(Vec<Lengthened>, Vec<Within>)> {
        let mut own = Memtable::new(0, LogPos::default());
        let (mut clones, mut within) = (Vec::new(), Vec::new());
        for op in ops {
            let Some((src, dst)) = clone_of(op) else {
                apply_plain(&mut own, op, self);
                continue;
            };
            let mut bound = Longest::UNKNOWN;
            if let Some(more) = dst.len().checked_sub(src.len()).filter(|more| *more > 0) {
                // Both are keys, so this is no less than the length of the source.
                let most = MAX_KEY.saturating_sub(more);
                within.extend(below_table(&own, &Within { span: Span::prefix(src.clone()), most }));
                clones.push(Lengthened { own: Arc::new(own.clone()), src: src.clone(), more, most });
                bound = Longest::of(MAX_KEY);
            }
            self.apply_clone(&mut own, src, dst, bound, MAX_OWN_BYTES)?;
            if let Op::RenamePrefix(..) = op {
                own.put_range(TableRange::deleted(Span::prefix(src.clone())));
            }
        }
        Ok((clones, within))
    }
}
