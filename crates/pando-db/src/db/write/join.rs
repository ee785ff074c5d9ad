//! Batches that may be made one with the one before: data that comes in small parts is logged once.
//!
//! A part of a value that grows (a block of a file that is written in order) would be logged as a change, and the value
//! rewritten in the tree for it. While the batch before waits in the log's buffer, the record of both takes its place:
//! one put of the value as it is by then, which is set aside like any long one. The record stands for consecutive
//! batches, so what a crash leaves is a prefix of the batches, as ever; their number is that of the record.
//!
//! Guarantees: nothing is joined to a batch that is not the newest in the active table and in the log, nor to one
//! that somebody has begun to write. May use: the superversion, in-memory tables, the log. No I/O.

use std::sync::atomic::Ordering;

use crate::{
    db::{
        engine::{
            Engine,
            joint::{Earlier, Joint, join},
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
    /// Logs and applies a batch that may be joined to the one before; as any other, if it cannot.
    pub(super) fn try_join(
        &self,
        superversion: &mut Superversion,
        encoded: &Encoded,
        proof: Option<&Proof<'_>>,
    ) -> Result<Tried> {
        let newest = superversion.active.msn;
        let last = superversion.joint.take().filter(|joint| joint.msn == newest);
        let replaced = last.as_ref().map(|joint| joint.msn).filter(|_| !superversion.active.is_empty());
        let last = last.unwrap_or_default();
        let mut before = Earlier { ops: last.ops, keys: last.earlier };
        // In the place of the record before, if it can be replaced, or as one of its own.
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
            let Some(joined) = join(&before, &encoded.ops, aside, standing, &*self.merge) else { continue };
            let count = before.ops.len();
            let (mut all, newest) = joined.onto(std::mem::take(&mut before.ops));
            let (payload, values) = record::encode_borrowed(&all, aside);
            let (msn, end) = match self.log.append_open(replaced, record::ASIDE, &payload, &values) {
                Ok(Some(appended)) => appended,
                // Of both together the record may also be longer than a small log takes.
                Ok(None) | Err(AppendError::TooLarge { .. }) => {
                    // The keys are those of before, which is what matters to a record of its own.
                    all.truncate(count);
                    before.ops = all;
                    continue;
                }
                Err(AppendError::Full) => return Ok(Tried::NoRoom),
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
            self.counters.joined.fetch_add(replaced.is_some().into(), Ordering::Relaxed);
            match replaced {
                Some(_) => superversion.skip_ranges.joined(ops, msn, used),
                None => superversion.skip_ranges.written(ops, msn, used),
            }
            self.counters.note_deletes(ops);
            superversion.joint = Some(Joint { msn, ops: all, earlier: before.keys });
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
    fn a_batch_that_is_too_long_to_be_joined_gets_a_record_of_its_own() {
        let device = Arc::new(MemDevice::new(16 << 20));
        let create = CreateOptions { node_size: 64 << 10, log_size: Some(64 << 10), ..Default::default() };
        let options = Options { background: false, ..Options::default() };
        Db::create(device.clone(), &create, &options).unwrap();
        let db = Db::open(device, options).unwrap();
        let write = |keys: std::ops::Range<usize>, len: usize| {
            let mut batch = Batch::new();
            batch.joinable();
            keys.for_each(|key| _ = batch.put(format!("{key:0len$}"), "value"));
            db.write(batch).unwrap();
        };
        write(0..2, 1_600);
        write(2..10, 1_900);
        assert_eq!(db.prefix(b"").count(), 10);
        // Others are joined as before.
        write(10..11, 10);
        write(11..12, 10);
        assert!(db.stats().unwrap().batches_joined > 0);
        assert_eq!(db.prefix(b"").count(), 12);
    }
}
