//! Batches that are coalesced with the one before, so that a value that comes in small parts is logged once.
//!
//! Each part of a value that grows (a block of a file that is written in order) would otherwise be logged as an upsert,
//! and the value would be rewritten in the tree for it. While the record of the batch before waits in the log's buffer,
//! a record of both replaces it: one put of the whole value, which is stored outside the record if it is long. The
//! record stands for consecutive batches, so a crash leaves a prefix of the batches, as always; all have the number of
//! the record.
//!
//! Guarantees: a batch is coalesced only with the newest one in the active memtable and in the log, and only while
//! nobody has begun to write that record. May use: the superversion, memtables, the log. No I/O.

use std::sync::atomic::Ordering;

use crate::{
    db::{
        engine::{
            Engine,
            coalesce::{Earlier, NewestBatch, coalesce},
            superversion::Superversion,
        },
        record::{self, Encoded},
        write::{Putting, Tried, apply::apply_plain, lengths::Proof},
    },
    error::Result,
    node::message::Msg,
    store::log::AppendError,
};

impl Engine {
    /// Logs and applies a batch, coalesced with the one before if that is possible.
    pub(super) fn try_coalesce(
        &self,
        superversion: &mut Superversion,
        encoded: &Encoded,
        proof: Option<&Proof<'_>>,
    ) -> Result<Tried> {
        let newest = superversion.active.msn;
        let last = superversion.newest_batch.take().filter(|last| last.msn == newest);
        let replaced = last.as_ref().map(|last| last.msn).filter(|_| !superversion.active.is_empty());
        let last = last.unwrap_or_default();
        let mut before = Earlier { ops: last.ops, keys: last.earlier };
        // First try to replace the record before, then to append a record of its own.
        for replaced in replaced.map(Some).into_iter().chain([None]) {
            if replaced.is_none() {
                before = before.over();
            }
            let tables =
                std::iter::once(&superversion.active).chain(superversion.sealed.back().map(|table| &**table));
            let standing = |key: &[u8]| match tables.clone().find_map(|table| table.points.get(key)) {
                Some(Msg::Put(value)) => Some(value.clone()),
                _ => None,
            };
            let aside = self.bulk.threshold();
            let Some(coalesced) = coalesce(&before, &encoded.ops, aside, standing, &*self.merge) else {
                continue;
            };
            let count = before.ops.len();
            let (mut all, newest) = coalesced.onto(std::mem::take(&mut before.ops));
            let (payload, values) = record::encode_borrowed(&all, aside);
            let (msn, end) = match self.log.append_open(replaced, record::ASIDE, &payload, &values) {
                Ok(Some(appended)) => appended,
                // The record of both may also be longer than a small log takes.
                Ok(None) | Err(AppendError::TooLarge { .. }) => {
                    // The first `count` operations have the keys of the batches before, which the next try needs.
                    all.truncate(count);
                    before.ops = all;
                    continue;
                }
                Err(AppendError::Full) => return Ok(Tried::LogFull),
                Err(other) => return Err(other.into()),
            };
            let ops = &newest;
            let mut active = match self.views.wanted() {
                true => {
                    // Its record is in the log by now.
                    let putting = Putting(self);
                    let mut active = superversion.active.clone();
                    ops.iter().for_each(|op| apply_plain(&mut active, op, self));
                    std::mem::forget(putting);
                    active
                }
                false => self.put_in_place(superversion, ops),
            };
            active.keep(encoded.payload.len());
            superversion.watched.note(ops, &active);
            let used = || self.counters.skip_range_used.swap(false, Ordering::Relaxed);
            self.counters.coalesced.fetch_add(replaced.is_some().into(), Ordering::Relaxed);
            match replaced {
                Some(_) => superversion.skip_ranges.coalesced(ops, msn, used),
                None => superversion.skip_ranges.written(ops, msn, used),
            }
            self.counters.note_deletes(ops);
            superversion.newest_batch = Some(NewestBatch { msn, ops: all, earlier: before.keys });
            superversion.accept(active, msn, end, self.seal_threshold());
            return Ok(Tried::Applied);
        }
        self.try_apply(superversion, encoded, proof)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use crate::{Batch, CreateOptions, Db, Options, device::MemDevice};

    /// Both would have been a longer record than a small log takes: the second batch was refused, though it is short.
    #[test]
    fn a_batch_that_is_too_long_to_be_coalesced_gets_a_record_of_its_own() {
        let device = Arc::new(MemDevice::new(16 << 20));
        let create = CreateOptions { node_size: 64 << 10, log_size: Some(64 << 10), ..Default::default() };
        let options = Options { background: false, ..Options::default() };
        Db::create(device.clone(), &create, &options).unwrap();
        let db = Db::open(device, options).unwrap();
        let write = |keys: std::ops::Range<usize>, len: usize| {
            let mut batch = Batch::new();
            batch.may_coalesce();
            keys.for_each(|key| _ = batch.put(format!("{key:0len$}"), "value"));
            db.write(batch).unwrap();
        };
        write(0..2, 1_600);
        write(2..10, 1_900);
        assert_eq!(db.prefix(b"").count(), 10);
        // Short batches are still coalesced.
        write(10..11, 10);
        write(11..12, 10);
        assert!(db.stats().unwrap().batches_coalesced > 0);
        assert_eq!(db.prefix(b"").count(), 12);
    }
}
