//! The write path: batches into the log and the memtable, clones included.
//!
//! A batch is applied under the superversion's lock, in memory, so it is atomic whatever
//! it holds. Under that lock no operation reads the DAG or waits for it: a clone names keys of
//! the state below the active table ([`crate::dag::memtable::range`]) and copies what
//! that table itself says of its source. Where that is too much, the table is
//! sealed first, and the clone names what is below the next one. Beside that lock two kinds of batches read: one
//! that expects values (`expect`), and one whose clones may make keys too long (`lengths`).
//!
//! A small write takes two locks, neither of them over I/O: the superversion, in which the batch is applied, and
//! inside it the log's buffer, into which its record is copied. It takes a third one where its thread, alone, has
//! read since the last change (the slot of the view that was made for that), where it is the first to ask the flusher
//! for a sealed table, and where so much waits to be flushed that writers are slowed down (the throttle). The write
//! reads all sizes that it compares with limits (of memory, of the log, of the device) without a lock: their owners
//! publish them with each change. A batch that expects values, and a store that is short of something, cost more.

use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::{
    batch::{Batch, Effect, Op},
    dag::memtable::{Memtable, range::TableRange},
    db::{
        engine::{Engine, superversion::Superversion},
        record::{self, Encoded, op_len},
        write::{
            apply::{MAX_OWN_BYTES, apply_plain, clone_of, point_of},
            lengths::{Lengths, Proof, too_long},
        },
    },
    error::{Error, Result},
    key::Span,
    limits::{MAX_KEY, MAX_PREFIX_UPSERT, MAX_VALUE},
    store::log::{AppendError, LogPos},
};

mod apply;
pub(crate) mod expect;
mod lengths;
mod try_coalesce;

/// Bytes of the active table that the clones of a batch copy at most. Where more waits for their sources, the
/// table is sealed before the batch.
const MAX_CLONE_COPY_BYTES: usize = 4 << 10;
/// Times that what was shown of the length of keys beside all writers may be made untrue by them. Each time
/// one of them has put a longer key below a source, so after that the batch is refused as of one of these
/// moments: to show it under the lock would take I/O there.
const MAX_REFUTED: u32 = 32;

/// Bytes of all operations on prefixes in a batch, with [`OP_OVERHEAD_BYTES`] for each. They go into one
/// table, and from there into one node, in which each may stand many times.
const MAX_PREFIX_OPS_BYTES: usize = 16 * MAX_PREFIX_UPSERT;
/// What an operation on a prefix takes besides its bytes.
const OP_OVERHEAD_BYTES: usize = 16;

/// Points in memory that an operation on a prefix may change one by one.
const MAX_CHANGED_POINTS: usize = 1024;

/// Height of the DAG from which on nothing is cloned. Reached only by cloning what holds all former clones
/// some hundred times over: every level doubles what is visible.
const MAX_CLONE_LEVELS: u8 = 200;

impl Engine {
    /// Applies a batch and logs it. Not durable before the log is synced.
    pub fn write(&self, batch: Batch) -> Result<()> {
        check(&batch)?;
        self.write_of_any_length(batch)
    }

    /// Applies puts of a backup, into a store that is none before all of them are part of a checkpoint. What was read
    /// may be put, be it longer than a call takes: upserts make such values, and an older version let clones make such
    /// keys. What is longer than the log takes is not in the log.
    pub fn write_restored(&self, batch: Batch) -> Result<()> {
        let len: usize = batch.ops().iter().map(op_len).sum();
        if record::most_bytes(batch.ops()) <= self.max_batch() {
            return self.write_of_any_length(batch);
        }
        let effect = batch.effect();
        let (ops, _) = batch.into_parts();
        let unlogged = Encoded { len, ..record::encode(Vec::new(), self.bulk.threshold()) };
        loop {
            let admitted = self.admit(&unlogged, effect)?;
            let applied = self.change(|superversion| {
                // The record is empty, but gives the batch its number.
                let (msn, end) = match self.log.append(&[&unlogged.payload]) {
                    Ok(appended) => appended,
                    Err(AppendError::Full) => return Ok(false),
                    Err(other) => return Err(other.into()),
                };
                let mut active = self.put_in_place(superversion, &ops);
                active.keep(len);
                superversion.newest_batch = None;
                superversion.accept(active, msn, end, self.seal_threshold());
                Ok::<bool, Error>(true)
            })?;
            drop(admitted);
            if applied {
                return self.after_write();
            }
        }
    }

