//! Freezes a directory: a read-only clone in a volume of its own, which is a snapshot or the origin of a fork.
//!
//! The volume has a number that no other volume has had, and the directory is its root, and the root of a lineage.
//! The clone is three operations, whatever the size of the tree: a prefix clone of the entries, one of the data, and
//! one of the extended attributes outside the records. Callers have to handle files with several names themselves.

use pando_db::Batch;

use crate::{
    error::{Error, Result},
    path,
    record::Record,
    volume::Fs,
};

impl Fs {
    /// A new number for a volume. I/O only for one number of a few thousand.
    pub(crate) fn fresh_volume(&self) -> Result<u32> {
        let taken = self.snapshot_numbers.take(&self.db)?;
        u32::try_from(taken).map_err(|_| Error::Exhausted("snapshot numbers"))
    }

    /// Adds the clone to a batch: the volume `number` gets the directory with the contents prefix `contents`, as it
    /// is at this place in the batch. `entry` is the path of its entry, and `record` its record there.
    pub(crate) fn freeze(
        &self,
        batch: &mut Batch,
        number: u32,
        (entry, contents): (&[u8], &[u8]),
        record: &Record,
    ) -> Result<()> {
        let mark = path::snapshot(number);
        batch.clone_prefix(path::meta(contents), path::meta(&mark));
        batch.clone_prefix(path::data(contents), path::data(&mark));
        if record.has_outside() {
            let own = path::attrs_under(&path::data(entry));
            batch.clone_prefix(own, path::attrs_under(&path::data(&mark)));
        }
        self.put_frozen_root(batch, number, record)
    }

    /// Adds the record of the root of a volume, made from that of the directory.
    pub(crate) fn put_frozen_root(&self, batch: &mut Batch, number: u32, record: &Record) -> Result<()> {
        let root = Record { clone_id: self.fresh_clone()?, pin: None, ..record.clone() };
        batch.put(path::meta(&path::snapshot(number)), root.encode());
        Ok(())
    }
}
