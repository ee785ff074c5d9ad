//! Room for a batch: in memory, in the log and on the device.
//!
//! A batch is admitted only when everything it leads to can be carried through:
//! what is dirty must fit beside what the last checkpoint holds (`budget`). A reserve is
//! kept back from ordinary writes, so that deleting works on a full store. Where there is too little, a writer waits
//! for the threads, or itself makes the checkpoint or collects the garbage that is needed.
//! A writer waits here, and holds no lock meanwhile; but deletes that use the last of a full store hold
//! `last_deletes`, one at a time, over a checkpoint and garbage collection.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use parking_lot::MutexGuard;

use crate::{
    batch::{Effect, Op},
    dag::write::flush::pending,
    db::{
        admission::reader_waits::ReaderWaits,
        budget::{
            memory::{MAX_SEALED_TABLES, MAX_SEALED_TABLES_FOR_CLONES, MAX_SMALL_SEALED_TABLES},
            space::SPLIT_NODES,
        },
        engine::{Engine, gc_state::LastDeletes, signal::Work, throttle::pressure},
        record::Encoded,
    },
    error::{Error, Result},
    node::MAX_HEIGHT,
    store::log,
    waiting,
};

mod reader_waits;

/// Bytes in the log buffer at which a thread is asked to write them out: half of what may be there, within these
/// bounds. Each write-out is a request of some KiB beside those for the values, and wakes the threads that do them.
const LEAST_WRITTEN_OUT_BYTES: usize = 1 << 20;
const MOST_WRITTEN_OUT_BYTES: usize = 2 << 20;
/// Largest pressure (0 to 1) that dirty nodes alone may cause. When they reach their limit, the flusher waits for a
/// checkpoint; then memtables fill and slow writers down by themselves. With a larger value writers waited while all
/// threads were idle.
const MAX_DIRT_PRESSURE: f64 = 0.3;
/// What an operation costs beyond its bytes, as if it were that many bytes more.
const OP_BYTES: usize = 96;
/// Largest batch of deletes, in bytes, that is admitted into the reserve.
const SMALL_BATCH_BYTES: u64 = 16 << 10;
/// Such a batch may write this many bytes more than its deletes have: an unlink also changes the times of its
/// directory, under a key with the same path.
const MOST_BESIDE_DELETES_BYTES: usize = 1 << 10;
/// Times that a small batch of deletes checks whether it is the only one in memory, before it is refused.
const LAST_TRIES: usize = 8;

/// The right to apply a batch. It holds a lock if the batch is one of the last deletes that a full store takes, which
/// are applied one at a time.
pub type Admitted<'a> = Option<MutexGuard<'a, LastDeletes>>;

/// What a batch does to the space of the store, which decides how far into the reserve it may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpaceEffect {
    /// The batch deletes as [`SpaceEffect::Frees`] says, and removes the last reference to data that other batches
    /// have deleted, such as a snapshot ([`Effect::Releases`]).
    Releases,
    /// The batch deletes, and writes little beside that.
    Frees,
    /// The batch deletes and writes little, but moves or clones: that takes space, by what it shares, when it is
    /// flushed, and a caller may repeat it without end. Or it writes little, and makes values smaller
    /// ([`Effect::Shrinks`]).
    MayTake,
    /// The batch moves or clones as [`SpaceEffect::MayTake`] says, but can be repeated only as often as there is
    /// something to delete ([`Effect::MovesOnce`]).
    MovesOnce,
    /// All other batches: they count as ones that take space.
    Takes,
}

impl SpaceEffect {
    fn by(ops: &[Op], effect: Effect) -> SpaceEffect {
        let (mut deleted, mut written, mut moves) = (None, 0, false);
        for op in ops {
            match op {
                Op::Delete(key) => *deleted.get_or_insert(0) += key.len(),
                Op::DeleteRange(lo, hi) => {
                    *deleted.get_or_insert(0) += lo.len() + hi.as_ref().map_or(0, Bytes::len)
                }
                Op::Put(a, b) | Op::Upsert(a, b) | Op::UpsertPrefix(a, b) => written += a.len() + b.len(),
                Op::ClonePrefix(from, to) | Op::RenamePrefix(from, to) => {
                    written += from.len() + to.len();
                    moves = true;
                }
            }
        }
        match deleted {
            Some(deleted) if written <= deleted + MOST_BESIDE_DELETES_BYTES => match moves {
                true if effect == Effect::MovesOnce => SpaceEffect::MovesOnce,
                true => SpaceEffect::MayTake,
                false if effect == Effect::Releases => SpaceEffect::Releases,
                false => SpaceEffect::Frees,
            },
            None if effect == Effect::Shrinks && written <= MOST_BESIDE_DELETES_BYTES => SpaceEffect::MayTake,
            _ => SpaceEffect::Takes,
        }
    }
}