    fn write_of_any_length(&self, batch: Batch) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        if batch.ops().is_empty() {
            return self.check_expected(&self.view(), batch.all_expected());
        }
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        let (may_coalesce, effect) = (batch.can_be_coalesced(), batch.effect());
        let (ops, expected) = batch.into_parts();
        let encoded = record::encode(ops, self.bulk.threshold());
        let (len, limit) = (encoded.len, self.max_batch());
        if len > limit {
            return Err(Error::TooLarge { what: "batch", len: len as u64, limit: limit as u64 });
        }
        let mut proof = None;
        let mut refuted = 0;
        loop {
            let admitted = self.admit(&encoded, effect)?;
            let tried = self.when_expected(&expected, |superversion| {
                let tried = match may_coalesce {
                    true => self.try_coalesce(superversion, &encoded, proof.as_ref()),
                    false => self.try_apply(superversion, &encoded, proof.as_ref()),
                };
                if effect == Effect::Releases {
                    // Before its table can be flushed.
                    self.counters.released.fetch_max(self.log.appended_msn(), Ordering::Relaxed);
                }
                tried
            })?;
            drop(admitted);
            match tried {
                Tried::Applied => return self.after_write(),
                // Other batches have filled the log since this one was admitted.
                Tried::LogFull => (),
                Tried::MayBeTooLong if refuted > MAX_REFUTED => return Err(too_long(MAX_KEY + 1)),
                Tried::MayBeTooLong => {
                    refuted += 1;
                    self.counters.length_searches.fetch_add(1, Ordering::Relaxed);
                    proof = Some(self.prove_lengths(&encoded.ops)?);
                }
            }
        }
    }

    /// Most bytes of a batch.
    pub fn max_batch(&self) -> usize {
        /// What a record about one of its values has besides, bytes.
        const MORE_BYTES: usize = 32;
        self.log.max_payload().saturating_sub(MORE_BYTES)
    }

    /// Whether a batch makes a key too long, which is not applied.
    pub fn check_lengths(&self, batch: &Batch) -> Result<()> {
        check(batch)?;
        self.prove_lengths(batch.ops()).map(|_| ())
    }

    /// Applies a batch from the log during recovery, when nobody else writes.
    pub fn replay(&self, batch: &Batch, msn: u64, end: LogPos) -> Result<()> {
        self.counters.note_deletes(batch.ops());
        self.change(|superversion| {
            superversion.seal_for(batch.ops());
            let mut active = match batch.ops().iter().any(|op| clone_of(op).is_some()) {
                // The batch was admitted before, over memtables that may have been sealed at other places.
                true => match self.applied(superversion, batch.ops(), usize::MAX, Lengths::Replayed)? {
                    Some(active) => active,
                    None => unreachable!("what was let in once is not judged by its length"),
                },
                false => self.put_in_place(superversion, batch.ops()),
            };
            active.keep(batch.ops().iter().map(op_len).sum());
            superversion.accept(active, msn, end, self.table_limit());
            Ok(())
        })
    }

    /// A table of plain batches from the log: operations on keys and deletes of ranges, which ask for nothing below.
    /// `before` and `last` are the batch before the first and the last one, and where they end. No lock is taken.
    pub fn table_of(&self, before: (u64, LogPos), ops: Vec<Op>, last: (u64, LogPos)) -> Memtable {
        assert!(last.0 > before.0, "batches are numbered in order");
        self.counters.note_deletes(&ops);
        if ops.iter().all(|op| matches!(op, Op::Put(..) | Op::Delete(..) | Op::Upsert(..))) {
            let messages = ops.into_iter().filter_map(point_of).collect();
            return Memtable::of_points(before, messages, last, &*self.merge);
        }
        let mut table = Memtable::new(before.0, before.1);
        for op in &ops {
            apply_plain(&mut table, op, self);
            table.keep(op_len(op));
        }
        (table.msn, table.log_end) = last;
        table
    }

    /// Logs and applies.
    fn try_apply(
        &self,
        superversion: &mut Superversion,
        encoded: &Encoded,
        proof: Option<&Proof<'_>>,
    ) -> Result<Tried> {
        let Encoded { payload, values, ops, .. } = encoded;
        superversion.seal_for(ops);
        // Plain operations cannot fail, so the log goes first and the table is changed in place, where no
        // reader shares it.
        let clones = ops.iter().any(|op| clone_of(op).is_some());
        let active = match clones || self.views.wanted() {
            true => {
                let lengths = match proof {
                    Some(proof) if proof.stands() => Lengths::Proven,
                    _ => Lengths::Bounded,
                };
                match self.applied(superversion, ops, MAX_OWN_BYTES, lengths)? {
                    None => return Ok(Tried::MayBeTooLong),
                    active => active,
                }
            }
            false => None,
        };
        if clones {
            self.check_height(superversion)?;
        }
        let appended = if values.is_empty() {
            self.log.append(&[payload])
        } else {
            self.log.append_blobs(record::ASIDE, payload, values)
        };
        let (msn, end) = match appended {
            Ok(appended) => appended,
            Err(AppendError::Full) => return Ok(Tried::LogFull),
            Err(other) => return Err(other.into()),
        };
        let mut active = match active {
            Some(active) => active,
            None => self.put_in_place(superversion, ops),
        };
        active.keep(payload.len());
        superversion.newest_batch = None;
        superversion.watched.note(ops, &active);
        superversion.accept(active, msn, end, self.seal_threshold());
        superversion
            .skip_ranges
            .written(ops, msn, || self.counters.skip_range_used.swap(false, Ordering::Relaxed));
        let cloned = ops.iter().filter(|op| clone_of(op).is_some()).count() as u64;
        self.counters.clones.fetch_add(cloned, Ordering::Relaxed);
        self.counters.note_deletes(ops);
        Ok(Tried::Applied)
    }

    /// The active table after plain operations, changed where it is, and taken out of the superversion.
    fn put_in_place(&self, superversion: &mut Superversion, ops: &[Op]) -> Memtable {
        drop(self.views.withdraw());
        let putting = Putting(self);
        ops.iter().for_each(|op| apply_plain(&mut superversion.active, op, self));
        std::mem::forget(putting);
        let empty = Memtable::new(superversion.active.msn, superversion.active.log_end);
        std::mem::replace(&mut superversion.active, empty)
    }

    /// The active table after a batch; `None` if a clone may make a key too long. An error if its clones would
    /// copy more than `own` bytes of the table.
    fn applied(
        &self,
        superversion: &Superversion,
        ops: &[Op],
        own: usize,
        lengths: Lengths,
    ) -> Result<Option<Memtable>> {
        let mut active = superversion.active.clone();
        let mut copied = 0;
        for op in ops {
            match clone_of(op) {
                Some((src, dst)) => {
                    let source = superversion.longest_under(&active, src);
                    let Some(bound) = lengths.of_clone(source, src, dst) else { return Ok(None) };
                    copied += self.apply_clone(&mut active, src, dst, bound, own.saturating_sub(copied))?;
                    if let Op::RenamePrefix(..) = op {
                        active.put_range(TableRange::deleted(Span::prefix(src.clone())));
                    }
                }
                None => apply_plain(&mut active, op, self),
            }
        }
        Ok(Some(active))
    }

    /// Refuses clones where the DAG has become too high for more. Placing the clones of a table makes it one
    /// level higher at most.
    fn check_height(&self, superversion: &Superversion) -> Result<()> {
        let height = superversion.tree.table.get(superversion.tree.root).map_or(0, |entry| entry.height);
        let more = superversion.sealed.iter().filter(|table| table.has_clones()).count();
        if usize::from(height) + more <= usize::from(MAX_CLONE_LEVELS) {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "the store is {height} levels of clones of clones deep; {MAX_CLONE_LEVELS} are possible"
        )))
    }
}

