//! Counters: each number is given out only once, also after crashes.
//!
//! A counter reserves numbers in blocks, with one write to the engine for each block. A crash skips the rest of a
//! block. No number is given out twice, because the reservation is in the log before any record that uses a number of
//! it.

use bytes::Bytes;
use pando_db::{Batch, Db, waiting};
use parking_lot::Mutex;

use crate::{
    error::{Error, Result},
    path::system,
};

/// Counter of file numbers.
pub(crate) const FILE_NUMBERS: u8 = b'f';
/// Counter of clone ids.
pub(crate) const CLONE_IDS: u8 = b'c';
/// Counter of snapshots.
pub(crate) const SNAPSHOT_NUMBERS: u8 = b's';
/// Counter of families of snapshots.
pub(crate) const FAMILY_NUMBERS: u8 = b'a';
/// Counter of lineages (kept by the lineage table itself).
pub(crate) const LINEAGE: u8 = b'l';
/// The end of the range of lineages that were given out; no counter.
pub(crate) const LINEAGE_END: u8 = b'e';
/// Lineages below this one were given out by a version that recorded no taints; no counter.
pub(crate) const UNTRACKED: u8 = b'u';

/// A stored number.
pub(crate) fn encode(n: u64) -> Vec<u8> {
    n.to_le_bytes().to_vec()
}

/// Adds a small value that can be stored on a full device, too: the batch also deletes, so the store admits it into
/// the reserve for deletes.
pub(crate) fn put_on_full(batch: &mut Batch, key: Bytes, value: Vec<u8>) {
    batch.delete(key.clone()).put(key, value);
}

/// The number in a stored value.
pub(crate) fn decode(what: &'static str, value: Option<Bytes>) -> Result<Option<u64>> {
    let Some(value) = value else { return Ok(None) };
    match <[u8; 8]>::try_from(&value[..]) {
        Ok(bytes) => Ok(Some(u64::from_le_bytes(bytes))),
        Err(_) => Err(Error::Damaged { what: what.into(), detail: "a number of a wrong length" }),
    }
}

/// The value of a record that the file system has for itself. If it cannot be read, this is an error that names
/// `what` and how to repair it; on a read-only mount the value is `lost` instead.
pub(crate) fn own_record(
    db: &Db,
    what: &'static str,
    key: &[u8],
    lost: Option<Option<Bytes>>,
) -> Result<Option<Bytes>> {
    match db.get(key) {
        Err(source) if source.is_damage() => lost.ok_or(Error::Unreadable { what, source }),
        found => Ok(found?),
    }
}

/// One counter.
#[derive(Debug)]
pub(crate) struct Counter {
    what: &'static str,
    key: Bytes,
    block: u64,
    limit: u64,
    /// Numbers that are reserved and unused.
    reserved: Mutex<std::ops::Range<u64>>,
}

impl Counter {
    /// The counter `which`, with numbers from 1 (or the stored one) to below `limit`. If it cannot be read, that is
    /// no error on a `read_only` mount, which takes no numbers.
    pub(crate) fn open(
        db: &Db,
        what: &'static str,
        which: u8,
        block: u64,
        limit: u64,
        read_only: bool,
    ) -> Result<Self> {
        let key = system::counter(which);
        let next = decode(what, own_record(db, what, &key, read_only.then_some(None))?)?.unwrap_or(1).max(1);
        Ok(Self { what, key, block, limit, reserved: Mutex::new(next..next) })
    }

    /// A number never given out before.
    pub(crate) fn take(&self, db: &Db) -> Result<u64> {
        let mut reserved = waiting::take(|| self.reserved.try_lock(), || self.reserved.lock());
        if reserved.is_empty() {
            let end = reserved.end.saturating_add(self.block).min(self.limit);
            if end <= reserved.end {
                return Err(Error::Exhausted(self.what));
            }
            // Removing files takes numbers, too, and must succeed on a full store.
            let mut batch = Batch::new();
            put_on_full(&mut batch, self.key.clone(), encode(end));
            db.write(batch)?;
            *reserved = reserved.end..end;
        }
        reserved.next().ok_or(Error::Exhausted(self.what))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use pando_db::{CreateOptions, Options, device::MemDevice};

    use super::*;

    #[test]
    fn numbers_are_never_given_twice_and_end() {
        let device = Arc::new(MemDevice::new(64 << 20));
        Db::create(device.clone(), &CreateOptions::default(), &Options::default()).unwrap();
        let db = Db::open(device, Options::default()).unwrap();
        let first = Counter::open(&db, "numbers", b't', 4, 10, false).unwrap();
        assert_eq!((0..5).map(|_| first.take(&db).unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        let second = Counter::open(&db, "numbers", b't', 4, 10, false).unwrap();
        assert_eq!(second.take(&db).unwrap(), 9, "the rest of a block is skipped");
        assert_eq!(second.take(&db).unwrap_err().errno(), 75);
    }
}