impl Engine {
    /// Bytes that the last deletes may not take, so that a batch of [`SpaceEffect::Releases`] goes through when no
    /// other does. If more nodes are shared than one edit changes, and the last deletes have freed nothing, then one
    /// more delete may copy as many shared nodes as an edit can change, whose old versions stay in use: so the bytes
    /// of a second edit are kept as well. Otherwise there is little to release, and little is kept, because such a
    /// store has to be emptied too.
    fn last_deletes_reserve(&self, last: &LastDeletes) -> u64 {
        let shared = || self.superversion.read().tree.table.shared();
        if last.were_in_vain() && shared() > self.limits.edit_nodes as u64 {
            (2 * self.min_edit_reserve()).min(self.edit_reserve().midpoint(self.reserve()))
        } else {
            self.release_reserve().min(self.edit_reserve())
        }
    }

    /// Bytes that a batch which deletes may not take if it moves or clones as well. A caller may repeat that without
    /// end, and is stopped where a quarter of what deletes may take is gone. Moves that happen `once` go on while both
    /// the edit of this one and that of a delete behind it have space, even if readers hold all that they replace.
    fn reserve_beside_moves(&self, once: bool) -> u64 {
        let repeated = self.edit_reserve().midpoint(self.reserve()).midpoint(self.reserve());
        let two_edits = self.min_edit_reserve() + self.release_reserve();
        if once { two_edits.max(self.edit_reserve()).min(repeated) } else { repeated }
    }

    /// Bytes of messages that wait in the root beyond its limit, because there is no space below, and its height. Each
    /// batch has the root written anew beside its old version. None if the root cannot be read: then batches wait
    /// above it. I/O: its header.
    fn waiting_at_root(&self) -> (u64, u64) {
        let tree = self.superversion.read().tree.clone();
        self.pager.node(&tree.table, tree.root).map_or((0, MAX_HEIGHT.into()), |root| {
            (pending(&root.node).saturating_sub(self.most_pending()) as u64, root.node.height.into())
        })
    }

    /// Bytes that a batch of [`SpaceEffect::Releases`] needs: those of an edit, or of one that changes only the paths
    /// to both ends of what it deletes, if that is less.
    fn least_for_release(&self) -> u64 {
        let (waiting, height) = self.waiting_at_root();
        let nodes = 2 * (height + 1) + SPLIT_NODES;
        (nodes * self.limits.node as u64 + waiting).min(self.min_edit_reserve())
    }