impl Superversion {
    /// Seals the active table where operations would else change or copy much of it under the lock: the
    /// flusher does that on its own.
    fn seal_for(&mut self, ops: &[Op]) {
        let mut copied = 0;
        let much = ops.iter().any(|op| match op {
            Op::UpsertPrefix(prefix, _) => {
                self.active.has_points(&Span::prefix(prefix.clone()), MAX_CHANGED_POINTS)
            }
            op => clone_of(op).is_some_and(|(src, _)| {
                copied += self.active.bytes_in(&Span::prefix(src.clone()), MAX_CLONE_COPY_BYTES);
                copied > MAX_CLONE_COPY_BYTES
            }),
        });
        if much {
            self.seal();
        }
    }

    /// Takes in the active table after batch `msn`.
    fn accept(&mut self, mut active: Memtable, msn: u64, end: LogPos, seal_at: usize) {
        // Numbers in between are records of the log's own. What was coalesced with the newest batch has its number.
        let coalesced = msn == active.msn && self.newest_batch.as_ref().is_some_and(|last| last.msn == msn);
        assert!(msn > active.msn || coalesced, "batches are numbered in order");
        assert!(end.pos > active.log_end.pos || coalesced, "batches stand in the log in another order");
        (active.msn, active.log_end) = (msn, end);
        self.active = active;
        if self.active.is_full(seal_at) {
            self.seal();
        }
    }
}

/// The result of an attempt to apply a batch.
enum Tried {
    Applied,
    /// The log is full.
    LogFull,
    /// The bounds do not show that its clones make no key too long.
    MayBeTooLong,
}

/// Stops the store if what a merge function does to the active table panics: half of the batch may be in
/// memory.
struct Putting<'a>(&'a Engine);

impl Drop for Putting<'_> {
    fn drop(&mut self) {
        self.0.log.stop("write: a merge function panicked; open the store again for what was synced".into());
        self.0.signal.all();
    }
}

fn check(batch: &Batch) -> Result<()> {
    let key = |key: &Bytes| match key.len() {
        0..=MAX_KEY => Ok(()),
        len => Err(too_long(len)),
    };
    let value = |value: &Bytes| match value.len() {
        0..=MAX_VALUE => Ok(()),
        len => Err(Error::TooLarge { what: "value", len: len as u64, limit: MAX_VALUE as u64 }),
    };
    let mut operations = 0;
    let mut operation = |change: &Bytes| {
        operations += change.len() + OP_OVERHEAD_BYTES;
        let too_large =
            |what, len, limit| Err(Error::TooLarge { what, len: len as u64, limit: limit as u64 });
        match change.len() {
            len if len > MAX_PREFIX_UPSERT => too_large("operation on a prefix", len, MAX_PREFIX_UPSERT),
            _ if operations > MAX_PREFIX_OPS_BYTES => {
                too_large("all operations on prefixes", operations, MAX_PREFIX_OPS_BYTES)
            }
            _ => Ok(()),
        }
    };
    for op in batch.ops() {
        match op {
            Op::Put(k, v) | Op::Upsert(k, v) => key(k).and(value(v))?,
            Op::UpsertPrefix(prefix, change) => key(prefix).and(operation(change))?,
            // Deletes always pass: an older version let clones make keys longer than can be written.
            Op::Delete(_) | Op::DeleteRange(..) => (),
            Op::ClonePrefix(src, dst) | Op::RenamePrefix(src, dst) => {
                key(src).and(key(dst))?;
                // A copy may lie inside of what it is a copy of, unless that is everything: it is of the moment before.
                let into_itself = dst.starts_with(src) && dst != src && !src.is_empty();
                let moves = matches!(op, Op::RenamePrefix(..));
                if src.starts_with(dst) || dst.starts_with(src) && (moves || !into_itself) {
                    return Err(Error::Overlap);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::{CreateOptions, Db, Options, device::MemDevice, locks::taken};

    /// The numbers are those in the header of this file.
    #[test]
    fn a_small_write_takes_two_locks() {
        let device = Arc::new(MemDevice::new(64 << 20));
        Db::create(device.clone(), &CreateOptions::default(), &Options::default()).expect("memory");
        let db = Db::open(device, Options::default()).expect("a store");
        let locks_of_a_write = || {
            let before = taken();
            db.put("key", "value").expect("room");
            taken() - before
        };
        locks_of_a_write();
        assert!((0..100).all(|_| locks_of_a_write() == 2));
        for _ in 0..10 {
            db.get(b"key").expect("readable");
            assert_eq!(locks_of_a_write(), 3, "a thread that also reads");
            assert_eq!(locks_of_a_write(), 2);
        }
        // A table waits for the flusher, which can do nothing, and so is asked twice at most.
        let held_up = db.engine().flushing.lock();
        db.engine().seal();
        let more: Vec<u32> = (0..1000).map(|_| locks_of_a_write()).filter(|locks| *locks != 2).collect();
        assert!((1..=2).contains(&more.len()) && more.iter().all(|locks| *locks == 3), "{more:?}");
        drop(held_up);
        db.close().expect("room");
    }
}