    /// Returns when a batch may be applied, which the caller does before it drops the result. `effect` is what the
    /// batch says of the space that it takes.
    pub fn admit(&self, encoded: &Encoded, effect: Effect) -> Result<Admitted<'_>> {
        let ops = &encoded.ops;
        // A clone or rename with the few records that go with it.
        let clones = |op: &Op| matches!(op, Op::ClonePrefix(..) | Op::RenamePrefix(..));
        let is_clone = encoded.len as u64 <= SMALL_BATCH_BYTES && ops.iter().any(clones);
        self.wait_until(|| self.has_room_in_tables(is_clone), false, |e| e.flush_all())?;
        // A table and an edit may need memory that the cache has used so far.
        self.share_memory();
        let buffered = self.log.buffered();
        // A clone, which has a few bytes, leaves the write-out to the batches that fill the buffer.
        let most = self.max_buffered();
        if buffered > most.min(self.log.max_payload()) && !is_clone {
            self.log.write_out()?;
        } else if buffered > (most / 2).clamp(LEAST_WRITTEN_OUT_BYTES, MOST_WRITTEN_OUT_BYTES)
            && self.options.background
        {
            self.signal.ask(Work::Log);
        }
        let owed = encoded.values.iter().map(|(_, value)| log::reserved(value.len())).sum();
        // 16 bytes more than the payload: the fields before the records of values that are set aside.
        let log_room =
            || self.log.fits(encoded.payload.len() + 16, owed) && self.log.held_bytes() < 2 * self.max_held();
        if !log_room() {
            self.wait_until(log_room, true, |e| e.checkpoint())?;
        } else if self.wants_checkpoint() {
            self.signal.ask(Work::Checkpoint);
        }
        if self.options.background && !is_clone {
            let bytes = encoded.len + OP_BYTES * ops.len();
            self.throttle.delay(bytes, self.pressure(), self.seal_threshold(), || self.help_build());
        }
        self.space_for(SpaceEffect::by(ops, effect), encoded.len as u64)
    }

    /// True if another table may be filled and sealed. A clone adds a message or a few, so it does not wait behind
    /// writers that fill tables with values. Tables that were recovered from the log do not count: they have a share
    /// of the memory of their own, and are flushed first.
    fn has_room_in_tables(&self, for_clone: bool) -> bool {
        let sizes = &self.memtable_sizes;
        let tables = sizes.sealed().saturating_sub(sizes.recovered());
        if tables < MAX_SEALED_TABLES {
            return true;
        }
        let bytes = sizes.sealed_bytes().saturating_sub(sizes.recovered_bytes());
        let most = MAX_SEALED_TABLES * self.seal_threshold();
        match for_clone {
            true => tables < MAX_SEALED_TABLES_FOR_CLONES && bytes < 2 * most,
            false => tables < MAX_SMALL_SEALED_TABLES && bytes < most,
        }
    }

    /// How near the work that waits for the threads is to one of its limits, as [`pressure`] says.
    fn pressure(&self) -> f64 {
        let sizes = &self.memtable_sizes;
        let tables = sizes.bytes().saturating_sub(sizes.recovered_bytes()) as u64;
        let table = self.seal_threshold() as u64;
        let of_log = self.log_size();
        [
            // One table that is being flushed and another that is filling up are no backlog yet.
            pressure(tables, table + table / 2, MAX_SEALED_TABLES as u64 * table),
            // Writers can go on when these are at their limit, as long as tables have room.
            pressure(self.dirty.memory(), self.max_dirty() / 2, self.max_dirty()).min(MAX_DIRT_PRESSURE),
            pressure(self.log.used(), of_log / 2, of_log),
            pressure(self.log.held_bytes(), self.max_held(), 2 * self.max_held()),
        ]
        .into_iter()
        .fold(0.0, f64::max)
    }

    fn space_for(&self, space_effect: SpaceEffect, len: u64) -> Result<Admitted<'_>> {
        // Deletes may use the reserve except `edit_reserve`: the flush and the checkpoint that free their space need
        // that. Batches that move stop earlier, so that deletes still go through.
        let held_back = match space_effect {
            SpaceEffect::Releases | SpaceEffect::Frees if len <= SMALL_BATCH_BYTES => self.edit_reserve(),
            SpaceEffect::MovesOnce if len <= SMALL_BATCH_BYTES => self.reserve_beside_moves(true),
            SpaceEffect::MayTake if len <= SMALL_BATCH_BYTES => self.reserve_beside_moves(false),
            _ => self.reserve(),
        };
        // Earlier renames show what space they take only when they are flushed: flush them before judging this one.
        if matches!(space_effect, SpaceEffect::MayTake | SpaceEffect::MovesOnce) && self.is_short() {
            waiting::announce();
            self.flush_what_is_written()?;
        }
        let enough = || -> Result<bool> {
            let (mut wanted, free) = (self.owed() + held_back + 2 * len, self.space.free_bytes());
            if free >= wanted && free < wanted + self.reserve() && space_effect != SpaceEffect::Releases {
                wanted += self.waiting_at_root().0;
            }
            if free < wanted {
                // The host of a sparse image may have got space since it was full.
                return Ok(self.space.is_refused() && self.space.ensure_backed(wanted)?);
            }
            let better = (wanted + self.working_space()).min(free);
            Ok(self.space.ensure_backed(better)? || self.space.ensure_backed(wanted)?)
        };
        if enough()? {
            return Ok(None);
        }
        if len > SMALL_BATCH_BYTES || !matches!(space_effect, SpaceEffect::Releases | SpaceEffect::Frees) {
            return if self.settle_for(&enough)? { Ok(None) } else { Err(Error::NoSpace) };
        }
        waiting::announce();
        let mut turn = self.last_deletes.lock();
        // With less free space than one edit needs, no batch could be flushed.
        let wanted = |turn: &LastDeletes| match space_effect {
            SpaceEffect::Releases => self.least_for_release() + 2 * len,
            _ => self.last_deletes_reserve(turn) + self.waiting_at_root().0 + 2 * len,
        };
        if turn.until_retry > 0 && space_effect == SpaceEffect::Frees {
            self.checkpoint()?;
            if self.can_take_one_more(wanted(&turn))? {
                turn.until_retry -= 1;
                return Ok(Some(turn));
            }
        }
        if self.settle_for(&enough)? {
            *turn = LastDeletes::default();
            return Ok(None);
        }
        for _ in 0..LAST_TRIES {
            if self.can_take_one_more(wanted(&turn))? {
                match space_effect {
                    SpaceEffect::Releases => *turn = LastDeletes::default(),
                    _ => turn.settled_in_vain(),
                }
                return Ok(Some(turn));
            }
            // Batches of other threads, let in before the store was short, may be in memory.
            self.checkpoint()?;
        }
        Err(Error::NoSpace)
    }

    /// Frees the space of what was deleted, and writes the dirty nodes, which may take less than was reckoned. True
    /// if there is enough space then. If the last attempt has failed and nothing has changed since, this only asks
    /// `enough`.
    fn settle_for(&self, enough: &dyn Fn() -> Result<bool>) -> Result<bool> {
        if self.counters.refused_at.load(Ordering::Relaxed) == self.now_freed() {
            return enough();
        }
        let mut waits = ReaderWaits::new(&self.counters.vain_reader_waits);
        while !self.settle(enough)? {
            if !waits.for_fewer(|| self.versions()) {
                self.counters.refused_at.store(self.now_freed(), Ordering::Relaxed);
                return enough();
            }
        }
        Ok(true)
    }

    /// Versions of the tree that views hold, a count.
    fn versions(&self) -> usize {
        // Readers have finished with the views that they left in the slot, but these still hold versions: drop them.
        drop(self.views.left_by_readers());
        self.superversion.read().tree.versions.count()
    }

    /// Whether a small batch that frees space may go even below `edit_reserve`, because no other batch is in memory and
    /// no node is dirty: such batches can be flushed one after the other. Without this a store could not be emptied
    /// once edits have taken more than was reckoned (messages that reach full leaves split them).
    fn can_take_one_more(&self, wanted: u64) -> Result<bool> {
        Ok(self.owed() == 0 && self.space.free_bytes() >= wanted && self.space.ensure_backed(wanted)?)
    }

    /// A number that changes whenever another attempt to free space may succeed.
    fn now_freed(&self) -> u64 {
        (self.space.free_bytes() << 8) ^ self.owed() ^ self.orphans.lock().len() as u64
    }

    /// Waits until `ready`, and does the work itself if there are no background threads.
    fn wait_until(
        &self,
        ready: impl Fn() -> bool,
        by_checkpoint: bool,
        work: impl Fn(&Engine) -> Result<()>,
    ) -> Result<()> {
        while !ready() {
            self.check_running()?;
            // A writer that needs a checkpoint makes it, or waits for the one that is being made, because only so it
            // learns that there was no space for it.
            if self.options.background && !by_checkpoint {
                // The threads cannot free memory, and a reader may hold the space for ever.
                if self.is_stuck() {
                    return Err(Error::NoSpace);
                }
                self.signal.wait_done();
            } else {
                waiting::announce();
                work(self)?;
            }
        }
        self.check_running()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_batch_writes_is_weighed_against_what_it_deletes() {
        let key = |len: usize| Bytes::from(vec![b'k'; len]);
        let put = |len| Op::Put(key(len), key(500));
        let delete = |len| Op::Delete(key(len));
        let by = |ops: &[Op]| SpaceEffect::by(ops, Effect::Unsaid);
        assert_eq!(by(&[]), SpaceEffect::Takes);
        assert_eq!(by(&[put(1)]), SpaceEffect::Takes);
        assert_eq!(by(&[delete(0)]), SpaceEffect::Frees);
        assert_eq!(by(&[delete(9), Op::DeleteRange(key(9), None)]), SpaceEffect::Frees);
        assert_eq!(by(&[delete(9), put(524)]), SpaceEffect::Frees);
        assert_eq!(by(&[delete(9), put(534)]), SpaceEffect::Takes);
        let releases = |ops: &[Op]| SpaceEffect::by(ops, Effect::Releases);
        assert_eq!(releases(&[delete(9), put(524)]), SpaceEffect::Releases);
        assert_eq!(releases(&[delete(9), put(534)]), SpaceEffect::Takes);
        assert_eq!(releases(&[put(1)]), SpaceEffect::Takes);
        let shrinks = |len| {
            SpaceEffect::by(
                &[Op::Upsert(key(len), key(len)), Op::Upsert(key(len), key(len))],
                Effect::Shrinks,
            )
        };
        assert_eq!([shrinks(100), shrinks(300)], [SpaceEffect::MayTake, SpaceEffect::Takes]);
        let mut moves = vec![Op::RenamePrefix(key(40), key(40)), delete(40)];
        assert_eq!(SpaceEffect::by(&moves, Effect::MovesOnce), SpaceEffect::MovesOnce);
        moves.push(put(534));
        assert_eq!(SpaceEffect::by(&moves, Effect::MovesOnce), SpaceEffect::Takes);
        assert_eq!(SpaceEffect::by(&[delete(40)], Effect::MovesOnce), SpaceEffect::Frees);
        // Both keys are long paths.
        assert_eq!(by(&[delete(4000), put(4000)]), SpaceEffect::Frees);
        assert_eq!(by(&[Op::RenamePrefix(key(4000), key(4000)), delete(4000)]), SpaceEffect::Takes);
        assert_eq!(by(&[Op::RenamePrefix(key(40), key(40)), delete(40)]), SpaceEffect::MayTake);
        assert_eq!(by(&[Op::ClonePrefix(key(40), key(40))]), SpaceEffect::Takes);
    }
}
